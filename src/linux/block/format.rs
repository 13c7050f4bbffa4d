//! Makes, checks and grows file systems, with the programs of their authors.
//!
//! All three work on a device node that the caller holds open, such as
//! [`crate::block::loop_device::LoopDevice::path`]: its number cannot be reused for another file
//! meanwhile. `lock` keeps other processes from the device. The program holds it, too, because it
//! can outlive us by a moment.

use crate::block::block_device;
use crate::block::signature::{Signature, identify};
use crate::block::window::Window;
use crate::proc::helper::{HelperExit, Invocation, Tools};
use crate::proc::reach::Reach;
use anyhow::{Context, Result, bail};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::file_system::FileSystem;
use flexvol_protocol::mkfs_options;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Nothing to fix.
    Clean,
    /// Damage was fixed, no data is lost.
    Fixed,
    /// Not checked; the reason why this is harmless, or what to install.
    Skipped(String),
}

/// Makes a file system on `device`, which must have been proven blank ([`crate::block::blank`]):
/// all data on it is lost.
///
/// `words` are further arguments of mkfs, as [`mkfs_options::validate`] allows them; others are
/// refused here again. No block is discarded, so that a preallocated image keeps its blocks. Fails
/// with `BadOptions` if the device is too small, and with `ToolMissing`.
pub fn make_file_system(
    kind: FileSystem,
    device: &Path,
    words: &[String],
    lock: BorrowedFd<'_>,
    tools: Tools<'_>,
) -> Result<()> {
    mkfs_options::validate(kind, words)?;
    let (tool, fixed) = maker(kind)?;
    let mut args: Vec<String> = fixed.iter().map(ToString::to_string).collect();
    add_words(kind, &mut args, words);
    let action = || format!("make an {} file system on {}", kind.name(), device.display());
    let mkfs = kept_to(device, tool).args(args).args([device]).holding(lock)?;
    let outcome = tools.run(mkfs).with_context(action)?;
    if !outcome.success() {
        return Err(refused(kind, tool, &outcome)).with_context(action);
    }
    let found = identify(File::open(device).with_context(action)?.as_fd(), &Window::default())?;
    if found.map(Signature::name) == Some(kind.name()) {
        return Ok(());
    }
    // Without a journal, an ext4 with few features looks like an ext2: the kernel's ext4 mounts it.
    match (kind, found) {
        (FileSystem::Ext4, Some(Signature::Ext2 | Signature::Ext3)) => Ok(()),
        _ => bail!("{}: {tool} says it did, but there is none", action()),
    }
}

/// Arguments for fixing only what is safe to fix.
/// A superblock names a journal on another device only by a UUID, which may be that of a foreign
/// journal: e2fsck searches it on all devices of the node, unless it is told where the journal is.
const CHECK: [&str; 3] = ["-p", "-j", "/dev/null"];

/// Checks a file system that is not mounted, before it is mounted for writing, and fixes what is
/// safe to fix.
///
/// Only ext4 needs it: xfs and btrfs replay their logs when they are mounted, and have no check
/// that is safe to run automatically. A missing e2fsck is not a failure: the kernel replays the
/// journal, too.
pub fn check_file_system(
    kind: FileSystem,
    device: &Path,
    lock: BorrowedFd<'_>,
    tools: Tools<'_>,
) -> Result<Checked> {
    if kind != FileSystem::Ext4 {
        return Ok(Checked::Skipped(format!("{} checks itself when it is mounted", kind.name())));
    }
    if let Err(missing) = tools.runner.find("e2fsck") {
        return Ok(Checked::Skipped(missing.to_string()));
    }
    let e2fsck = kept_to(device, "e2fsck").args(CHECK).args([device]).holding(lock)?.ending_well();
    let outcome = tools.run(e2fsck)?;
    e2fsck_result(&outcome).with_context(|| format!("check {}", device.display()))
}

