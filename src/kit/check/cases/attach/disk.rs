//! Data on the disk of a volume that attaches, and that must stay as it is.

use crate::check::answer::Answer;
use crate::check::case::{How, Scene};
use crate::check::evidence::{Played, Stopped, skip};
use crate::check::given::Nature;
use crate::check::staging::{is_mounted, make_directory, put, remove_directory};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::{Access, Verb};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;

/// Size of the checked part of a disk, in bytes: everything that a signature may be in.
const HEAD: usize = 1 << 20;

pub(in crate::check) const SCENES: &[Scene] = &[
    ("attach::keeps_data", How::Played(keeps_data)),
    ("attach::read_only", How::Played(read_only)),
    ("attach::read_only_blank", How::Played(read_only_blank)),
    ("attach::partition_table", How::Played(partition_table)),
    ("attach::unknown_data", How::Played(unknown_data)),
    ("attach::another_volume", How::Played(another_volume)),
];

fn keeps_data(subject: &mut Subject<'_>) -> Played {
    if subject.given.is(Nature::Ephemeral) {
        return skip("the volume is declared to forget");
    }
    needs_writing(subject)?;
    let first = subject.volume()?;
    subject.bring_up(&first)?;
    let text = format!("{:016x}", subject.random.u64(..));
    put(&first.target()?.as_path().join("kept"), &text)?;
    subject.take_down(&first)?;
    let second = subject.volume()?;
    let answer = subject.bring_up(&second)?;
    let file = second.target()?.as_path().join("kept");
    match std::fs::read_to_string(&file) {
        Ok(found) if found == text => {}
        Ok(_) => return Err(answer.fails("the file is there, and what is in it has changed")),
        Err(error) => return Err(answer.fails(format!("what the first pod wrote is gone: {error}"))),
    }
    std::fs::remove_file(file)?;
    subject.take_down(&second)
}

fn needs_writing(subject: &Subject<'_>) -> Played {
    if subject.given.is(Nature::ReadOnly) || (subject.facts.mounts && !subject.facts.writable) {
        return skip("nothing can be written to the volume");
    }
    Ok(())
}

fn read_only(subject: &mut Subject<'_>) -> Played {
    // The first use puts a file system on the disk.
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    subject.take_down(&volume)?;
    let volume = reading(subject)?;
    let answer = subject.bring_up(&volume)?;
    let mount_device = answer_to(subject, Verb::MountDevice).unwrap_or_else(|| answer.clone());
    for (target, answer) in [(volume.global()?, mount_device), (volume.target()?, answer)] {
        if !is_mounted(&target)? {
            continue;
        }
        let file = target.as_path().join("written");
        if put(&file, "although it is read-only").is_ok() {
            std::fs::remove_file(file)?;
            return Err(answer.fails(format!("readwrite is ro, and a file could be written in {target}")));
        }
    }
    subject.take_down(&volume)
}

fn reading(subject: &mut Subject<'_>) -> Result<PodVolume, Stopped> {
    let mut volume = subject.volume()?;
    volume.options.access = Some(Access::ReadOnly);
    Ok(volume)
}

fn answer_to(subject: &Subject<'_>, verb: Verb) -> Option<Answer> {
    subject.answers().iter().rfind(|answer| answer.asked.verb() == verb.name()).cloned()
}

fn read_only_blank(subject: &mut Subject<'_>) -> Played {
    let volume = reading(subject)?;
    let device = subject.attach(&volume)?;
    let disk = Disk::of(subject, &device)?;
    if disk.head()?.iter().any(|byte| *byte != 0) {
        return skip("the disk is not blank at first");
    }
    make_directory(volume.global()?.as_path())?;
    let answer = subject.call_mount_device(&volume, &device)?;
    if disk.head()?.iter().any(|byte| *byte != 0) {
        return Err(answer.fails("readwrite is ro, and the blank disk was written to"));
    }
    let answer = answer.answers("a blank disk cannot be read")?;
    if answer.is_success() && subject.facts.mounts && !is_mounted(&volume.global()?)? {
        return Err(answer.fails("it said Success, and there is nothing on the disk to mount"));
    }
    subject.unstage(&volume)
}

fn partition_table(subject: &mut Subject<'_>) -> Played {
    keeps_what_is_there(
        subject,
        &[("a partition table", mbr()), ("an encrypted volume", luks()), ("a swap area", swap())],
    )
}

