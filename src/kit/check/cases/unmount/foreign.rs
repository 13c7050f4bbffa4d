//! Unmount while there are other mounts than the volume's.

use super::plain::while_used;
use crate::check::device_calls::Mounts;
use crate::check::evidence::{Played, Stopped, skip};
use crate::check::footprint::Footprint;
use crate::check::given::Nature;
use crate::check::staging::{make_directory, put, remove_directory};
use crate::check::subject::{KUBELET_ROOT, Subject};
use crate::sandbox::NOBODYS;
use flexvol_linux::mount::mount_table;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Data in a mount of another owner.
const DATA: &str = "somebody else's data\n";

/// Name of the file with this data.
const FILE: &str = "data";

pub(super) fn stacked(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let target = volume.target()?;
    for _ in 0..2 {
        subject.inside.bind(target.as_path(), target.as_path())?;
    }
    let layers = subject.layers(&volume)?;
    let answer = subject.unmount(&volume)?.succeeds(&format!("the volume is mounted {layers} times"))?;
    let left = subject.layers(&volume)?;
    if left > 0 {
        return Err(answer.fails(format!("it said Success, and of {layers} mounts {left} are left")));
    }
    subject.put_away(&volume, &answer)
}

/// Mount of no driver, with a file in it. It can be shown at a second place.
struct Other {
    place: PathBuf,
}

impl Other {
    fn new(subject: &Subject<'_>) -> Result<Self, Stopped> {
        Self::at(subject, Path::new(KUBELET_ROOT).join("check-other"))
    }

    fn at(subject: &Subject<'_>, place: PathBuf) -> Result<Self, Stopped> {
        make_directory(&place)?;
        subject.inside.mount_nobodys(&place, "tmpfs")?;
        put(&place.join(FILE), DATA)?;
        Ok(Self { place })
    }

    /// Reports whether it is mounted, with the file in it.
    fn is_whole(&self) -> Result<bool, Stopped> {
        let is_mounted = mount_table::at(&self.place)?.is_some_and(|entry| entry.source == NOBODYS);
        Ok(is_mounted && fs::read_to_string(self.place.join(FILE)).is_ok_and(|text| text == DATA))
    }

    fn remove(&self, subject: &Subject<'_>) -> Played {
        subject.inside.take_off(&self.place)?;
        Ok(remove_directory(&self.place)?)
    }
}

pub(super) fn mounts_inside(subject: &mut Subject<'_>) -> Played {
    with_mount_inside(subject, false)
}

pub(super) fn keeps_foreign_data(subject: &mut Subject<'_>) -> Played {
    with_mount_inside(subject, true)
}

fn with_mount_inside(subject: &mut Subject<'_>, in_use: bool) -> Played {
    if !subject.facts.writable {
        return skip("no directory to mount on can be made in the volume");
    }
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let other = Other::new(subject)?;
    let inner = volume.target()?.as_path().join("check-inside");
    make_directory(&inner)?;
    subject.inside.bind(&other.place, &inner)?;
    let answer = if in_use {
        while_used(&inner.join(FILE), || subject.unmount(&volume))?.0?
    } else {
        subject.unmount(&volume)?
    };
    if !other.is_whole()? {
        return Err(answer.fails("a file in a mount inside the volume was deleted"));
    }
    if answer.is_success() && subject.layers(&volume)? > 0 {
        return Err(answer.fails("with a mount inside it said Success, and the volume is still mounted"));
    }
    if !answer.is_success() && mount_table::at(&inner)?.is_some() {
        subject.inside.take_off(&inner)?;
    }
    if subject.layers(&volume)? > 0 {
        fs::remove_dir(&inner)?;
    }
    let answer = subject.unmount(&volume)?.succeeds("the mount inside is gone")?;
    if subject.layers(&volume)? > 0 {
        return Err(
            answer.fails("the mount inside is gone; it said Success, and the volume is still mounted")
        );
    }
    other.remove(subject)?;
    subject.put_away(&volume, &answer)
}

pub(super) fn others_stay(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let neighbour = subject.volume()?;
    let has_neighbour = !subject.given.is(Nature::Exclusive);
    if has_neighbour {
        subject.bring_up(&neighbour)?;
    }
    let target = volume.target()?;
    let longer = |suffix: &str| {
        let mut path = OsString::from(target.as_path());
        path.push(suffix);
        PathBuf::from(path)
    };
    let others = [Other::at(subject, longer("-2"))?, Other::new(subject)?];
    let before = Mounts::at(&neighbour.target()?)?;
    let answer = subject.unmount(&volume)?.or_blocked("unmount::works")?;
    for other in &others {
        if !other.is_whole()? {
            let path = other.place.display();
            return Err(
                answer.fails(format!("what somebody else had mounted at {path} is not there any more"))
            );
        }
        other.remove(subject)?;
    }
    if Mounts::at(&neighbour.target()?)? != before {
        return Err(answer.fails("another pod's volume is not mounted any more"));
    }
    if has_neighbour {
        remove_directory(target.as_path())?;
        return subject.take_down(&neighbour);
    }
    subject.put_away(&volume, &answer)
}

pub(super) fn foreign(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let target = volume.target()?;
    let volumes = target.as_path().ancestors().nth(2).unwrap_or(target.as_path());
    make_directory(target.as_path().parent().unwrap_or(target.as_path()))?;
    let others =
        [Other::at(subject, volumes.join("check.example~another").join(&volume.name))?, Other::new(subject)?];
    for other in &others {
        let words = ["unmount".into(), other.place.clone().into_os_string()];
        let answer = subject.execute(&words);
        if !other.is_whole()? {
            let path = other.place.display();
            return Err(
                answer.fails(format!("{path} is no volume of the driver, and is not mounted any more"))
            );
        }
    }
    // A link in place of the volume's directory leads to a mount elsewhere.
    symlink(&others[0].place, target.as_path())?;
    let answer = subject.unmount(&volume)?;
    if !others[0].is_whole()? {
        return Err(
            answer.fails("the directory is a symbolic link, and what it leads to is not mounted any more")
        );
    }
    drop(fs::remove_file(target.as_path()));
    others.iter().try_for_each(|other| other.remove(subject))?;
    drop(fs::remove_dir(volumes.join("check.example~another")));
    Ok(())
}

pub(super) fn wild_path(subject: &mut Subject<'_>) -> Played {
    let other = Other::at(subject, Path::new("/run/check-other").to_owned())?;
    let wild = [
        "/",
        "/etc",
        "etc",
        "/run",
        "run/check-other",
        KUBELET_ROOT,
        "",
        ".",
        "..",
        "/run/./../run/check-other",
    ];
    for path in wild {
        let before = Footprint::of(subject)?;
        let answer = subject.words(&["unmount", path]);
        let now = Footprint::of(subject)?;
        let lost = before.without(&now);
        if !lost.is_empty() {
            return Err(
                answer.fails(format!("{path:?} is no volume, and there is no more {}", lost.join(", ")))
            );
        }
        if !Path::new("/etc/passwd").exists() || !other.is_whole()? {
            return Err(answer.fails(format!("{path:?} is no volume, and files below it are gone")));
        }
    }
    other.remove(subject)
}
