//! `mountdevice` and `unmountdevice`, as kubelet calls them once for the node.

use super::WORKS;
use crate::check::answer::{Answer, Meant};
use crate::check::case::{How, Scene};
use crate::check::device_calls::{Mounts, mounted_at};
use crate::check::evidence::{Evidence, Played, Stopped, skip};
use crate::check::left;
use crate::check::staging::{is_mounted, make_directory, remove_after, remove_directory};
use crate::check::subject::Subject;
use flexvol_kubelet::{PodVolume, by_kubelet};
use flexvol_linux::mount::mount_table;
use flexvol_protocol::Access;
use std::fs::File;
use std::path::Path;

pub(in crate::check) const SCENES: &[Scene] = &[
    ("attach::mount_device", How::Played(mount_device)),
    ("attach::mount_device_without_name", How::Played(mount_device_without_name)),
    ("attach::mount_device_fails_cleanly", How::Played(mount_device_fails_cleanly)),
    ("attach::unmount_device", How::Played(unmount_device)),
    ("attach::unmount_device_again", How::Played(unmount_device_again)),
    ("attach::unmount_device_busy", How::Played(unmount_device_busy)),
    ("attach::unmount_device_stacked", How::Played(unmount_device_stacked)),
    ("attach::no_other_mounts", How::Played(no_other_mounts)),
    ("attach::device_is_free", How::Played(device_is_free)),
];

/// Attaches the volume and mounts its device for the node, as far as the driver does that.
fn staged(subject: &mut Subject<'_>) -> Result<(PodVolume, String), Stopped> {
    let volume = subject.volume()?;
    let device = subject.attach(&volume)?;
    subject.mount_device(&volume, &device)?;
    Ok((volume, device))
}

/// Skips the case if `mountdevice` mounts nothing: a driver may do everything in `mount`.
fn needs_mount(volume: &PodVolume) -> Played {
    if is_mounted(&volume.global()?)? {
        return Ok(());
    }
    skip("mountdevice mounts nothing in this driver")
}

fn mount_device(subject: &mut Subject<'_>) -> Played {
    let (volume, device) = staged(subject)?;
    let before = Mounts::at(&volume.global()?)?;
    for _ in 0..subject.repeat() {
        let answer = subject.call_mount_device(&volume, &device)?.succeeds("it is mounted already")?;
        let after = Mounts::at(&volume.global()?)?;
        if after != before {
            let (before, after) = (before.len(), after.len());
            return Err(answer.fails(format!("{before} mounts at the global directory became {after}")));
        }
    }
    subject.unstage(&volume)
}

fn mount_device_without_name(subject: &mut Subject<'_>) -> Played {
    let (volume, _) = staged(subject)?;
    let global = volume.global()?;
    let usual = source_at(global.as_path())?;
    let answer = subject.call_unmount_device(&volume)?;
    match answer.meant {
        Meant::NotSupported => by_kubelet::unmount(&global)?,
        _ => drop(answer.or_blocked(WORKS)?),
    }
    make_directory(global.as_path())?;
    let answer = subject.call_mount_device(&volume, "")?.answers("there is no device")?;
    let found = source_at(global.as_path())?;
    match (&found, answer.is_success()) {
        (Some(found), false) => {
            return Err(answer.fails(format!("it failed, and {found} is mounted")));
        }
        (found, true) if *found != usual => {
            let name = |source: &Option<String>| source.clone().unwrap_or_else(|| "nothing".to_owned());
            let text = format!("it said Success, and mounted {} instead of {}", name(found), name(&usual));
            return Err(answer.fails(text));
        }
        _ => {}
    }
    subject.unstage(&volume)
}

/// Describes the top file system there and the kind of its device.
/// The number of the device is left out, because it may change each time.
fn source_at(path: &Path) -> Result<Option<String>, Stopped> {
    let on_top = mount_table::at(path)?;
    let kind = |entry: &mount_table::Entry| {
        entry.source.to_string_lossy().trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
    };
    Ok(on_top.map(|entry| format!("{} from {}", entry.file_system, kind(&entry))))
}

