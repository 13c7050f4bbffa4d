//! Attempts to mount a volume whose options are changed on the way to the driver: the result, its
//! comparison with the usual result, and the cleanup.

use super::answer::{Answer, Meant};
use super::evidence::Stopped;
use super::staging::{UNMOUNT_WORKS, is_mounted, make_directory, put, remove_directory};
use super::subject::{NODE, Subject};
use flexvol_kubelet::{PodVolume, by_kubelet};
use flexvol_linux::mount::mount_table;
use flexvol_protocol::{Access, Call, DriverStatus, Options};
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// File that tells one storage from another: the survey's file, to leave no extra trace.
const MARK: &str = "check";

/// Limit for the time that a case spends on invented values: each may involve a server.
const BUDGET: Duration = Duration::from_secs(5);

/// Function that writes the options of a call.
pub(super) type Spelling<'a> = &'a dyn Fn(&Options) -> OsString;

/// Result of an attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Answer to the last call: the one that refused, or `mount`.
    pub(super) answer: Answer,
    /// Volume in the pod's directory; `None` if nothing is mounted there.
    pub(super) looks: Option<Looks>,
}

/// Properties of a mounted volume, as a pod sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Looks {
    file_system: String,
    size: u64,
    flags: StatVfsMountFlags,
    mode: u32,
    pub(super) owner: (u32, u32),
    mark: Option<Vec<u8>>,
}

/// Writes the options as kubelet does.
pub(super) fn plainly(options: &Options) -> OsString {
    options.to_json().into()
}

impl Subject<'_> {
    /// Makes every call up to `mount`, each with the options in this spelling.
    /// Stops at the first call that does not succeed.
    pub(super) fn attempt(&mut self, volume: &PodVolume, spelling: Spelling<'_>) -> Result<Attempt, Stopped> {
        if self.attaches()
            && let Some(answer) = self.attach_spelled(volume, spelling)?
        {
            return Ok(Attempt { answer, looks: None });
        }
        self.attempt_mount(volume, spelling)
    }

    /// Calls `mount` alone. For a driver without it, binds the volume as kubelet does.
    pub(super) fn attempt_mount(
        &mut self,
        volume: &PodVolume,
        spelling: Spelling<'_>,
    ) -> Result<Attempt, Stopped> {
        let target = volume.target()?;
        make_directory(target.as_path())?;
        let Call::Mount { options, .. } = volume.mount_call()? else {
            return Err(anyhow::anyhow!("mount is called in another way").into());
        };
        let path = target.as_path().into();
        let mut answer = self.execute(&["mount".into(), path, spelling(&options)]);
        if answer.meant == Meant::NotSupported && self.attaches() {
            by_kubelet::bind(&volume.global()?, &target, volume.options.access())?;
            answer.meant = Meant::Success(DriverStatus::default());
        }
        let looks = Looks::of(target.as_path())?;
        Ok(Attempt { answer, looks })
    }

    /// Attaches the volume. Returns the answer that ended the attempt, if one did.
    fn attach_spelled(
        &mut self,
        volume: &PodVolume,
        spelling: Spelling<'_>,
    ) -> Result<Option<Answer>, Stopped> {
        let options = volume.device_options();
        self.device.clear();
        for verb in ["attach", "waitforattach"] {
            let spelled = spelling(&options);
            let arguments = match verb {
                "attach" => [verb.into(), spelled, NODE.into()],
                _ => [verb.into(), self.device.clone().into(), spelled],
            };
            let answer = self.execute(&arguments);
            match &answer.meant {
                Meant::NotSupported => {}
                Meant::Success(status) => self.device.clone_from(&status.device),
                _ => return Ok(Some(answer)),
            }
        }
        self.mount_device_spelled(volume, spelling)
    }

    fn mount_device_spelled(
        &mut self,
        volume: &PodVolume,
        spelling: Spelling<'_>,
    ) -> Result<Option<Answer>, Stopped> {
        let (target, options, device) = (volume.global()?, volume.device_options(), self.device.clone());
        make_directory(target.as_path())?;
        let path = target.as_path().into();
        let answer = self.execute(&["mountdevice".into(), path, device.clone().into(), spelling(&options)]);
        match answer.meant {
            Meant::Success(_) => Ok(None),
            Meant::NotSupported if device.is_empty() => Ok(None),
            Meant::NotSupported => {
                let (fs_type, read_only) =
                    (options.fs_type.unwrap_or_default(), options.access == Some(Access::ReadOnly));
                let mounted = by_kubelet::mount_device(&device, &target, &fs_type, read_only);
                // A failure of kubelet's mount counts like one of the driver.
                Ok(mounted.is_err().then_some(answer))
            }
            _ => Ok(Some(answer)),
        }
    }

    /// Cleans up after an attempt, however far it came.
    pub(super) fn clear(&mut self, volume: &PodVolume) -> Result<(), Stopped> {
        let target = volume.target()?;
        if is_mounted(&target)? {
            return self.take_down(volume);
        }
        // Kubelet tries once, and leaves a directory that it cannot remove.
        let _ = remove_directory(target.as_path());
        // There may be nothing to detach; other cases check that.
        let _ = self.unstage(volume);
        Ok(())
    }

    /// Cleans up after `mount` alone, whatever its result; the device stays.
    pub(super) fn clear_mount(&mut self, volume: &PodVolume) -> Result<(), Stopped> {
        let target = volume.target()?;
        if is_mounted(&target)? {
            self.unmount(volume)?.or_blocked(UNMOUNT_WORKS)?;
        }
        let _ = remove_directory(target.as_path());
        Ok(())
    }

    /// Mounts the volume once, for a case that begins with a read-only mount: a disk may be blank.
    pub(super) fn use_once(&mut self) -> Result<(), Stopped> {
        if !self.attaches() && !self.facts.keeps_data {
            return Ok(());
        }
        let volume = self.volume()?;
        self.bring_up(&volume)?;
        self.take_down(&volume)
    }

    /// Returns the properties with unchanged options. Marks the volume if it keeps data.
    pub(super) fn usual_looks(&mut self) -> Result<Looks, Stopped> {
        let volume = self.volume()?;
        self.usual_looks_of(&volume)
    }

    /// Does the same for a volume that differs from the author's.
    pub(super) fn usual_looks_of(&mut self, volume: &PodVolume) -> Result<Looks, Stopped> {
        self.bring_up(volume)?;
        let target = volume.target()?;
        if self.facts.keeps_data {
            // A volume that cannot be written to has no mark to compare.
            let _ = put(&target.as_path().join(MARK), self.random.u64(..).to_string());
        }
        let looks = Looks::of(target.as_path())?;
        self.take_down(volume)?;
        looks.ok_or_else(|| anyhow::anyhow!("what was mounted a moment ago is gone").into())
    }

    /// Mounts and unmounts the volume with options that mean the same. Fails if it looks different.
    pub(super) fn must_look(
        &mut self,
        usual: &Looks,
        volume: &PodVolume,
        spelling: Spelling<'_>,
        how: &str,
    ) -> Result<(), Stopped> {
        let attempt = self.attempt(volume, spelling)?;
        let answer = attempt.answer.succeeds(&format!("{how} they mean the same as before"))?;
        let difference = match &attempt.looks {
            None => Some("nothing is mounted".to_owned()),
            Some(looks) => looks.difference(usual, self.facts.keeps_data),
        };
        if let Some(difference) = difference {
            return Err(answer.fails(format!("{how} they mean the same as before, but {difference}")));
        }
        self.clear(volume)
    }

    /// Returns the time at which a case stops trying values.
    pub(super) fn budget() -> Instant {
        Instant::now() + BUDGET
    }
}

