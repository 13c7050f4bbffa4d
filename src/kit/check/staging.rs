//! Volumes into pods and out again, call by call, with kubelet's own steps around them: what a case
//! does that is about one verb in the middle.

use super::answer::{Answer, Meant};
use super::evidence::{Evidence, Stopped};
use super::subject::{NODE, Subject};
use flexvol_kubelet::{PodVolume, by_kubelet};
use flexvol_linux::mount::mount_table;
use flexvol_linux::mount::place::Place;
use flexvol_protocol::{Access, Call, TargetPath};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// The case about a first mount, for those that need one to begin.
const MOUNT_WORKS: &str = "mount::works";
/// The case about an unmount, for those that need one to end.
pub(super) const UNMOUNT_WORKS: &str = "unmount::works";
/// The case about the device of a volume, for those that need one to begin.
const ATTACH_WORKS: &str = "attach::works";

impl Subject<'_> {
    /// Everything before `mount`: of a driver that attaches, its device on the node; the pod's
    /// directory, made as kubelet makes it.
    pub fn stage(&mut self, volume: &PodVolume) -> Result<(), Stopped> {
        if self.attaches() {
            let device = self.attach(volume)?;
            self.mount_device(volume, &device)?;
        }
        make_directory(volume.target()?.as_path())
    }

    /// `attach` and `waitforattach`, where the driver has them; the device, which may be empty.
    pub fn attach(&mut self, volume: &PodVolume) -> Result<String, Stopped> {
        let options = volume.device_options();
        let call = Call::Attach { options: options.clone(), node: NODE.to_owned() };
        let (attach, wait) = about_attach(volume)?;
        let device = device_of(self.call(&call), String::new(), attach)?;
        let call = Call::WaitForAttach { device: device.clone(), options };
        let device = device_of(self.call(&call), device, wait)?;
        self.device.clone_from(&device);
        Ok(device)
    }

    /// `mountdevice` on the node's global directory, or what kubelet does instead.
    pub fn mount_device(&mut self, volume: &PodVolume, device: &str) -> Result<(), Stopped> {
        let (target, options) = (volume.global()?, volume.device_options());
        if is_mounted(&target)? {
            return Ok(());
        }
        make_directory(target.as_path())?;
        let (fs_type, read_only) =
            (options.fs_type.clone().unwrap_or_default(), options.access() == Access::ReadOnly);
        let call = Call::MountDevice { target: target.clone(), device: device.to_owned(), options };
        let answer = self.call(&call);
        if answer.meant == Meant::NotSupported {
            return match device {
                "" => Ok(()),
                device => {
                    by_kubelet::mount_device(device, &target, &fs_type, read_only).map_err(Stopped::from)
                }
            };
        }
        answer.or_blocked(ATTACH_WORKS).map(drop)
    }

    /// `mount`, and nothing else; for a driver that lacks it, kubelet's bind of the global
    /// directory.
    pub fn mount(&mut self, volume: &PodVolume) -> Result<Answer, Stopped> {
        let answer = self.call(&volume.mount_call()?);
        if answer.meant == Meant::NotSupported && self.attaches() {
            by_kubelet::bind(&volume.global()?, &volume.target()?, volume.options.access())?;
            return Ok(Answer { meant: Meant::Success(flexvol_protocol::DriverStatus::default()), ..answer });
        }
        Ok(answer)
    }

    /// `unmount`, and nothing else; for a driver that lacks it, kubelet's umount(2).
    pub fn unmount(&mut self, volume: &PodVolume) -> Result<Answer, Stopped> {
        let target = volume.target()?;
        let answer = self.call(&Call::Unmount { target: target.clone() });
        if answer.meant == Meant::NotSupported {
            by_kubelet::unmount(&target)?;
            return Ok(Answer { meant: Meant::Success(flexvol_protocol::DriverStatus::default()), ..answer });
        }
        Ok(answer)
    }

    /// The volume in the pod, for a case that is about what comes then: blocked if that does not
    /// work.
    pub fn bring_up(&mut self, volume: &PodVolume) -> Result<Answer, Stopped> {
        self.stage(volume)?;
        let answer = self.mount(volume)?.or_blocked(MOUNT_WORKS)?;
        if self.layers(volume)? == 0 {
            let evidence = answer.evidence("a mount is needed first, and the directory is no mount point");
            return Err(Stopped::Blocked(MOUNT_WORKS, Box::new(evidence)));
        }
        Ok(answer)
    }

    /// Out of the pod and off the node, for a case that is about what was before: blocked if that
    /// does not work. Removes the directories as kubelet does.
    pub fn take_down(&mut self, volume: &PodVolume) -> Result<(), Stopped> {
        let answer = self.unmount(volume)?.or_blocked(UNMOUNT_WORKS)?;
        self.put_away(volume, &answer)
    }

    /// The directory of a volume that is unmounted, and its device.
    pub fn put_away(&mut self, volume: &PodVolume, answer: &Answer) -> Result<(), Stopped> {
        if let Err(error) = remove_directory(volume.target()?.as_path()) {
            let problem = format!("the directory must be removed, but {error}");
            return Err(Stopped::Blocked(UNMOUNT_WORKS, Box::new(answer.evidence(problem))));
        }
        if self.attaches() { self.unstage(volume) } else { Ok(()) }
    }

    /// `unmountdevice` and `detach`, after the last pod.
    pub fn unstage(&mut self, volume: &PodVolume) -> Result<(), Stopped> {
        let target = volume.global()?;
        if is_mounted(&target)? {
            let answer = self.call(&Call::UnmountDevice { target: target.clone() });
            if answer.meant == Meant::NotSupported {
                by_kubelet::unmount(&target)?;
            } else {
                answer.or_blocked(ATTACH_WORKS)?;
            }
        }
        if let Err(error) = remove_directory(target.as_path()) {
            let problem = format!("the device must be unmounted first, but its directory stays: {error}");
            return Err(Stopped::Blocked(ATTACH_WORKS, Box::new(Evidence::new(problem))));
        }
        let answer = self.call(&Call::Detach { volume: volume.name.clone(), node: NODE.to_owned() });
        if answer.meant == Meant::NotSupported { Ok(()) } else { answer.or_blocked(ATTACH_WORKS).map(drop) }
    }

    /// How many mounts are at the pod's directory, one above the other.
    pub fn layers(&self, volume: &PodVolume) -> Result<usize, Stopped> {
        let target = volume.target()?;
        Ok(mount_table::read()?.iter().filter(|entry| entry.target == target.as_path()).count())
    }
}

