//! Mounted volumes of a driver: without the driver they cannot be unmounted.
//!
//! The mount tables of this process, of pid 1 and of every kubelet are read if possible: kubelet
//! may have a mount table of its own. Volumes are recognized by kubelet's names for their targets,
//! under any root. Those of CSI do not name their driver: the journal of `flexvold csi` does.

use super::refusal::{Reason, Refusal};
use crate::inventory::pods::Pods;
use crate::inventory::with_kubelets_paths;
use anyhow::Result;
use flexvol_kubelet::locate;
use flexvol_linux::fs::{files, listing};
use flexvol_linux::mount::mount_table::{self, Tables};
use flexvol_linux::proc::process;
use flexvol_model::csi_journal::{self, Entry};
use flexvol_model::paths;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{DriverName, TargetPath};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between two checks. A node that is drained unmounts a thousand volumes: each one changes
/// the mount table, and each check reads all journals.
const PAUSE: Duration = Duration::from_millis(100);

/// Limit for reads of a file that is being overwritten, and the pause after the first, which
/// doubles: a writer on a busy node may get no CPU for a second.
const TRIES: u32 = 10;
const AGAIN: Duration = Duration::from_millis(1);

/// One mounted volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Volume {
    /// Mount point, as the process with that mount table sees it.
    pub target: PathBuf,
    /// The pod's uid; `None` for a device's own mount.
    pub pod: Option<String>,
}

/// Fails in a pod that sees `place` only as a mount of its own, without the volumes mounted there,
/// and does not see kubelet, which has them. Unknown mounts must not count as no mounts. `or` is
/// the admin's alternative.
pub fn sees_mounts(place: &Path, or: &str) -> Result<()> {
    if files::is_mount_root(place) && !process::is_on_host() && locate::kubelets()?.is_empty() {
        let text = format!(
            "no kubelet is seen from here, so it is not known which volumes are mounted: run it on the node, or give the pod hostPID: true{or}"
        );
        return Err(Refusal::new(Reason::InUse, text).into());
    }
    Ok(())
}

/// Returns every mount of the node, also with the path that kubelet uses; fails as [`sees_mounts`]
/// does for `place`.
pub fn mounts(place: &Path) -> Result<Vec<mount_table::Entry>> {
    sees_mounts(place, "")?;
    Ok(with_kubelets_paths(tables()?.read()?))
}

/// Returns the mounted volumes of a driver, by target; `state` is the directory for what the node's
/// flexvol keeps across boots.
pub fn volumes(name: &DriverName, state: &Path) -> Result<Vec<Volume>> {
    Ok(volumes_in(&mut tables()?, state)?.remove(&name.directory()).unwrap_or_default())
}

/// Returns the mounted volumes of every driver, by the name of the driver's directory.
pub fn by_driver(state: &Path) -> Result<BTreeMap<String, Vec<Volume>>> {
    volumes_in(&mut tables()?, state)
}

/// Waits, for `patience` at most, until no volume of the driver is mounted. Returns those that are
/// left.
pub fn wait_until_idle(name: &DriverName, state: &Path, patience: Duration) -> Result<Vec<Volume>> {
    let (mut tables, start) = (tables()?, Instant::now());
    loop {
        let volumes = volumes_in(&mut tables, state)?.remove(&name.directory()).unwrap_or_default();
        let left = patience.saturating_sub(start.elapsed());
        if volumes.is_empty() || left.is_zero() {
            return Ok(volumes);
        }
        std::thread::sleep(PAUSE.min(left));
        tables.wait(left.saturating_sub(PAUSE))?;
    }
}

/// Describes volumes for people: how many, where, and of which pods.
pub fn describe(volumes: &[Volume]) -> String {
    described(volumes, &Pods::known())
}

