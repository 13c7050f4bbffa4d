//! An opened directory, and files in it by their names: no path component can be swapped meanwhile.
//!
//! No symlink is followed. New files and directories get the requested mode, whatever the umask.

use crate::errno::errno_of;
use crate::fs::files;
use crate::fs::lease;
use crate::fs::lock::{self, Hold};
use crate::proc::deadline::Deadline;
use anyhow::{Context, Result};
use rustix::fs::{
    self, AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat, StatVfsMountFlags, Timespec,
};
use rustix::fs::{StatxAttributes, StatxFlags, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// Extended attribute in which SELinux keeps a file's label.
const LABEL: &str = "security.selinux";

/// Limit for a label that is copied, in bytes.
const LABEL_LIMIT: usize = 1 << 12;

/// Limit for the depth at which a tree is removed in place.
const DEEP: usize = 64;

/// Limit for the symlinks that [`resolve`] follows, as in the kernel.
const LINK_LIMIT: usize = 40;

/// An opened directory.
#[derive(Debug)]
pub struct Directory {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
}

/// Attributes of a name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its kind.
    pub kind: Kind,
    /// Its permissions.
    pub mode: u32,
    /// Its owner.
    pub owner: u32,
    /// Its group.
    pub group: u32,
}

/// Permanent identity of a file: inode and creation time, in seconds and nanoseconds.
/// Unlike the device number, it is the same after a reboot.
pub type Birth = (u64, i64, u32);

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Link,
    /// A device, socket or fifo.
    Other,
}

/// State of a mounted file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// True if no user can write to it.
    pub read_only: bool,
    /// True if no program on it can be executed.
    pub no_exec: bool,
    /// Free space, in bytes.
    pub free: u64,
    /// Number of files that can still be made; `None` if there is no limit.
    pub free_files: Option<u64>,
}

impl Entry {
    fn of(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        };
        Self { kind, mode: stat.st_mode & 0o7777, owner: stat.st_uid, group: stat.st_gid }
    }
}

