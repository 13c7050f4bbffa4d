//! Pods, found by the traces of kubelet and the container runtime on the node.

use flexvol_linux::fs::directory::Kind;
use flexvol_linux::fs::listing;
use flexvol_protocol::ordered::filled;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Directory in which the container runtime has a directory `namespace_name_uid` for each pod.
pub const LOGS: &str = "/var/log/pods";

/// Names of pods by their uids.
#[derive(Debug, Default)]
pub struct Pods(BTreeMap<String, String>);

impl Pods {
    /// Returns the pods whose logs are on this node.
    pub fn known() -> Self {
        let entries = listing::list(Path::new(LOGS)).unwrap_or_default();
        Self::named(entries.iter().filter_map(|entry| entry.name.to_str()))
    }

    /// Returns the pods of such directories.
    pub fn named<'a>(directories: impl Iterator<Item = &'a str>) -> Self {
        Self(filled(directories.filter_map(named)))
    }

    /// Returns `namespace/name` of a pod.
    pub fn name_of(&self, uid: &str) -> Option<String> {
        self.0.get(uid).cloned()
    }
}

/// Splits the name of such a directory: neither names nor uids contain an underscore.
fn named(directory: &str) -> Option<(String, String)> {
    let mut parts = directory.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    Some((uid.to_owned(), format!("{namespace}/{name}")))
}

/// Limit for the depth of pods' control groups below the root of control groups.
const DEPTH: usize = 4;

/// Reports whether a pod is certainly gone: pods of this node have control groups, and it has none.
pub fn has_gone(uid: &str) -> bool {
    running().is_some_and(|running| !running.contains(uid))
}

/// Returns the uids of pods that have a control group, which kubelet makes before it mounts
/// anything; `None` on a node where pods have none.
pub fn running() -> Option<BTreeSet<String>> {
    let root =
        ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup"].map(Path::new).into_iter().find(|root| root.is_dir())?;
    let (mut level, mut found) = (vec![root.to_owned()], None);
    for _ in 0..DEPTH {
        let names = level.iter().flat_map(|path| {
            let entries = listing::list(path).unwrap_or_default().into_iter();
            entries.filter(|entry| entry.kind == Kind::Directory).map(move |entry| path.join(entry.name))
        });
        level = names
            .filter(|path| path.to_string_lossy().contains("kubepods") || path.ends_with("kubelet.slice"))
            .collect();
        for path in &level {
            let uids = found.get_or_insert_with(BTreeSet::new);
            uids.extend(path.file_name().and_then(|name| uid_of(name.to_str()?)));
        }
    }
    found
}

/// Returns the uid in `kubepods-burstable-pod7f3c_01.slice`, or in `pod7f3c-01` without systemd.
fn uid_of(group: &str) -> Option<String> {
    let name = group.strip_suffix(".slice").unwrap_or(group);
    let (before, uid) = name.rsplit_once("pod")?;
    let is_pod = before.is_empty() || before.ends_with('-') && before.contains("kubepods");
    (is_pod && uid.starts_with(|c: char| c.is_ascii_hexdigit())).then(|| uid.replace('_', "-"))
}

fn inside(path: PathBuf) -> impl Iterator<Item = PathBuf> {
    let entries = listing::list(&path).unwrap_or_default();
    entries.into_iter().map(move |entry| path.join(entry.name))
}

/// Returns the directories of all pods' CSI volumes below a kubelet's own directory.
pub fn csi_directories(root: &Path) -> impl Iterator<Item = PathBuf> {
    inside(root.join("pods")).flat_map(|pod| inside(pod.join("volumes/kubernetes.io~csi")))
}

/// Returns the directories of all pods' volumes below a kubelet's own directory. Mounted volumes
/// are not accessed.
pub fn volume_directories(root: &Path) -> Vec<PathBuf> {
    let drivers = inside(root.join("pods")).flat_map(|pod| inside(pod.join("volumes")));
    let is_flex =
        |driver: &PathBuf| driver.file_name().is_some_and(|name| name.to_string_lossy().contains('~'));
    drivers.filter(is_flex).flat_map(|driver| directories(&driver)).collect::<Vec<_>>()
}

fn directories(of: &Path) -> Vec<PathBuf> {
    let entries = listing::list(of).unwrap_or_default();
    let directories = entries.into_iter().filter(|entry| entry.kind == Kind::Directory);
    directories.map(|entry| of.join(entry.name)).filter(|path| super::flex_dir(path).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_by_the_directory_of_its_logs() {
        assert_eq!(named("shop_web-0_7f3c"), Some(("7f3c".into(), "shop/web-0".into())));
        assert_eq!(named("other"), None);
    }

    #[test]
    fn a_pod_is_known_by_its_control_group() {
        assert_eq!(uid_of("kubepods-burstable-pod7f3c_01.slice").as_deref(), Some("7f3c-01"));
        assert_eq!(uid_of("kubepods-pod7.slice").as_deref(), Some("7"));
        assert_eq!(uid_of("pod7f3c-01").as_deref(), Some("7f3c-01"));
        assert_eq!(
            (uid_of("kubepods.slice"), uid_of("kubepods-besteffort.slice"), uid_of("kubepods")),
            (None, None, None)
        );
    }
}
