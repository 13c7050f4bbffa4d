//! `expandfs`, as kubelet calls it once the PV of a pod has grown.

use crate::check::answer::{Answer, Meant};
use crate::check::case::{How, Scene};
use crate::check::evidence::{Played, Stopped, skip};
use crate::check::staging::{is_mounted, put};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::quantity::Quantity;
use flexvol_protocol::{Access, Call};
use rustix::fs::statvfs;
use std::path::{Path, PathBuf};

/// Case about growth, for cases that need it.
const GROWS: &str = "expand::grows";

/// Limit by which a volume is made larger, in bytes.
const MOST: u64 = 1 << 30;

const MIB: u64 = 1 << 20;

/// Bit of `CAP_SYS_RESOURCE` (capability.h).
const SYS_RESOURCE: u32 = 24;

pub(in crate::check) const SCENES: &[Scene] = &[
    ("expand::grows", How::Played(grows)),
    ("expand::twice", How::Played(twice)),
    ("expand::odd_arguments", How::Played(odd_arguments)),
    ("expand::shrink", How::Played(shrink)),
    ("expand::shrink_is_refused", How::Played(shrink_is_refused)),
    ("expand::not_left_to_kubelet", How::Played(not_left_to_kubelet)),
];

/// Mounted volume that shall grow, with a file in it.
struct Growing {
    volume: PodVolume,
    target: PathBuf,
    old: u64,
    new: u64,
    before: u64,
}

impl Growing {
    fn set(subject: &mut Subject<'_>) -> Result<Self, Stopped> {
        let mut volume = subject.volume()?;
        if volume.options.access() == Access::ReadOnly || (subject.facts.mounts && !subject.facts.writable) {
            return skip("kubelet does not grow what is only read");
        }
        subject.bring_up(&volume)?;
        let target = volume.target()?.as_path().to_owned();
        let before = size_at(&target)?;
        let old = volume.capacity.unwrap_or(before);
        volume.capacity = Some(old);
        let new = (old + old.clamp(MIB, MOST)).next_multiple_of(MIB);
        put(&target.join("check"), "here before")?;
        Ok(Self { volume, target, old, new, before })
    }

    fn call(&self, subject: &mut Subject<'_>, new_bytes: u64) -> Result<Answer, Stopped> {
        let device = subject.device().to_owned();
        Ok(subject.call(&self.volume.expand_call(&device, new_bytes)?))
    }

    /// Makes the volume larger.
    /// Skips the case if the kernel forbids it: that is no fault of the driver.
    fn grow(&self, subject: &mut Subject<'_>) -> Result<Answer, Stopped> {
        let answer = self.call(subject, self.new)?;
        if answer.is_failure() && subject.facts.file_system.starts_with("ext") && !may_resize()? {
            let text = "to grow a mounted ext4 needs CAP_SYS_RESOURCE, which is missing here";
            return skip(text);
        }
        Ok(answer)
    }

    /// Fails if the volume has become smaller, or its file is gone or has changed.
    fn is_unharmed(&self, answer: &Answer, at_least: u64) -> Played {
        let now = size_at(&self.target)?;
        if now < at_least {
            return Err(answer.fails(format!("there were {at_least} bytes, and now there are {now}")));
        }
        match std::fs::read_to_string(self.target.join("check")) {
            Ok(text) if text == "here before" => Ok(()),
            Ok(_) => Err(answer.fails("what was in a file before has changed")),
            Err(error) => Err(answer.fails(format!("a file that was there before cannot be read: {error}"))),
        }
    }

    fn end(&self, subject: &mut Subject<'_>) -> Played {
        std::fs::remove_file(self.target.join("check"))?;
        let answer = subject.unmount(&self.volume)?.or_blocked("sequence::resize")?;
        subject.put_away(&self.volume, &answer)
    }

    /// Reports whether the size of the file system is about the size that the volume was asked to
    /// have. The file system of a server, for example, has a size of its own.
    fn is_sized(&self) -> bool {
        let asked = self
            .volume
            .options
            .own
            .values()
            .filter_map(|value| Quantity::parse(value).ok().map(|size| size.0));
        let given = (self.old != self.before).then_some(self.old);
        asked.chain(given).any(|size| (size / 2..=size + size / 8).contains(&self.before))
    }
}

fn size_at(path: &Path) -> Result<u64, Stopped> {
    let figures = statvfs(path)?;
    Ok(figures.f_blocks.saturating_mul(figures.f_frsize))
}