impl Directory {
    /// Opens a directory of the admin, following symlinks. `None` if it does not exist.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match fs::openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            fd => {
                let fd = fd.with_context(|| format!("open {}", path.display()))?;
                Ok(Some(Self { fd, path: path.to_owned() }))
            }
        }
    }

    /// Opens a directory in this one; `None` if there is no such name.
    pub fn child(&self, name: impl AsRef<OsStr>) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = self.path_of(&name);
        match fs::openat(&self.fd, name.as_ref(), flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            fd => Ok(Some(Self { fd: fd.with_context(|| format!("open {}", path.display()))?, path })),
        }
    }

    /// Does the same as [`child`](Self::child), to copy or remove all content.
    /// Refuses a mount: its content is data, for whatever reason it is mounted here.
    pub fn child_not_mounted(&self, name: impl AsRef<OsStr>) -> Result<Option<Self>> {
        let Some(child) = self.child(name)? else { return Ok(None) };
        let stat = fs::statx(&child.fd, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
        let known = stat.is_ok_and(|stat| stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT));
        let mounted = match stat {
            Ok(stat) if known => stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            // Before Linux 5.8, a bind mount of the same file system looks like a directory.
            _ => child.identity()?.0 != self.identity()?.0,
        };
        anyhow::ensure!(!mounted, "something is mounted on {}: unmount it first", child.path.display());
        Ok(Some(child))
    }

    /// Returns the path by which it was opened: for messages, and to execute files in it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a name in it.
    pub fn path_of(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// Reports whether its path still leads to this directory.
    pub fn is_still_there(&self) -> bool {
        let same = |a: Stat, b: Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        matches!((fs::fstat(&self.fd), fs::stat(&self.path)), (Ok(a), Ok(b)) if same(a, b))
    }

    /// Returns device and inode of the directory itself.
    pub fn identity(&self) -> Result<(u64, u64)> {
        let stat = fs::fstat(&self.fd).with_context(|| format!("look at {}", self.path.display()))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Returns the state of its file system.
    pub fn file_system(&self) -> Result<FileSystem> {
        let what = || format!("look at the file system of {}", self.path.display());
        let stat = fs::fstatvfs(&self.fd).with_context(what)?;
        Ok(FileSystem {
            read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
            no_exec: stat.f_flag.contains(StatVfsMountFlags::NOEXEC),
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            free_files: (stat.f_files > 0).then_some(stat.f_favail),
        })
    }

    /// Takes its flock(2), which is held as long as this value lives. Nothing is written for it.
    pub fn lock(&self, deadline: &Deadline) -> Result<()> {
        lock::wait(self.fd.as_fd(), Hold::Alone, deadline, "waiting for another installer")
            .with_context(|| format!("lock {}", self.path.display()))
    }

    /// Returns the attributes of a name, not following a symlink; `None` if there is no such name.
    pub fn look(&self, name: impl AsRef<OsStr>) -> Result<Option<Entry>> {
        match fs::statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            stat => {
                let stat = stat.with_context(|| format!("look at {}", self.path_of(name).display()))?;
                Ok(Some(Entry::of(&stat)))
            }
        }
    }

    /// Returns the identity of a name; `None` if it does not exist or has no creation time.
    pub fn birth(&self, name: impl AsRef<OsStr>) -> Result<Option<Birth>> {
        let mask = StatxFlags::INO | StatxFlags::BTIME;
        match fs::statx(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW, mask) {
            Err(Errno::NOENT | Errno::NOSYS) => Ok(None),
            stat => {
                let stat = stat.with_context(|| format!("look at {}", self.path_of(name).display()))?;
                let said = StatxFlags::from_bits_retain(stat.stx_mask).contains(mask);
                Ok(said.then_some((stat.stx_ino, stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)))
            }
        }
    }

    /// Reports whether any process has a regular file open for writing.
    pub fn is_being_written(&self, name: impl AsRef<OsStr>) -> Result<bool> {
        Ok(self.file(name)?.is_some_and(|file| lease::is_being_written(file.as_fd())))
    }

    /// Reports whether the caller may write here, which a read-only file system forbids too.
    pub fn is_writable(&self) -> bool {
        fs::accessat(&self.fd, ".", fs::Access::WRITE_OK | fs::Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    }

    /// Returns every name except `.` and `..`, sorted.
    pub fn names(&self) -> Result<Vec<OsString>> {
        let what = || format!("list {}", self.path.display());
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).with_context(what)? {
            let name = entry.with_context(what)?.file_name().to_bytes().to_vec();
            names.push(OsString::from_vec(name));
        }
        names.retain(|name| name != "." && name != "..");
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a regular file for reading; `None` if there is no such name.
    /// Any other kind of file, a symlink included, is an error.
    pub fn file(&self, name: impl AsRef<OsStr>) -> Result<Option<File>> {
        let what = || format!("open {}", self.path_of(&name).display());
        // Non-blocking: a fifo of that name must not block this process.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = match fs::openat(&self.fd, name.as_ref(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            fd => fd.with_context(what)?,
        };
        let kind = FileType::from_raw_mode(fs::fstat(&fd).with_context(what)?.st_mode);
        anyhow::ensure!(kind.is_file(), "{} is not a regular file", self.path_of(&name).display());
        Ok(Some(fd.into()))
    }

    /// Reads a file of at most `limit` bytes; `None` if there is no such file.
    pub fn read(&self, name: impl AsRef<OsStr>, limit: usize) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.file(&name)? else { return Ok(None) };
        let (path, mut content) = (self.path_of(&name), Vec::new());
        let read = file.take(limit as u64 + 1).read_to_end(&mut content);
        read.with_context(|| format!("read {}", path.display()))?;
        anyhow::ensure!(content.len() <= limit, "{} is larger than {limit} bytes", path.display());
        Ok(Some(content))
    }

    /// Returns the target of a symlink.
    pub fn link(&self, name: impl AsRef<OsStr>) -> Result<PathBuf> {
        let what = || format!("read the link {}", self.path_of(&name).display());
        let target = fs::readlinkat(&self.fd, name.as_ref(), Vec::new()).with_context(what)?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Makes an empty file for writing. The name must not exist yet.
    pub fn create(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<File> {
        let what = || format!("make {}", self.path_of(&name).display());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = fs::openat(&self.fd, name.as_ref(), flags, Mode::from_raw_mode(0o600)).with_context(what)?;
        fs::fchmod(&fd, Mode::from_raw_mode(mode)).with_context(what)?;
        Ok(fd.into())
    }

    /// Makes a symlink. The name must not exist yet.
    pub fn create_link(&self, name: impl AsRef<OsStr>, target: &Path) -> Result<()> {
        let what = || format!("make the link {}", self.path_of(&name).display());
        fs::symlinkat(target, &self.fd, name.as_ref()).with_context(what)
    }

    /// Makes a directory and opens it. The name must not exist yet.
    pub fn create_directory(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<Self> {
        let path = self.path_of(&name);
        let what = || format!("make {}", path.display());
        fs::mkdirat(&self.fd, name.as_ref(), Mode::from_raw_mode(mode)).with_context(what)?;
        let opened = self.child(&name)?.with_context(what)?;
        // The umask may have removed permissions.
        fs::fchmod(&opened.fd, Mode::from_raw_mode(mode)).with_context(what)?;
        Ok(opened)
    }

    /// Opens a directory in this one, and makes it if it is missing.
    pub fn child_or_new(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<Self> {
        match self.child(&name)? {
            Some(child) => Ok(child),
            None => self.create_directory(&name, mode),
        }
    }

    /// Renames a file, replacing the one that has the new name.
    pub fn rename(&self, name: impl AsRef<OsStr>, to: &Self, new: impl AsRef<OsStr>) -> Result<()> {
        let what = || format!("rename {} to {}", self.path_of(&name).display(), to.path_of(&new).display());
        fs::renameat(&self.fd, name.as_ref(), &to.fd, new.as_ref()).with_context(what)
    }

    /// Renames a file; fails if the new name exists. If the file system cannot guarantee that, a
    /// plain rename does nearly the same: a directory replaces only an empty one.
    pub fn rename_new(&self, name: impl AsRef<OsStr>, to: &Self, new: impl AsRef<OsStr>) -> Result<()> {
        let what = || format!("rename {} to {}", self.path_of(&name).display(), to.path_of(&new).display());
        let flags = RenameFlags::NOREPLACE;
        match fs::renameat_with(&self.fd, name.as_ref(), &to.fd, new.as_ref(), flags) {
            Err(Errno::NOSYS | Errno::INVAL) => self.rename(name, to, new),
            renamed => renamed.with_context(what),
        }
    }

    /// Removes a file or symlink. Succeeds if it is already gone.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.unlink(name.as_ref(), AtFlags::empty())
    }

    /// Removes an empty directory. Succeeds if it is already gone.
    pub fn remove_directory(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.unlink(name.as_ref(), AtFlags::REMOVEDIR)
    }

    fn unlink(&self, name: &OsStr, flags: AtFlags) -> Result<()> {
        match fs::unlinkat(&self.fd, name, flags) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.with_context(|| format!("remove {}", self.path_of(name).display())),
        }
    }

    /// Removes a name with all that is in it, at any depth; stops at a mount.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let name = name.as_ref();
        let Some(Entry { kind: Kind::Directory, .. }) = self.look(name)? else { return self.remove(name) };
        if let Some(top) = self.child_not_mounted(name)? {
            let (mut before, mut lifted) = (usize::MAX, 0);
            while before != lifted {
                before = lifted;
                top.names()?.iter().try_for_each(|inner| top.remove_inner(inner, (&top, 0), &mut lifted))?;
            }
        }
        self.remove_directory(name)
    }

    /// Removes one entry. A directory too deep below `top` is moved up into `top`: each level here
    /// costs a descriptor, and pods can make any depth.
    fn remove_inner(&self, name: &OsStr, (top, depth): (&Self, usize), lifted: &mut usize) -> Result<()> {
        let Some(Entry { kind: Kind::Directory, .. }) = self.look(name)? else { return self.remove(name) };
        let Some(child) = self.child_not_mounted(name)? else { return Ok(()) };
        if depth < DEEP {
            let mut names = child.names()?.into_iter();
            names.try_for_each(|inner| child.remove_inner(&inner, (top, depth + 1), lifted))?;
            return self.remove_directory(name);
        }
        loop {
            *lifted += 1;
            let new = format!(".flexvol-lifted-{lifted}");
            if top.look(&new)?.is_none() {
                return self.rename_new(name, top, new);
            }
        }
    }

    /// Writes its names to disk, so that they survive a crash of the node.
    pub fn sync(&self) -> Result<()> {
        match fs::fsync(&self.fd) {
            // Some network and overlay file systems have nothing to sync.
            Err(Errno::INVAL | Errno::ROFS) => Ok(()),
            synced => synced.with_context(|| format!("write {} to disk", self.path.display())),
        }
    }

    /// Returns the time at which its names last changed, in seconds and nanoseconds.
    pub fn changed(&self) -> Result<(i64, u64)> {
        let stat = fs::fstat(&self.fd).with_context(|| format!("look at {}", self.path.display()))?;
        Ok((stat.st_mtime, stat.st_mtime_nsec))
    }

    /// Sets its time stamp to now, which makes it the newest of several directories.
    pub fn touch(&self) -> Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        fs::futimens(&self.fd, &times).with_context(|| format!("touch {}", self.path.display()))
    }

    /// Returns the SELinux label of a name in it; `None` without one, and for a symlink.
    pub fn label_of(&self, name: impl AsRef<OsStr>) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        label_of(fs::openat(&self.fd, name.as_ref(), flags, Mode::empty()).ok()?.as_fd())
    }

    /// Returns its own SELinux label.
    pub fn label(&self) -> Option<Vec<u8>> {
        label_of(self.fd.as_fd())
    }

    /// Gives the directory the owner, group and permissions of another.
    /// The same for a file is [`give_owner`](crate::fs::files::give_owner).
    pub fn give_to(&self, like: Entry) -> Result<()> {
        files::give_owner(self.fd.as_fd(), (like.owner, like.group), like.mode)
            .with_context(|| format!("make {}", self.path.display()))
    }

    /// Sets its SELinux label. The same for a file is [`set_label`].
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        set_label(self.fd.as_fd(), label)
    }
}

