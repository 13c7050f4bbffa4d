//! One volume of one pod, set up and torn down by kubelet's own steps and in their order
//! (pkg/volume/flexvolume/mounter.go and unmounter.go).

use super::caller::Caller;
use super::fs_group::change_group;
use super::journal::{Action, Journal};
use super::verdict::Verdict;
use crate::failure::{Code, Failure};
use crate::protocol::{Access, Call, Capabilities, DriverName, Options, PodRef, TargetPath};
use crate::sys::mount;
use crate::sys::place::{Look, Place};
use anyhow::{Context as _, Result};
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A volume as a pod asks for it.
#[derive(Clone, Debug)]
pub struct PodVolume {
    /// Kubelet's `--root-dir`.
    pub kubelet_root: PathBuf,
    /// The pod's UID.
    pub pod_uid: String,
    /// As the manifest names it.
    pub driver: DriverName,
    /// The PV's name, or the volume's in the pod.
    pub name: String,
    /// What the manifest says: options, access, fsType, fsGroup, secrets. What kubelet adds of its own is filled in.
    pub options: Options,
}

impl PodVolume {
    /// The directory the volume shall appear at.
    pub fn target(&self) -> crate::failure::Result<TargetPath> {
        let pod = self.kubelet_root.join("pods").join(&self.pod_uid);
        let path = pod.join("volumes").join(self.driver.directory()).join(&self.name);
        TargetPath::parse(path.as_os_str())
    }

    /// What `mount` is called with.
    pub fn mount_call(&self) -> crate::failure::Result<Call> {
        let given = &self.options;
        let or =
            |given: &Option<String>, otherwise: &str| given.clone().or_else(|| Some(otherwise.to_owned()));
        let options = Options {
            fs_type: or(&given.fs_type, ""),
            access: Some(given.access()),
            volume_name: or(&given.volume_name, &self.name),
            pod: PodRef {
                name: or(&given.pod.name, "pod"),
                namespace: or(&given.pod.namespace, "default"),
                uid: or(&given.pod.uid, &self.pod_uid),
                service_account: or(&given.pod.service_account, "default"),
            },
            ..given.clone()
        };
        Ok(Call::Mount { target: self.target()?, device: None, options })
    }

    /// What kubelet does before it starts the pod, and again after every failure and after its own restart.
    ///
    /// A directory that is a mount already counts as set up, whatever is mounted there. After a failed `mount` the
    /// directory is removed if that is possible; `unmount` is not called.
    pub fn set_up(&self, caller: &mut Caller, capabilities: &Capabilities) -> Journal {
        Journal::keep(|journal| {
            if self.prepare(journal)? {
                self.mount(journal, caller)?;
                self.change_group(journal, capabilities);
            }
            Ok(())
        })
    }

    /// What kubelet does when the pod is gone, whether the volume was ever mounted or not, until it succeeds.
    pub fn tear_down(&self, caller: &mut Caller) -> Journal {
        Journal::keep(|journal| {
            let target = self.target()?;
            // A mount that does not answer is none of kubelet's excuses: the driver is called.
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

    /// What kubelet's housekeeping does after the last volume: removes directories, never a file.
    pub fn clean_up(&self) -> Journal {
        Journal::keep(|journal| {
            let target = self.target()?;
            let above = target.as_path().ancestors().skip(1).take(3);
            journal.perform(Action::RemovePod, || above.map(remove_directory).collect())
        })
    }

    /// Whether there is something to mount.
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

    fn mount(&self, journal: &mut Journal, caller: &mut Caller) -> Result<()> {
        let verdict = journal.call(caller, &self.mount_call()?);
        if verdict.is_success() {
            return Ok(());
        }
        let target = self.target()?;
        // One plain rmdir, whose error kubelet ignores: a mount left behind will pass for a success next time.
        let _ = journal.perform(Action::RemoveDirectory, || remove_directory(target.as_path()));
        Err(match verdict {
            Verdict::NotSupported => no_mount(),
            other => failed(&other),
        })
    }

    fn change_group(&self, journal: &mut Journal, capabilities: &Capabilities) {
        let writable = self.options.access() == Access::ReadWrite;
        if let (Some(group), true, Ok(target)) =
            (self.options.fs_group, writable && capabilities.fs_group, self.target())
        {
            // The pod starts all the same.
            let _ = journal.perform(Action::ChangeGroup, || change_group(target.as_path(), group.gid));
        }
    }
}

fn look(target: &TargetPath) -> Result<Look> {
    Place::open(target)?.map_or(Ok(Look::Missing), |place| place.look())
}

fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o750).create(path);
    made.with_context(|| format!("make {}", path.display()))
}

fn remove_directory(path: &Path) -> Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("remove {}", path.display())),
    }
}

/// What is not mounted need not be unmounted.
fn unmount(target: &TargetPath) -> Result<()> {
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

fn failed(verdict: &Verdict) -> anyhow::Error {
    Failure::new(Code::Internal, verdict.to_string()).into()
}
