//! One volume of one pod: set-up and tear-down with kubelet's own steps, in kubelet's order
//! (pkg/volume/flexvolume/mounter.go and unmounter.go).

use super::caller::Caller;
use super::device;
use super::fs_group::change_group;
use super::journal::{Action, Journal, failed};
use super::verdict::Verdict;
use anyhow::{Context as _, Result};
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::files;
use flexvol_linux::mount;
use flexvol_linux::mount::place::{Look, Place};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Access, Call, Capabilities, DriverName, Options, PodRef, TargetPath};
use std::path::{Path, PathBuf};

/// Kubelet's name for the stage that calls `mount`.
pub(super) const SET_UP: &str = "MountVolume.SetUp";

/// One volume of a pod, as the pod's manifest requests it.
#[derive(Clone, Debug)]
pub struct PodVolume {
    /// Kubelet's `--root-dir`.
    pub kubelet_root: PathBuf,
    /// The pod's UID.
    pub pod_uid: String,
    /// Name of the driver in the manifest.
    pub driver: DriverName,
    /// Name of the PV, or of the volume in the pod.
    pub name: String,
    /// Settings of the manifest: options, access, fsType, fsGroup, secrets. The options that
    /// kubelet adds are filled in.
    pub options: Options,
    /// Known size of a PV, in bytes; `None` for an inline volume, which cannot grow.
    pub capacity: Option<u64>,
}

impl PodVolume {
    /// Returns the directory at which the volume appears in the pod.
    pub fn target(&self) -> flexvol_protocol::failure::Result<TargetPath> {
        let pod = self.kubelet_root.join("pods").join(&self.pod_uid);
        let path = pod.join("volumes").join(self.driver.directory()).join(&self.name);
        TargetPath::parse(path.as_os_str())
    }

