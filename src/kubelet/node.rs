//! One driver as a node's kubelet and the cluster's controller know it, and their operations on its
//! volumes.
//!
//! Kubelet and controller each load the driver and each remember the verbs that it lacks. For a
//! driver that attaches, the life of a volume is
//!
//! ```text
//! controller  attach          getvolumename, attach; isattached, if it was attached before
//! kubelet     mount           getvolumename, waitforattach, mountdevice, mount
//!             expand          expandfs
//!             unmount         unmount
//!             unmount_device  getvolumename, unmountdevice        after the last pod
//! controller  detach          getvolumename, detach
//! ```
//!
//! and for any other driver `mount`, `expand`, `unmount`. Each operation ends at its first failure.
//! It is repeated as a whole, with the pauses of a [`pauses`].

use super::attachment::Attachment;
use super::caller::Caller;
use super::device;
use super::exec::Terms;
use super::journal::{Action, Journal, failed};
use super::lifecycle::{PodVolume, SET_UP, look, make_directory, remove_directory, unmount};
use super::verdict::Verdict;
use anyhow::Result;
use flexvol_linux::fs::listing;
use flexvol_linux::mount::place::Look;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Access, Call, Capabilities, TargetPath, backoff};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the pauses of kubelet between two attempts of an operation.
pub fn pauses() -> impl Iterator<Item = Duration> {
    (0..).map(|failures| backoff(Duration::from_millis(500), Duration::from_secs(122), failures))
}

/// Deadline for `waitforattach`, the only verb with a deadline in kubelet. A deadline that the
/// caller set replaces it.
const WAIT_FOR_ATTACH: Duration = Duration::from_mins(10);

/// A loaded driver on one node.
#[derive(Debug)]
pub struct NodeDriver {
    node: String,
    kubelet: Caller,
    controller: Caller,
    capabilities: Capabilities,
    /// Devices by volume, since `waitforattach`.
    devices: BTreeMap<String, String>,
    /// Volumes whose device counts as mounted.
    staged: BTreeSet<String>,
}

impl NodeDriver {
    /// Loads a driver with `init`; for a driver that attaches, a second time for the controller.
    /// `None` if `init` fails: volumes of the driver can then be neither mounted nor unmounted.
    pub fn load(executable: PathBuf, terms: Terms, node: &str) -> (Journal, Option<Self>) {
        let mut kubelet = Caller::new(executable);
        kubelet.terms = terms;
        let mut controller = kubelet.clone();
        let (mut journal, capabilities) = Journal::init(&mut kubelet);
        let Some(capabilities) = capabilities else { return (journal, None) };
        if capabilities.attach {
            let (second, loaded) = Journal::init(&mut controller);
            journal.records.extend(second.records);
            journal.failure = second.failure;
            if loaded.is_none() {
                return (journal, None);
            }
        }
        let (devices, staged) = (BTreeMap::new(), BTreeSet::new());
        (journal, Some(Self { node: node.to_owned(), kubelet, controller, capabilities, devices, staged }))
    }

    /// Returns the driver's capabilities.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Attaches the volume to the node, unless it is known to be attached. Does nothing for a
    /// driver that does not attach.
    pub fn attach(&mut self, volume: &PodVolume) -> Journal {
        Journal::keep("AttachVolume.Attach", |journal| {
            if !self.capabilities.attach || self.is_attached(journal, volume)? {
                return Ok(());
            }
            volume.ask_name(journal, &mut self.controller)?;
            let mut attachment = Attachment { node: self.node.clone(), device: None };
            journal.perform(Action::Note, || attachment.keep(volume))?;
            let call = Call::Attach { options: volume.device_options(), node: self.node.clone() };
            attachment.device = match journal.call(&mut self.controller, &call) {
                Verdict::Success(status) => Some(status.device),
                Verdict::NotSupported => Some(String::new()),
                failure @ Verdict::Failure(_) => return Err(failed(&failure)),
            };
            journal.perform(Action::Note, || attachment.keep(volume))
        })
    }

    /// Calls `isattached`, as the controller does every minute. A failure counts as no answer: the
    /// volume stays attached. An answer without `attached` means detached.
    fn is_attached(&mut self, journal: &mut Journal, volume: &PodVolume) -> Result<bool> {
        let Some(Attachment { device: Some(_), node }) = Attachment::of(volume)? else { return Ok(false) };
        if node != self.node {
            let text = format!("{} is attached to node {node}: take it down there first", volume.name);
            return Err(Failure::new(Code::Conflict, text).into());
        }
        let call = Call::IsAttached { options: volume.device_options(), node };
        match journal.call(&mut self.controller, &call) {
            Verdict::Success(status) if !status.attached => {
                journal.perform(Action::Note, || Attachment::forget(volume)).map(|()| false)
            }
            _ => journal.perform(Action::FindAttached, || Ok(true)),
        }
    }

