//! Opens and makes files below a directory without ever following a symlink.
//!
//! The kernel does it in one step with openat2(2), Linux 5.6.
//! Before that, every component is opened from the descriptor of the one above it. This is just as
//! safe: a descriptor cannot be swapped.

use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::ownership::Ownership;
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// Opens a directory of the admin, following the symlinks in its path.
pub fn open_root(root: &Path) -> Result<OwnedFd> {
    open_root_if_there(root)?.ok_or_else(|| missing(root))
}

/// Does the same as [`open_root`], but returns `None` if there is no such directory.
pub fn open_root_if_there(root: &Path) -> Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match fs::openat(CWD, root, flags, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        root_fd => root_fd.map(Some).with_context(|| format!("open {}", root.display())),
    }
}

/// Opens `below` under `root`. It must consist of plain names; an empty path is `root` itself.
///
/// A symlink anywhere in it, or a path that leaves `root`, is a `Denied` failure.
pub fn open(root: BorrowedFd<'_>, below: &Path, flags: OFlags) -> Result<OwnedFd> {
    open_raw(root, below, flags).map_err(|errno| explain(errno, below))
}

/// Does the same as [`open`], but returns `None` if the path does not exist.
pub fn open_if_there(root: BorrowedFd<'_>, below: &Path, flags: OFlags) -> Result<Option<OwnedFd>> {
    match open_raw(root, below, flags) {
        Err(Errno::NOENT) => Ok(None),
        opened => opened.map(Some).map_err(|errno| explain(errno, below)),
    }
}

fn open_raw(root: BorrowedFd<'_>, below: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // O_NOFOLLOW is removed: together with O_PATH, it would open a symlink instead of refusing it.
    let flags = flags.difference(OFlags::NOFOLLOW) | OFlags::CLOEXEC;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match fs::openat2(root, below, flags, Mode::empty(), resolve) {
        // A seccomp filter that is older than the call returns EPERM.
        Err(Errno::NOSYS | Errno::PERM) => walk(root, below, flags | OFlags::NOFOLLOW),
        result => result,
    }
}

/// Opens a path component by component.
fn walk(root: BorrowedFd<'_>, below: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let names = plain_names(below)?;
    let Some((last, parents)) = names.split_last() else {
        return fs::openat(root, ".", flags, Mode::empty());
    };
    let mut directory = fs::openat(root, ".", PARENT, Mode::empty())?;
    for name in parents {
        directory = open_name(directory.as_fd(), name, PARENT)?;
    }
    open_name(directory.as_fd(), last, flags)
}

const PARENT: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Opens one name. `O_PATH` would open a symlink itself, so a symlink is refused, as by openat2.
fn open_name(directory: BorrowedFd<'_>, name: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let fd = fs::openat(directory, name, flags, Mode::empty()).map_err(|errno| match errno {
        // O_DIRECTORY|O_NOFOLLOW on a symlink fails with ENOTDIR: check whether it is one.
        Errno::NOTDIR if is_symlink(directory, name) => Errno::LOOP,
        errno => errno,
    })?;
    match FileType::from_raw_mode(fs::fstat(&fd)?.st_mode) {
        FileType::Symlink => Err(Errno::LOOP),
        _ => Ok(fd),
    }
}

fn is_symlink(directory: BorrowedFd<'_>, name: &Path) -> bool {
    fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

fn plain_names(below: &Path) -> rustix::io::Result<Vec<&Path>> {
    let name = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !below.components().all(name) {
        return Err(Errno::XDEV);
    }
    Ok(below
        .components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| Path::new(part.as_os_str()))
        .collect::<Vec<_>>())
}

/// Makes a directory and missing ones above it. Returns the new ones, outermost first, to undo it.
///
/// A new last directory gets mode and owner of `last`, new ones above it those of `above`, whatever
/// the umask is. On failure, the new directories are removed.
pub fn make_directories(
    root: BorrowedFd<'_>,
    below: &Path,
    above: Ownership,
    last: Ownership,
) -> Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    let result = make_each(root, below, above, last, &mut made);
    if result.is_err() {
        remove_directories(root, &made)?;
    }
    result.map(|()| made)
}

