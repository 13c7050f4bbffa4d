//! Translation of a path in another mount namespace to ours. Pure.

use flexvol_linux::mount::mount_table::Entry;
use flexvol_protocol::ordered::sort;
use std::path::{Path, PathBuf};

/// Returns the paths at which `ours` shows the directory that is `below` the mount `theirs`, the
/// shortest first.
///
/// Another mount can cover such a path: the caller must compare the two directories.
pub(super) fn candidates(theirs: &Entry, below: &Path, ours: &[Entry]) -> Vec<PathBuf> {
    let on_device = theirs.root.join(below);
    let same = ours.iter().filter(|entry| entry.device == theirs.device);
    let mut found: Vec<_> = same
        .filter_map(|entry| Some(joined(&entry.target, on_device.strip_prefix(&entry.root).ok()?)))
        .collect();
    sort(&mut found, |path| path.components().count());
    found.dedup();
    found
}

/// Joins two paths, without the slash that joining an empty path leaves.
pub(super) fn joined(directory: &Path, below: &Path) -> PathBuf {
    directory.join(below).components().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_linux::mount::mount_table::parse_all;

    fn table(lines: &[&str]) -> Vec<Entry> {
        parse_all(lines.join("\n").as_bytes())
    }

    #[test]
    fn a_bind_into_a_container_is_found_on_the_node() {
        let theirs =
            &table(&["9 1 8:1 /opt/rke/var/lib/kubelet /var/lib/kubelet rw shared:1 - ext4 /dev/sda1 rw"])[0];
        let below = Path::new("volumeplugins");
        let ours = table(&[
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
            "2 1 0:5 / /proc rw - proc proc rw",
            "3 1 8:1 /opt /mnt/opt rw - ext4 /dev/sda1 rw",
            "4 1 8:1 /srv /srv2 rw - ext4 /dev/sda1 rw",
        ]);
        let found = candidates(theirs, below, &ours);
        let expected =
            ["/opt/rke/var/lib/kubelet/volumeplugins", "/mnt/opt/rke/var/lib/kubelet/volumeplugins"];
        assert_eq!(found, expected.map(PathBuf::from));
        let root = Path::new("");
        assert_eq!(candidates(theirs, root, &ours)[0], Path::new("/opt/rke/var/lib/kubelet"));
        assert!(candidates(theirs, below, &ours[1..2]).is_empty());
    }
}
