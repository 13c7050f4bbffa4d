//! The first mount of a volume.

use super::{OWN_WORD, end, mounts};
use crate::check::evidence::{Played, Stopped};
use crate::check::footprint::Footprint;
use crate::check::in_time::within;
use crate::check::staging::{make_directory, put, remove_directory};
use crate::check::subject::Subject;
use crate::kubelet::PodVolume;
use crate::protocol::Call;
use crate::sys::place::{Look, Place};
use rustix::fs::statvfs;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

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

/// What a container does first.
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
    let before = mounts(&volume)?;
    let target = volume.target()?;
    let unreadable = [OWN_WORD.into(), OsString::from(target.as_path()), "{\"".into()];
    let calls = [(vec!["init".into()], "init"), (vec!["check".into()], "an unknown verb")];
    let broken = (unreadable.to_vec(), "a mount with options that are no JSON");
    // Kubelet's bind stays whatever the driver says to that.
    let mounts_itself = subject.facts.has(crate::protocol::Verb::Mount);
    for (call, what) in calls.into_iter().chain(mounts_itself.then_some(broken)) {
        let answer = subject.execute(&call);
        if mounts(&volume)? != before {
            return Err(answer.fails(format!("after {what} the volume of a running pod is not mounted as it was")));
        }
        let directory = target.as_path().to_owned();
        let listed = within(subject.given.patience, move || fs::metadata(directory).map(drop))?;
        if !matches!(listed, Some(Ok(()))) {
            return Err(answer.fails(format!("after {what} the volume of a running pod does not answer")));
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
        let before = Footprint::of(subject.inside)?;
        let answer = subject.mount(&volume)?;
        if answer.is_success() && subject.layers(&volume)? == 0 {
            return Err(answer.fails("the directory is missing; it said Success, and nothing is mounted there"));
        }
        if !answer.is_success() {
            let grown = Footprint::grown_since(&before, subject.inside)?;
            if !grown.is_empty() {
                let grown = grown.join(", ");
                return Err(answer.fails(format!("the directory is missing; the mount failed and left {grown}")));
            }
        }
        end(subject, &volume, &answer)?;
        gone.iter().try_for_each(|directory| remove_directory(directory))?;
    }
    Ok(())
}

pub(super) fn nothing_beside(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let answer = subject.bring_up(&volume)?;
    let (_, before) = surroundings(&volume)?;
    let beside = |(expected, seen): (BTreeSet<PathBuf>, BTreeSet<PathBuf>)| {
        let names: Vec<_> = seen.difference(&expected).map(|path| path.display().to_string()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    if let Some(names) = beside(surroundings(&volume)?) {
        return Err(answer.fails(format!("beside the volume's directory there is now {names}")));
    }
    drop(before);
    let answer = subject.unmount(&volume)?.or_blocked("unmount::works")?;
    if let Some(names) = beside(surroundings(&volume)?) {
        return Err(answer.fails(format!("beside the volume's directory there is now {names}")));
    }
    end(subject, &volume, &answer)
}

/// What is to be in the two directories above the volume's, and what is.
fn surroundings(volume: &PodVolume) -> Result<(BTreeSet<PathBuf>, BTreeSet<PathBuf>), Stopped> {
    let target = volume.target()?;
    let mut expected = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for path in target.as_path().ancestors().take(2) {
        expected.insert(path.to_owned());
        for entry in fs::read_dir(path.parent().unwrap_or(path))? {
            seen.insert(entry?.path());
        }
    }
    Ok((expected, seen))
}

pub(super) fn propagates(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let (container, target) = (subject.inside.neighbour()?, volume.target()?);
    let answer = subject.bring_up(&volume)?;
    if container.sees(target.as_path())?.is_empty() {
        return Err(answer.fails("a container that began before sees no mount in the directory"));
    }
    let answer = subject.unmount(&volume)?.or_blocked("unmount::works")?;
    if !container.sees(target.as_path())?.is_empty() {
        return Err(answer.fails("a container still sees the mount, which is kept busy by that"));
    }
    make_directory(target.as_path())?;
    subject.take_down(&volume)
}

pub(super) fn old_call(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let before = Footprint::of(subject.inside)?;
    let mut call = volume.mount_call()?;
    if let Call::Mount { device, .. } = &mut call {
        *device = Some(subject.device().to_owned());
    }
    let answer = subject.call(&call);
    let grown = Footprint::grown_since(&before, subject.inside)?;
    if answer.is_success() && subject.layers(&volume)? == 0 {
        return Err(answer.fails("it said Success, and nothing is mounted"));
    }
    if !answer.is_success() && !grown.is_empty() {
        return Err(answer.fails(format!("the mount failed and left {}", grown.join(", "))));
    }
    end(subject, &volume, &answer)
}