/// Grows a file system to the size of its device. Does nothing if it has that size already.
///
/// `mount_point` is where it is mounted: xfs and btrfs can grow only there. ext4 also grows
/// unmounted, after the full check that it then requires. For a mounted ext4, the kernel requires
/// `CAP_SYS_RESOURCE` (`Denied` without it).
pub fn grow_file_system(kind: FileSystem, device: &Path, mount_point: &Path, tools: Tools<'_>) -> Result<()> {
    let action = || format!("grow the {} file system at {}", kind.name(), mount_point.display());
    let grower = |tool| on(device, mount_point, tool);
    let program = match kind {
        FileSystem::Ext4 => return grow_ext4(device, mount_point, tools).with_context(action),
        FileSystem::Xfs => grower("xfs_growfs").args(["-d".as_ref(), mount_point]),
        FileSystem::Btrfs => return grow_btrfs(grower("btrfs"), mount_point, tools).with_context(action),
        _ => return Err(never_written(kind).into()),
    };
    tools.run_to_success(program).with_context(action).map(drop)
}

fn grow_ext4(device: &Path, mount_point: &Path, tools: Tools<'_>) -> Result<()> {
    let resize = || tools.run(on(device, mount_point, "resize2fs").args([device]));
    let mut outcome = resize()?;
    if !outcome.success() && outcome.output.contains("e2fsck -f") {
        let e2fsck = kept_to(device, "e2fsck").args(["-f"]).args(CHECK).args([device]);
        e2fsck_result(&tools.run(e2fsck)?)?;
        outcome = resize()?;
    }
    let error = outcome.to_error("resize2fs");
    match outcome {
        _ if outcome.success() => Ok(()),
        _ if outcome.output.contains("Permission denied to resize") => {
            let fix = "run flexvol with CAP_SYS_RESOURCE, and check the file system for errors";
            Err(Failure::new(Code::Denied, format!("{error}: {fix}")).into())
        }
        _ => Err(error.into()),
    }
}

/// Grows a btrfs. Below 256 MiB it fails with `Invalid argument`, although mkfs takes less.
fn grow_btrfs(program: Invocation, mount_point: &Path, tools: Tools<'_>) -> Result<()> {
    let resize = program.args(["filesystem", "resize", "max"]).args([mount_point]);
    let outcome = tools.run(resize)?;
    let error = outcome.to_error("btrfs");
    match outcome {
        _ if outcome.success() => Ok(()),
        _ if outcome.output.contains("Invalid argument") => {
            let fix = "btrfs grows to 256 MiB or more alone: ask for that much";
            Err(Failure::new(Code::BadOptions, format!("{error}: {fix}")).into())
        }
        _ => Err(error.into()),
    }
}

/// Returns a program that reads tenant data: whatever the data names, the program opens no other
/// device and no file of the node.
fn kept_to(device: &Path, tool: &str) -> Invocation {
    Invocation::of(tool).reaching(reach(device))
}

/// Returns such a program for a file system that is mounted there.
fn on(device: &Path, mount_point: &Path, tool: &str) -> Invocation {
    Invocation::of(tool).reaching(reach(device).directory(mount_point))
}

fn reach(device: &Path) -> Reach {
    Reach::of_programs().files(block_device::nodes(device)).files([BTRFS])
}

/// Device through which the programs of btrfs tell the kernel of a file system.
const BTRFS: &str = "/dev/btrfs-control";

