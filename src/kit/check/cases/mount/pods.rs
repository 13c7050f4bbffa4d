//! Properties of a volume for the pods that use it.

use super::{can_write, read_only};
use crate::check::evidence::{Played, skip};
use crate::check::given::Nature;
use crate::check::in_time::within;
use crate::check::staging::{put, remove_directory};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::{FsGroup, FsGroupSpelling, Options};
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

/// Group that no file of the machine has.
const GROUP: u32 = 52_113;

pub(super) fn two_pods(subject: &mut Subject<'_>) -> Played {
    needs_two(subject)?;
    let (first, second) = (subject.volume()?, subject.volume()?);
    subject.bring_up(&first)?;
    subject.stage(&second)?;
    let answer = subject.mount(&second)?.succeeds("another pod of the node has the volume as well")?;
    if subject.layers(&second)? == 0 {
        return Err(answer.fails("it said Success, and the second pod's directory is no mount point"));
    }
    let file = second.target()?.as_path().join("check-two-pods");
    if subject.facts.writable {
        put(&file, "of the second pod")?;
    }
    let answer = subject.unmount(&first)?.or_blocked("unmount::works")?;
    if subject.layers(&second)? == 0 {
        return Err(answer.fails("the volume of the second pod is not mounted any more"));
    }
    let looked_at = file.clone();
    let look = move || fs::read_to_string(looked_at);
    let read = within(subject.given.patience, look)?;
    match read {
        None => return Err(answer.fails("who looks into the volume of the second pod hangs")),
        Some(Err(error)) if subject.facts.writable => {
            return Err(answer.fails(format!("the second pod cannot read its file any more: {error}")));
        }
        _ => {}
    }
    if subject.facts.writable {
        fs::remove_file(&file)?;
    }
    remove_directory(first.target()?.as_path())?;
    subject.take_down(&second)
}

pub(super) fn two_modes(subject: &mut Subject<'_>) -> Played {
    needs_two(subject)?;
    if !subject.facts.writable || subject.given.is(Nature::Shared) {
        return skip("needs a volume that may be written to or not");
    }
    // The device of a driver that attaches is mounted once, in the mode of the first pod.
    let orders: &[bool] = if subject.attaches() { &[true] } else { &[true, false] };
    for writer_first in orders {
        let (writer, reader) = (subject.volume()?, read_only(&subject.volume()?));
        let (first, second) = if *writer_first { (&writer, &reader) } else { (&reader, &writer) };
        subject.bring_up(first)?;
        subject.stage(second)?;
        let answer = subject.mount(second)?.succeeds("another pod has the volume in the other mode")?;
        let order = if *writer_first {
            "writes first, then one that reads"
        } else {
            "reads first, then one that writes"
        };
        if can_write(&writer).is_err() {
            return Err(answer.fails(format!("of a pod that {order}, the writer cannot write")));
        }
        if can_write(&reader).is_ok() {
            return Err(answer.fails(format!("of a pod that {order}, the reader can write")));
        }
        let answer = subject.unmount(first)?.or_blocked("unmount::works")?;
        if can_write(second).is_ok() == *writer_first {
            return Err(answer.fails("the end of one pod has changed what the other one may do"));
        }
        remove_directory(first.target()?.as_path())?;
        subject.take_down(second)?;
    }
    Ok(())
}

fn needs_two(subject: &Subject<'_>) -> Played {
    if subject.given.is(Nature::Exclusive) {
        return skip("one pod at a time has the volume (--exclusive-ok)");
    }
    Ok(())
}

pub(super) fn fs_group(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let group = Some(FsGroup { gid: GROUP, spelling: FsGroupSpelling::Current });
    let options = Options { fs_group: group, ..volume.options.clone() };
    let volume = PodVolume { options, ..volume };
    let answer = subject.bring_up(&volume)?;
    let target = volume.target()?;
    let writes = subject.facts.writable;
    if subject.facts.fs_group
        && writes
        && let Err(error) = give_to_group(target.as_path())
    {
        let what = format!("fsGroup is true, but the group of the volume cannot be changed: {error}");
        return Err(answer.fails(what));
    }
    let data = fs::metadata(target.as_path())?;
    let group = if data.gid() == GROUP { data.mode() >> 3 } else { 0 };
    let wanted = if writes { 0o7 } else { 0o5 };
    if (group | data.mode()) & wanted != wanted {
        let (mode, gid) = (data.mode() & 0o7777, data.gid());
        let verb = if writes { "use" } else { "read" };
        return Err(answer.fails(format!(
            "a pod of group {GROUP} cannot {verb} the volume: its mode is {mode:04o}, its group {gid}"
        )));
    }
    subject.take_down(&volume)
}

/// Gives a directory to the group, as kubelet does.
fn give_to_group(directory: &Path) -> io::Result<()> {
    chown(directory, None, Some(GROUP))?;
    let mode = fs::metadata(directory)?.mode() & 0o7777;
    fs::set_permissions(directory, fs::Permissions::from_mode(mode | 0o2770))
}

pub(super) fn nosuid_nodev(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let answer = subject.bring_up(&volume)?;
    let flags = statvfs(volume.target()?.as_path())?.f_flag;
    let lists = volume.options.own.iter().filter(|(key, _)| subject.given.lists.contains(*key));
    let words: Vec<_> = lists.flat_map(|(_, list)| list.split(',')).collect();
    for (word, flag) in [("suid", StatVfsMountFlags::NOSUID), ("dev", StatVfsMountFlags::NODEV)] {
        // The author's mount options ask for it.
        if !words.contains(&word) && !flags.contains(flag) {
            return Err(answer.fails(format!("the volume is mounted without no{word}")));
        }
    }
    subject.take_down(&volume)
}
