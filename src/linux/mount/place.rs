//! The target as a name in an opened parent directory, so that no swap of a path component can lead
//! us elsewhere.

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

/// What is at a place right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing.
    Missing,
    /// A directory, file or other thing on the file system of its parent.
    Plain(FileType),
    /// A mount that answers.
    Mount(Mounted),
    /// A mount whose server or daemon is gone; the errno it answers with.
    Dead(Errno),
}

/// For people.
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

/// How a mount is that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Well.
    Alive,
    /// Whoever should answer is gone.
    Gone,
    /// It has no root to show.
    Refuses,
    /// It has not answered yet.
    Silent,
}

/// What a mount answers when it is asked for a sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// Whatever it says, it lives.
    Alive,
    /// Its server or daemon is gone.
    Dead,
    /// Nothing, for as long as it was waited for.
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
    /// Opens the parent: below kubelet's root no symlink is followed. `None` if the parent does not
    /// exist.
    pub fn open(target: &TargetPath) -> Result<Option<Self>> {
        let dir = VolumeDir::of(target);
        let (Some(above), Some(name)) = (dir.below.parent(), dir.below.file_name()) else {
            return Ok(None);
        };
        let Some(root) = openat_beneath::open_root_if_there(&dir.root)? else { return Ok(None) };
        let parent = openat_beneath::open_if_there(root.as_fd(), above, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(parent.map(|parent| Self { parent, name: name.into(), path: target.as_path().to_owned() }))
    }

    /// The place of a mount inside the mount on top, at `target` in the mount table's spelling;
    /// `None` if nothing, or only a symlink, leads there now.
    ///
    /// Looked up from the root of the mount on top: whatever is renamed in between, what is found
    /// is inside.
    pub fn inside(&self, target: &Path) -> Result<Option<Self>> {
        let Ok(below) = target.strip_prefix(self.resolved()?) else { return Ok(None) };
        let (Some(above), Some(name)) = (below.parent(), below.file_name()) else { return Ok(None) };
        let Ok(root) = self.open_directory() else { return Ok(None) };
        let Ok(parent) = openat_beneath::open(root.as_fd(), above, OFlags::PATH | OFlags::DIRECTORY) else {
            return Ok(None);
        };
        Ok(Some(Self { parent, name: name.into(), path: target.to_owned() }))
    }

    /// The target's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The parent directory.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// The name in the parent directory.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// A path to the place that goes through the open parent: for system calls that take none but a
    /// path.
    pub fn through_parent(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_raw_fd())).join(&self.name)
    }

    /// The place as the mount table spells it, with the symlinks of the admin's root resolved.
    pub fn resolved(&self) -> Result<PathBuf> {
        let link = format!("/proc/self/fd/{}", self.parent.as_raw_fd());
        Ok(std::fs::read_link(&link).with_context(|| format!("read {link}"))?.join(&self.name))
    }

    /// The id of the mount on top, whether it answers or not.
    pub fn mount_id(&self) -> Result<Option<u64>> {
        match self.look()? {
            Look::Missing | Look::Plain(_) => Ok(None),
            Look::Mount(mounted) => Ok(Some(mounted.id)),
            Look::Dead(_) => Ok(mount_table::at(&self.resolved()?)?.map(|entry| entry.id)),
        }
    }

    /// The id of the mount on top that no other mount has before the next boot; `None` on a kernel
    /// before 6.8, where an id is given away again once its mount is gone.
    pub fn unique_mount_id(&self) -> Option<u64> {
        /// `STATX_MNT_ID_UNIQUE`.
        const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let stat = fs::statx(&self.parent, &self.name, flags, UNIQUE).ok()?;
        (stat.stx_mask & UNIQUE.bits() != 0 && stat.stx_mnt_id != NO_ID).then_some(stat.stx_mnt_id)
    }

    /// Asks the server or daemon behind it for a sign of life. [`look`](Self::look) does so only
    /// where the kernel has to: this asks, in a process of its own, because that can hang.
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

    /// Attributes of a directory may be answered from a cache; how full it is never is, by the
    /// kernel. A program may know both by heart, so it is asked for a name that no one has; only
    /// whether it answers counts.
    fn sign_of_life(&self) -> rustix::io::Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
        fs::statx(fs::CWD, &self.path, flags, StatxFlags::BASIC_STATS)?;
        fs::statfs(&self.path)?;
        let name = format!(".flexvol-{}-{}", std::process::id(), fastrand::u64(..));
        let _ = fs::statx(fs::CWD, self.path.join(name), flags, StatxFlags::TYPE);
        Ok(())
    }

    /// Asks the mount on top, in a process of its own and at most for so long, how it is: how full,
    /// which not every server knows, and what its root is.
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

    /// Looks without asking any server: statx(2) with `AT_STATX_DONT_SYNC`.
    ///
    /// A kernel before 5.8 cannot say what is a mount, and an emulated one may forget its id: then
    /// the mount table does.
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

    /// Makes the directory, 0750 as kubelet does, whatever the umask; false if it was there.
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

    /// Removes the empty directory; one that is gone already is fine.
    pub fn remove_directory(&self) -> Result<()> {
        gone(fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR))
            .with_context(|| format!("remove {}", self.path.display()))
    }

    /// Puts an empty file in the place of the empty directory, to mount a file on.
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

    /// Removes what is left of [`turn_into_file`](Self::turn_into_file); a file with content is
    /// not ours to remove.
    pub fn remove_file_if_empty(&self) -> Result<()> {
        let stat = fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        anyhow::ensure!(stat.st_size == 0, "{} is a file with content: move it away", self.path.display());
        self.remove_file()
    }

    /// The directory, or the root of the mount on top of it.
    pub fn open_directory(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(&self.parent, &self.name, flags, Mode::empty())
    }

    /// The first few names in the directory; none if it is not one.
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

/// The id of no mount that somebody could unmount. qemu-user 7.2 says it of every mount.
const NO_ID: u64 = 0;

/// What the other process says of a dead mount.
const DEAD: &str = "dead\n";

/// And of one that is well.
const ALIVE: &str = "alive\n";

/// Whether every process that could answer is gone.
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
