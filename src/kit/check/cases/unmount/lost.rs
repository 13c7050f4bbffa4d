//! Unmount without something that mount had.

use crate::check::evidence::{Played, Stopped, skip};
use crate::check::staging::make_directory;
use crate::check::subject::{KUBELET_ROOT, Subject};
use flexvol_kubelet::PodVolume;
use flexvol_protocol::Call;
use std::fs;
use std::path::{Path, PathBuf};

/// Directories whose files may be gone later.
const VOLATILE: &[&str] = &["/run", "/var/run", "/dev/shm", "/tmp", "/var/tmp"];

pub(super) fn state_without_mount(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    subject.inside.take_off(volume.target()?.as_path())?;
    ends(subject, &volume, "the mount is gone already")?;
    let next = subject.volume()?;
    subject.stage(&next)?;
    let answer = subject.mount(&next)?.succeeds("the volume is mounted again, after its mount was lost")?;
    if subject.layers(&next)? == 0 {
        return Err(answer.fails("it said Success, and the directory is no mount point"));
    }
    subject.take_down(&next)
}

pub(super) fn mount_without_state(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let lost = forget(subject)?;
    excuse_devices(subject)?;
    let what = match lost.first() {
        None => "nothing is to be lost".to_owned(),
        Some(first) => format!("{} and what else was in /run and /tmp is lost", first.display()),
    };
    ends(subject, &volume, &what)
}

/// Excuses devices that stay: only the lost files could tell whether the driver attached a disk or
/// found it there. A loop device disappears on its own.
fn excuse_devices(subject: &mut Subject<'_>) -> Played {
    let mut devices = subject.inside.devices()?;
    devices.retain(|device| !device.to_string_lossy().starts_with("/dev/loop"));
    for device in devices {
        subject.ours(device);
    }
    Ok(())
}

/// Removes the driver's files from volatile directories. Returns their paths.
fn forget(subject: &Subject<'_>) -> Result<Vec<PathBuf>, Stopped> {
    let is_volatile = |path: &PathBuf| VOLATILE.iter().any(|place| path.starts_with(place));
    let mut changed = subject.inside.changed()?;
    changed.retain(is_volatile);
    // The content of a directory comes after the directory itself.
    for path in changed.iter().rev() {
        match path.symlink_metadata() {
            // The directory may hold a file of another program, or a mount.
            Ok(data) if data.is_dir() => drop(fs::remove_dir(path)),
            Ok(_) => drop(fs::remove_file(path)),
            Err(_) => {}
        }
    }
    Ok(changed)
}

pub(super) fn needs_nothing(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let inside = subject.inside;
    inside.without_network(|| ends(subject, &volume, "there is no network"))?
}

/// Fails unless the volume can be unmounted and its directory removed.
fn ends(subject: &mut Subject<'_>, volume: &PodVolume, what: &str) -> Played {
    let answer = subject.unmount(volume)?.succeeds(what)?;
    if subject.layers(volume)? > 0 {
        return Err(
            answer.fails(format!("{what}; it said Success, and the directory is still a mount point"))
        );
    }
    subject.put_away(volume, &answer)
}

pub(super) fn old_mount(subject: &mut Subject<'_>) -> Played {
    let (here, name) = match (subject.given.driver.parent(), subject.given.driver.file_name()) {
        (Some(here), Some(name)) => (here.to_owned(), name.to_owned()),
        _ => return skip("the driver is in no directory"),
    };
    // A driver that fails in its usual directory is not tried in another one.
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    subject.take_down(&volume)?;
    let plugins = Path::new(KUBELET_ROOT).join("check-plugins");
    let old = plugins.join(here.file_name().unwrap_or(&name));
    make_directory(&old)?;
    let shown = subject.inside.show(&here, &old)?;
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let call: Call = volume.mount_call()?;
    let answer = subject.execute_as(&old.join(&name), &call.to_arguments());
    drop(shown);
    fs::remove_dir(&old)?;
    fs::remove_dir(&plugins)?;
    let by = match (answer.is_success(), subject.layers(&volume)?) {
        (true, 1..) => None,
        (true, 0) => Some("mount::works"),
        (false, _) => Some("environment::other_path"),
    };
    if let Some(by) = by {
        let evidence = answer.evidence("the driver does not mount when it is in another directory");
        return Err(Stopped::Blocked(by, Box::new(evidence)));
    }
    ends(subject, &volume, "it was mounted by the same driver in another directory")
}