    /// Mounts the volume into the pod; a driver that attaches mounts the device on the node first.
    pub fn mount(&mut self, volume: &PodVolume) -> Journal {
        Journal::keep(SET_UP, |journal| {
            if self.capabilities.attach {
                self.wait_for_device(journal, volume)?;
                self.mount_device(journal, volume)?;
            }
            journal.stage = SET_UP;
            volume.set_up_in(journal, &mut self.kubelet, self.capabilities)
        })
    }

    fn wait_for_device(&mut self, journal: &mut Journal, volume: &PodVolume) -> Result<()> {
        journal.stage = "MountVolume.WaitForAttach";
        volume.ask_name(journal, &mut self.kubelet)?;
        let device = Attachment::of(volume)?.and_then(|attachment| attachment.device).unwrap_or_default();
        let call = Call::WaitForAttach { device: device.clone(), options: volume.device_options() };
        let ours = self.kubelet.terms.patience;
        if ours == Terms::default().patience {
            self.kubelet.terms.patience = WAIT_FOR_ATTACH;
        }
        let verdict = journal.call(&mut self.kubelet, &call);
        self.kubelet.terms.patience = ours;
        let device = match verdict {
            // A driver that leaves the device out works without a device from now on.
            Verdict::Success(status) => status.device,
            Verdict::NotSupported => device,
            failure @ Verdict::Failure(_) => return Err(failed(&failure)),
        };
        self.devices.insert(volume.name.clone(), device);
        Ok(())
    }

    fn mount_device(&mut self, journal: &mut Journal, volume: &PodVolume) -> Result<()> {
        if self.staged.contains(&volume.name) {
            return Ok(());
        }
        journal.stage = "MountVolume.MountDevice";
        volume.ask_name(journal, &mut self.kubelet)?;
        let global = volume.global()?;
        match journal.perform(Action::LookGlobal, || look(&global))? {
            Look::Missing => journal.perform(Action::MakeGlobal, || make_directory(global.as_path()))?,
            Look::Plain(_) => {}
            Look::Mount(_) => {
                self.staged.insert(volume.name.clone());
                return journal.perform(Action::FindStaged, || Ok(()));
            }
            Look::Dead(errno) => {
                let text = format!("the mount at {global} does not answer ({errno}): unmount it");
                return Err(Failure::new(Code::Busy, text).into());
            }
        }
        self.call_mount_device(journal, volume, &global)?;
        self.staged.insert(volume.name.clone());
        Ok(())
    }

    /// Calls `mountdevice`. Kubelet does not clean up after a failure.
    fn call_mount_device(
        &mut self,
        journal: &mut Journal,
        volume: &PodVolume,
        global: &TargetPath,
    ) -> Result<()> {
        let device = self.device(volume);
        let options = volume.device_options();
        let (fs_type, read_only) =
            (options.fs_type.clone().unwrap_or_default(), options.access() == Access::ReadOnly);
        let call = Call::MountDevice { target: global.clone(), device: device.clone(), options };
        match journal.call(&mut self.kubelet, &call) {
            Verdict::Success(_) => Ok(()),
            Verdict::NotSupported if device.is_empty() => Ok(()),
            Verdict::NotSupported => journal
                .perform(Action::MountDevice, || device::mount_device(&device, global, &fs_type, read_only)),
            failure @ Verdict::Failure(_) => Err(failed(&failure)),
        }
    }

    /// Tells the driver that the PV has grown to `new_bytes`. Only for a mounted volume. Makes no
    /// call for a driver that does not require one, and none for read-only use.
    pub fn expand(&mut self, volume: &PodVolume, new_bytes: u64) -> Journal {
        Journal::keep("MountVolume.NodeExpandVolume", |journal| {
            let (device, target) = (self.device(volume), volume.target()?);
            let call = volume.expand_call(&device, new_bytes)?;
            if !self.capabilities.requires_fs_resize || volume.options.access() == Access::ReadOnly {
                return Ok(());
            }
            match journal.call(&mut self.kubelet, &call) {
                Verdict::Success(_) => Ok(()),
                Verdict::NotSupported => journal.perform(Action::Grow, || device::grow(&device, &target)),
                failure @ Verdict::Failure(_) => Err(failed(&failure)),
            }
        })
    }