    /// Reports whether kubelet treats both as one volume: a pod has only one volume of a name and
    /// driver, even if it lists that volume several times.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.pod_uid, &self.driver, &self.name) == (&other.pod_uid, &other.driver, &other.name)
    }

    /// Returns the directory on which the device of a volume that attaches is mounted, once per
    /// node.
    pub fn global(&self) -> flexvol_protocol::failure::Result<TargetPath> {
        let plugin = self.kubelet_root.join("plugins/kubernetes.io/flexvolume").join(self.driver.to_string());
        TargetPath::parse(plugin.join("mounts").join(&self.name).as_os_str())
    }

    /// Returns the options for every verb except `mount`.
    pub fn device_options(&self) -> Options {
        let given = &self.options;
        Options {
            fs_type: Some(given.fs_type.clone().unwrap_or_default()),
            access: Some(given.access()),
            volume_name: Some(given.volume_name.clone().unwrap_or_else(|| self.name.clone())),
            own: given.own.clone(),
            ..Options::default()
        }
    }

    /// Returns the call of `mount`.
    pub fn mount_call(&self) -> flexvol_protocol::failure::Result<Call> {
        let given = &self.options;
        let or =
            |given: &Option<String>, otherwise: &str| given.clone().or_else(|| Some(otherwise.to_owned()));
        let options = Options {
            pod: PodRef {
                name: or(&given.pod.name, "pod"),
                namespace: or(&given.pod.namespace, "default"),
                uid: or(&given.pod.uid, &self.pod_uid),
                service_account: or(&given.pod.service_account, "default"),
            },
            fs_group: given.fs_group,
            secrets: given.secrets.clone(),
            reserved: given.reserved.clone(),
            ..self.device_options()
        };
        Ok(Call::Mount { target: self.target()?, device: None, options })
    }

    /// Returns the call of `expandfs` for a PV that has grown. Fails for an inline volume.
    pub fn expand_call(&self, device: &str, new_bytes: u64) -> flexvol_protocol::failure::Result<Call> {
        let old_bytes = self.capacity.ok_or_else(|| {
            let text = format!("{} is an inline volume: only a PersistentVolume can grow", self.name);
            Failure::options(text)
        })?;
        let (options, device, target) = (self.device_options(), device.to_owned(), self.target()?);
        Ok(Call::ExpandFs { options, device, target, new_bytes, old_bytes })
    }

    /// Returns every call in the life of the volume, in order. The flag of a call is true if only a
    /// driver that attaches gets it. `device` stands for the answer of `attach`.
    pub fn calls(&self, node: &str, device: &str) -> flexvol_protocol::failure::Result<Vec<(Call, bool)>> {
        let (options, node) = (self.device_options(), node.to_owned());
        let (device, target, global) = (device.to_owned(), self.target()?, self.global()?);
        Ok(vec![
            (Call::GetVolumeName { options: options.clone() }, true),
            (Call::Attach { options: options.clone(), node: node.clone() }, true),
            (Call::WaitForAttach { device: device.clone(), options: options.clone() }, true),
            (Call::MountDevice { target: global.clone(), device, options: options.clone() }, true),
            (self.mount_call()?, false),
            (Call::IsAttached { options, node: node.clone() }, true),
            (Call::Unmount { target }, false),
            (Call::UnmountDevice { target: global }, true),
            (Call::Detach { volume: self.name.clone(), node }, true),
        ])
    }

    /// Takes kubelet's steps before the start of the pod. Kubelet repeats them after every failure
    /// and after its own restart.
    ///
    /// A directory that is already a mount point counts as set up, whatever is mounted there. After
    /// a failed `mount` the directory is removed if possible; `unmount` is not called.
    pub fn set_up(&self, caller: &mut Caller, capabilities: Capabilities) -> Journal {
        Journal::keep(SET_UP, |journal| self.set_up_in(journal, caller, capabilities))
    }

    pub(super) fn set_up_in(
        &self,
        journal: &mut Journal,
        caller: &mut Caller,
        capabilities: Capabilities,
    ) -> Result<()> {
        if self.prepare(journal)? {
            self.mount(journal, caller, capabilities)?;
            self.change_group(journal, capabilities);
        }
        Ok(())
    }

    /// Takes kubelet's steps after the end of the pod, also for a volume that was never mounted.
    /// Kubelet repeats them until they succeed.
    pub fn tear_down(&self, caller: &mut Caller) -> Journal {
        Journal::keep("UnmountVolume.TearDown", |journal| {
            let target = self.target()?;
            // A mount that does not answer does not stop kubelet: it calls the driver.
            if journal.perform(Action::Look, || look(&target))? == Look::Missing {
                return Ok(());
            }
            match journal.call(caller, &Call::Unmount { target: target.clone() }) {
                Verdict::Success(_) => {}
                Verdict::NotSupported => journal.perform(Action::Unmount, || unmount(&target))?,
                failure @ Verdict::Failure(_) => return Err(failed(&failure)),
            }
            journal.perform(Action::RemoveDirectory, || remove_directory(target.as_path()))
        })
    }

    /// Removes directories, as kubelet's housekeeping does after the last volume. Never removes a
    /// file.
    pub fn clean_up(&self) -> Journal {
        Journal::keep("", |journal| {
            let target = self.target()?;
            let mut above = target.as_path().ancestors().skip(1).take(3);
            journal.perform(Action::RemovePod, || above.try_for_each(remove_directory))
        })
    }

    /// Prepares the directory; returns whether the volume has to be mounted.
    fn prepare(&self, journal: &mut Journal) -> Result<bool> {
        let target = self.target()?;
        match journal.perform(Action::Look, || look(&target))? {
            Look::Missing => journal.perform(Action::MakeDirectory, || make_directory(target.as_path()))?,
            Look::Plain(_) => {}
            Look::Mount(_) => {
                journal.perform(Action::FindMounted, || Ok(()))?;
                return Ok(false);
            }
            Look::Dead(errno) => return Err(dead(&target, errno).into()),
        }
        Ok(true)
    }

    fn mount(&self, journal: &mut Journal, caller: &mut Caller, capabilities: Capabilities) -> Result<()> {
        let mounted = match journal.call(caller, &self.mount_call()?) {
            Verdict::Success(_) => return Ok(()),
            Verdict::NotSupported => self.bind(journal, caller, capabilities),
            failure @ Verdict::Failure(_) => Err(failed(&failure)),
        };
        let target = self.target()?;
        // One plain rmdir, whose error kubelet ignores: a mount left behind counts as a success
        // next time.
        if mounted.is_err() {
            let _ = journal.perform(Action::RemoveDirectory, || remove_directory(target.as_path()));
        }
        mounted
    }

    /// Replaces `mount` as kubelet does: asks the driver for the volume's name, then binds the
    /// global directory.
    fn bind(&self, journal: &mut Journal, caller: &mut Caller, capabilities: Capabilities) -> Result<()> {
        self.ask_name(journal, caller)?;
        if !capabilities.attach {
            return Err(no_mount());
        }
        let (global, target) = (self.global()?, self.target()?);
        journal.perform(Action::Bind, || device::bind(&global, &target, self.options.access()))
    }

    /// Calls `getvolumename`. Kubelet ignores the name, but a failure stops the operation.
    pub(super) fn ask_name(&self, journal: &mut Journal, caller: &mut Caller) -> Result<()> {
        match journal.call(caller, &Call::GetVolumeName { options: self.device_options() }) {
            Verdict::Success(_) | Verdict::NotSupported => Ok(()),
            failure @ Verdict::Failure(_) => Err(failed(&failure)),
        }
    }

    fn change_group(&self, journal: &mut Journal, capabilities: Capabilities) {
        let writable = self.options.access() == Access::ReadWrite;
        if let (Some(group), true, Ok(target)) =
            (self.options.fs_group, writable && capabilities.fs_group, self.target())
        {
            // The pod starts even if this fails.
            let _ = journal.perform(Action::ChangeGroup, || change_group(target.as_path(), group.gid));
        }
    }
}

