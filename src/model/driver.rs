//! What a storage driver is: a table of options, a few static facts, and a pure function from call
//! to plan.
//!
//! docs/writing-a-driver.md has one in thirty lines, and `drivers::tmpfs` is the smallest real one.

use crate::plan::Plan;
use crate::schema::{OptionSpec, SecretSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::{Capabilities, Options, TargetPath, Verb, VerbSet};
use std::collections::BTreeSet;
use std::path::Path;

/// What a verb with options is planned from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What kubelet sent, the side file's defaults already under it.
    pub options: &'a Options,
    /// The side file.
    pub settings: &'a Settings,
}

/// What `expandfs` and `expandvolume` ask for.
#[derive(Clone, Copy, Debug)]
pub struct Growth<'a> {
    /// What waitforattach said; empty for drivers without attach.
    pub device: &'a str,
    /// The PV's new capacity.
    pub new_bytes: u64,
    /// Its old one; 0 if kubelet does not know it.
    pub old_bytes: u64,
}

/// What no volume of a driver can do without.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// A file system of the kernel.
    pub file_system: Option<&'static str>,
    /// A module of the kernel.
    pub module: Option<&'static str>,
    /// Of its several programs those that every volume needs; an only one is needed in any case.
    pub programs: &'static [&'static str],
    /// What can do the work of its program.
    pub instead: Option<Instead>,
}

impl Needs {
    /// Nothing but what any node has.
    pub const NOTHING: Self = Self { file_system: None, module: None, programs: &[], instead: None };

    /// A daemon of FUSE.
    pub const FUSE: Self = Self { file_system: Some("fuse"), ..Self::NOTHING };
}

/// What can do the work of a driver's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// A file system of the kernel, for every volume that does not ask for the program.
    FileSystem(&'static str),
    /// Another program, for volumes that ask for it.
    Program(&'static str),
}

/// What an example has that no option's table says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Example {
    /// An option and its value.
    pub option: Option<(&'static str, &'static str)>,
    /// Keys of the Secret.
    pub secrets: &'static [&'static str],
}

/// One kind of storage. No method does I/O; each gives the same answer on every host and at any
/// time.
pub trait Driver: Sync {
    /// The name people type and kubelet's executable is called by default.
    fn name(&self) -> &'static str;

    /// What it is, in half a line, for `flexvol drivers`.
    fn summary(&self) -> &'static str;

    /// The options it takes, for `explain`.
    fn options(&self) -> &'static [OptionSpec];