    fn device(&self, volume: &PodVolume) -> String {
        self.devices.get(&volume.name).cloned().unwrap_or_default()
    }

    /// Unmounts the volume from the pod.
    pub fn unmount(&mut self, volume: &PodVolume) -> Journal {
        volume.tear_down(&mut self.kubelet)
    }

    /// Unmounts the device from the node, if no pod uses the volume any more.
    pub fn unmount_device(&mut self, volume: &PodVolume) -> Journal {
        Journal::keep("UnmountDevice", |journal| {
            if !self.capabilities.attach || is_used(volume) {
                return Ok(());
            }
            let global = volume.global()?;
            let found = journal.perform(Action::LookGlobal, || look(&global))?;
            if found == Look::Missing {
                return Ok(());
            }
            volume.ask_name(journal, &mut self.kubelet)?;
            if !matches!(found, Look::Plain(_)) {
                self.call_unmount_device(journal, &global)?;
            }
            self.staged.remove(&volume.name);
            journal.perform(Action::RemoveGlobal, || remove_directory(global.as_path()))?;
            let device = Attachment::of(volume)?.and_then(|attachment| attachment.device);
            match device.filter(|device| !device.is_empty()) {
                Some(device) => journal.perform(Action::LookDevice, || device::is_free(Path::new(&device))),
                None => Ok(()),
            }
        })
    }

    fn call_unmount_device(&mut self, journal: &mut Journal, global: &TargetPath) -> Result<()> {
        let others = device::other_mounts(global)?;
        if !others.is_empty() {
            let text = format!("the device mounted at {global} is also mounted at {}", others.join(", "));
            return Err(Failure::new(Code::Busy, text).into());
        }
        match journal.call(&mut self.kubelet, &Call::UnmountDevice { target: global.clone() }) {
            Verdict::Success(_) => Ok(()),
            Verdict::NotSupported => journal.perform(Action::UnmountGlobal, || unmount(global)),
            failure @ Verdict::Failure(_) => Err(failed(&failure)),
        }
    }

    /// Detaches the volume from the node, if it is or may be attached and no pod uses it any more.
    pub fn detach(&mut self, volume: &PodVolume) -> Journal {
        Journal::keep("DetachVolume.Detach", |journal| {
            if !self.capabilities.attach || is_used(volume) {
                return Ok(());
            }
            let Some(Attachment { node, .. }) = Attachment::of(volume)? else { return Ok(()) };
            volume.ask_name(journal, &mut self.controller)?;
            let call = Call::Detach { volume: volume.name.clone(), node };
            match journal.call(&mut self.controller, &call) {
                Verdict::Success(_) | Verdict::NotSupported => {
                    journal.perform(Action::Note, || Attachment::forget(volume))
                }
                failure @ Verdict::Failure(_) => Err(failed(&failure)),
            }
        })
    }
}

/// Reports whether the volume has left the node: not in the pod, not mounted for the node, not
/// attached. Nothing is left to take down then, and no driver is needed.
pub fn is_down(volume: &PodVolume) -> Result<bool> {
    let in_pod = look(&volume.target()?)? != Look::Missing;
    let on_node = look(&volume.global()?)? != Look::Missing || Attachment::of(volume)?.is_some();
    Ok(!in_pod && (!on_node || is_used(volume)))
}

/// Removes the directories of pods whose volumes are all down, as kubelet's housekeeping does.
/// Never removes a file.
pub fn clean_up(volumes: &[PodVolume]) -> Journal {
    Journal::keep("", |journal| {
        let mut directories = BTreeSet::new();
        for volume in volumes {
            let target = volume.target()?;
            directories.extend(target.as_path().ancestors().skip(1).take(3).map(Path::to_owned));
        }
        // Innermost directories first: in sorted order a directory precedes its entries.
        let there: Vec<_> = directories.into_iter().rev().filter(|directory| directory.exists()).collect();
        if there.is_empty() {
            return Ok(());
        }
        journal.perform(Action::RemovePod, || there.iter().try_for_each(|each| remove_directory(each)))
    })
}

