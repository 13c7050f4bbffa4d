//! Unmount under normal conditions.

use crate::check::evidence::{Played, Stopped, skip};
use crate::check::given::Nature;
use crate::check::staging::{make_directory, put, remove_after, remove_directory};
use crate::check::subject::{KUBELET_ROOT, Subject};
use flexvol_kubelet::PodVolume;
use flexvol_linux::mount::mount_table;
use flexvol_protocol::text::seconds;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Data that a pod has written.
const DATA: &str = "what a pod has written\n";

/// Time that a volume is in use: a driver may wait for its end, but need not.
const IN_USE: Duration = Duration::from_millis(500);

pub(super) fn works(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let answer = subject.unmount(&volume)?.succeeds("a volume is to be unmounted")?;
    if subject.layers(&volume)? > 0 {
        return Err(answer.fails("it said Success, and the directory is still a mount point"));
    }
    remove_after(&answer, &volume.target()?)?;
    subject.put_away(&volume, &answer)
}

pub(super) fn not_mounted(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    subject.take_down(&volume)?;
    make_directory(volume.target()?.as_path())?;
    unmount_nothing(subject, &volume, "the directory is not mounted any more")
}

pub(super) fn never_mounted(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    make_directory(volume.target()?.as_path())?;
    unmount_nothing(subject, &volume, "nothing was ever mounted there")
}

/// Unmounts a directory that exists but is not mounted, and removes it afterwards.
fn unmount_nothing(subject: &mut Subject<'_>, volume: &PodVolume, what: &str) -> Played {
    let answer = subject.unmount(volume)?.succeeds(what)?;
    remove_directory(volume.target()?.as_path()).map_err(|error| {
        answer.fails(format!("{what}; it said Success, and kubelet cannot remove the directory: {error}"))
    })
}

pub(super) fn no_directory(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let target = volume.target()?;
    // The second time, the pod's own directory is gone as well.
    make_directory(target.as_path().parent().unwrap_or(target.as_path()))?;
    for what in ["the directory is not there", "neither the directory nor the pod's is there"] {
        let answer = subject.unmount(&volume)?.succeeds(what)?;
        if target.as_path().symlink_metadata().is_ok() {
            return Err(answer.fails(format!("{what}; it said Success, and has made it")));
        }
        // Empty directories are removed down to kubelet's own, as its housekeeping does.
        for directory in target.as_path().ancestors().skip(1).take(4) {
            if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none()) {
                drop(fs::remove_dir(directory));
            }
        }
    }
    Ok(())
}

pub(super) fn many_times(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let mut answer = subject.unmount(&volume)?.or_blocked("unmount::works")?;
    for time in 2..=subject.repeat() * 2 {
        answer =
            subject.unmount(&volume)?.succeeds(&format!("unmount number {time} of the same directory"))?;
    }
    subject.put_away(&volume, &answer)
}

pub(super) fn keeps_data(subject: &mut Subject<'_>) -> Played {
    if !subject.facts.writable {
        return skip("nothing can be written to the volume");
    }
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let name = "check-keeps-data";
    put(&volume.target()?.as_path().join(name), DATA)?;
    if subject.given.is(Nature::Ephemeral) {
        held(subject, &volume, name)
    } else {
        mounted_again(subject, &volume, name)
    }
}

/// Fails unless the next pod finds the file.
fn mounted_again(subject: &mut Subject<'_>, volume: &PodVolume, name: &str) -> Played {
    let answer = subject.unmount(volume)?.or_blocked("unmount::works")?;
    subject.put_away(volume, &answer)?;
    let next = subject.volume()?;
    subject.bring_up(&next)?;
    let file = next.target()?.as_path().join(name);
    let read = fs::read_to_string(&file);
    if !matches!(&read, Ok(text) if text == DATA) {
        let what = read.err().map_or("something else".to_owned(), |error| error.to_string());
        let problem = format!("what a pod has written is not there for the next one ({what})");
        let fix =
            "do not delete the volume in unmount; if what is written ends with the pod, say --ephemeral-ok";
        return Err(answer.evidence(problem).fix(fix).into());
    }
    fs::remove_file(file)?;
    subject.take_down(&next)
}

/// Fails if the volume was emptied before the unmount.
/// The data of such a volume goes with its mount, so a second mount holds it.
fn held(subject: &mut Subject<'_>, volume: &PodVolume, name: &str) -> Played {
    let second = second_view(subject, volume.target()?.as_path())?;
    let answer = subject.unmount(volume)?.or_blocked("unmount::works")?;
    let read = fs::read_to_string(second.join(name));
    // This does not count if the process that served the volume is gone, or if both mounts are.
    let gone = matches!(&read, Err(error) if error.kind() == io::ErrorKind::NotFound);
    if gone && mount_table::at(&second)?.is_some() {
        return Err(answer.fails("the files in the volume were deleted before it was unmounted"));
    }
    subject.inside.take_off(&second)?;
    fs::remove_dir(&second)?;
    subject.put_away(volume, &answer)
}

/// Shows a directory at a second place.
fn second_view(subject: &Subject<'_>, directory: &Path) -> Result<PathBuf, Stopped> {
    let second = Path::new(KUBELET_ROOT).join("check-second-view");
    make_directory(&second)?;
    subject.inside.bind(directory, &second)?;
    Ok(second)
}

pub(super) fn busy(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let target = volume.target()?;
    let file = target.as_path().join("check-busy");
    if subject.facts.writable {
        put(&file, DATA)?;
    }
    let (answer, _) = while_used(target.as_path(), || subject.unmount(&volume))?;
    let answer = answer?;
    let mounted = subject.layers(&volume)? > 0;
    if answer.is_success() && mounted {
        return Err(answer.fails("it said Success, and the directory is still a mount point"));
    }
    if mounted && subject.facts.writable {
        if fs::read_to_string(&file).ok().as_deref() != Some(DATA) {
            return Err(answer.fails("the volume is in use and still mounted, and a file in it is gone"));
        }
        fs::remove_file(&file)?;
    }
    let answer = subject.unmount(&volume)?.succeeds("nobody uses the volume any more")?;
    if subject.layers(&volume)? > 0 {
        return Err(answer.fails("nobody uses the volume any more; it said Success, and it is still mounted"));
    }
    subject.put_away(&volume, &answer)
}

pub(super) fn kills_nobody(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let target = volume.target()?;
    let (answer, killed) = while_used(target.as_path(), || subject.unmount(&volume))?;
    let answer = answer?;
    if let Some(how) = killed {
        return Err(answer.fails(format!("a process had a file of the volume open, and was ended: {how}")));
    }
    subject.take_down(&volume)
}

/// Does `work` while another process has a file or directory open, for a limited time.
/// Returns how that process was ended, if it was ended before.
///
/// This process does not hold the file itself, because some drivers kill processes that use a
/// volume.
#[expect(clippy::disallowed_methods, reason = "it stands for a process of somebody else, in the sandbox")]
pub(super) fn while_used<T>(
    path: &Path,
    work: impl FnOnce() -> T,
) -> Result<(T, Option<ExitStatus>), Stopped> {
    let seconds = seconds(IN_USE, 1);
    let mut user = Command::new("sleep").arg(seconds).stdin(File::open(path)?).spawn()?;
    let result = work();
    let killed = user.try_wait()?.filter(|status| !status.success());
    // The process may have ended on its own.
    drop(user.kill());
    user.wait()?;
    Ok((result, killed))
}