fn label_of(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut buffer = vec![0; LABEL_LIMIT];
    let length = fs::fgetxattr(fd, LABEL, buffer.as_mut_slice()).ok()?;
    buffer.truncate(length);
    Some(buffer).filter(|label| !label.is_empty())
}

/// Sets the SELinux label of an open file or directory, unless it has that one.
pub fn set_label(fd: BorrowedFd<'_>, label: &[u8]) -> Result<()> {
    if label_of(fd).is_some_and(|present| present == label) {
        return Ok(());
    }
    let shown = || String::from_utf8_lossy(label).trim_end_matches('\0').to_owned();
    fs::fsetxattr(fd, LABEL, label, XattrFlags::empty()).with_context(|| format!("set the label {}", shown()))
}

/// Reports whether an error means that permissions are missing.
pub fn is_forbidden(error: &anyhow::Error) -> bool {
    matches!(errno_of(error), Some(Errno::ACCESS | Errno::PERM))
}

/// Reports whether an error is about the file at a path: a symlink, a socket, a file that is too
/// large or not regular. An error of the inspection itself does not count.
pub fn is_about_content(error: &anyhow::Error) -> bool {
    errno_of(error)
        .is_none_or(|errno| matches!(errno, Errno::LOOP | Errno::MLINK | Errno::NXIO | Errno::NODEV))
}