/// Reports whether this process, and so the driver, has `CAP_SYS_RESOURCE`.
fn may_resize() -> Result<bool, Stopped> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    Ok(bits.is_none_or(|bits| bits >> SYS_RESOURCE & 1 == 1))
}

fn grows(subject: &mut Subject<'_>) -> Played {
    let scene = Growing::set(subject)?;
    let answer = scene.grow(subject)?.succeeds("the volume has grown")?;
    scene.is_unharmed(&answer, scene.before)?;
    let now = size_at(&scene.target)?;
    if now <= scene.before && scene.is_sized() {
        let text = format!(
            "from {} to {} bytes were asked for, and there are {now} as before",
            scene.old, scene.new
        );
        return Err(answer.fails(text));
    }
    scene.end(subject)
}

fn twice(subject: &mut Subject<'_>) -> Played {
    let scene = Growing::set(subject)?;
    scene.grow(subject)?.or_blocked(GROWS)?;
    let grown = size_at(&scene.target)?;
    // The calls ask for the same size again, and then for less than the present size.
    for new_bytes in [scene.new, scene.old + (scene.new - scene.old) / 2] {
        let answer = scene.call(subject, new_bytes)?.succeeds("the file system is that large already")?;
        scene.is_unharmed(&answer, grown)?;
    }
    scene.end(subject)
}

fn odd_arguments(subject: &mut Subject<'_>) -> Played {
    let scene = Growing::set(subject)?;
    let options = scene.volume.device_options();
    let device = subject.device().to_owned();
    let expand = |device: &str, target, old_bytes| Call::ExpandFs {
        options: options.clone(),
        device: device.to_owned(),
        target,
        new_bytes: scene.old,
        old_bytes,
    };
    let target = scene.volume.target()?;
    let calls = [expand("", target.clone(), scene.old), expand(&device, target, 0)];
    for call in calls {
        let answer = subject.call(&call).answers("the size is the old one")?;
        scene.is_unharmed(&answer, scene.before)?;
    }
    let global = scene.volume.global()?;
    if subject.attaches() && is_mounted(&global)? {
        let answer = subject.call(&expand(&device, global, scene.old));
        let answer =
            answer.succeeds("the global directory is where releases before 1.22 let a volume grow")?;
        scene.is_unharmed(&answer, scene.before)?;
    }
    scene.end(subject)
}

fn shrink(subject: &mut Subject<'_>) -> Played {
    let scene = Growing::set(subject)?;
    let answer = scene.call(subject, scene.old / 2)?.answers("the new size is below the old one")?;
    scene.is_unharmed(&answer, scene.before)?;
    scene.end(subject)
}

fn shrink_is_refused(subject: &mut Subject<'_>) -> Played {
    let scene = Growing::set(subject)?;
    scene.call(subject, scene.old / 2)?.refuses("the new size is below the old one")?;
    scene.end(subject)
}

/// Plays the life cycle of a volume that grows while one pod has it, and is mounted by the next.
pub(super) fn grow_and_mount_again(subject: &mut Subject<'_>) -> Played {
    let scene = Growing::set(subject)?;
    scene.grow(subject)?.or_blocked(GROWS)?;
    let grown = size_at(&scene.target)?;
    scene.call(subject, scene.new)?.succeeds("kubelet asks once more")?;
    let answer = subject.unmount(&scene.volume)?.succeeds("the volume has grown, and its pod is gone")?;
    subject.put_away(&scene.volume, &answer)?;
    let next = subject.volume()?;
    let answer = subject.bring_up(&next)?;
    let target = next.target()?;
    if subject.facts.keeps_data {
        let again = Growing { target: target.as_path().to_owned(), ..scene };
        again.is_unharmed(&answer, grown)?;
        std::fs::remove_file(again.target.join("check"))?;
    }
    subject.take_down(&next)
}

fn not_left_to_kubelet(subject: &mut Subject<'_>) -> Played {
    let init = subject.call(&Call::Init).or_blocked("init::works")?;
    if !subject.facts.loads {
        let why = "kubelet cannot read what init says, and so does not load the driver";
        return skip(why);
    }
    let capabilities = init.status().and_then(|status| status.capabilities);
    if capabilities.is_some_and(|capabilities| !capabilities.requires_fs_resize) {
        return Ok(());
    }
    // A driver that has the verb fails, because this names no volume. One without it says so.
    let answer = subject.words(&["expandfs", "{}", "", "/var/lib/kubelet/check-none", "2097152", "1048576"]);
    if answer.meant != Meant::NotSupported || subject.attaches() {
        return Ok(());
    }
    let text = "expandfs is not supported, and init does not say \"requiresFSResize\":false";
    Err(answer.fails(text))
}
