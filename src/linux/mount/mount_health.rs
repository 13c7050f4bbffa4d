//! Health of many mounts at once: whether each answers, and how full it is.
//! Each check runs in a separate process: a mount whose server is silent blocks the process that
//! asks, and no signal ends that.

use crate::mount::mount_table;
use crate::proc::process::{Ended, Worker};
use anyhow::Result;
use rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit for the mounts that are checked at the same time: each takes one process.
const AT_ONCE: usize = 64;

/// Size of the block that is read from a device, in bytes: no device has larger blocks.
const BLOCK: usize = 4096;

/// File system type of btrfs in statfs(2).
const BTRFS: u32 = 0x9123_683E;

/// Health of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vitals {
    /// The mount answers.
    Alive(Usage),
    /// The mount answers with this errno: its server is gone.
    Dead(i32),
    /// The mount did not answer in time.
    Hung,
}

/// Size and used space of a file system, in bytes.
/// Both are zero if the file system does not know them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its size.
    pub size: u64,
    /// Used part of it.
    pub used: u64,
}

/// Checks the mount at each path. Takes little longer than `patience` for every 64 paths.
pub fn of(paths: &[PathBuf], patience: Duration) -> Result<Vec<Vitals>> {
    ask(paths, patience, answer)
}

/// Checks the mounts as [`of`] does, and the device below each.
/// A file system answers from memory long after the server of its device has died.
pub fn with_devices(paths: &[PathBuf], patience: Duration) -> Result<Vec<Vitals>> {
    ask(paths, patience, |path| match read_device(path) {
        Err(errno) => format!("dead {}\n", errno.raw_os_error()),
        Ok(()) => answer(path),
    })
}

fn ask(paths: &[PathBuf], patience: Duration, answer: impl Fn(&Path) -> String) -> Result<Vec<Vitals>> {
    let mut vitals = Vec::with_capacity(paths.len());
    for some in paths.chunks(AT_ONCE) {
        let end = Instant::now() + patience;
        let asked: Vec<_> = some.iter().map(|path| Worker::start(|| answer(path))).collect::<Result<_>>()?;
        let left = || end.saturating_duration_since(Instant::now());
        vitals.extend(asked.into_iter().map(|worker| heard(&worker.wait(left()))));
    }
    Ok(vitals)
}

/// Checks one mount, in the worker process. Returns `alive SIZE USED` or `dead ERRNO`.
fn answer(path: &Path) -> String {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
    let asked = fs::statfs(path).and_then(|stat| {
        fs::statx(fs::CWD, path, flags, StatxFlags::BASIC_STATS)?;
        Ok(stat)
    });
    match asked {
        // A server that denies access to the root still answers.
        Err(Errno::ACCESS | Errno::PERM) => "alive 0 0\n".to_owned(),
        Err(errno) => format!("dead {}\n", errno.raw_os_error()),
        Ok(stat) => {
            let bytes = |blocks: u64| blocks.saturating_mul(u64::try_from(stat.f_bsize).unwrap_or(0));
            let (size, free) = (bytes(stat.f_blocks), bytes(stat.f_bfree));
            format!("alive {size} {}\n", size.saturating_sub(free))
        }
    }
}

/// Reads the first block of the device below a file system, past the cache.
/// A file system without a device, or whose device cannot be opened, is not checked.
fn read_device(path: &Path) -> rustix::io::Result<()> {
    let Some(device) = device_below(path) else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(device) = fs::open(device, flags, Mode::empty()) else { return Ok(()) };
    let mut room = vec![0; 2 * BLOCK];
    let aligned = room.as_ptr().align_offset(BLOCK);
    match rustix::io::pread(&device, &mut room[aligned..aligned + BLOCK], 0) {
        // These errors do not tell the state of a device: it cannot be read in this way.
        Ok(_) | Err(Errno::INVAL | Errno::ACCESS | Errno::PERM | Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Returns the path of the device below a file system.
/// A btrfs has a number that belongs to no device, so the source of its mount names the device. For
/// other file systems a tenant may have chosen the source.
fn device_below(path: &Path) -> Option<PathBuf> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = fs::statx(fs::CWD, path, flags, StatxFlags::TYPE | StatxFlags::MNT_ID).ok()?;
    let about = format!("/sys/dev/block/{}:{}/uevent", stat.stx_dev_major, stat.stx_dev_minor);
    let about = std::fs::read_to_string(about).unwrap_or_default();
    if let Some(name) = about.lines().find_map(|line| line.strip_prefix("DEVNAME=")) {
        return Some(Path::new("/dev").join(name));
    }
    let kind = fs::statfs(path).ok().and_then(|stat| u32::try_from(stat.f_type).ok());
    let entry = (kind == Some(BTRFS)).then(|| mount_table::by_id(stat.stx_mnt_id).ok()?)??;
    Some(entry.source.into())
}

fn heard(ended: &Ended) -> Vitals {
    let Ended::Replied(line) = ended else { return Vitals::Hung };
    let mut words = line.split_whitespace();
    let first = words.next();
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    match first {
        Some("alive") => Vitals::Alive(Usage { size: number(), used: number() }),
        Some("dead") => Vitals::Dead(i32::try_from(number()).unwrap_or(0)),
        _ => Vitals::Hung,
    }
}

/// Returns the kernel's text for an errno.
pub fn words(number: i32) -> String {
    std::io::Error::from_raw_os_error(number).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_is_alive_and_what_is_not_there_is_not() {
        let paths: Vec<_> = ["/proc", "/", "/nowhere/at/all"].map(PathBuf::from).into();
        let vitals = of(&paths, crate::pace::deadline(20)).unwrap();
        assert!(matches!(vitals[0], Vitals::Alive(_)) && vitals[2] == Vitals::Dead(2), "{vitals:?}");
        assert!(matches!(vitals[1], Vitals::Alive(usage) if usage.size >= usage.used), "{vitals:?}");
        assert!(words(107).contains("not connected"));
    }

    #[test]
    fn who_says_nothing_hangs() {
        assert_eq!(heard(&Ended::Stuck(None)), Vitals::Hung);
        assert_eq!(heard(&Ended::Replied("x\n".into())), Vitals::Hung);
    }
}