/// Returns the program and its fixed arguments: quiet, over any content (we prove blankness, the
/// program does not have to ask), without discarding.
fn maker(kind: FileSystem) -> Result<(&'static str, &'static [&'static str]), Failure> {
    match kind {
        // Nothing is reserved for root: containers' volumes have no system daemons to keep alive.
        FileSystem::Ext4 => Ok(("mkfs.ext4", &["-q", "-F", "-m", "0"])),
        FileSystem::Xfs => Ok(("mkfs.xfs", &["-q", "-f"])),
        FileSystem::Btrfs => Ok(("mkfs.btrfs", &["-q", "-f", "-K"])),
        _ => Err(never_written(kind)),
    }
}

/// Adds the requested arguments and ours.
/// They are merged: two `-E` do not add up, and `-K` must not come twice.
fn add_words(kind: FileSystem, args: &mut Vec<String>, words: &[String]) {
    args.extend(words.iter().cloned());
    match kind {
        FileSystem::Ext4 => match args.iter().rposition(|word| word == "-E") {
            Some(at) => args[at + 1].insert_str(0, "nodiscard,"),
            None => args.extend(["-E".to_owned(), "nodiscard".to_owned()]),
        },
        FileSystem::Xfs if !args.iter().any(|word| word == "-K") => args.push("-K".to_owned()),
        _ => {}
    }
}

fn never_written(kind: FileSystem) -> Failure {
    Failure::options(format!("{} is read-only: it is made elsewhere and never grows", kind.name()))
}

/// Messages of the programs for a device that is too small, and the minimum that each needs.
const TOO_SMALL: [(&str, &str); 5] = [
    ("larger than 300MB", "300 MiB"),
    ("of data subvolume is too small", "300 MiB"),
    ("too small to make a usable filesystem", "110 MiB"),
    ("Not enough space to build proposed filesystem", "1 MiB"),
    ("too small for", "1 MiB"),
];

fn refused(kind: FileSystem, tool: &str, outcome: &HelperExit) -> anyhow::Error {
    let name = kind.name();
    if let Some((_, least)) = TOO_SMALL.iter().find(|(text, _)| outcome.output.contains(text)) {
        let fix = "give the volume a larger size or another fsType";
        return Failure::options(format!("too small for {name}, which needs at least {least}: {fix}")).into();
    }
    // mkfs.xfs shows its whole usage after the one line that matters.
    let output = outcome.output.split("Usage:").next().unwrap_or_default().to_owned();
    HelperExit { status: outcome.status, output, answer: String::new() }.to_error(tool).into()
}

/// Evaluates the exit status of e2fsck(8): a sum of bits.
fn e2fsck_result(outcome: &HelperExit) -> Result<Checked> {
    match outcome.status.code() {
        Some(0) => Ok(Checked::Clean),
        Some(1) => Ok(Checked::Fixed),
        Some(2 | 3) => {
            bail!("e2fsck fixed it while it was in use: unmount it everywhere or reboot the node")
        }
        Some(code) if code & 4 != 0 => {
            let text = "run e2fsck -f on it by hand, it is damaged beyond what is fixed unasked";
            Err(Failure::new(Code::Conflict, format!("{}: {text}", outcome.describe("e2fsck"))).into())
        }
        _ => Err(outcome.to_error("e2fsck").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::loop_device::LoopDevice;
    use crate::errno::to_failure;
    use crate::proc::deadline::Deadline;
    use crate::proc::helper::{HostRunner, Runner as _};
    use crate::wording::wording;
    use nix::mount::{MsFlags, mount, umount};
    use nix::sched::{CloneFlags, unshare};
    use std::os::unix::fs::FileExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    const MEBIBYTE: u64 = 1 << 20;

    fn deadline() -> Deadline {
        Deadline::after(Duration::from_mins(1))
    }

    fn device(size: u64) -> Option<(File, LoopDevice)> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP file systems on loop devices: needs root");
            return None;
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        match LoopDevice::attach(file.as_fd(), Path::new("/format"), &Window::default(), false, false) {
            Ok(device) => Some((file, device)),
            Err(error) => {
                println!("SKIP file systems on loop devices: {error:#}");
                None
            }
        }
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn make(kind: FileSystem, device: &LoopDevice, line: &str) -> Result<(), Failure> {
        make_file_system(kind, device.path(), &words(line), device.fd(), Tools::of_host(&deadline()))
            .map_err(to_failure)
    }

    fn installed(kind: FileSystem) -> bool {
        let tools = kind.programs();
        let kernel = std::fs::read_to_string("/proc/filesystems").unwrap();
        let there = tools.iter().all(|tool| HostRunner.find(tool).is_ok()) && kernel.contains(kind.name());
        if !there {
            println!("SKIP {}: needs {tools:?} and the kernel's support", kind.name());
        }
        there
    }

    #[test]
    fn who_makes_a_file_system_is_among_its_programs() {
        for kind in FileSystem::ALL {
            let maker = maker(kind).ok().map(|(tool, _)| tool);
            assert_eq!(kind.programs().first().copied(), maker, "{}", kind.name());
        }
    }

    /// Mounts in a namespace of this test's thread; the helpers it starts are in it, too.
    fn mounted(device: &LoopDevice, kind: FileSystem) -> tempfile::TempDir {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let target = tempfile::tempdir().unwrap();
        mount(Some(device.path()), target.path(), Some(kind.name()), MsFlags::empty(), None::<&str>).unwrap();
        target
    }

    /// If e2fsck found the journal by the UUID in the superblock, it would open it for writing.
    #[test]
    fn a_check_opens_no_journal_of_others() {
        let (Some((_, journal)), Some((_, device))) = (device(8 * MEBIBYTE), device(32 * MEBIBYTE)) else {
            return;
        };
        if !installed(FileSystem::Ext4) {
            return;
        }
        let make = |words: &[&str], on: &LoopDevice| {
            let helper = Invocation::of("mkfs.ext4").args(["-q", "-b", "4096"]).args(words);
            helper.args([on.path()]).run_to_success(&deadline()).unwrap();
        };
        make(&["-O", "journal_dev"], &journal);
        make(&["-J", &format!("device={}", journal.path().display())], &device);
        let lock = File::open("/dev/null").unwrap();
        let checked =
            check_file_system(FileSystem::Ext4, device.path(), lock.as_fd(), Tools::of_host(&deadline()));
        assert!(checked.is_err(), "{checked:?}");
    }

    fn capacity(target: &Path) -> u64 {
        let stat = rustix::fs::statvfs(target).unwrap();
        stat.f_blocks * stat.f_frsize
    }

    /// Makes a file system, grows image and file system while mounted, and again without effect.
    fn makes_and_grows(kind: FileSystem, small: u64, line: &str) {
        let Some((file, device)) = device(small).filter(|_| installed(kind)) else { return };
        make(kind, &device, line).unwrap();
        let target = mounted(&device, kind);
        let before = capacity(target.path());
        file.set_len(2 * small).unwrap();
        device.refresh_capacity().unwrap();
        let grow = || grow_file_system(kind, device.path(), target.path(), Tools::of_host(&deadline()));
        let (first, again, after) = (grow(), grow(), capacity(target.path()));
        umount(target.path()).unwrap();
        match first.map_err(to_failure) {
            Err(denied) if denied.code() == Code::Denied => println!("SKIP growing: {denied}"),
            first => assert_eq!(first, Ok(())),
        }
        if again.is_ok() {
            assert!(after * 2 > before * 3, "{before} {after}");
        }
    }

    #[test]
    fn ext4_grows_unmounted() {
        let Some((file, device)) = device(32 * MEBIBYTE).filter(|_| installed(FileSystem::Ext4)) else {
            return;
        };
        make(FileSystem::Ext4, &device, "").unwrap();
        let target = mounted(&device, FileSystem::Ext4);
        let before = capacity(target.path());
        umount(target.path()).unwrap();
        file.set_len(64 * MEBIBYTE).unwrap();
        device.refresh_capacity().unwrap();
        for _ in 0..2 {
            grow_file_system(FileSystem::Ext4, device.path(), target.path(), Tools::of_host(&deadline()))
                .unwrap();
        }
        let target = mounted(&device, FileSystem::Ext4);
        let after = capacity(target.path());
        umount(target.path()).unwrap();
        assert!(after * 2 > before * 3, "{before} {after}");
    }

    #[test]
    fn ext4() {
        makes_and_grows(FileSystem::Ext4, 32 * MEBIBYTE, "-b 1024 -L data -E stride=4,lazy_itable_init=0");
    }

    #[test]
    fn xfs() {
        makes_and_grows(FileSystem::Xfs, 320 * MEBIBYTE, "-m reflink=0 -L data");
        if let Some((_file, device)) = device(320 * MEBIBYTE).filter(|_| installed(FileSystem::Xfs)) {
            assert_eq!(make(FileSystem::Xfs, &device, "-K"), Ok(()));
        }
    }

    #[test]
    fn btrfs() {
        makes_and_grows(FileSystem::Btrfs, 128 * MEBIBYTE, "-m single -L data");
    }

    #[test]
    fn too_small_is_said_with_the_fix() {
        let Some((_file, device)) = device(16 * 1024) else { return };
        for kind in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
            if HostRunner.find(&format!("mkfs.{}", kind.name())).is_ok() {
                let failure = make(kind, &device, "").unwrap_err();
                assert_eq!(failure.code(), Code::BadOptions, "{failure}");
                assert!(failure.message().contains(wording("too-small-to-format")), "{failure}");
            }
        }
        let failure = make(FileSystem::Squashfs, &device, "").unwrap_err();
        assert_eq!(failure.code(), Code::BadOptions);
        assert!(make(FileSystem::Ext4, &device, "-d /etc").is_err());
    }

    #[test]
    fn a_refusal_has_the_line_that_matters() {
        let Some((_file, device)) = device(320 * MEBIBYTE) else { return };
        if HostRunner.find("mkfs.xfs").is_err() {
            return println!("SKIP mkfs.xfs: not installed");
        }
        let failure = make(FileSystem::Xfs, &device, "-b size=3").unwrap_err();
        let message = failure.message();
        assert!(
            message.contains("mkfs.xfs failed (exit 1): ") && !message.contains("blocksize"),
            "{message}"
        );
    }

    #[test]
    fn damage_is_fixed_or_told() {
        let Some((_file, device)) = device(16 * MEBIBYTE).filter(|_| installed(FileSystem::Ext4)) else {
            return;
        };
        let check =
            || check_file_system(FileSystem::Ext4, device.path(), device.fd(), Tools::of_host(&deadline()));
        make(FileSystem::Ext4, &device, "-O ^metadata_csum").unwrap();
        assert_eq!(check().unwrap(), Checked::Clean);
        let raw = File::options().write(true).open(device.path()).unwrap();
        // s_state of the superblock: not unmounted cleanly, with errors.
        raw.write_all_at(&[2], 1024 + 58).unwrap();
        raw.sync_all().unwrap();
        assert_eq!(check().unwrap(), Checked::Fixed);
        // All blocks but the superblocks and the group descriptors are damaged.
        raw.write_all_at(&vec![0x5a; 3 << 20], 8192).unwrap();
        raw.sync_all().unwrap();
        let failure = to_failure(check().unwrap_err());
        assert!(failure.message().contains("e2fsck failed (exit"), "{failure}");
    }

    #[test]
    fn e2fsck_status_bits() {
        let result = |code: i32| {
            let outcome = HelperExit {
                status: ExitStatus::from_raw(code << 8),
                output: "words".into(),
                answer: String::new(),
            };
            e2fsck_result(&outcome).map_err(to_failure)
        };
        assert_eq!((result(0), result(1)), (Ok(Checked::Clean), Ok(Checked::Fixed)));
        assert!(result(3).unwrap_err().message().contains("reboot"));
        assert_eq!(result(4).unwrap_err().code(), Code::Conflict);
        assert!(result(8).unwrap_err().message().contains("words"));
        let skipped = check_file_system(
            FileSystem::Xfs,
            Path::new("/nowhere"),
            std::io::stdin().as_fd(),
            Tools::of_host(&deadline()),
        )
        .unwrap();
        assert!(matches!(skipped, Checked::Skipped(_)));
    }

    #[test]
    fn what_we_want_joins_what_is_asked_for() {
        let joined = |kind, line| {
            let mut args = Vec::new();
            add_words(kind, &mut args, &words(line));
            args.join(" ")
        };
        assert_eq!(joined(FileSystem::Ext4, "-E stride=4 -L x"), "-E nodiscard,stride=4 -L x");
        assert_eq!(joined(FileSystem::Ext4, ""), "-E nodiscard");
        assert_eq!((joined(FileSystem::Xfs, "-K"), joined(FileSystem::Xfs, "")), ("-K".into(), "-K".into()));
    }
}