impl Looks {
    fn of(target: &Path) -> Result<Option<Self>, Stopped> {
        let Some(entry) = mount_table::at(target)? else { return Ok(None) };
        let (figures, root) = (statvfs(target)?, fs::metadata(target)?);
        Ok(Some(Self {
            file_system: entry.file_system,
            size: figures.f_blocks.saturating_mul(figures.f_frsize),
            flags: figures.f_flag,
            mode: root.mode() & 0o7777,
            owner: (root.uid(), root.gid()),
            mark: fs::read(target.join(MARK)).ok(),
        }))
    }

    /// Reports whether the volume is read-only.
    pub(super) fn is_read_only(&self) -> bool {
        self.flags.contains(StatVfsMountFlags::RDONLY)
    }

    /// Returns the first flag of `nosuid` and `nodev` that `usual` has and this volume lacks.
    pub(super) fn lost_protection(&self, usual: &Self) -> Option<&'static str> {
        let flags = [(StatVfsMountFlags::NOSUID, "nosuid"), (StatVfsMountFlags::NODEV, "nodev")];
        let lost = |flag| usual.flags.contains(flag) && !self.flags.contains(flag);
        flags.into_iter().find(|(flag, _)| lost(*flag)).map(|(_, name)| name)
    }

    /// Describes the first difference from `usual`, if there is one.
    /// If the volume keeps data, also checks that it is the same storage.
    pub(super) fn difference(&self, usual: &Self, keeps_data: bool) -> Option<String> {
        let words =
            |what: &str, now: &str, before: &str| Some(format!("{what} is {now} instead of {before}"));
        if self.file_system != usual.file_system {
            return words("the file system", &self.file_system, &usual.file_system);
        }
        // The size of some file systems depends on the space in use.
        if self.size.abs_diff(usual.size) > usual.size / 8 {
            return words("the size", &self.size.to_string(), &usual.size.to_string());
        }
        if self.is_read_only() != usual.is_read_only() {
            let word = |looks: &Self| if looks.is_read_only() { "read-only" } else { "writable" };
            return words("it", word(self), word(usual));
        }
        if let Some(flag) = self.lost_protection(usual) {
            return Some(format!("it is no longer mounted {flag}"));
        }
        if self.mode != usual.mode {
            return words("its mode", &format!("{:04o}", self.mode), &format!("{:04o}", usual.mode));
        }
        if self.owner != usual.owner {
            return words("its owner", &format!("{:?}", self.owner), &format!("{:?}", usual.owner));
        }
        (keeps_data && self.mark != usual.mark).then(|| "it is another storage".to_owned())
    }
}
