//! Directories that kubelet makes in unusual places, or does not make at all.

use super::{abandon, end, makes_no_places};
use crate::check::answer::Answer;
use crate::check::evidence::{Played, Stopped};
use crate::check::footprint::Footprint;
use crate::check::staging::{make_directory, put};
use crate::check::subject::{KUBELET_ROOT, Subject};
use flexvol_kubelet::PodVolume;
use flexvol_linux::mount::mount_table;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink as make_link;
use std::path::{Path, PathBuf};

/// Data of another volume.
const DATA: &str = "somebody's data\n";

pub(super) fn leftover_files(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let target = volume.target()?;
    let (directory, file) = (target.as_path().join("check.d"), target.as_path().join("check.d/data"));
    fs::create_dir(&directory)?;
    put(&file, DATA)?;
    let answer = subject.mount(&volume)?;
    if answer.is_success() && subject.layers(&volume)? == 0 {
        return Err(answer.fails("files are in the directory; it said Success, and nothing is mounted"));
    }
    // This case does not check whether the files disturb `unmount`.
    let mounted = answer.is_success();
    let answer = if mounted { subject.unmount(&volume)? } else { answer };
    if subject.layers(&volume)? > 0 {
        let evidence = answer.evidence("files are beneath the mount, and it cannot be unmounted");
        return Err(Stopped::Blocked("unmount::works", Box::new(evidence)));
    }
    if fs::read_to_string(&file).ok().as_deref() != Some(DATA) {
        return Err(answer.fails("files that were in the directory before the mount are not there any more"));
    }
    fs::remove_file(&file)?;
    fs::remove_dir(&directory)?;
    match (mounted, answer.is_success()) {
        (true, true) => subject.put_away(&volume, &answer),
        (true, false) => subject.take_down(&volume),
        (false, _) => abandon(subject, &volume, &answer),
    }
}

/// Mounts on a target that kubelet would not pass; the options and all else are as usual.
fn mount_on(subject: &mut Subject<'_>, volume: &PodVolume, target: &OsStr) -> Result<Answer, Stopped> {
    let mut arguments = volume.mount_call()?.to_arguments();
    if let Some(argument) = arguments.get_mut(1) {
        target.clone_into(argument);
    }
    Ok(subject.execute(&arguments))
}

/// Makes a directory below kubelet's root that has nothing to do with the volume.
fn elsewhere() -> Result<PathBuf, Stopped> {
    let path = Path::new(KUBELET_ROOT).join("check-elsewhere");
    make_directory(&path)?;
    Ok(path)
}

/// Fails if anything is mounted or made outside the volume's directory.
fn stays_inside(before: &Footprint, volume: &PodVolume, answer: &Answer) -> Played {
    let target = volume.target()?;
    let at_target = mount_table::read()?.iter().any(|entry| entry.target == target.as_path());
    let mut grown = before.new_places()?;
    if answer.is_success() && at_target {
        // Everything that a mounted volume needs is allowed here.
        grown.clear();
    }
    if answer.is_success() && !at_target {
        return Err(answer.fails(format!("it said Success, and nothing is mounted at {target}")));
    }
    if grown.is_empty() {
        return Ok(());
    }
    Err(answer.fails(format!("it has made {}", grown.join(", "))))
}

pub(super) fn symlink(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let (target, elsewhere) = (volume.target()?, elsewhere()?);
    fs::remove_dir(target.as_path())?;
    make_link(&elsewhere, target.as_path())?;
    let before = Footprint::of_places()?;
    let answer = subject.mount(&volume)?;
    stays_inside(&before, &volume, &answer)?;
    if answer.is_success() {
        subject.take_down(&volume)?;
    } else {
        // The link may be gone.
        drop(fs::remove_file(target.as_path()));
        abandon(subject, &volume, &answer)?;
    }
    drop(fs::remove_dir(elsewhere));
    Ok(())
}

