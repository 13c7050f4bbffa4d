//! Owner of a target directory, derived from its path alone.
//!
//! Kubelet keeps pods' volumes in `<root>/pods/<uid>/volumes/<vendor>~<driver>/<name>` and device
//! mounts in `<root>/plugins/kubernetes.io/flexvolume/<vendor>/<driver>/mounts/<name>`
//! (pkg/volume/flexvolume, pkg/kubelet/config). A driver that is served as a CSI driver gets CSI's
//! directories, `<root>/pods/<uid>/volumes/kubernetes.io~csi/<name>/mount` and
//! `<root>/plugins/kubernetes.io/csi/<CSI driver>/<hash>/globalmount` (pkg/volume/csi). These do
//! not name the FlexVolume driver. The root differs between distributions and may contain symlinks
//! of the admin. Everything from `pods` or `plugins` on was made by kubelet, and a symlink there is
//! an attack.

use crate::TargetPath;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// Target, split where kubelet's own tree begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDir {
    /// Part before `pods` or `plugins`: symlinks are followed here.
    pub root: PathBuf,
    /// Remaining part: no symlink is followed here.
    pub below: PathBuf,
    /// Name of the driver's directory (`vendor~driver`) in the path; `None` for a directory of CSI,
    /// and for a path that is not kubelet's.
    pub driver: Option<String>,
}

impl VolumeDir {
    /// Splits a target. A target outside of kubelet's tree is taken as a name in its parent
    /// directory.
    pub fn of(target: &TargetPath) -> Self {
        let parts: Vec<_> = target.as_path().components().collect();
        let kubelet_s = pod_volume(&parts).or_else(|| device_mount(&parts)).or_else(|| csi(&parts));
        kubelet_s.unwrap_or_else(|| Self {
            root: target.as_path().parent().unwrap_or(Path::new("/")).to_owned(),
            below: target.as_path().file_name().unwrap_or_default().into(),
            driver: None,
        })
    }

    /// Returns the directory in which kubelet mounts the device of a pod's volume once for the
    /// node; `None` for any other directory.
    ///
    /// The last component of both paths is the volume's name (`MakeGlobalPDName`,
    /// pkg/volume/flexvolume).
    pub fn staged(&self) -> Option<TargetPath> {
        let (vendor, driver) = self.driver.as_deref()?.split_once('~')?;
        let name = self.below.strip_prefix("pods").ok()?.file_name()?;
        let mounts = ["plugins", "kubernetes.io", "flexvolume", vendor, driver, "mounts"];
        let path = mounts.iter().fold(self.root.clone(), |path, part| path.join(part)).join(name);
        TargetPath::parse(path.as_os_str()).ok()
    }

    /// Reports whether it is a directory of CSI. No two pods ever have the same.
    pub fn is_csi(&self) -> bool {
        self.driver.is_none() && self.below.components().count() > 1
    }

    /// Reports whether kubelet mounts a device here, once for the node.
    pub fn is_staging(&self) -> bool {
        self.driver.is_some() && self.below.starts_with("plugins")
    }

    /// Reports whether kubelet made this directory for the driver in `directory`. If that is not
    /// known, any driver counts.
    pub fn belongs_to(&self, directory: Option<&str>) -> bool {
        self.driver.as_deref().is_some_and(|driver| directory.is_none_or(|directory| directory == driver))
    }
}

