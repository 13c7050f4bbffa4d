//! Inventory of all flex volumes of the node, of any driver, for `status` and `doctor`.
//!
//! ```text
//! mount table ─────────────┐
//! <root>/pods/*/volumes/*  ├─▶ Volume: driver, name, pod, source, since ─▶ health
//! records of our drivers ──┘
//! ```
//!
//! A volume is recognized by kubelet's names for its directory ([`VolumeDir`]), under any root, or
//! by a record of one of our drivers. A directory without a mount is a volume, too: a driver that
//! fails leaves only that. The names of pods come from the record, otherwise from the names of
//! their log directories. If pods wait for a volume without any other trace, it is found in
//! kubelet's log ([`note_waiting`]).

mod failing;
pub mod pods;
pub mod running;
mod waiting;

use anyhow::Result;
pub use failing::Failing;
use flexvol_kubelet::locate;
use flexvol_linux::fs::files;
use flexvol_linux::mount::mount_health::{self, Vitals};
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_model::paths;
use flexvol_node::driver_log;
use flexvol_node::executor::record::Record;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{DriverName, TargetPath};
use pods::Pods;
pub use running::RunningCall;
use serde_json::Value;
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
pub use waiting::{is_of_pod, note_waiting};

/// kubelet's default directory.
pub const DEFAULT_ROOT: &str = "/var/lib/kubelet";

/// File beside a CSI volume's directory: kubelet's note about the volume and its driver.
pub const CSI_NOTE: &str = "vol_data.json";

/// Limit for such a note, in bytes.
const NOTE_LIMIT: usize = 1 << 16;

/// Deadline for the health check of a volume.
pub const HEALTH_WAIT: Duration = Duration::from_secs(3);

/// Volume types of Kubernetes itself: their directories look like those of flex drivers, with the
/// vendor `kubernetes.io`.
const IN_TREE: &[&str] = &[
    "aws-ebs",
    "azure-disk",
    "azure-file",
    "cephfs",
    "cinder",
    "configmap",
    "csi",
    "downward-api",
    "empty-dir",
    "fc",
    "flocker",
    "gce-pd",
    "git-repo",
    "glusterfs",
    "host-path",
    "image",
    "iscsi",
    "local-volume",
    "nfs",
    "no-op",
    "photon-pd",
    "portworx-volume",
    "projected",
    "quobyte",
    "rbd",
    "scaleio",
    "secret",
    "storageos",
    "vsphere-volume",
];

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The driver's directory, `vendor~driver`; outside of kubelet's directories just the name.
    pub driver: String,
    /// PV or pod-volume name.
    pub name: String,
    /// Its directory.
    pub target: PathBuf,
    /// kubelet's own directory, if known.
    pub root: Option<PathBuf>,
    /// The pod's uid; `None` for a device's own mount, and outside kubelet's directories.
    pub uid: Option<String>,
    /// `namespace/name` of the pod, if known.
    pub pod: Option<String>,
    /// The topmost mount there; `None` if nothing is mounted.
    pub mount: Option<Entry>,
    /// Number of mounts on top of each other.
    pub layers: usize,
    /// Time of the mount, in seconds since 1970.
    pub since: Option<u64>,
    /// True if one of our drivers has mounted it.
    pub is_ours: bool,
    /// Its health; `None` if nothing is mounted.
    pub vitals: Option<Vitals>,
    /// The failed mount or unmount, if kubelet still waits for it.
    pub failing: Option<Failing>,
    /// A call for it that has not ended.
    pub running: Option<RunningCall>,
}

impl Volume {
    /// Makes a volume without further data.
    fn named(driver: String, name: String, target: PathBuf) -> Self {
        Self {
            driver,
            name,
            target,
            root: None,
            uid: None,
            pod: None,
            mount: None,
            layers: 0,
            since: None,
            is_ours: false,
            vitals: None,
            failing: None,
            running: None,
        }
    }

    /// Returns the driver as volumes name it, `vendor/driver`.
    pub fn driver_name(&self) -> String {
        DriverName::from_directory(&self.driver).map_or_else(|_| self.driver.clone(), |name| name.to_string())
    }

    /// Returns the source by the mount table; for a bind mount with its directory in the file
    /// system.
    pub fn source(&self) -> Option<String> {
        self.mount.as_ref().map(|entry| match entry.source.to_string_lossy() {
            source if entry.root == Path::new("/") => source.into_owned(),
            source => format!("{source}[{}]", entry.root.display()),
        })
    }

    /// Reports whether the volume is a device's own mount, for all pods of the node.
    pub fn is_device(&self) -> bool {
        self.root.is_some() && self.uid.is_none()
    }
}

