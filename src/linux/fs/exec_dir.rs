//! State of a directory that programs shall be installed into. The check changes nothing.

use crate::fs::listing::is_hidden;
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::io::Errno;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Limit for the entries that are counted.
const ENTRIES: usize = 10_000;

/// Kind of the file at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecDirState {
    /// A directory.
    Directory,
    /// A symlink to a directory, and its target.
    SymlinkToDirectory(PathBuf),
    /// Nothing; the nearest existing directory above.
    Missing(PathBuf),
    /// A file, a device or a dangling symlink, at the path or above it.
    Other(InTheWay),
    /// A path that cannot be inspected; the kernel's reason.
    Unseen(String),
}

/// A file in a place where a directory should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// Its path.
    pub path: PathBuf,
    /// Its target, if it is a dangling symlink.
    pub leads_to: Option<PathBuf>,
}

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.leads_to {
            None => write!(f, "{path} is not a directory: move it away"),
            Some(target) => {
                let target = target.display();
                write!(
                    f,
                    "{path} is a symlink to {target}, which is not there: make that, or remove the symlink"
                )
            }
        }
    }
}

/// Condition of a directory, or of the nearest existing parent of a missing one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Kind of the file at the path.
    pub kind: ExecDirState,
    /// True if this process may write to it; a read-only file system is ignored here.
    pub may_write: bool,
    /// True if its file system is mounted read-only.
    pub read_only: bool,
    /// True if programs on its file system cannot be executed.
    pub no_exec: bool,
    /// Number of directories in it whose names do not begin with a dot.
    pub directories: usize,
}

impl Condition {
    /// Reports whether the path is a directory, or a symlink to one.
    pub fn is_there(&self) -> bool {
        matches!(self.kind, ExecDirState::Directory | ExecDirState::SymlinkToDirectory(_))
    }

    /// Returns the target of the symlink; `None` if it is not one.
    pub fn leads_to(&self) -> Option<&Path> {
        match &self.kind {
            ExecDirState::SymlinkToDirectory(target) => Some(target),
            _ => None,
        }
    }
}

/// Inspects a path.
pub fn look(path: &Path) -> Condition {
    let kind = kind(path);
    let there = match &kind {
        ExecDirState::Missing(above) => above,
        _ => path,
    };
    let flags = statvfs(there).map_or(StatVfsMountFlags::empty(), |stat| stat.f_flag);
    Condition {
        may_write: access(there, Access::WRITE_OK).is_ok() || flags.contains(StatVfsMountFlags::RDONLY),
        read_only: flags.contains(StatVfsMountFlags::RDONLY),
        no_exec: flags.contains(StatVfsMountFlags::NOEXEC),
        directories: if matches!(kind, ExecDirState::Missing(_)) { 0 } else { directories(path) },
        kind,
    }
}

fn kind(path: &Path) -> ExecDirState {
    let stat = match fs::symlink_metadata(path) {
        Ok(stat) => stat,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return ExecDirState::Missing(above(path));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => return other(path),
        Err(error) => return ExecDirState::Unseen(error.to_string()),
    };
    if stat.is_dir() {
        return ExecDirState::Directory;
    }
    let leads_to_directory = stat.is_symlink() && fs::metadata(path).is_ok_and(|stat| stat.is_dir());
    match fs::canonicalize(path) {
        Ok(target) if leads_to_directory => ExecDirState::SymlinkToDirectory(target),
        _ => other(path),
    }
}

fn other(path: &Path) -> ExecDirState {
    let itself = || InTheWay { path: path.to_owned(), leads_to: None };
    ExecDirState::Other(in_the_way(path).unwrap_or_else(itself))
}

/// Returns the first part of a path that exists and is not a directory.
pub fn in_the_way(path: &Path) -> Option<InTheWay> {
    let mut parts: Vec<_> = path.ancestors().filter(|part| !part.as_os_str().is_empty()).collect();
    parts.reverse();
    // A part that cannot be inspected may be a directory: the code that uses it reports the error.
    let is_none = |part: &Path| match fs::metadata(part) {
        Ok(stat) => !stat.is_dir(),
        Err(error) => {
            let errno = Errno::from_io_error(&error);
            matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
        }
    };
    let part = parts.into_iter().find(|part| part.symlink_metadata().is_ok() && is_none(part))?;
    let leads_to = fs::read_link(part).ok().filter(|_| !part.exists());
    Some(InTheWay { path: part.to_owned(), leads_to })
}

/// Returns the nearest existing directory above.
fn above(path: &Path) -> PathBuf {
    path.ancestors().skip(1).find(|above| above.exists()).unwrap_or(Path::new("/")).to_owned()
}

fn directories(path: &Path) -> usize {
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(ENTRIES);
    entries
        .filter(|entry| !is_hidden(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn says_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["plugins/a~b", "plugins/.hidden", "plugins/c~d"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        fs::File::create(path("file")).unwrap();
        symlink("plugins", path("link")).unwrap();
        symlink("none", path("dangling")).unwrap();
        let looked = look(&path("plugins"));
        assert_eq!((looked.kind, looked.directories, looked.may_write), (ExecDirState::Directory, 2, true));
        assert!(!looked.read_only && !looked.no_exec);
        let target = fs::canonicalize(path("plugins")).unwrap();
        assert_eq!(look(&path("link")).kind, ExecDirState::SymlinkToDirectory(target));
        assert_eq!(look(&path("plugins/x/y")).kind, ExecDirState::Missing(path("plugins")));
        for (other, first) in [("file", "file"), ("file/below", "file"), ("dangling", "dangling")] {
            let leads_to = (other == "dangling").then(|| "none".into());
            assert_eq!(
                look(&path(other)).kind,
                ExecDirState::Other(InTheWay { path: path(first), leads_to }),
                "{other}"
            );
        }
    }
}
