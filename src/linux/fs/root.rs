//! Directory that is used as `/`: another root directory, or the root of another process.
//!
//! Paths are walked from its descriptor name by name, as a process with that root would walk them:
//! an absolute symlink starts at the root again, and `..` ends there. No file outside is ever
//! opened, whatever symlinks are inside.

use anyhow::{Context, Result, ensure};
use rustix::fs::{self, FileType, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// Limit for the symlinks that are followed, as in the kernel.
const LINKS: usize = 40;
/// Limit for the names that are listed.
const NAMES: usize = 10_000;

/// An opened root.
#[derive(Debug)]
pub struct Root(OwnedFd);

/// Result of walking a path inside a root.
#[derive(Debug)]
pub struct Reached {
    /// Last file or directory of the path that exists.
    pub fd: OwnedFd,
    /// Its path as seen inside, without symlinks.
    pub path: PathBuf,
    /// Missing part of the path below it; empty if the whole path exists.
    pub missing: PathBuf,
}

impl Root {
    /// Opens the root at a path of this process, for example `/proc/<pid>/root`.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(fs::CWD, path, flags, Mode::empty());
        Ok(Self(fd.with_context(|| format!("open {}", path.display()))?))
    }

    /// Opens the root at a name in an opened directory.
    pub fn open_at(directory: BorrowedFd<'_>, name: &str) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(directory, name, flags, Mode::empty()).with_context(|| format!("open {name}"))?))
    }

    /// Walks the path as far as it exists.
    pub fn reach(&self, path: &Path) -> Result<Reached> {
        Walk::new(&self.0)
            .and_then(|walk| walk.go(path))
            .with_context(|| format!("look up {}", path.display()))
    }

    /// Reports whether the path exists.
    pub fn holds(&self, path: &Path) -> bool {
        self.reach(path).is_ok_and(|reached| reached.missing.as_os_str().is_empty())
    }

    /// Returns the text of a file of at most `limit` bytes; `None` for a missing file and for a
    /// directory. Refuses fifos and devices, and replaces broken UTF-8.
    pub fn read(&self, path: &Path, limit: usize) -> Result<Option<String>> {
        let what = || format!("read {}", path.display());
        let Some(fd) = self.open_whole(path, OFlags::RDONLY | OFlags::NONBLOCK)? else { return Ok(None) };
        let stat = fs::fstat(&fd).with_context(what)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Ok(None);
        }
        ensure!(
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
            "{} is not a file",
            path.display()
        );
        let mut bytes = Vec::new();
        File::from(fd).take(limit as u64 + 1).read_to_end(&mut bytes).with_context(what)?;
        ensure!(bytes.len() <= limit, "{} is larger than {limit} bytes", path.display());
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Returns the names in a directory, sorted, each with true if it is a directory itself; an
    /// empty list if there is no such directory. Names that are not UTF-8 are left out.
    pub fn list(&self, directory: &Path) -> Result<Vec<(String, bool)>> {
        let what = || format!("list {}", directory.display());
        let opened = match self.open_whole(directory, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if error.downcast_ref() == Some(&Errno::NOTDIR) => None,
            opened => opened?,
        };
        let Some(fd) = opened else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in fs::Dir::new(fd).with_context(what)?.take(NAMES) {
            let entry = entry.with_context(what)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." {
                names.push((name.to_owned(), entry.file_type() == FileType::Directory));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open_whole(&self, path: &Path, flags: OFlags) -> Result<Option<OwnedFd>> {
        let reached = self.reach(path)?;
        if !reached.missing.as_os_str().is_empty() {
            return Ok(None);
        }
        let kind = FileType::from_raw_mode(fs::fstat(&reached.fd)?.st_mode);
        let is_harmless = matches!(kind, FileType::RegularFile | FileType::Directory);
        // Opening a device may already trigger an action.
        ensure!(is_harmless, "{} is not a file", path.display());
        // The file is opened by its descriptor: the name may lead to another file by now.
        let link = format!("/proc/self/fd/{}", reached.fd.as_raw_fd());
        let fd = openat(fs::CWD, &link, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty());
        Ok(Some(fd.with_context(|| format!("open {}", path.display()))?))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A walk through a root: the directories entered, and the names that are still to be walked.
struct Walk {
    entered: Vec<(OwnedFd, OsString)>,
    root: OwnedFd,
    ahead: Vec<OsString>,
    links: usize,
}

impl Walk {
    fn new(root: &OwnedFd) -> rustix::io::Result<Self> {
        let root = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
        Ok(Self { entered: Vec::new(), root, ahead: Vec::new(), links: LINKS })
    }

    fn go(mut self, path: &Path) -> rustix::io::Result<Reached> {
        self.put_ahead(path);
        while let Some(name) = self.ahead.pop() {
            match self.step(name.clone()) {
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    self.ahead.push(name);
                    break;
                }
                step => step?,
            }
        }
        let names = self.entered.iter().map(|(_, name)| name.as_os_str());
        let path = std::iter::once(OsStr::new("/")).chain(names).collect();
        let missing = self.ahead.iter().rev().filter(|name| *name != "..").collect();
        let fd = self.entered.pop().map_or(self.root, |(fd, _)| fd);
        Ok(Reached { fd, path, missing })
    }

    /// Adds the names of a path to the walk. An absolute path starts at the root again.
    fn put_ahead(&mut self, path: &Path) {
        if path.is_absolute() {
            self.entered.clear();
        }
        self.ahead.extend(path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        }));
    }

    fn step(&mut self, name: OsString) -> rustix::io::Result<()> {
        if name == ".." {
            self.entered.pop();
            return Ok(());
        }
        let here = self.entered.last().map_or(&self.root, |(fd, _)| fd);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(here, &name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fs::fstat(&fd)?.st_mode) != FileType::Symlink {
            self.entered.push((fd, name));
            return Ok(());
        }
        self.links = self.links.checked_sub(1).ok_or(Errno::LOOP)?;
        let target = readlinkat(&fd, "", Vec::new())?;
        self.put_ahead(Path::new(OsStr::from_bytes(target.as_bytes())));
        Ok(())
    }
}

/// Reports whether two descriptors refer to the same file.
pub fn is_same(one: impl AsFd, other: impl AsFd) -> bool {
    let id = |fd: BorrowedFd<'_>| fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    id(one.as_fd()).is_ok_and(|one| id(other.as_fd()) == Ok(one))
}

/// Returns the id of the mount that a descriptor is on, as in `/proc/<pid>/mountinfo`.
pub fn mount_id(fd: impl AsFd) -> Result<u64> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.with_context(|| format!("{path} has no mnt_id"))
}