/// Finds all volumes below the named roots, or below all known ones, and those with a record of our
/// drivers. Checks the health of all of them at once.
pub fn volumes(roots: &[PathBuf], patience: Duration) -> Result<Vec<Volume>> {
    let records = Record::all();
    let (roots, table) = seen(roots, &records)?;
    let names = Pods::known();
    let mut found = BTreeMap::new();
    for target in targets(&roots, &table) {
        found.extend(of_kubelet(&target, &names).map(|volume| (target, volume)));
    }
    for record in &records {
        let mounted = top(&table, &record.target).is_some_and(|entry| record.is_of(entry.id, None));
        let known = found.entry(record.target.clone());
        match known {
            Slot::Occupied(mut volume) if mounted => {
                recorded(volume.get_mut(), record);
            }
            Slot::Vacant(place) if mounted => {
                recorded(place.insert(elsewhere(record)), record);
            }
            _ => {}
        }
    }
    for failed in driver_log::failing() {
        failing::note(&mut found, &roots, &names, &failed);
    }
    for call in running::calls(&[])? {
        let volume = call.target.as_ref().and_then(|target| found.get_mut(target));
        if let Some(volume) = volume {
            volume.running = Some(call);
        }
    }
    let mut volumes: Vec<_> = found.into_values().collect();
    for volume in &mut volumes {
        volume.layers = table.iter().filter(|entry| entry.target == volume.target).count();
        volume.mount = top(&table, &volume.target).cloned();
    }
    ask(&mut volumes, patience)?;
    Ok(volumes)
}

/// Returns the named roots; without any, the roots of all known kubelets: running, mounted,
/// recorded, and the default one.
pub fn roots(told: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    Ok(seen(told, &Record::all())?.0)
}

/// Returns the roots that are certainly a kubelet's: the named ones; without any, those of running
/// kubelets and the default one. Other roots may hold the volumes of `flexvold` or of a trial.
pub fn kubelet_roots(told: &[PathBuf]) -> BTreeSet<PathBuf> {
    if !told.is_empty() {
        return filled(told.iter().cloned());
    }
    let running = locate::kubelets().unwrap_or_default().into_iter().map(|kubelet| kubelet.root_dir);
    filled(running.chain([DEFAULT_ROOT.into()]))
}

/// Returns the roots, and the mount table with kubelet's own paths.
fn seen(told: &[PathBuf], records: &[Record]) -> Result<(BTreeSet<PathBuf>, Vec<Entry>)> {
    let (mut roots, mut table) = (known_roots(told, records), mount_table::read()?);
    rename(&mut table, &roots);
    if told.is_empty() {
        roots.extend(table.iter().filter_map(|entry| flex_dir(&entry.target)).map(|dir| dir.root));
    }
    Ok((roots, table))
}

fn known_roots(told: &[PathBuf], records: &[Record]) -> BTreeSet<PathBuf> {
    let mut roots = kubelet_roots(told);
    if told.is_empty() {
        roots.extend(records.iter().filter_map(|record| flex_dir(&record.target)).map(|dir| dir.root));
    }
    roots
}

/// Gives mounts below a root the paths that kubelet uses: its root may be a symlink, which the
/// kernel resolves.
fn rename(table: &mut [Entry], roots: &BTreeSet<PathBuf>) {
    let resolved = roots.iter().filter_map(|root| Some((root.canonicalize().ok()?, root)));
    let links: Vec<_> = resolved.filter(|(resolved, _)| !roots.contains(resolved)).collect();
    for entry in table {
        let target = |(resolved, root): &(PathBuf, &PathBuf)| {
            Some(root.join(entry.target.strip_prefix(resolved).ok()?))
        };
        if let Some(target) = links.iter().find_map(target) {
            entry.target = target;
        }
    }
}

/// Adds the mounts below a root that is a symlink once more, with the paths that kubelet uses.
pub fn with_kubelets_paths(mut table: Vec<Entry>) -> Vec<Entry> {
    let mut renamed = table.clone();
    rename(&mut renamed, &known_roots(&[], &Record::all()));
    table.extend(renamed);
    table
}

/// Returns CSI volumes that kubelet has noted below these roots, that are not mounted, and whose
/// driver `flexvold` serves. kubelet keeps such a note from before it calls the driver until it has
/// unpublished the volume.
pub fn unmounted_csi(roots: &BTreeSet<PathBuf>) -> Result<Vec<Volume>> {
    let mut table = mount_table::read()?;
    rename(&mut table, roots);
    let noted = roots.iter().flat_map(|root| pods::csi_directories(root)).filter_map(|path| of_csi(&path));
    Ok(noted.filter(|volume| top(&table, &volume.target).is_none()).collect())
}

