//! Mount target as a name in an opened parent directory: if a path component is swapped, the target
//! still cannot lead elsewhere.

use crate::fs::openat_beneath;
use crate::mount::mount_table;
use crate::proc::process::{Ended, Worker};
use anyhow::{Context, Result};
use flexvol_protocol::TargetPath;
use flexvol_protocol::volume_dir::VolumeDir;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A target whose parent directory is open. The name itself may or may not exist.
#[derive(Debug)]
pub struct Place {
    parent: OwnedFd,
    name: PathBuf,
    path: PathBuf,
}

/// Returns a target as in the mount table: the symlinks of the admin's root are resolved. Nothing
/// below the root is accessed.
pub fn path_in_table(target: &Path) -> PathBuf {
    let split = |target: TargetPath| {
        let dir = VolumeDir::of(&target);
        Some(dir.root.canonicalize().ok()?.join(dir.below))
    };
    TargetPath::parse(target.as_os_str()).ok().and_then(split).unwrap_or_else(|| target.to_owned())
}

/// Current state of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing.
    Missing,
    /// A directory, file or other thing on the file system of its parent.
    Plain(FileType),
    /// A mount that answers.
    Mount(Mounted),
    /// A mount whose server or daemon is gone, with the errno that it returns.
    Dead(Errno),
}

/// Text for messages.
impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "nothing",
            Self::Plain(FileType::Directory) => "a directory",
            Self::Plain(FileType::RegularFile) => "a file",
            Self::Plain(FileType::Symlink) => "a symlink",
            Self::Plain(_) => "a device, a socket or a pipe",
            Self::Mount(_) => "a mount",
            Self::Dead(_) => "a mount whose server is gone",
        })
    }
}

/// Result of [`Place::ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The mount answers.
    Alive,
    /// Every process that could answer is gone.
    Gone,
    /// The mount answers, but does not return the attributes of its root.
    Refuses,
    /// It has not answered yet.
    Silent,
}

/// Result of the liveness check [`Place::pulse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// The server answers, possibly with an error.
    Alive,
    /// Its server or daemon is gone.
    Dead,
    /// No answer in time.
    Silent,
}

/// A mount that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The mount's id.
    pub id: u64,
    /// Device and inode of its root: the same for two mounts of the same directory.
    pub root: (u64, u64),
}