pub(super) fn file(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let target = volume.target()?;
    fs::remove_dir(target.as_path())?;
    put(target.as_path(), DATA)?;
    let answer = subject.mount(&volume)?;
    if answer.is_success() {
        // The driver may have mounted a file on the file.
        if subject.layers(&volume)? == 0 {
            return Err(answer.fails("a file is there; it said Success, and nothing is mounted"));
        }
        subject.unmount(&volume)?;
        subject.inside.take_off(target.as_path())?;
    }
    if fs::read_to_string(target.as_path()).ok().as_deref() != Some(DATA) {
        return Err(answer.fails("what was in the file is not there any more"));
    }
    fs::remove_file(target.as_path())?;
    abandon(subject, &volume, &answer)
}

pub(super) fn relative(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let before = Footprint::of_places()?;
    let target = volume.target()?;
    // The driver is executed in the root directory.
    let from_root = target.as_path().strip_prefix("/").unwrap_or(target.as_path()).to_owned();
    let answer = mount_on(subject, &volume, from_root.as_os_str())?;
    stays_inside(&before, &volume, &answer)?;
    end(subject, &volume, &answer)
}

pub(super) fn dot_dot(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let elsewhere = elsewhere()?;
    let before = Footprint::of_places()?;
    // The kernel finds nothing at this path. A driver that cleans the path, or makes missing
    // directories, ends up elsewhere.
    let up = volume.target()?.as_path().join("missing/../../../../../../check-elsewhere");
    let answer = mount_on(subject, &volume, up.as_os_str())?;
    let grown = before.new_places()?;
    if !grown.is_empty() {
        return Err(answer.fails(format!(
            "the path leads out of the volume's directory, and it has made {}",
            grown.join(", ")
        )));
    }
    if answer.is_success() {
        return Err(answer.fails("the path leads nowhere, and it said Success"));
    }
    drop(fs::remove_dir(elsewhere));
    abandon(subject, &volume, &answer)
}

pub(super) fn outside(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let elsewhere = Path::new("/opt/check/outside");
    make_directory(elsewhere)?;
    let before = Footprint::of_places()?;
    let answer = mount_on(subject, &volume, elsewhere.as_os_str())?;
    if answer.is_success() {
        if mount_table::at(elsewhere)?.is_none() {
            return Err(answer.fails("it said Success, and nothing is mounted there"));
        }
        let unmount = ["unmount".into(), elsewhere.into()];
        let answer = subject.execute(&unmount).succeeds("it has mounted there, and is to unmount there")?;
        if mount_table::at(elsewhere)?.is_some() {
            return Err(answer.fails("it said Success, and the directory is still mounted"));
        }
    }
    makes_no_places(&before, &answer)?;
    remove_empty(Path::new("/opt/check"));
    abandon(subject, &volume, &answer)
}

pub(super) fn other_root(subject: &mut Subject<'_>) -> Played {
    below(subject, "/opt/check/kubelet")
}

pub(super) fn awkward_root(subject: &mut Subject<'_>) -> Played {
    let long = "for as long as a path may well be ".repeat(6);
    below(subject, &format!("/opt/check/kübelet 根/it's \"quoted\" \\040 $(touch x) #1 {}", long.trim_end()))
}

/// Plays the whole life cycle of a volume below another kubelet root.
fn below(subject: &mut Subject<'_>, root: &str) -> Played {
    let root = Path::new(root);
    make_directory(root)?;
    let volume = subject.volume_below(root)?;
    subject.stage(&volume)?;
    let answer = subject.mount(&volume)?.succeeds("a volume is mounted below another root of kubelet's")?;
    if subject.layers(&volume)? == 0 {
        return Err(answer.fails("it said Success, and the directory is no mount point"));
    }
    let answer =
        subject.unmount(&volume)?.succeeds("a volume is unmounted below another root of kubelet's")?;
    if subject.layers(&volume)? > 0 {
        return Err(answer.fails("it said Success, and the directory is still a mount point"));
    }
    subject.put_away(&volume, &answer)?;
    // Files are not removed, because there should be none.
    remove_empty(Path::new("/opt/check"));
    Ok(())
}

/// Removes a directory and its subdirectories, if there is nothing else in them.
fn remove_empty(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_empty(&entry.path());
    }
    // A directory that remains is reported as a leftover.
    drop(fs::remove_dir(directory));
}