pub(super) fn look(target: &TargetPath) -> Result<Look> {
    Place::open(target)?.map_or(Ok(Look::Missing), |place| place.look())
}

pub(super) fn make_directory(path: &Path) -> Result<()> {
    let made = files::make_directories(path, 0o750);
    made.with_context(|| format!("make {}", path.display()))
}

pub(super) fn remove_directory(path: &Path) -> Result<()> {
    files::remove_directory(path).with_context(|| format!("remove {}", path.display()))
}

/// Unmounts `target`, if anything is mounted there.
pub fn unmount(target: &TargetPath) -> Result<()> {
    let Some(place) = Place::open(target)? else { return Ok(()) };
    match place.look()? {
        Look::Missing | Look::Plain(_) => Ok(()),
        Look::Mount(_) | Look::Dead(_) => {
            mount::unmount(&place, false).with_context(|| format!("unmount {target}"))
        }
    }
}

fn dead(target: &TargetPath, errno: Errno) -> Failure {
    let text = format!(
        "the mount at {target} does not answer ({errno}): kubelet calls no driver until it is unmounted"
    );
    Failure::new(Code::Busy, text)
}

fn no_mount() -> anyhow::Error {
    let text = "mount is not supported: kubelet would bind the node's global directory, which only drivers that attach have";
    Failure::new(Code::Internal, text).into()
}

#[cfg(test)]
mod tests {
    use super::super::caller::tests::{Script, script};
    use super::*;
    use crate::wording::wording;
    use flexvol_protocol::{FsGroup, FsGroupSpelling};
    use std::fs;

    /// Returns a volume and its driver, a script that logs its calls to a file in its directory.
    fn volume(body: &str) -> (PodVolume, Script) {
        let script = script(&format!("echo \"$*\" >> \"${{0%/*}}/log\"\n{body}"));
        let volume = PodVolume {
            kubelet_root: script.dir.path().join("kubelet"),
            pod_uid: "1".into(),
            driver: DriverName::parse("example.com/d").unwrap(),
            name: "data".into(),
            options: Options::default(),
            capacity: None,
        };
        (volume, script)
    }

    fn log(script: &Script) -> String {
        fs::read_to_string(script.dir.path().join("log")).unwrap_or_default()
    }