fn mount_device_fails_cleanly(subject: &mut Subject<'_>) -> Played {
    let mut failed = 0;
    for (device, fs_type) in [("/dev/check/none", ""), ("/dev/null", ""), ("", "nosuchfs")] {
        let mut volume = subject.volume()?;
        if !fs_type.is_empty() {
            volume.options.fs_type = Some(fs_type.to_owned());
        }
        let given = subject.volume()?;
        let attached = subject.attach(&given)?;
        let device = if device.is_empty() { attached.as_str() } else { device };
        let global = volume.global()?;
        make_directory(global.as_path())?;
        let (table, devices) = (mount_table::read()?, subject.inside.devices()?);
        let answer = subject.call_mount_device(&volume, device)?;
        let answer = answer.answers("the device, or the fsType, is wrong")?;
        if answer.is_success() {
            // The driver has found the right device by the options, and ignores the wrong name or
            // type.
            subject.unstage(&given)?;
            continue;
        }
        failed += 1;
        if let Some(left) = mount_table::read()?.iter().find(|entry| !table.contains(entry)) {
            return Err(answer.fails(format!("it failed, and {} is mounted", left.target.display())));
        }
        if let Some(device) = left::devices_but(subject, &devices)?.first() {
            return Err(answer.fails(format!("it failed, and left the device {}", device.display())));
        }
        if let Err(error) = remove_directory(global.as_path()) {
            return Err(answer.fails(format!("it failed, and the directory cannot be removed: {error}")));
        }
        subject.unstage(&given)?;
    }
    if failed == 0 {
        return skip("no way was found to make mountdevice fail");
    }
    Ok(())
}

fn unmount_device(subject: &mut Subject<'_>) -> Played {
    let (volume, _) = staged(subject)?;
    let global = volume.global()?;
    let answer = subject.call_unmount_device(&volume)?.succeeds("the device is to be unmounted")?;
    is_gone(&answer, &volume)?;
    make_directory(global.as_path())?;
    subject.unstage(&volume)
}

/// Checks what kubelet checks after `unmountdevice`.
fn is_gone(answer: &Answer, volume: &PodVolume) -> Played {
    let global = volume.global()?;
    let layers = mounted_at(global.as_path())?.len();
    if layers > 0 {
        return Err(answer.fails(format!("it said Success, and there are {layers} mounts at the directory")));
    }
    remove_after(answer, &global)
}

fn unmount_device_again(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let global = volume.global()?;
    make_directory(global.as_path())?;
    subject.call_unmount_device(&volume)?.succeeds("the device was never mounted")?;
    let (volume, _) = staged(subject)?;
    let first = subject.call_unmount_device(&volume)?.or_blocked(WORKS)?;
    for _ in 0..subject.repeat() {
        make_directory(global.as_path())?;
        let again = subject.call_unmount_device(&volume)?.succeeds("it is unmounted already")?;
        is_gone(&again, &volume)?;
    }
    if let Err(error) = remove_directory(global.as_path()) {
        return Err(first.fails(format!("the directory cannot be removed: {error}")));
    }
    subject.call_unmount_device(&volume)?.succeeds("the directory is gone already")?;
    subject.unstage(&volume)
}

fn unmount_device_busy(subject: &mut Subject<'_>) -> Played {
    let (volume, _) = staged(subject)?;
    needs_mount(&volume)?;
    let global = volume.global()?;
    let held = File::open(global.as_path())?;
    let answer = subject.call_unmount_device(&volume)?.answers("somebody has the directory open")?;
    if answer.is_success() && is_mounted(&global)? {
        return Err(answer.fails("it said Success, and the directory is still a mount"));
    }
    drop(held);
    make_directory(global.as_path())?;
    let answer = subject.call_unmount_device(&volume)?.succeeds("the directory is no longer in use")?;
    is_gone(&answer, &volume)?;
    subject.unstage(&volume)
}

fn unmount_device_stacked(subject: &mut Subject<'_>) -> Played {
    let (volume, _) = staged(subject)?;
    needs_mount(&volume)?;
    let global = volume.global()?;
    // The file system is mounted again, as the second mountdevice of a careless driver leaves it.
    by_kubelet::bind(&global, &global, Access::ReadWrite)?;
    let answer = subject.call_unmount_device(&volume)?.succeeds("the device is mounted, twice over")?;
    is_gone(&answer, &volume)?;
    subject.unstage(&volume)
}

fn no_other_mounts(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let answer = subject.bring_up(&volume)?;
    needs_mount(&volume)?;
    let global = volume.global()?;
    let pod = volume.target()?.as_path().display().to_string();
    let elsewhere: Vec<_> =
        by_kubelet::other_mounts(&global)?.into_iter().filter(|other| *other != pod).collect();
    if !elsewhere.is_empty() {
        return Err(answer.fails(format!("the device is also mounted at {}", elsewhere.join(", "))));
    }
    subject.take_down(&volume)
}

fn device_is_free(subject: &mut Subject<'_>) -> Played {
    let (volume, device) = staged(subject)?;
    let global = volume.global()?;
    let answer = subject.call_unmount_device(&volume)?.or_blocked(WORKS)?;
    if let Err(error) = by_kubelet::is_free(Path::new(&device)) {
        return Err(answer.fails(format!("{error:#}")));
    }
    if is_mounted(&global)? {
        return Err(Stopped::Blocked(WORKS, Box::new(Evidence::new("the device is still mounted"))));
    }
    subject.unstage(&volume)
}