/// Returns the major and minor number of a device.
pub fn device_numbers(device: u64) -> (u32, u32) {
    (fs::major(device), fs::minor(device))
}

/// Makes a directory and the missing ones above it, each with mode 0755, as kubelet does.
pub fn make_all(path: &Path) -> Result<()> {
    let mut built = PathBuf::new();
    for part in path.components() {
        built.push(part);
        match fs::mkdir(&built, Mode::from_raw_mode(0o755)) {
            Ok(()) => fs::chmod(&built, Mode::from_raw_mode(0o755))
                .with_context(|| format!("make {}", built.display()))?,
            // A read-only file system fails like this for an existing directory, too.
            Err(_) if built.is_dir() => {}
            Err(errno) => return Err(errno).with_context(|| format!("make {}", built.display())),
        }
    }
    Ok(())
}

/// Makes a directory that only we may read, if it is missing; its parent must exist.
/// A directory of another user is refused.
pub fn make_private(path: &Path) -> Result<()> {
    match fs::mkdir(path, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno).with_context(|| format!("make {}", path.display())),
    }
    let stat = fs::lstat(path).with_context(|| format!("look at {}", path.display()))?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0;
    anyhow::ensure!(
        ours && FileType::from_raw_mode(stat.st_mode).is_dir(),
        "{} is not a directory of our own: remove it",
        path.display()
    );
    Ok(())
}

