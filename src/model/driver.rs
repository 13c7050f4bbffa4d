//! Definition of a storage driver: a table of options, a few static facts, and a pure function from
//! call to plan.
//!
//! docs/writing-a-driver.md shows one in thirty lines; `drivers::tmpfs` is the smallest real one.

use crate::plan::Plan;
use crate::schema::{OptionSpec, SecretSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::{Capabilities, Options, TargetPath, Verb, VerbSet};
use std::collections::BTreeSet;
use std::path::Path;

/// Input for the plan of a verb with options.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Options that kubelet sent, with the side file's defaults already filled in.
    pub options: &'a Options,
    /// The side file.
    pub settings: &'a Settings,
}

/// Growth that `expandfs` or `expandvolume` asks for.
#[derive(Clone, Copy, Debug)]
pub struct Growth<'a> {
    /// Device that `waitforattach` answered; empty for drivers without attach.
    pub device: &'a str,
    /// New capacity of the PV.
    pub new_bytes: u64,
    /// Old capacity of the PV; 0 if kubelet does not know it.
    pub old_bytes: u64,
}

/// Requirements of every volume of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Required file system of the kernel.
    pub file_system: Option<&'static str>,
    /// Required module of the kernel.
    pub module: Option<&'static str>,
    /// Programs that every volume needs, if the driver has several. A single program is always
    /// needed.
    pub programs: &'static [&'static str],
    /// Substitute for its program.
    pub instead: Option<Instead>,
}

impl Needs {
    /// Nothing beyond what every node has.
    pub const NOTHING: Self = Self { file_system: None, module: None, programs: &[], instead: None };

    /// A FUSE daemon.
    pub const FUSE: Self = Self { file_system: Some("fuse"), ..Self::NOTHING };
}

/// Substitute for a driver's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// File system of the kernel, for every volume that does not ask for the program.
    FileSystem(&'static str),
    /// Another program, for volumes that ask for it.
    Program(&'static str),
}

/// Parts of an example that are not in the tables of options and secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Example {
    /// An option and its value.
    pub option: Option<(&'static str, &'static str)>,
    /// Keys of the Secret.
    pub secrets: &'static [&'static str],
}

/// One kind of storage. No method does I/O; each returns the same on every host and at any time.
pub trait Driver: Sync {
    /// Returns the name that people type. By default it is also the name of kubelet's executable.
    fn name(&self) -> &'static str;

    /// Returns a description of half a line, for `flexvol drivers`.
    fn summary(&self) -> &'static str;

    /// Returns the options it takes, for `explain`.
    fn options(&self) -> &'static [OptionSpec];