fn make_each(
    root: BorrowedFd<'_>,
    below: &Path,
    above: Ownership,
    last: Ownership,
    made: &mut Vec<PathBuf>,
) -> Result<()> {
    let names = plain_names(below).map_err(|errno| explain(errno, below))?;
    let mut directory = fs::openat(root, ".", PARENT, Mode::empty()).context("open the root")?;
    let mut path = PathBuf::new();
    for (index, name) in names.iter().enumerate() {
        path.push(name);
        let owner = if index + 1 == names.len() { last } else { above };
        // Open first: a server may refuse to make even a directory that exists.
        match open_name(directory.as_fd(), name, PARENT) {
            Ok(opened) if !is_draft(directory.as_fd(), name, owner.uid) => {
                directory = opened;
                continue;
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(explain(errno, &path)),
        }
        if make_directory(directory.as_fd(), name, owner)
            .with_context(|| format!("make {}", path.display()))?
        {
            made.push(path.clone());
        }
        directory = open_name(directory.as_fd(), name, PARENT).map_err(|errno| explain(errno, &path))?;
    }
    Ok(())
}

/// Makes a file with a plain name, and this content, mode and owner, whatever the umask.
/// No other process may know the directory yet.
pub fn write_file(root: BorrowedFd<'_>, name: &str, content: &[u8], owner: Ownership) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let write = || -> Result<()> {
        let mut file = File::from(fs::openat(root, name, flags, Mode::from_raw_mode(0o600))?);
        file.write_all(content)?;
        std::os::unix::fs::fchown(&file, Some(owner.uid), Some(owner.gid))?;
        Ok(fs::fchmod(&file, Mode::from_raw_mode(owner.mode))?)
    };
    write().with_context(|| format!("write the file {name}"))
}

/// Removes directories that [`make_directories`] made; a directory that is in use by now stays.
pub fn remove_directories(root: BorrowedFd<'_>, made: &[PathBuf]) -> Result<()> {
    for below in made.iter().rev() {
        let (parent, name) = (below.parent().unwrap_or(Path::new("")), below.file_name().unwrap_or_default());
        let parent = open(root, parent, OFlags::PATH | OFlags::DIRECTORY)?;
        match fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(errno).with_context(|| format!("remove {}", below.display())),
        }
    }
    Ok(())
}

/// Mode of a new directory before its owner and mode are set.
/// A directory that still has it was left by a killed call; the next call completes it.
const DRAFT: u32 = 0o1700;

/// Makes a directory, or completes a draft. Returns false if the directory existed.
fn make_directory(parent: BorrowedFd<'_>, name: &Path, owner: Ownership) -> Result<bool> {
    match fs::mkdirat(parent, name, Mode::from_raw_mode(DRAFT)) {
        Err(Errno::EXIST) if !is_draft(parent, name, owner.uid) => return Ok(false),
        Err(Errno::EXIST) => {}
        result => result?,
    }
    let finished = finish_directory(parent, name, owner);
    if finished.is_err() {
        let _ = fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
    }
    Ok(finished.map(|()| true)?)
}

fn finish_directory(parent: BorrowedFd<'_>, name: &Path, owner: Ownership) -> rustix::io::Result<()> {
    let fd = fs::openat(parent, name, OFlags::RDONLY | PARENT.difference(OFlags::PATH), Mode::empty())?;
    let (uid, gid) = (fs::Uid::from_raw(owner.uid), fs::Gid::from_raw(owner.gid));
    // Owner first: chown(2) clears the set-id bits, and the mode is widened only for the final
    // owner.
    fs::fchown(&fd, Some(uid), Some(gid))?;
    fs::fchmod(&fd, Mode::from_raw_mode(owner.mode))
}

/// Reports whether a directory is the draft of a killed call. Ignores the set-group-id bit, which
/// the parent directory may pass on; the owner may be set already.
fn is_draft(parent: BorrowedFd<'_>, name: &Path, uid: u32) -> bool {
    fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && stat.st_mode & 0o5777 == DRAFT
            && [0, uid].contains(&stat.st_uid)
    })
}

