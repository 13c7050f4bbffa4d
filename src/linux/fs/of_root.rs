//! Files that only root can have written, in a directory that only root can write to.

use crate::fs::directory::Directory;
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

/// Bits of a mode that give write access to others than the owner.
const WRITABLE_BY_OTHERS: u32 = 0o022;

impl Directory {
    /// Opens a directory that only root can write to; refuses a symlink.
    /// `None` if it does not exist.
    pub fn open_of_root(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match fs::openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            fd => {
                let fd = fd.with_context(|| format!("open {}", path.display()))?;
                closed_to_others(rustix::fd::AsFd::as_fd(&fd), path)?;
                Ok(Some(Self { fd, path: path.to_owned() }))
            }
        }
    }

    /// Reads a file that only root can write to, as [`read`](Self::read) does.
    pub fn read_of_root(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name)? else { return Ok(None) };
        let (path, mut content) = (self.path_of(name), Vec::new());
        closed_to_others(rustix::fd::AsFd::as_fd(&file), &path)?;
        let read = file.take(limit as u64 + 1).read_to_end(&mut content);
        read.with_context(|| format!("read {}", path.display()))?;
        ensure!(content.len() <= limit, "{} is larger than {limit} bytes", path.display());
        Ok(Some(content))
    }

    /// Returns a short path of a name in it.
    /// The path stays valid while this directory is open, even if the directory is renamed.
    pub fn inside(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()).into()
    }
}

fn closed_to_others(fd: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let stat = fs::fstat(fd).with_context(|| format!("look at {}", path.display()))?;
    ensure!(
        stat.st_uid == 0 && stat.st_mode & WRITABLE_BY_OTHERS == 0,
        "others than root may write to {0}: chown root {0} && chmod go-w {0}",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::files;
    use std::os::unix::fs::{chown, symlink};

    /// Test 9 of the mount pods.
    #[test]
    fn what_others_may_have_written_is_not_read() {
        if !rustix::process::geteuid().is_root() {
            return println!("SKIP what_others_may_have_written_is_not_read: needs root");
        }
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("plugin-containers");
        assert!(Directory::open_of_root(&path).unwrap().is_none());
        std::fs::create_dir(&path).unwrap();
        let set = |path: &Path, mode| files::set_mode(path, mode).unwrap();
        set(&path, 0o755);
        let (file, read) = (path.join("a"), || Directory::open_of_root(&path)?.unwrap().read_of_root("a", 9));
        assert!(read().unwrap().is_none());
        files::write_new(&file, "text").unwrap();
        for mode in [0o644, 0o600, 0o444] {
            set(&file, mode);
            assert_eq!(read().unwrap().as_deref(), Some(&b"text"[..]));
        }
        for mode in [0o664, 0o646, 0o666] {
            set(&file, mode);
            assert!(read().unwrap_err().to_string().contains("chown root"), "{mode:o}");
        }
        set(&file, 0o644);
        chown(&file, Some(65_534), None).unwrap();
        assert!(read().is_err());
        std::fs::remove_file(&file).unwrap();
        files::write_new(&file, "0123456789").unwrap();
        assert!(read().unwrap_err().to_string().contains("larger than 9 bytes"));
        std::fs::rename(&file, home.path().join("elsewhere")).unwrap();
        symlink(home.path().join("elsewhere"), &file).unwrap();
        assert!(read().is_err());
        std::fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert!(read().is_err());
        std::fs::remove_file(&file).unwrap();
        for mode in [0o775, 0o777, 0o1777] {
            set(&path, mode);
            assert!(read().is_err(), "{mode:o}");
        }
        set(&path, 0o755);
        chown(&path, Some(65_534), None).unwrap();
        assert!(read().is_err());
        std::fs::rename(&path, home.path().join("real")).unwrap();
        chown(home.path().join("real"), Some(0), None).unwrap();
        symlink(home.path().join("real"), &path).unwrap();
        assert!(read().is_err());
    }
}