/// Reports whether a pod on the node still has a directory of the volume.
fn is_used(volume: &PodVolume) -> bool {
    let pods = volume.kubelet_root.join("pods");
    for pod in listing::names(&pods).unwrap_or_default() {
        let directory = pods.join(pod).join("volumes").join(volume.driver.directory()).join(&volume.name);
        // A directory that cannot be inspected, such as a dead mount, exists.
        if !matches!(directory.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
        {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::caller::tests::script;
    use super::*;
    use crate::wording::wording_of;
    use flexvol_protocol::{DriverName, Options};
    use std::fs;

    fn volume(root: &Path) -> PodVolume {
        PodVolume {
            kubelet_root: root.to_owned(),
            pod_uid: "1".into(),
            driver: DriverName::parse("example.com/d").unwrap(),
            name: "data".into(),
            options: Options::default(),
            capacity: Some(5),
        }
    }

    /// Returns a driver that logs its verbs to a file in its directory.
    fn driver(cases: &str) -> (NodeDriver, PodVolume, impl Fn() -> String + use<>) {
        let body = format!(
            "echo \"$*\" >> \"${{0%/*}}/log\"\ncase $1 in\ninit) echo '{{\"status\":\"Success\"}}';;\n{cases}\nesac"
        );
        let script = script(&body);
        let volume = volume(&script.dir.path().join("kubelet"));
        let (journal, driver) =
            NodeDriver::load(script.caller.executable.clone(), script.caller.terms.clone(), "vm");
        assert!(journal.is_success(), "{:?}", journal.failure);
        let dir = script.dir;
        let log = move || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        (driver.unwrap(), volume, log)
    }

    const OK: &str = "*) echo '{\"status\":\"Success\",\"device\":\"/dev/a\"}';;";

    #[test]
    fn kubelet_waits_twice_as_long_each_time_up_to_two_minutes() {
        let waits: Vec<_> = pauses().map(|wait| wait.as_millis()).take(10).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000]);
    }

    #[test]
    fn a_volume_the_driver_calls_detached_is_attached_anew() {
        let (mut driver, volume, log) = driver(OK);
        assert!(driver.attach(&volume).is_success() && driver.attach(&volume).is_success());
        // The driver answers Success without "attached".
        let log = log();
        let verbs: Vec<_> = log.lines().filter_map(|line| line.split(' ').next()).collect();
        let once = ["getvolumename", "attach"];
        assert_eq!(verbs[2..], [&once[..], &["isattached"], &once].concat());
        let attachment = Attachment::of(&volume).unwrap().unwrap();
        assert_eq!((attachment.device.as_deref(), attachment.node.as_str()), (Some("/dev/a"), "vm"));
    }

    #[test]
    fn a_volume_is_attached_to_one_node() {
        let (mut driver, volume, log) = driver(OK);
        Attachment { node: "other".into(), device: Some(String::new()) }.keep(&volume).unwrap();
        let failure = driver.attach(&volume).failure.unwrap().message();
        assert!(failure.contains(wording_of("attached-elsewhere", ["…", "other"])), "{failure}");
        assert!(!log().contains("attach"));
    }

    #[test]
    fn a_failed_name_stops_everything() {
        let (mut driver, volume, log) = driver("getvolumename) echo '{\"status\":\"Failure\"}';;");
        for journal in [driver.attach(&volume), driver.mount(&volume)] {
            assert!(journal.failure.unwrap().message().starts_with("getvolumename command failed"));
        }
        assert!(!log().contains("attach") && !log().contains("mount"));
    }

    #[test]
    fn the_stage_that_failed_begins_the_event() {
        for (cases, stage) in [
            ("waitforattach) echo no;;", "MountVolume.WaitForAttach"),
            ("mountdevice) echo no;;", "MountVolume.MountDevice"),
            ("mount) echo no;;", "MountVolume.SetUp"),
        ] {
            let (mut driver, volume, _log) = driver(&format!("{cases}\n{OK}"));
            let event = driver.mount(&volume).event("data").unwrap();
            assert!(
                event.starts_with(&format!("{stage} failed for volume \"data\" : invalid character")),
                "{event}"
            );
        }
    }

    #[test]
    fn a_device_that_is_forgotten_is_gone() {
        let (mut driver, volume, log) = driver(
            "waitforattach|mount) echo '{\"status\":\"Success\"}';;\n*) echo '{\"status\":\"Not supported\"}';;",
        );
        Attachment { node: "vm".into(), device: Some("/dev/a".into()) }.keep(&volume).unwrap();
        // Without a device nothing is mounted for the node, and that is a success.
        let journal = driver.mount(&volume);
        assert!(journal.is_success(), "{:?}", journal.failure);
        assert!(log().contains("waitforattach /dev/a {"), "{}", log());
        assert!(log().contains(&format!("mountdevice {}  {{", volume.global().unwrap())), "{}", log());
    }
}
