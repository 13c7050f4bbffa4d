//! A mount where something is mounted already.

use super::{abandon, can_write, read_only};
use crate::check::device_calls::{Mounts, mounted_at};
use crate::check::evidence::{Played, skip};
use crate::check::given::Nature;
use crate::check::staging::put;
use crate::check::subject::Subject;
use crate::sandbox::NOBODYS;

pub(super) fn twice(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let before = Mounts::at(&volume.target()?)?;
    let again = subject.mount(&volume)?.succeeds("it is mounted already, as it should be")?;
    let after = Mounts::at(&volume.target()?)?;
    if after.len() != before.len() {
        return Err(again.fails(format!("{} mounts became {}", before.len(), after.len())));
    }
    if after != before {
        return Err(again.fails("the volume was mounted again: what has a file open in it has lost it"));
    }
    subject.take_down(&volume)
}

pub(super) fn many_times(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    for _ in 0..subject.repeat() * 2 {
        subject.mount(&volume)?.or_blocked("mount::twice")?;
    }
    let answer = subject.unmount(&volume)?.succeeds("an unmount ends all mounts of the directory")?;
    let left = subject.layers(&volume)?;
    if left > 0 {
        let times = subject.repeat() * 2 + 1;
        return Err(answer.fails(format!("after {times} mounts and an unmount, {left} are still there")));
    }
    subject.put_away(&volume, &answer)
}

pub(super) fn other_source(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let (target, inside) = (volume.target()?, subject.inside);
    let kind = if subject.facts.file_system == "ramfs" { "tmpfs" } else { "ramfs" };
    inside.mount_nobodys(target.as_path(), kind)?;
    put(&target.as_path().join("check"), "of another volume")?;
    let answer = subject.mount(&volume)?;
    let on_top = mounted_at(target.as_path())?.pop();
    let covered = on_top.is_some_and(|entry| entry.source != NOBODYS);
    if answer.is_success() && !covered {
        return Err(answer.fails(format!("a foreign {kind} is mounted there, and it said Success")));
    }
    inside.take_off(target.as_path())?;
    abandon(subject, &volume, &answer)
}

pub(super) fn other_access(subject: &mut Subject<'_>) -> Played {
    if !subject.facts.writable || subject.given.is(Nature::Shared) {
        return skip("needs a volume that may be written to or not");
    }
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let before = Mounts::at(&volume.target()?)?;
    let answer = subject.mount(&read_only(&volume))?;
    let written = can_write(&volume);
    if answer.is_success() && written.is_ok() {
        return Err(
            answer.fails("the volume is mounted for writing, read-only is asked for, and it said Success")
        );
    }
    if !answer.is_success() && Mounts::at(&volume.target()?)? != before {
        return Err(answer.fails("it said that it failed, and the volume is not mounted as it was"));
    }
    subject.take_down(&volume)
}