fn described(volumes: &[Volume], names: &Pods) -> String {
    /// Maximum number of volumes that a message names.
    const NAMED: usize = 5;
    let shown = volumes.iter().take(NAMED).map(|volume| match &volume.pod {
        Some(uid) => {
            let pod = names.name_of(uid).unwrap_or_else(|| uid.clone());
            format!("{} (pod {pod})", volume.target.display())
        }
        None => volume.target.display().to_string(),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match volumes.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn tables() -> Result<Tables> {
    let kubelets = locate::kubelets().unwrap_or_default();
    Tables::open(kubelets.into_iter().map(|kubelet| kubelet.pid))
}

fn volumes_in(tables: &mut Tables, state: &Path) -> Result<BTreeMap<String, Vec<Volume>>> {
    let served = over_csi(state);
    let targets = tables.read()?.into_iter().map(|entry: mount_table::Entry| entry.target);
    let found: BTreeSet<_> = filled(targets.filter_map(|target| volume(&target, &served)));
    let mut volumes: BTreeMap<String, Vec<Volume>> = BTreeMap::new();
    for (directory, volume) in found {
        volumes.entry(directory).or_default().push(volume);
    }
    Ok(volumes)
}

/// Returns the volume at a target, and the name of its driver's directory.
fn volume(target: &Path, served: &BTreeMap<PathBuf, String>) -> Option<(String, Volume)> {
    let dir = VolumeDir::of(&TargetPath::parse(target.as_os_str()).ok()?);
    let mut parts = dir.below.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let pod = parts.next().filter(|first| first == "pods").and_then(|_| parts.next());
    let driver = dir.driver.or_else(|| served.get(&dir.below).cloned())?;
    Some((driver, Volume { target: target.to_owned(), pod }))
}

/// Returns the volumes served over CSI: the driver's directory by the volume's, from `pods` or
/// `plugins` on, under any root. Files that cannot be read count as lost, and are skipped.
fn over_csi(state: &Path) -> BTreeMap<PathBuf, String> {
    let mut served = BTreeMap::new();
    for file in journals(state) {
        let Some(entry) = noted(&file) else { continue };
        let Ok(driver) = DriverName::parse(&entry.driver) else { continue };
        let targets = entry.paths().filter_map(|path| TargetPath::parse(path.as_ref()).ok());
        served.extend(targets.map(|target| (VolumeDir::of(&target).below, driver.directory())));
    }
    served
}

/// Returns the entry in a file. Reads again while `flexvold` overwrites the file.
fn noted(file: &Path) -> Option<Entry> {
    let read = |already: u32| {
        let entry = Entry::parse(&files::read_small(file, csi_journal::LIMIT).ok()??).ok();
        entry.or_else(|| {
            std::thread::sleep(AGAIN.saturating_mul(1 << already));
            None
        })
    };
    (0..TRIES).find_map(read)
}

/// Returns all `<state>/csi/<CSI name>/volumes/<volume>.json`.
fn journals(state: &Path) -> impl Iterator<Item = PathBuf> {
    let names = |path: PathBuf| {
        listing::names(&path).unwrap_or_default().into_iter().map(move |name| path.join(name))
    };
    let drivers = names(state.join(paths::CSI_PART));
    let files = drivers.flat_map(move |driver| names(driver.join(paths::CSI_VOLUMES)));
    files.filter(|file| file.extension().is_some_and(|end| end == csi_journal::EXTENSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_known_under_any_root() {
        let served = [("pods/9/volumes/kubernetes.io~csi/data/mount".into(), "v~d".to_owned())].into();
        let of = |target: &str| {
            volume(target.as_ref(), &served).map(|(directory, volume)| (directory, volume.pod))
        };
        let pod = |uid: &str| Some(("v~d".to_owned(), Some(uid.to_owned())));
        assert_eq!(of("/var/lib/kubelet/pods/7/volumes/v~d/data"), pod("7"));
        assert_eq!(of("/host/k/pods/8/volumes/v~d/a b"), pod("8"));
        assert_eq!(of("/k/plugins/kubernetes.io/flexvolume/v/d/mounts/pv"), Some(("v~d".into(), None)));
        assert_eq!(of("/k/pods/9/volumes/kubernetes.io~csi/data/mount"), pod("9"));
        for other in ["/v~d/data", "/", "/k/pods/9/volumes/kubernetes.io~csi/other/mount"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_being_written_over_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("v.json");
        let text = |phase: &str| {
            format!(
                r#"{{"id":"v","targets":{{"/a":{{"phase":"{phase}","readOnly":true,"exclusive":false}}}}}}"#
            )
        };
        let write = |phase: &str| files::rewrite_unsynced(&file, text(phase).as_bytes()).unwrap();
        write("begun");
        std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| (0..50_000).for_each(|_| ["done", "begun"].into_iter().for_each(write)));
            while !writer.is_finished() {
                assert!(noted(&file).is_some());
            }
        });
    }

    #[test]
    fn many_are_counted() {
        let volumes: Vec<_> =
            (0..7).map(|n| Volume { target: format!("/{n}").into(), pod: Some(n.to_string()) }).collect();
        let text = describe(&volumes);
        assert!(text.starts_with("/0 (pod 0), ") && text.ends_with(" and 2 more"), "{text}");
        let names = Pods::named(["shop_web_3"].into_iter());
        let text = described(&volumes, &names);
        assert!(text.contains("/2 (pod 2), /3 (pod shop/web), "), "{text}");
    }
}
