//! Steps that bring a volume into a pod and out again, call by call, with kubelet's own steps
//! around them. A case about one verb uses them for everything before and after it.

use super::answer::{Answer, Meant};
use super::evidence::{Evidence, Played, Stopped};
use super::subject::{NODE, Subject};
use flexvol_kubelet::{PodVolume, by_kubelet};
use flexvol_linux::mount::mount_table;
use flexvol_linux::mount::place::Place;
use flexvol_protocol::{Access, Call, TargetPath};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Case about a first mount, for cases that need one to begin.
const MOUNT_WORKS: &str = "mount::works";
/// Case about an unmount, for cases that need one to end.
pub(super) const UNMOUNT_WORKS: &str = "unmount::works";
/// Case about the device of a volume, for cases that need one to begin.
const ATTACH_WORKS: &str = "attach::works";

impl Subject<'_> {
    /// Does everything before `mount`. If the driver attaches, attaches and mounts the device.
    /// Makes the pod's directory as kubelet does.
    pub fn stage(&mut self, volume: &PodVolume) -> Result<(), Stopped> {
        if self.attaches() {
            let device = self.attach(volume)?;
            self.mount_device(volume, &device)?;
        }
        make_directory(volume.target()?.as_path())
    }

    /// Calls `attach` and `waitforattach`, if the driver has them.
    /// Returns the device, which may be empty.
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

    /// Calls `mountdevice` for the node's global directory, or does what kubelet does instead.
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

    /// Calls `mount`, and nothing else.
    /// For a driver without it, binds the global directory as kubelet does.
    pub fn mount(&mut self, volume: &PodVolume) -> Result<Answer, Stopped> {
        let answer = self.call(&volume.mount_call()?);
        if answer.meant == Meant::NotSupported && self.attaches() {
            by_kubelet::bind(&volume.global()?, &volume.target()?, volume.options.access())?;
            return Ok(Answer { meant: Meant::Success(flexvol_protocol::DriverStatus::default()), ..answer });
        }
        Ok(answer)
    }

    /// Calls `unmount`, and nothing else. For a driver without it, calls umount(2) as kubelet does.
    pub fn unmount(&mut self, volume: &PodVolume) -> Result<Answer, Stopped> {
        let target = volume.target()?;
        let answer = self.call(&Call::Unmount { target: target.clone() });
        if answer.meant == Meant::NotSupported {
            by_kubelet::unmount(&target)?;
            return Ok(Answer { meant: Meant::Success(flexvol_protocol::DriverStatus::default()), ..answer });
        }
        Ok(answer)
    }

    /// Brings the volume into the pod, for a case about a later step.
    /// Blocks the case if that does not work.
    pub fn bring_up(&mut self, volume: &PodVolume) -> Result<Answer, Stopped> {
        self.stage(volume)?;
        let answer = self.mount(volume)?.or_blocked(MOUNT_WORKS)?;
        if self.layers(volume)? == 0 {
            let evidence = answer.evidence("a mount is needed first, and the directory is no mount point");
            return Err(Stopped::Blocked(MOUNT_WORKS, Box::new(evidence)));
        }
        Ok(answer)
    }

    /// Takes the volume out of the pod and off the node, for a case about an earlier step.
    /// Blocks the case if that does not work. Removes the directories as kubelet does.
    pub fn take_down(&mut self, volume: &PodVolume) -> Result<(), Stopped> {
        let answer = self.unmount(volume)?.or_blocked(UNMOUNT_WORKS)?;
        self.put_away(volume, &answer)
    }

    /// Removes the directory of a volume that is unmounted, and its device.
    pub fn put_away(&mut self, volume: &PodVolume, answer: &Answer) -> Result<(), Stopped> {
        if let Err(error) = remove_directory(volume.target()?.as_path()) {
            let problem = format!("the directory must be removed, but {error}");
            return Err(Stopped::Blocked(UNMOUNT_WORKS, Box::new(answer.evidence(problem))));
        }
        self.unstage(volume)
    }

    /// Removes the directories of volumes after an `unmount` under test, and the device of the last
    /// one.
    pub fn put_all_away(&mut self, volumes: &[PodVolume]) -> Played {
        for volume in volumes {
            if let Err(error) = remove_directory(volume.target()?.as_path()) {
                let text = format!("unmount said Success, and kubelet cannot remove the directory: {error}");
                return Err(Evidence::new(text).into());
            }
        }
        volumes.last().map_or(Ok(()), |volume| self.unstage(volume))
    }

    /// Fails unless a Success has led to this number of mounts at the pod's directory.
    pub fn has_layers(&self, volume: &PodVolume, wanted: usize, answer: &Answer) -> Played {
        match self.layers(volume)? {
            layers if layers == wanted => Ok(()),
            layers => {
                Err(answer.fails(format!("it said Success, and there are {layers} mounts at the directory")))
            }
        }
    }

    /// Calls `unmountdevice` and `detach`, after the last pod.
    /// Does nothing if the driver does not attach.
    pub fn unstage(&mut self, volume: &PodVolume) -> Result<(), Stopped> {
        if !self.attaches() {
            return Ok(());
        }
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

    /// Counts the mounts at the pod's directory, one above the other.
    pub fn layers(&self, volume: &PodVolume) -> Result<usize, Stopped> {
        let target = volume.target()?;
        Ok(mount_table::read()?.iter().filter(|entry| entry.target == target.as_path()).count())
    }
}

/// Returns the cases about `attach` and `waitforattach`, for a volume that is new or already
/// mounted here.
fn about_attach(volume: &PodVolume) -> Result<(&'static str, &'static str), Stopped> {
    let again = is_mounted(&volume.global()?)?;
    Ok(if again { ("attach::twice", "attach::wait_again") } else { (ATTACH_WORKS, ATTACH_WORKS) })
}

/// Returns the device of an answer. Kubelet forgets the device if a success does not name it.
fn device_of(answer: Answer, otherwise: String, about_it: &'static str) -> Result<String, Stopped> {
    if answer.meant == Meant::NotSupported {
        return Ok(otherwise);
    }
    Ok(answer.or_blocked(about_it)?.status().map(|status| status.device.clone()).unwrap_or_default())
}

/// Reports whether kubelet would see a mount point there, dead or alive.
pub(super) fn is_mounted(target: &TargetPath) -> Result<bool, Stopped> {
    match Place::open(target)? {
        Some(place) => Ok(place.mount_id()?.is_some()),
        None => Ok(false),
    }
}

/// Makes a directory and those above it with mode 0750, as kubelet does, unless they are there.
pub(super) fn make_directory(path: &Path) -> Result<(), Stopped> {
    Ok(std::fs::DirBuilder::new().recursive(true).mode(0o750).create(path)?)
}

/// Removes a directory with rmdir(2), as kubelet does. Ignores one that is gone already.
pub(super) fn remove_directory(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes a directory after an unmount under test. Fails if it stays.
pub(super) fn remove_after(answer: &Answer, target: &TargetPath) -> Played {
    remove_directory(target.as_path()).map_err(|error| {
        answer.fails(format!("it said Success, and kubelet cannot remove the directory: {error}"))
    })
}

/// Makes or overwrites a file with this text: as a pod writes, or as an obstacle for a driver.
pub(super) fn put(path: &Path, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    File::create(path)?.write_all(text.as_ref())
}