fn unknown_data(subject: &mut Subject<'_>) -> Played {
    let mut data = vec![0; 4096];
    subject.random.fill(&mut data);
    // The data must not begin like a known file system by chance.
    data[..16].copy_from_slice(b"rows of a table\n");
    keeps_what_is_there(subject, &[("data without a signature", data)])
}

/// Mounts a tmpfs, not a disk, as the volume of a pod in another namespace with the same name.
fn another_volume(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let (global, target) = (volume.global()?, volume.target()?);
    subject.attach(&volume)?;
    for directory in [&global, &target] {
        make_directory(directory.as_path())?;
    }
    let other = "another volume";
    let inside = subject.inside;
    inside.mount_nobodys(global.as_path(), "tmpfs")?;
    put(&global.as_path().join("of"), other)?;
    let answer = subject.mount(&volume)?;
    if std::fs::read_to_string(target.as_path().join("of")).is_ok_and(|text| text == other) {
        return Err(
            answer.fails("another volume is mounted in the global directory, and the pod was shown that")
        );
    }
    let answer = answer.answers("another volume is mounted in the global directory")?;
    if answer.is_success() {
        subject.unmount(&volume)?.or_blocked("unmount::works")?;
    }
    inside.take_off(global.as_path())?;
    remove_directory(target.as_path())?;
    subject.unstage(&volume)
}

/// Writes data to the disk, has the device mounted, and checks that the data is still there.
fn keeps_what_is_there(subject: &mut Subject<'_>, what: &[(&str, Vec<u8>)]) -> Played {
    for (name, bytes) in what {
        let volume = subject.volume()?;
        let device = subject.attach(&volume)?;
        let disk = Disk::of(subject, &device)?;
        disk.write(bytes)?;
        make_directory(volume.global()?.as_path())?;
        let answer = subject.call_mount_device(&volume, &device)?;
        let there = disk.head()?.starts_with(bytes);
        if !there {
            return Err(answer.fails(format!("there was {name} on the disk, and it was overwritten")));
        }
        answer.answers("there is something else on the disk")?;
        subject.unstage(&volume)?;
    }
    Ok(())
}

/// Disk of an attached volume, which is a file of the sandbox: the kit does not write to disks of
/// the machine.
struct Disk<'a>(&'a str);

impl<'a> Disk<'a> {
    fn of(subject: &Subject<'_>, device: &'a str) -> Result<Self, Stopped> {
        let Ok(path) = Path::new(device).canonicalize() else {
            return skip("the device is no file on the node");
        };
        if !path.metadata()?.file_type().is_block_device() {
            return skip("the device is no disk");
        }
        if !subject.inside.devices()?.contains(&path) {
            return skip("the disk is the machine's, and nothing is tried out on it");
        }
        Ok(Self(device))
    }

    fn head(&self) -> Result<Vec<u8>, Stopped> {
        let file = File::open(self.0)?;
        let mut head = vec![0; HEAD];
        let read = file.read_at(&mut head, 0)?;
        head.truncate(read);
        Ok(head)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Stopped> {
        let file = OpenOptions::new().write(true).open(self.0)?;
        file.write_all_at(&vec![0; HEAD], 0)?;
        file.write_all_at(bytes, 0)?;
        Ok(file.sync_all()?)
    }
}

/// Builds a partition table with one primary Linux partition, from the first MiB on.
fn mbr() -> Vec<u8> {
    let mut sector = vec![0; 512];
    sector[440..444].copy_from_slice(&[0x21, 0x43, 0x65, 0x87]);
    sector[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 3, 0, 0, 8, 0, 0, 0, 8, 0, 0]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// Builds the first LUKS header, version 1, as far as tools examine it.
fn luks() -> Vec<u8> {
    let mut header = vec![0; 592];
    header[..8].copy_from_slice(b"LUKS\xba\xbe\x00\x01");
    header[8..11].copy_from_slice(b"aes");
    header[40..51].copy_from_slice(b"xts-plain64");
    header[72..78].copy_from_slice(b"sha256");
    header[168..204].copy_from_slice(b"0c8e1f5a-1d5b-4a2e-9c53-000000000001");
    header
}

/// Builds a swap header with pages of 4 KiB.
fn swap() -> Vec<u8> {
    let mut header = vec![0; 4096];
    header[1024..1028].copy_from_slice(&1_u32.to_le_bytes());
    header[1028..1032].copy_from_slice(&255_u32.to_le_bytes());
    header[4086..].copy_from_slice(b"SWAPSPACE2");
    header
}