/// The cases about `attach` and `waitforattach`, of a volume that is new here or is not.
fn about_attach(volume: &PodVolume) -> Result<(&'static str, &'static str), Stopped> {
    let again = is_mounted(&volume.global()?)?;
    Ok(if again { ("attach::twice", "attach::wait_again") } else { (ATTACH_WORKS, ATTACH_WORKS) })
}

/// Kubelet forgets the device of an answer without one.
fn device_of(answer: Answer, otherwise: String, about_it: &'static str) -> Result<String, Stopped> {
    if answer.meant == Meant::NotSupported {
        return Ok(otherwise);
    }
    Ok(answer.or_blocked(about_it)?.status().map(|status| status.device.clone()).unwrap_or_default())
}

/// Whether kubelet would see a mount point there, dead or alive.
pub(super) fn is_mounted(target: &TargetPath) -> Result<bool, Stopped> {
    match Place::open(target)? {
        Some(place) => Ok(place.mount_id()?.is_some()),
        None => Ok(false),
    }
}

/// With those above it, 0750, as kubelet makes it; one that is there is as good.
pub(super) fn make_directory(path: &Path) -> Result<(), Stopped> {
    Ok(std::fs::DirBuilder::new().recursive(true).mode(0o750).create(path)?)
}

/// As kubelet does, with rmdir(2); one that is gone is as good.
pub(super) fn remove_directory(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A file with this text, made or overwritten; for what a pod writes and for what is put in a
/// driver's way.
pub(super) fn put(path: &Path, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    File::create(path)?.write_all(text.as_ref())
}