fn of_csi(path: &Path) -> Option<Volume> {
    let note: Value =
        serde_json::from_str(&files::read_small(&path.join(CSI_NOTE), NOTE_LIMIT).ok()??).ok()?;
    let driver = note["driverName"].as_str().filter(|driver| !driver.contains('/'))?;
    let target = path.join("mount");
    let dir = VolumeDir::of(&TargetPath::parse(target.as_os_str()).ok()?);
    let name = path.file_name()?.to_string_lossy().into_owned();
    Path::new(paths::CSI).join(driver).is_dir().then(|| Volume {
        uid: dir.below.iter().nth(1).map(|uid| uid.to_string_lossy().into_owned()),
        root: Some(dir.root),
        ..Volume::named(driver.to_owned(), name, target)
    })
}

/// Returns the directories of volumes, mounted or not.
fn targets(roots: &BTreeSet<PathBuf>, table: &[Entry]) -> BTreeSet<PathBuf> {
    let is_below = |dir: &VolumeDir| roots.contains(&dir.root);
    let mounted = table.iter().map(|entry| entry.target.clone());
    let mounted = mounted.filter(|target| flex_dir(target).is_some_and(|dir| is_below(&dir)));
    filled(mounted.chain(roots.iter().flat_map(|root| pods::volume_directories(root))))
}

/// Parses the path of a flex volume's directory in kubelet's own; `None` for any other path.
fn flex_dir(target: &Path) -> Option<VolumeDir> {
    let dir = VolumeDir::of(&TargetPath::parse(target.as_os_str()).ok()?);
    let is_flex = |driver: &str| driver.contains('~') && !is_in_tree(driver);
    dir.driver.as_deref().is_some_and(is_flex).then_some(dir)
}

fn is_in_tree(directory: &str) -> bool {
    directory.strip_prefix("kubernetes.io~").is_some_and(|name| IN_TREE.contains(&name))
}

fn of_kubelet(target: &Path, names: &Pods) -> Option<Volume> {
    let dir = flex_dir(target)?;
    let mut parts = dir.below.iter().map(|part| part.to_string_lossy().into_owned());
    let uid = parts.next().filter(|first| first == "pods").and_then(|_| parts.next());
    let name = target.file_name()?.to_string_lossy().into_owned();
    Some(Volume {
        root: Some(dir.root),
        pod: uid.as_deref().and_then(|uid| names.name_of(uid)),
        uid,
        // The parent changes when kubelet makes the volume's directory; the mount hides that one.
        since: target.parent().and_then(changed),
        ..Volume::named(dir.driver?, name, target.to_owned())
    })
}

/// Returns a volume of ours that kubelet does not know.
fn elsewhere(record: &Record) -> Volume {
    let name = record.target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Volume { is_ours: true, ..Volume::named(record.driver.clone(), name, record.target.clone()) }
}

/// Takes over the record's data, which are more precise.
fn recorded(volume: &mut Volume, record: &Record) {
    volume.is_ours = true;
    volume.since = Some(record.since);
    if !record.volume.is_empty() {
        volume.name.clone_from(&record.volume);
    }
    if record.pod.len() > 1 {
        volume.pod = Some(record.pod.clone());
    }
}

fn top<'a>(table: &'a [Entry], target: &Path) -> Option<&'a Entry> {
    table.iter().rfind(|entry| entry.target == target)
}

fn changed(path: &Path) -> Option<u64> {
    let time: SystemTime = path.symlink_metadata().ok()?.modified().ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

fn ask(volumes: &mut [Volume], patience: Duration) -> Result<()> {
    let mounted: Vec<_> = volumes.iter_mut().filter(|volume| volume.mount.is_some()).collect();
    let paths: Vec<_> = mounted.iter().map(|volume| volume.target.clone()).collect();
    let vitals = mount_health::with_devices(&paths, patience)?;
    for (volume, vitals) in mounted.into_iter().zip(vitals) {
        volume.vitals = Some(vitals);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_mounts_itself_is_no_flex_volume() {
        let is_flex = |driver: &str| flex_dir(Path::new(&format!("/k/pods/7/volumes/{driver}/v"))).is_some();
        for driver in ["kubernetes.io~csi", "kubernetes.io~projected", "kubernetes.io~nfs", "plain"] {
            assert!(!is_flex(driver), "{driver}");
        }
        for driver in ["kubernetes.io~lvm", "fstab~cifs", "k8s~nfs"] {
            assert!(is_flex(driver), "{driver}");
        }
    }

    #[test]
    fn a_directory_without_a_mount_is_a_volume_too() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("pods/7/volumes/fstab~cifs/data");
        std::fs::create_dir_all(&target).unwrap();
        std::fs::create_dir_all(root.path().join("pods/7/volumes/kubernetes.io~secret/x")).unwrap();
        let found = volumes(&[root.path().to_owned()], HEALTH_WAIT).unwrap();
        let found: Vec<_> = found.iter().filter(|volume| volume.target.starts_with(root.path())).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].driver_name().as_str(), found[0].name.as_str()), ("fstab/cifs", "data"));
        assert_eq!((found[0].uid.as_deref(), found[0].vitals), (Some("7"), None));
        assert!(found[0].since.is_some() && !found[0].is_device());
    }
}