impl Place {
    /// Opens the parent directory, following no symlink below kubelet's root.
    /// Returns `None` if the parent does not exist.
    pub fn open(target: &TargetPath) -> Result<Option<Self>> {
        let dir = VolumeDir::of(target);
        let (Some(above), Some(name)) = (dir.below.parent(), dir.below.file_name()) else {
            return Ok(None);
        };
        let Some(root) = openat_beneath::open_root_if_there(&dir.root)? else { return Ok(None) };
        let parent = openat_beneath::open_if_there(root.as_fd(), above, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(parent.map(|parent| Self { parent, name: name.into(), path: target.as_path().to_owned() }))
    }

    /// Returns the place of a mount inside the mount on top. `target` is spelled as in the mount
    /// table. Returns `None` if it does not exist now, or can be reached only through a symlink.
    ///
    /// The lookup starts at the root of the mount on top.
    /// Even if something is renamed meanwhile, the result is inside that mount.
    pub fn inside(&self, target: &Path) -> Result<Option<Self>> {
        let Ok(below) = target.strip_prefix(self.resolved()?) else { return Ok(None) };
        let (Some(above), Some(name)) = (below.parent(), below.file_name()) else { return Ok(None) };
        let Ok(root) = self.open_directory() else { return Ok(None) };
        let Ok(parent) = openat_beneath::open(root.as_fd(), above, OFlags::PATH | OFlags::DIRECTORY) else {
            return Ok(None);
        };
        Ok(Some(Self { parent, name: name.into(), path: target.to_owned() }))
    }

    /// Returns the target's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the parent directory.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// Returns the name in the parent directory.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Returns a path to the place through the open parent: for system calls that take only a path.
    pub fn through_parent(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_raw_fd())).join(&self.name)
    }

    /// Returns the path as in the mount table, with the symlinks of the admin's root resolved.
    pub fn resolved(&self) -> Result<PathBuf> {
        let link = format!("/proc/self/fd/{}", self.parent.as_raw_fd());
        Ok(std::fs::read_link(&link).with_context(|| format!("read {link}"))?.join(&self.name))
    }

    /// Returns the id of the mount on top, also if the mount does not answer.
    pub fn mount_id(&self) -> Result<Option<u64>> {
        match self.look()? {
            Look::Missing | Look::Plain(_) => Ok(None),
            Look::Mount(mounted) => Ok(Some(mounted.id)),
            Look::Dead(_) => Ok(mount_table::at(&self.resolved()?)?.map(|entry| entry.id)),
        }
    }

    /// Returns the unique id of the mount on top: no other mount gets it before the next boot.
    /// Returns `None` on a kernel before 6.8, where an id is reused once its mount is gone.
    pub fn unique_mount_id(&self) -> Option<u64> {
        /// `STATX_MNT_ID_UNIQUE`.
        const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let stat = fs::statx(&self.parent, &self.name, flags, UNIQUE).ok()?;
        (stat.stx_mask & UNIQUE.bits() != 0 && stat.stx_mnt_id != NO_ID).then_some(stat.stx_mnt_id)
    }

    /// Checks whether the server or daemon behind the mount answers.
    /// Runs in a separate process, because the check can hang. [`look`](Self::look) asks the server
    /// only where the kernel has to.
    pub fn pulse(&self, wait: Duration) -> Pulse {
        let asked = Worker::start(|| match self.sign_of_life() {
            Err(errno) if is_of_the_dead(errno) => DEAD.to_owned(),
            _ => "\n".to_owned(),
        });
        match asked.map(|worker| worker.wait(wait)) {
            Ok(Ended::Replied(line)) if line == DEAD => Pulse::Dead,
            Ok(Ended::Stuck(_)) => Pulse::Silent,
            _ => Pulse::Alive,
        }
    }

    /// Sends requests that the server has to answer. The kernel may answer attributes of a
    /// directory from a cache, but never statfs(2). A program that serves the mount may cache both,
    /// so the last request is for a random name that does not exist. Any answer to it counts.
    fn sign_of_life(&self) -> rustix::io::Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
        fs::statx(fs::CWD, &self.path, flags, StatxFlags::BASIC_STATS)?;
        fs::statfs(&self.path)?;
        let name = format!(".flexvol-{}-{}", std::process::id(), fastrand::u64(..));
        let _ = fs::statx(fs::CWD, self.path.join(name), flags, StatxFlags::TYPE);
        Ok(())
    }

    /// Asks the mount on top for statfs(2), which not every server supports, and for its root's
    /// attributes. Asks in a separate process and waits at most `wait`.
    pub fn ask(&self, wait: Duration) -> Answer {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
        let root = || fs::statx(fs::CWD, &self.path, flags, StatxFlags::BASIC_STATS).map(drop);
        let asked = Worker::start(|| match (fs::statfs(&self.path), root()) {
            (Err(errno), _) | (_, Err(errno)) if is_gone(errno) => DEAD.to_owned(),
            (_, Ok(())) => ALIVE.to_owned(),
            (_, Err(_)) => "\n".to_owned(),
        });
        match asked.map(|worker| worker.wait(wait)) {
            Ok(Ended::Replied(line)) if line == ALIVE => Answer::Alive,
            Ok(Ended::Replied(line)) if line == DEAD => Answer::Gone,
            Ok(Ended::Replied(_)) => Answer::Refuses,
            _ => Answer::Silent,
        }
    }

    /// Inspects the place without asking any server: statx(2) with `AT_STATX_DONT_SYNC`.
    ///
    /// A kernel before 5.8 does not report mounts here, and an emulated kernel may omit the mount
    /// id: then the mount table is read.
    pub fn look(&self) -> Result<Look> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let asked = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::MNT_ID;
        let stat = match fs::statx(&self.parent, &self.name, flags, asked) {
            Err(Errno::NOENT) => return Ok(Look::Missing),
            Err(Errno::NOSYS) => return self.look_in_table(None),
            Err(errno) if is_of_the_dead(errno) => return Ok(Look::Dead(errno)),
            stat => stat.with_context(|| format!("look at {}", self.path.display()))?,
        };
        let root = (fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino);
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        if !stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) || stat.stx_mnt_id == NO_ID {
            return self.look_in_table(Some((kind, root)));
        }
        let mounted = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        Ok(if mounted { Look::Mount(Mounted { id: stat.stx_mnt_id, root }) } else { Look::Plain(kind) })
    }

    fn look_in_table(&self, stat: Option<(FileType, (u64, u64))>) -> Result<Look> {
        let (kind, root) = if let Some(stat) = stat {
            stat
        } else {
            let stat = fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW);
            let stat = stat.with_context(|| format!("look at {}", self.path.display()))?;
            (FileType::from_raw_mode(stat.st_mode), (stat.st_dev, stat.st_ino))
        };
        let entry = mount_table::at(&self.resolved()?)?;
        Ok(entry.map_or(Look::Plain(kind), |entry| Look::Mount(Mounted { id: entry.id, root })))
    }

    /// Creates the directory with mode 0750 as kubelet does, whatever the umask.
    /// Returns false if the directory exists.
    pub fn make_directory(&self) -> Result<bool> {
        let wanted = Mode::from_raw_mode(0o750);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = match fs::mkdirat(&self.parent, &self.name, wanted) {
            Err(Errno::EXIST) => return Ok(false),
            made => made.and_then(|()| fs::openat(&self.parent, &self.name, flags, Mode::empty())),
        };
        made.and_then(|fd| fs::fchmod(fd, wanted))
            .with_context(|| format!("make {}", self.path.display()))?;
        Ok(true)
    }

    /// Removes the empty directory. Succeeds if it is already gone.
    pub fn remove_directory(&self) -> Result<()> {
        gone(fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR))
            .with_context(|| format!("remove {}", self.path.display()))
    }

    /// Replaces the empty directory with an empty file, to mount a file on.
    pub fn turn_into_file(&self) -> Result<()> {
        self.remove_directory()?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        fs::openat(&self.parent, &self.name, flags, Mode::from_raw_mode(0o640))
            .map(drop)
            .with_context(|| format!("make the file {}", self.path.display()))
    }

    /// Removes the file that [`turn_into_file`](Self::turn_into_file) made.
    pub fn remove_file(&self) -> Result<()> {
        gone(fs::unlinkat(&self.parent, &self.name, AtFlags::empty()))
            .with_context(|| format!("remove {}", self.path.display()))
    }

    /// Removes the file that [`turn_into_file`](Self::turn_into_file) left, if it is empty.
    /// Refuses to remove a file with content: flexvol did not make it.
    pub fn remove_file_if_empty(&self) -> Result<()> {
        let stat = fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        anyhow::ensure!(stat.st_size == 0, "{} is a file with content: move it away", self.path.display());
        self.remove_file()
    }

    /// Opens the directory, or the root of the mount on top of it.
    pub fn open_directory(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(&self.parent, &self.name, flags, Mode::empty())
    }

    /// Returns the first few names in the directory; an empty list if it is not a directory.
    pub fn entries(&self) -> Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match fs::openat(&self.parent, &self.name, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            fd => fd.with_context(|| format!("open {}", self.path.display()))?,
        };
        let names = fs::Dir::new(fd)?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
        Ok(names.filter(|name| name != "." && name != "..").take(5).collect())
    }
}

/// Invalid mount id: no mount that can be unmounted has it. qemu-user 7.2 reports it for every one.
const NO_ID: u64 = 0;

/// Reply of the worker process for a dead mount.
const DEAD: &str = "dead\n";

/// Reply of the worker process for a healthy mount.
const ALIVE: &str = "alive\n";

/// Reports whether the errno means that every process that could answer is gone.
fn is_gone(errno: Errno) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED, Errno::NODEV].contains(&errno)
}

fn is_of_the_dead(errno: Errno) -> bool {
    let known = [Errno::NOTCONN, Errno::STALE, Errno::IO, Errno::HOSTDOWN, Errno::TIMEDOUT, Errno::ACCESS];
    known.contains(&errno)
}

fn gone(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}