fn missing(path: &Path) -> anyhow::Error {
    Failure::new(Code::NotFound, format!("{} does not exist on this node", path.display())).into()
}

/// Explains the kernel's error: ELOOP alone does not tell that symlinks are refused.
fn explain(errno: Errno, below: &Path) -> anyhow::Error {
    match errno {
        Errno::LOOP | Errno::XDEV => Failure::new(
            Code::Denied,
            format!("{} leads through a symlink or out of its root: name the real path", below.display()),
        )
        .into(),
        Errno::NOENT => missing(below),
        errno => anyhow::Error::new(errno).context(format!("open {}", below.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::to_failure;
    use std::os::unix::fs::{MetadataExt, symlink};

    const ABOVE: Ownership = Ownership { mode: 0o755, uid: 0, gid: 0 };
    const OWNER: Ownership = Ownership { mode: 0o2750, uid: 0, gid: 0 };
    type Open = fn(BorrowedFd<'_>, &Path, OFlags) -> rustix::io::Result<OwnedFd>;
    const WAYS: [Open; 2] =
        [open_raw, |root, below, flags| walk(root, below, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW)];

    fn tree() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        symlink("/etc", dir.path().join("a/out")).unwrap();
        symlink("b", dir.path().join("a/in")).unwrap();
        let root = open_root(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn both_ways_open_plain_paths_and_nothing_else() {
        let (dir, root) = tree();
        for open in WAYS {
            let ino = |below: &str| {
                open(root.as_fd(), below.as_ref(), OFlags::PATH).map(|fd| fs::fstat(fd).unwrap().st_ino)
            };
            assert_eq!(ino("a/b"), Ok(std::fs::metadata(dir.path().join("a/b")).unwrap().ino()));
            assert_eq!(ino(""), Ok(std::fs::metadata(dir.path()).unwrap().ino()));
            assert_eq!(ino("a/c"), Err(Errno::NOENT));
            for bad in ["a/out", "a/out/passwd", "a/in", "a/in/x"] {
                assert_eq!(ino(bad), Err(Errno::LOOP), "{bad}");
            }
            for bad in ["..", "a/../..", "/etc"] {
                assert_eq!(ino(bad), Err(Errno::XDEV), "{bad}");
            }
        }
    }

    #[test]
    fn completes_what_a_killed_call_left() {
        if !nix::unistd::geteuid().is_root() {
            return println!("SKIP directories of a killed call: not root");
        }
        let (dir, root) = tree();
        fs::mkdirat(&root, "draft", Mode::from_raw_mode(DRAFT)).unwrap();
        fs::chmodat(&root, "draft", Mode::from_raw_mode(DRAFT), AtFlags::empty()).unwrap();
        let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().mode() & 0o7777;
        make_directories(root.as_fd(), Path::new("a"), ABOVE, OWNER).unwrap();
        make_directories(root.as_fd(), Path::new("draft"), ABOVE, OWNER).unwrap();
        assert_eq!((mode("a") == OWNER.mode, mode("draft")), (false, OWNER.mode));
    }

    #[test]
    fn makes_what_is_missing_and_says_what() {
        if !rustix::process::geteuid().is_root() {
            return println!(
                "SKIP makes_what_is_missing_and_says_what: needs root to give a directory to root"
            );
        }
        let (dir, root) = tree();
        let new = make_directories(root.as_fd(), Path::new("a/b/c/d"), ABOVE, OWNER).unwrap();
        assert_eq!(new, [Path::new("a/b/c"), Path::new("a/b/c/d")]);
        let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().mode() & 0o7777;
        assert_eq!((mode("a/b/c"), mode("a/b/c/d")), (0o755, 0o2750));
        assert!(make_directories(root.as_fd(), Path::new("a/b/c/d"), ABOVE, OWNER).unwrap().is_empty());
        remove_directories(root.as_fd(), &new).unwrap();
        assert!(dir.path().join("a/b").exists() && !dir.path().join("a/b/c").exists());
        let error = make_directories(root.as_fd(), Path::new("a/out/evil"), ABOVE, OWNER).unwrap_err();
        assert_eq!(to_failure(error).code(), Code::Denied);
    }
}