/// Returns the path below `root` that a process with that root would reach by `path`: absolute
/// symlinks start again at `root`, `..` ends there. A part that does not exist is kept as it is.
pub fn resolve(root: &Path, path: &Path) -> Result<PathBuf> {
    let mut todo: Vec<OsString> = parts(path);
    let (mut below, mut links) = (PathBuf::new(), 0);
    while let Some(name) = todo.pop() {
        if name == ".." {
            below.pop();
            continue;
        }
        let next = below.join(&name);
        match fs::readlink(root.join(&next), Vec::new()) {
            Ok(target) => {
                links += 1;
                anyhow::ensure!(links <= LINK_LIMIT, "too many symlinks in {}", path.display());
                let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
                if target.is_absolute() {
                    below = PathBuf::new();
                }
                todo.extend(parts(&target));
            }
            Err(_) => below = next,
        }
    }
    Ok(root.join(below))
}

/// Returns the names of a path, the last first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(named).map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::time::Duration;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temporary = tempfile::tempdir().unwrap();
        let opened = Directory::open(temporary.path()).unwrap().unwrap();
        (temporary, opened)
    }

    #[test]
    fn links_are_looked_at_and_never_followed() {
        let (temporary, directory) = directory();
        symlink("/etc", temporary.path().join("d")).unwrap();
        symlink("/etc/passwd", temporary.path().join("f")).unwrap();
        assert!(
            directory.child("d").is_err() && directory.file("f").is_err() && directory.read("f", 9).is_err()
        );
        assert_eq!(directory.link("f").unwrap(), Path::new("/etc/passwd"));
        assert!(directory.create("f", 0o600).is_err());
        directory.remove_tree("d").unwrap();
        assert!(Path::new("/etc/passwd").exists() && directory.look("d").unwrap().is_none());
    }

    #[test]
    fn odd_files_hold_nobody_up() {
        let (temporary, directory) = directory();
        nix::unistd::mkfifo(&temporary.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(directory.file("fifo").unwrap_err().to_string().ends_with(wording("not-a-regular-file")));
        File::create(temporary.path().join("large")).unwrap().set_len(1 << 40).unwrap();
        assert!(directory.read("large", 1 << 10).unwrap_err().to_string().contains("larger than 1024"));
    }

    #[test]
    fn modes_are_as_asked_and_nothing_is_replaced_by_accident() {
        let (temporary, directory) = directory();
        drop(directory.create("f", 0o755).unwrap());
        let child = directory.create_directory("d", 0o755).unwrap();
        for name in ["f", "d"] {
            let mode = temporary.path().join(name).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o755, "{name}");
        }
        drop(child.create("x", 0o600).unwrap());
        assert!(directory.create("f", 0o600).is_err());
        assert!(directory.rename_new("f", &child, "x").is_err());
        directory.rename("f", &child, "x").unwrap();
        assert_eq!((directory.names().unwrap().len(), child.names().unwrap()), (1, vec!["x".into()]));
        directory.remove_tree("d").unwrap();
        assert!(directory.is_still_there() && directory.names().unwrap().is_empty());
    }

    #[test]
    fn a_tree_is_removed_however_deep() {
        let (_temporary, directory) = directory();
        let mut bottom = directory.create_directory("d", 0o755).unwrap();
        for _ in 0..2000 {
            bottom.create(".flexvol-lifted-1", 0o600).unwrap();
            bottom = bottom.create_directory("d", 0o700).unwrap();
        }
        // No path can be that long, and no process has so many descriptors.
        directory.remove_tree("d").unwrap();
        assert!(directory.names().unwrap().is_empty());
    }

    #[test]
    fn a_lock_excludes() {
        let (_temporary, directory) = directory();
        let again = Directory::open(directory.path()).unwrap().unwrap();
        directory.lock(&Deadline::after(crate::pace::deadline(20))).unwrap();
        assert!(again.lock(&Deadline::after(Duration::from_millis(20))).is_err());
        drop(directory);
        again.lock(&Deadline::after(crate::pace::deadline(20))).unwrap();
    }

    #[test]
    fn another_root_is_never_left() {
        let (temporary, _) = directory();
        let root = temporary.path();
        std::fs::create_dir_all(root.join("data/plugins")).unwrap();
        symlink("/data/plugins", root.join("abs")).unwrap();
        symlink("../../../data", root.join("up")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let resolved = |path: &str| {
            resolve(root, path.as_ref()).map(|found| found.strip_prefix(root).unwrap().to_owned())
        };
        for (path, expected) in [
            ("/abs/x", "data/plugins/x"),
            ("/up/plugins", "data/plugins"),
            ("/../../etc", "etc"),
            ("/data/./plugins", "data/plugins"),
        ] {
            assert_eq!(resolved(path).unwrap(), Path::new(expected), "{path}");
        }
        assert!(resolved("/loop").is_err());
    }
}