    fn actions(journal: &Journal) -> Vec<Action> {
        journal.records.iter().map(|record| record.action).collect()
    }

    const PLAIN: Capabilities = Capabilities { attach: false, ..Capabilities::KUBELET_DEFAULT };

    #[test]
    fn mount_gets_what_kubelet_adds() {
        let (volume, mut script) = volume(r#"echo '{"status":"Success"}'"#);
        assert!(volume.set_up(&mut script.caller, PLAIN).is_success());
        let target = volume.target().unwrap();
        assert!(target.as_path().ends_with("kubelet/pods/1/volumes/example.com~d/data"));
        let expected = format!(
            concat!(
                r#"mount {} {{"kubernetes.io/fsType":"","kubernetes.io/pod.name":"pod","#,
                r#""kubernetes.io/pod.namespace":"default","kubernetes.io/pod.uid":"1","#,
                r#""kubernetes.io/pvOrVolumeName":"data","kubernetes.io/readwrite":"rw","#,
                r#""kubernetes.io/serviceAccount.name":"default"}}"#,
                "\n"
            ),
            target
        );
        assert_eq!(log(&script), expected);
    }

    #[test]
    fn a_failed_mount_costs_the_empty_directory_and_no_unmount() {
        let (volume, mut script) = volume(r#"echo '{"status":"Failure","message":"no"}'"#);
        let journal = volume.set_up(&mut script.caller, PLAIN);
        assert_eq!(
            journal.failure.as_ref().map(Failure::message).as_deref(),
            Some("mount command failed, status: Failure, reason: no")
        );
        assert!(actions(&journal).ends_with(&[Action::RemoveDirectory]));
        assert!(!volume.target().unwrap().as_path().exists());
        assert!(!log(&script).contains("unmount"));
    }

    #[test]
    fn the_group_is_changed_only_where_all_agree() {
        let gid = rustix::process::getgid().as_raw();
        let group = Some(FsGroup { gid, spelling: FsGroupSpelling::Current });
        for (access, capability, changed) in [
            (Access::ReadWrite, true, true),
            (Access::ReadOnly, true, false),
            (Access::ReadWrite, false, false),
        ] {
            let (mut volume, mut script) = volume(r#"echo '{"status":"Success"}'"#);
            volume.options = Options { access: Some(access), fs_group: group, ..Options::default() };
            let capabilities = Capabilities { fs_group: capability, ..PLAIN };
            let journal = volume.set_up(&mut script.caller, capabilities);
            assert_eq!(actions(&journal).contains(&Action::ChangeGroup), changed, "{access:?} {capability}");
        }
    }

    #[test]
    fn tear_down_removes_the_directory_or_fails() {
        let (volume, mut script) = volume(r#"echo '{"status":"Success"}'"#);
        let target = volume.target().unwrap();
        assert!(volume.tear_down(&mut script.caller).is_success() && log(&script).is_empty());
        make_directory(&target.as_path().join("left")).unwrap();
        let journal = volume.tear_down(&mut script.caller);
        assert!(journal.failure.unwrap().message().contains("not empty"));
        fs::remove_dir(target.as_path().join("left")).unwrap();
        assert!(volume.tear_down(&mut script.caller).is_success());
        assert_eq!(log(&script), format!("unmount {target}\n").repeat(2));
        assert!(volume.clean_up().is_success() && !volume.kubelet_root.join("pods/1").exists());
    }

    #[test]
    fn without_unmount_kubelet_helps_itself() {
        let (volume, mut script) = volume(r#"echo '{"status":"Not supported"}'"#);
        make_directory(volume.target().unwrap().as_path()).unwrap();
        let journal = volume.tear_down(&mut script.caller);
        assert!(journal.is_success(), "{:?}", journal.failure);
        assert!(actions(&journal).contains(&Action::Unmount));
        let journal = volume.set_up(&mut script.caller, PLAIN);
        assert!(journal.failure.unwrap().message().contains(wording("mount-not-supported")));
    }
}