fn pod_volume(parts: &[Component<'_>]) -> Option<VolumeDir> {
    let start = parts.len().checked_sub(5)?;
    let [pods, _, volumes, driver, _] = parts[start..].try_into().ok()?;
    (is(pods, "pods") && is(volumes, "volumes")).then_some(())?;
    Some(split(parts, start, Some(driver.as_os_str().to_str()?.to_owned())))
}

fn device_mount(parts: &[Component<'_>]) -> Option<VolumeDir> {
    let start = parts.len().checked_sub(7)?;
    let [plugins, kubernetes, flexvolume, vendor, driver, mounts, _] = parts[start..].try_into().ok()?;
    let shape =
        [(plugins, "plugins"), (kubernetes, "kubernetes.io"), (flexvolume, "flexvolume"), (mounts, "mounts")];
    shape.iter().all(|(part, name)| is(*part, name)).then_some(())?;
    let driver = format!("{}~{}", vendor.as_os_str().to_str()?, driver.as_os_str().to_str()?);
    Some(split(parts, start, Some(driver)))
}

/// Shapes of CSI's directories. `*` stands for any single name.
const CSI: [&[&str]; 2] = [
    &["pods", "*", "volumes", "kubernetes.io~csi", "*", "mount"],
    &["plugins", "kubernetes.io", "csi", "*", "*", "globalmount"],
];

fn csi(parts: &[Component<'_>]) -> Option<VolumeDir> {
    CSI.iter().find_map(|shape| {
        let start = parts.len().checked_sub(shape.len())?;
        let fits = |(part, name): (&Component<'_>, &&str)| *name == "*" || is(*part, name);
        parts[start..].iter().zip(*shape).all(fits).then(|| split(parts, start, None))
    })
}

fn is(part: Component<'_>, name: &str) -> bool {
    part.as_os_str() == OsStr::new(name)
}

fn split(parts: &[Component<'_>], start: usize, driver: Option<String>) -> VolumeDir {
    VolumeDir { root: parts[..start].iter().collect(), below: parts[start..].iter().collect(), driver }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_of(path: &str) -> (String, String, Option<String>) {
        let dir = VolumeDir::of(&TargetPath::parse(path.as_ref()).unwrap());
        (dir.root.display().to_string(), dir.below.display().to_string(), dir.driver)
    }

    #[test]
    fn kubelet_s_two_trees_under_any_root() {
        assert_eq!(
            split_of("/var/lib/k0s/kubelet/pods/7/volumes/example~nfs/a b"),
            (
                "/var/lib/k0s/kubelet".into(),
                "pods/7/volumes/example~nfs/a b".into(),
                Some("example~nfs".into())
            )
        );
        assert_eq!(
            split_of("/k/plugins/kubernetes.io/flexvolume/example/nfs/mounts/pv1"),
            (
                "/k".into(),
                "plugins/kubernetes.io/flexvolume/example/nfs/mounts/pv1".into(),
                Some("example~nfs".into())
            )
        );
        assert_eq!(split_of("/pods/7/volumes/x/y").0, "/");
    }

    #[test]
    fn a_pod_s_volume_is_staged_under_its_name() {
        let staged = |path: &str| {
            let dir = VolumeDir::of(&TargetPath::parse(path.as_ref()).unwrap());
            dir.staged().map(|target| target.to_string())
        };
        let expected = "/k/plugins/kubernetes.io/flexvolume/example/rbd/mounts/pv1";
        assert_eq!(staged("/k/pods/7/volumes/example~rbd/pv1").as_deref(), Some(expected));
        assert_eq!(
            (staged(expected), staged("/mnt/pv1"), staged("/k/pods/7/volumes/rbd/pv1")),
            (None, None, None)
        );
    }

    #[test]
    fn csi_s_directories_are_kubelet_s_and_say_no_driver() {
        for (path, below) in [
            ("/k/pods/7/volumes/kubernetes.io~csi/pv1/mount", "pods/7/volumes/kubernetes.io~csi/pv1/mount"),
            ("/k/plugins/kubernetes.io/csi/d/0f/globalmount", "plugins/kubernetes.io/csi/d/0f/globalmount"),
        ] {
            assert_eq!(split_of(path), ("/k".into(), below.into(), None));
        }
        assert_eq!(split_of("/k/pods/7/volumes/kubernetes.io~csi/pv1/other").1, "other");
    }

    #[test]
    fn everything_else_is_a_name_in_its_parent() {
        for path in [
            "/etc",
            "/mnt/a",
            "/pods/7/volume/example~nfs/a",
            "/pods/7/volumes/example~nfs",
            "/pods/7/volumes/example~nfs/a/b",
        ] {
            let (root, below, driver) = split_of(path);
            assert_eq!((Path::new(&root).join(below), driver), (PathBuf::from(path), None));
        }
    }

    #[test]
    fn another_driver_s_directory_is_not_ours() {
        let dir = VolumeDir::of(&TargetPath::parse("/k/pods/7/volumes/example~nfs/a".as_ref()).unwrap());
        assert!(dir.belongs_to(Some("example~nfs")) && dir.belongs_to(None));
        assert!(!dir.belongs_to(Some("other~nfs")));
    }
}