/// Returns the target of a symlink in an opened directory; `None` if it cannot be read.
pub fn link(directory: BorrowedFd<'_>, name: &str) -> Option<PathBuf> {
    let target = readlinkat(directory, name, Vec::new()).ok()?;
    Some(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path("a/b")).unwrap();
        File::create(path("a/b/file")).unwrap().set_len(3).unwrap();
        for (target, link) in
            [("/a/b", "absolute"), ("a", "relative"), ("../../../a", "a/b/out"), ("/loop", "loop")]
        {
            symlink(target, path(link)).unwrap();
        }
        symlink("/etc/passwd", path("a/passwd")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn symlinks_stay_inside() {
        let (_dir, root) = tree();
        for (path, reached, missing) in [
            ("/a/b/file", "/a/b/file", ""),
            ("/absolute/file", "/a/b/file", ""),
            ("/relative/b", "/a/b", ""),
            ("/a/b/out/b/file", "/a/b/file", ""),
            ("/../../a", "/a", ""),
            ("/", "/", ""),
            ("a/b", "/a/b", ""),
            ("/a/passwd", "/", "etc/passwd"),
            ("/absolute/new/dir", "/a/b", "new/dir"),
            ("/a/b/file/below", "/a/b/file", "below"),
        ] {
            let found = root.reach(path.as_ref()).unwrap();
            assert_eq!((found.path.as_path(), found.missing.as_path()), (reached.as_ref(), missing.as_ref()));
        }
        assert!(root.reach("/loop".as_ref()).is_err());
    }

    #[test]
    fn reads_small_files_and_nothing_else() {
        let (dir, root) = tree();
        let read = |path: &str, limit| root.read(path.as_ref(), limit);
        assert_eq!(read("/absolute/file", 3).unwrap().unwrap().len(), 3);
        assert!(read("/absolute/file", 2).is_err());
        assert_eq!((read("/none", 9).unwrap(), read("/a", 9).unwrap()), (None, None));
        assert_eq!(read("/a/passwd", 9999).unwrap(), None, "that of the root, which has none");
        nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read("/fifo", 9).is_err());
    }

    #[test]
    fn lists_names_in_order() {
        let (_dir, root) = tree();
        let list = |path: &str| root.list(path.as_ref()).unwrap();
        assert_eq!(list("/absolute"), [("file".to_owned(), false), ("out".to_owned(), false)]);
        assert_eq!(list("/a")[0], ("b".to_owned(), true));
        assert!(list("/none").is_empty() && list("/a/b/file").is_empty());
    }

    #[test]
    fn a_mount_has_an_id() {
        let root = Root::open(Path::new("/proc")).unwrap();
        let id = mount_id(&root.0).unwrap();
        assert_eq!(crate::mount::mount_table::by_id(id).unwrap().unwrap().file_system, "proc");
    }
}