    /// The keys of a Secret it reads, for `explain`; the default is none.
    fn secrets(&self) -> &'static [SecretSpec] {
        &[]
    }

    /// The verbs it has. Every other one is answered `Not supported`, which kubelet remembers until
    /// the driver is probed again; so this must never depend on anything but the side file. The
    /// default is right for every driver that does everything in `mount`.
    fn verbs(&self, _settings: &Settings) -> VerbSet {
        VerbSet::MOUNTING
    }

    /// What `init` answers, in kubelet and in the controller-manager, as often as anything changes
    /// in the driver's directory. `attach` decides how kubelet names the volume and must not change
    /// while one is mounted.
    fn capabilities(&self, settings: &Settings) -> Capabilities;

    /// The programs of the node that it may run for some volume or other, each a plain name, or an
    /// absolute path where the side file gives one: for `install`, which warns of those that the
    /// node lacks. The default is none, right for every driver that asks no one but the kernel.
    fn programs<'a>(&self, _settings: &'a Settings) -> Vec<&'a str> {
        Vec::new()
    }

    /// Whether its programs serve its volumes, so that a mount pod, or a directory of the node, may
    /// have them in place of the node. The default is right for every daemon of FUSE, and for every
    /// driver whose programs work on devices and files of the node.
    fn serves(&self) -> bool {
        self.needs().file_system == Some("fuse")
    }

    /// Mistakes of the side file that show without any volume: called before anything is attached,
    /// mounted or grown, so that a slip in the command for `unmount` shows with the first `mount`.
    /// Not before `init`, which must not fail.
    fn check(&self, _settings: &Settings) -> Result<()> {
        Ok(())
    }

    /// What no volume of it can do without: for `doctor`, which says what of it the node lacks. The
    /// default is nothing.
    fn needs(&self) -> Needs {
        Needs::NOTHING
    }

    /// What no option says: what the node's admin has to do first, for `explain`.
    fn hint(&self) -> Option<String> {
        None
    }

    /// What a side file says in place of its key `attach`, for a driver whose verbs the admin
    /// chooses. The default is right for every driver that attaches or not by that key.
    fn instead_of_attach(&self) -> Option<&'static str> {
        None
    }

    /// Whether the side file says what it does. The default is right for every driver that does
    /// something by itself.
    fn is_configured(&self, _settings: &Settings) -> bool {
        true
    }

    /// The options that the side file names; `None` where that names none, and
    /// [`options`](Self::options) are all there are.
    fn declared<'a>(&self, _settings: &'a Settings) -> Option<&'a BTreeSet<String>> {
        None
    }

    /// Option and keys of a Secret in its example, besides those that `options` and `secrets` give
    /// one: for a driver whose volumes name them freely.
    fn example(&self) -> Example {
        Example::default()
    }

    /// `mount`: kubelet calls it for each pod and volume, again after any failure, after its own
    /// restart, and at the same time as other verbs of other volumes. Secrets and the pod's names
    /// are in the options here and nowhere else.
    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan>;

    /// `unmount`: gets a path and nothing else, mounted or not, possibly years later on a rebooted
    /// node. The default unmounts whatever is there and is right for every driver that leaves
    /// nothing but a mount.
    fn unmount(&self, target: &TargetPath, _settings: &Settings) -> Result<Plan> {
        Ok(Plan::unmount(target))
    }

    /// `expandfs`: kubelet calls it for a mounted volume whose PV has grown, until it succeeds.
    /// Grows the store and the file system, since `expandvolume` never comes. Planned only if in
    /// [`verbs`](Self::verbs).
    fn expand_fs(&self, _target: &TargetPath, _growth: &Growth<'_>, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::ExpandFs))
    }

    /// `getvolumename`: the name of the volume, instead of the one kubelet makes of the options.
    /// Planned, as each of those below, only if in [`verbs`](Self::verbs).
    fn get_volume_name(&self, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::GetVolumeName))
    }

    /// `attach`: the controller-manager calls it, or kubelet where that is told to, before a pod is
    /// on the node `_node`.
    fn attach(&self, _node: &str, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::Attach))
    }

    /// `detach`: gets the volume's name and the node's, and no options.
    fn detach(&self, _volume: &str, _node: &str, _settings: &Settings) -> Result<Plan> {
        Err(unplanned(Verb::Detach))
    }

    /// `waitforattach`: on the node, before the device is mounted; the device is what `attach`
    /// answered.
    fn wait_for_attach(&self, _device: &str, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::WaitForAttach))
    }

    /// `isattached`: the controller-manager asks it from time to time.
    fn is_attached(&self, _node: &str, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::IsAttached))
    }

    /// `mountdevice`: mounts the device once for the node, in the global directory.
    fn mount_device(&self, _target: &TargetPath, _device: &str, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::MountDevice))
    }

    /// `unmountdevice`: takes it off the global directory after the last pod.
    fn unmount_device(&self, _target: &TargetPath, _settings: &Settings) -> Result<Plan> {
        Err(unplanned(Verb::UnmountDevice))
    }

    /// `expandvolume`: no kubelet calls it, and the controller-manager has a path that is not
    /// absolute.
    fn expand_volume(&self, _target: &Path, _growth: &Growth<'_>, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::ExpandVolume))
    }
}

fn unplanned(verb: Verb) -> Failure {
    Failure::call(format!("{verb} is not a verb of this driver"))
}
