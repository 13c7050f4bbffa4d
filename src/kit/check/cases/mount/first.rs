//! The first mount of a volume.

use super::{UNMOUNT_WORKS, end, makes_no_places};
use crate::check::answer::Answer;
use crate::check::device_calls::Mounts;
use crate::check::evidence::Played;
use crate::check::footprint::Footprint;
use crate::check::in_time::within;
use crate::check::staging::{put, remove_directory};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_linux::mount::place::{Look, Place};
use flexvol_protocol::{Call, Verb};
use rustix::fs::statvfs;
use std::fs::{self, File};
use std::io;
use std::path::Path;

pub(super) fn works(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let answer = subject.mount(&volume)?.succeeds("a volume is to be mounted")?;
    let target = volume.target()?;
    let look = Place::open(&target)?.map_or(Ok(Look::Missing), |place| place.look())?;
    let what = match look {
        Look::Mount(_) if fs::remove_dir(target.as_path()).is_ok() => "kubelet can remove the directory",
        Look::Mount(_) => return subject.take_down(&volume),
        Look::Dead(_) => "the mount does not answer",
        Look::Missing => "the directory is gone",
        Look::Plain(_) => "the directory is no mount point",
    };
    Err(answer.fails(format!("it said Success, and {what}")))
}

pub(super) fn usable_at_once(subject: &mut Subject<'_>) -> Played {
    let writable = subject.facts.writable;
    for _ in 0..=subject.repeat() / 5 {
        let volume = subject.volume()?;
        let answer = subject.bring_up(&volume)?;
        let target = volume.target()?.as_path().to_owned();
        match within(subject.given.patience, move || try_out(&target, writable))? {
            Some(Ok(())) => {}
            Some(Err(what)) => return Err(answer.fails(format!("it said Success, and {what}"))),
            None => return Err(answer.fails("it said Success, and who looks into the volume hangs")),
        }
        subject.take_down(&volume)?;
    }
    Ok(())
}

/// Does what a container does first.
fn try_out(target: &Path, writable: bool) -> Result<(), String> {
    let step = |what: &str, done: io::Result<()>| done.map_err(|error| format!("{what}: {error}"));
    step("it cannot be measured", statvfs(target).map(drop).map_err(io::Error::from))?;
    if !target.is_dir() {
        return step("it cannot be opened", File::open(target).map(drop));
    }
    step("it cannot be listed", list(target))?;
    if writable {
        let (directory, text) = (target.join("check-at-once"), "written at once");
        let file = directory.join("file");
        step("no directory can be made in it", fs::create_dir(&directory))?;
        step("no file can be written in it", put(&file, text))?;
        let read = fs::read_to_string(&file).map(|read| read == text);
        step("what was written cannot be removed", fs::remove_dir_all(&directory))?;
        match read {
            Ok(true) => {}
            Ok(false) => return Err("what was written is not what is read".to_owned()),
            Err(error) => return Err(format!("what was written cannot be read: {error}")),
        }
    }
    Ok(())
}

fn list(directory: &Path) -> io::Result<()> {
    fs::read_dir(directory)?.try_for_each(|entry| entry.map(drop))
}

pub(super) fn stays(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let target = volume.target()?;
    let before = Mounts::at(&target)?;
    let unreadable = volume.mount_call()?.to_arguments().into_iter().take(2).chain(["{".into()]).collect();
    let mut calls = vec![(vec!["init".into()], "init"), (vec!["check".into()], "an unknown verb")];
    // A driver without `mount` has nothing here that could fail.
    calls.extend(subject.facts.has(Verb::Mount).then_some((unreadable, "a mount that is malformed")));
    for (call, what) in calls {
        let answer = subject.execute(&call);
        if Mounts::at(&target)? != before {
            return Err(answer.fails(format!("after {what}, a volume in use is not mounted as it was")));
        }
        let directory = target.as_path().to_owned();
        let look = move || fs::metadata(directory).is_ok();
        if within(subject.given.patience, look)? != Some(true) {
            return Err(answer.fails(format!("after {what}, a volume in use does not answer any more")));
        }
    }
    subject.take_down(&volume)
}

pub(super) fn makes_directory(subject: &mut Subject<'_>) -> Played {
    for levels in [1, 2] {
        let volume = subject.volume()?;
        subject.stage(&volume)?;
        let target = volume.target()?;
        let gone: Vec<_> = target.as_path().ancestors().take(levels).map(Path::to_owned).collect();
        gone.iter().try_for_each(fs::remove_dir)?;
        let before = Footprint::of_places()?;
        let answer = subject.mount(&volume)?;
        if answer.is_success() && subject.layers(&volume)? == 0 {
            return Err(
                answer.fails("the directory is missing; it said Success, and nothing is mounted there")
            );
        }
        makes_no_places(&before, &answer)?;
        end(subject, &volume, &answer)?;
        for directory in &gone {
            drop(remove_directory(directory));
        }
    }
    Ok(())
}

pub(super) fn nothing_beside(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let answer = subject.bring_up(&volume)?;
    nothing_is_beside(&volume, &answer)?;
    let answer = subject.unmount(&volume)?.or_blocked(UNMOUNT_WORKS)?;
    nothing_is_beside(&volume, &answer)?;
    subject.put_away(&volume, &answer)
}

/// Fails if there is anything else in the driver's directory, or in the one above it.
fn nothing_is_beside(volume: &PodVolume, answer: &Answer) -> Played {
    let target = volume.target()?;
    let mut found = Vec::new();
    for path in target.as_path().ancestors().take(2) {
        // Another case checks whether the directory should exist.
        for entry in fs::read_dir(path.parent().unwrap_or(path)).into_iter().flatten() {
            let entry = entry?.path();
            found.extend((entry != path).then(|| entry.display().to_string()));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(answer.fails(format!("beside the volume's directory there is now {}", found.join(", "))))
}

pub(super) fn propagates(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let (container, target) = (subject.inside.neighbour()?, volume.target()?);
    let answer = subject.bring_up(&volume)?;
    if container.sees(target.as_path())?.is_empty() {
        return Err(answer.fails("a container that began before sees no mount in the directory"));
    }
    let answer = subject.unmount(&volume)?.or_blocked(UNMOUNT_WORKS)?;
    if !container.sees(target.as_path())?.is_empty() {
        return Err(answer.fails("a container still sees the mount, which is kept busy by that"));
    }
    subject.put_away(&volume, &answer)
}

pub(super) fn old_call(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let before = Footprint::of_places()?;
    let mut call = volume.mount_call()?;
    if let Call::Mount { device, .. } = &mut call {
        *device = Some(subject.device().to_owned());
    }
    let answer = subject.call(&call);
    if answer.is_success() && subject.layers(&volume)? == 0 {
        return Err(answer.fails("it said Success, and nothing is mounted"));
    }
    makes_no_places(&before, &answer)?;
    end(subject, &volume, &answer)
}