    /// Returns the keys of a Secret that it reads, for `explain`. The default is none.
    fn secrets(&self) -> &'static [SecretSpec] {
        &[]
    }

    /// Returns its verbs. Every other verb is answered `Not supported`, which kubelet remembers
    /// until it probes the driver again, so the result must depend on nothing but the side file.
    /// The default is right for every driver that does everything in `mount`.
    fn verbs(&self, _settings: &Settings) -> VerbSet {
        VerbSet::MOUNTING
    }

    /// Returns the answer to `init`, which kubelet and the controller-manager call after every
    /// change in the driver's directory. `attach` decides how kubelet names the volume, and must
    /// not change while a volume is mounted.
    fn capabilities(&self, settings: &Settings) -> Capabilities;

    /// Returns the programs of the node that any of its volumes may need: plain names, or absolute
    /// paths where the side file gives one. `install` warns of those that the node lacks. The
    /// default is none, which is right for every driver that uses the kernel only.
    fn programs<'a>(&self, _settings: &'a Settings) -> Vec<&'a str> {
        Vec::new()
    }

    /// Reports whether its programs serve its volumes, so that a mount pod, or a directory of the
    /// node, may provide them in place of the node. The default is right for every FUSE daemon, and
    /// for every driver whose programs work on devices and files of the node.
    fn serves(&self) -> bool {
        self.needs().file_system == Some("fuse")
    }

    /// Fails if the side file has a mistake that shows without a volume. Runs before anything is
    /// attached, mounted or grown, so that a mistake in the command for `unmount` shows with the
    /// first `mount`. Does not run before `init`, which must not fail.
    fn check(&self, _settings: &Settings) -> Result<()> {
        Ok(())
    }

    /// Returns what every volume of it requires. `doctor` reports which of it the node lacks. The
    /// default is nothing.
    fn needs(&self) -> Needs {
        Needs::NOTHING
    }

    /// Returns what the node's admin has to do first and no option expresses, for `explain`.
    fn hint(&self) -> Option<String> {
        None
    }

    /// Returns what to set in a side file in place of the key `attach`, for a driver whose verbs
    /// the admin chooses. The default is right for every driver for which the key `attach` decides.
    fn instead_of_attach(&self) -> Option<&'static str> {
        None
    }

    /// Reports whether the side file defines what the driver does. The default is right for every
    /// driver with a behaviour of its own.
    fn is_configured(&self, _settings: &Settings) -> bool {
        true
    }

    /// Returns the options that the side file names; `None` if it names none, and
    /// [`options`](Self::options) is complete.
    fn declared<'a>(&self, _settings: &'a Settings) -> Option<&'a BTreeSet<String>> {
        None
    }

    /// Returns the option and the Secret's keys of its example, besides those that `options` and
    /// `secrets` provide. For a driver whose volumes name them freely.
    fn example(&self) -> Example {
        Example::default()
    }

    /// Plans `mount`. Kubelet calls it for each pod and volume, again after any failure, after its
    /// own restart, and at the same time as other verbs of other volumes. Secrets and the pod's
    /// names are in these options only.
    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan>;

    /// Plans `unmount`. It gets a path and nothing else, mounted or not, possibly years later on a
    /// rebooted node. The default unmounts whatever is there. It is right for every driver that
    /// leaves nothing but a mount.
    fn unmount(&self, target: &TargetPath, _settings: &Settings) -> Result<Plan> {
        Ok(Plan::unmount(target))
    }

    /// Plans `expandfs`. Kubelet calls it for a mounted volume whose PV has grown, until it
    /// succeeds. It grows the store and the file system, because `expandvolume` is never called.
    /// Planned only if in [`verbs`](Self::verbs).
    fn expand_fs(&self, _target: &TargetPath, _growth: &Growth<'_>, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::ExpandFs))
    }

    /// Plans `getvolumename`: the name of the volume, instead of the one that kubelet makes of the
    /// options. Planned, like each verb below, only if in [`verbs`](Self::verbs).
    fn get_volume_name(&self, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::GetVolumeName))
    }

    /// Plans `attach`. The controller-manager calls it, or kubelet if configured so, before a pod
    /// is on the node `_node`.
    fn attach(&self, _node: &str, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::Attach))
    }

    /// Plans `detach`. It gets the names of the volume and the node, and no options.
    fn detach(&self, _volume: &str, _node: &str, _settings: &Settings) -> Result<Plan> {
        Err(unplanned(Verb::Detach))
    }

    /// Plans `waitforattach`. It runs on the node before the device is mounted; the device is the
    /// answer of `attach`.
    fn wait_for_attach(&self, _device: &str, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::WaitForAttach))
    }

    /// Plans `isattached`. The controller-manager calls it from time to time.
    fn is_attached(&self, _node: &str, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::IsAttached))
    }

    /// Plans `mountdevice`: mounts the device once for the node, in the global directory.
    fn mount_device(&self, _target: &TargetPath, _device: &str, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::MountDevice))
    }

    /// Plans `unmountdevice`: unmounts the global directory after the last pod.
    fn unmount_device(&self, _target: &TargetPath, _settings: &Settings) -> Result<Plan> {
        Err(unplanned(Verb::UnmountDevice))
    }

    /// Plans `expandvolume`. No kubelet calls it, and the controller-manager has a path that is not
    /// absolute.
    fn expand_volume(&self, _target: &Path, _growth: &Growth<'_>, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::ExpandVolume))
    }
}

fn unplanned(verb: Verb) -> Failure {
    Failure::call(format!("{verb} is not a verb of this driver"))
}
