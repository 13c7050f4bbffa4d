//! Change of a volume's group to the pod's fsGroup, as in `SetVolumeOwnership` of pkg/volume.

use anyhow::{Context as _, Result};
use flexvol_linux::fs::{files, listing};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Mode bits for files: the group may read and write.
const FILE_BITS: u32 = 0o660;

/// Mode bits for directories: the group may also enter them, and new entries inherit the group.
const DIRECTORY_BITS: u32 = FILE_BITS | 0o2110;

/// Changes the group of `path` and everything below it to `gid`. Only for writable volumes; kubelet
/// ignores the error.
pub fn change_group(path: &Path, gid: u32) -> Result<()> {
    let about = path.symlink_metadata().with_context(|| format!("look at {}", path.display()))?;
    let what = || format!("give {} to group {gid}", path.display());
    files::set_group(path, gid).with_context(what)?;
    // The mode of a symlink has no meaning, and chmod(2) would follow the link.
    if !about.is_symlink() {
        let bits = if about.is_dir() { DIRECTORY_BITS } else { FILE_BITS };
        files::set_mode(path, about.permissions().mode() | bits).with_context(what)?;
    }
    if about.is_dir() {
        for name in listing::names(path).with_context(|| format!("list {}", path.display()))? {
            change_group(&path.join(name), gid)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt as _, symlink};

    #[test]
    fn files_and_directories_open_up_and_symlinks_are_left_alone() {
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(outside.path(), Permissions::from_mode(0o600)).unwrap();
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        fs::File::create(root.path().join("d/f")).unwrap();
        fs::set_permissions(root.path().join("d/f"), Permissions::from_mode(0o400)).unwrap();
        symlink(outside.path(), root.path().join("link")).unwrap();
        let gid = fs::metadata(root.path()).unwrap().gid();
        change_group(root.path(), gid).unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&root.path().join("d")) & DIRECTORY_BITS, DIRECTORY_BITS);
        assert_eq!((mode(&root.path().join("d/f")), mode(outside.path())), (0o660, 0o600));
    }
}
