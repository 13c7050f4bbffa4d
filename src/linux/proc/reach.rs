//! Access to files of a program that reads tenant data: it can open only what it is granted,
//! whatever the data makes it look for.
//!
//! The kernel enforces this (Landlock, Linux 5.13). A rule covers a file that was opened when the
//! rules were made, or all files below a directory. On older kernels, and where Landlock is off,
//! the program can open what root can. A program that does not need the node's `/proc`, `/sys` and
//! `/dev` gets a root of its own: [`BareRoot`](super::bare_root::BareRoot).

use crate::proc::bare_root::SYSTEM;
use crate::raw::landlock::{self, Refused};
use anyhow::{Context as _, Result};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use std::env::consts::ARCH;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// `LANDLOCK_ACCESS_FS_*`.
const EXECUTE: u64 = 1;
const WRITE: u64 = 1 << 1;
const READ: u64 = 1 << 2;
const LIST: u64 = 1 << 3;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_FILE: u64 = 1 << 8;
const MAKE_BLOCK: u64 = 1 << 11;
const TRUNCATE: u64 = 1 << 14;
const IOCTL: u64 = 1 << 15;

/// Rights that can be granted on a file that is not a directory.
const OF_FILES: u64 = EXECUTE | WRITE | READ | TRUNCATE | IOCTL;

/// Rights on files that each Landlock version supports, by its number; later ones add to these.
const KNOWN: [u64; 6] = [0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1];

/// Files of /etc that the programs of file systems and the dynamic linker read.
const SETTINGS: [&str; 5] = ["ld.so.cache", "ld.so.preload", "mke2fs.conf", "e2fsck.conf", "localtime"];

/// Devices that contain no user data.
const HARMLESS: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Files, directories and devices that are granted, and the rights on them.
#[derive(Clone, Debug)]
pub struct Reach(Vec<(PathBuf, u64)>);

impl Reach {
    /// Grants what every program needs: the node's programs, the kernel's information in /proc and
    /// /sys, and the names of devices.
    pub fn of_programs() -> Self {
        let within = |directory: &'static str| move |name: &&str| Path::new(directory).join(name);
        let each = |access: u64| move |path: PathBuf| (path, access);
        let linker = format!("ld-musl-{ARCH}.path");
        let settings = SETTINGS.iter().copied().chain([linker.as_str()]);
        let mut granted: Vec<_> = settings.map(|name| (Path::new("/etc").join(name), READ)).collect();
        granted.extend(SYSTEM.iter().map(within("/")).map(each(EXECUTE | READ | LIST)));
        granted.extend(HARMLESS.iter().map(within("/dev")).map(each(READ | WRITE | IOCTL)));
        granted.extend([("/proc", READ | LIST), ("/sys", READ | LIST), ("/dev", LIST)].map(of_text));
        Self(granted)
    }

    /// Grants reading and writing of these files or devices. Missing ones are left out.
    #[must_use]
    pub fn files(self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.with(paths, READ | WRITE | TRUNCATE | IOCTL)
    }

    /// Grants the names in a directory, and itself, as for an ioctl of its file system.
    #[must_use]
    pub fn directory(self, path: &Path) -> Self {
        self.with([path], LIST)
    }

    /// Grants a directory in which the program makes and removes files, and opens all of them.
    #[must_use]
    pub fn own(self, path: &Path) -> Self {
        self.with([path], READ | WRITE | LIST | TRUNCATE | MAKE_FILE | REMOVE_FILE)
    }

    /// Grants a directory in which the program makes and removes block devices, but opens none.
    #[must_use]
    pub fn nodes(self, path: &Path) -> Self {
        self.with([path], LIST | MAKE_BLOCK | REMOVE_FILE)
    }

    /// Grants the execution of a file, at any path.
    pub(crate) fn program(self, path: &Path) -> Self {
        self.with([path], EXECUTE | READ)
    }

    fn with(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>, access: u64) -> Self {
        self.0.extend(paths.into_iter().map(|path| (path.into(), access)));
        self
    }

    /// Returns the rules, for [`landlock::restrict`]; `None` if the kernel has no Landlock.
    pub(crate) fn rules(&self) -> Result<Option<OwnedFd>> {
        let Some(version) = landlock::version().ok().and_then(|version| usize::try_from(version).ok()) else {
            return Ok(None);
        };
        let files = KNOWN[version.min(KNOWN.len() - 1)];
        // Version 4 also refuses TCP, version 6 signals to others and their abstract sockets.
        let (refused, length) = (Refused { files, network: 3, scoped: 3 }, [8, 16, 24]);
        let length = length[usize::from(version >= 4) + usize::from(version >= 6)];
        let rules = landlock::rules(&refused, length).context("make a set of rules")?;
        for (path, access) in &self.0 {
            let what = || format!("let a program open {}", path.display());
            let Some(file) = opened(path).with_context(what)? else { continue };
            let is_directory = FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::Directory;
            let access = access & files & if is_directory { u64::MAX } else { OF_FILES };
            landlock::grant(rules.as_fd(), file.as_fd(), access).with_context(what)?;
        }
        Ok(Some(rules))
    }
}

fn of_text((path, access): (&str, u64)) -> (PathBuf, u64) {
    (path.into(), access)
}

fn opened(path: &Path) -> Result<Option<OwnedFd>, Errno> {
    match open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        file => file.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::files::write_through;
    use crate::proc::deadline::Deadline;
    use crate::proc::helper::Invocation;
    use std::fs;
    use std::time::Duration;

    fn said(script: &str, reach: Reach) -> String {
        let helper = Invocation::of("sh").args(["-c", script]).reaching(reach);
        helper.run(&Deadline::after(Duration::from_mins(1))).unwrap().output
    }

    #[test]
    fn nothing_is_opened_but_what_is_granted() {
        if landlock::version().is_err() || !rustix::process::geteuid().is_root() {
            return println!("SKIP nothing_is_opened: needs root and Landlock (Linux 5.13)");
        }
        let directory = tempfile::tempdir().unwrap();
        let [theirs, granted, listed, own] =
            ["theirs", "granted", "listed", "own"].map(|name| directory.path().join(name));
        let _ = [&theirs, &granted].map(|file| write_through(file, b"secret\n").unwrap());
        let _ = [&listed, &own].map(|place| fs::create_dir(place).unwrap());
        write_through(&listed.join("inside"), b"secret\n").unwrap();
        let open = |path: &Path| {
            let path = path.display();
            let reach = Reach::of_programs().files([&granted]).directory(&listed).own(&own);
            said(
                &format!(
                    "cat {path} 2>/dev/null; echo more >>{path}; ls {path} >/dev/null 2>&1 && echo listed"
                ),
                reach,
            )
        };
        let refused = |path: &Path| {
            let said = open(path);
            assert!(!said.contains("secret") && said.contains("ermission denied"), "{said}");
        };
        refused(&theirs);
        refused(&listed.join("inside"));
        refused(&listed.join("new"));
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "secret\n");
        assert_eq!(open(&granted), "secret\nlisted\n");
        assert_eq!(fs::read_to_string(&granted).unwrap(), "secret\nmore\n");
        assert_eq!(open(&own.join("new")), "listed\n");
        assert_eq!(fs::read_to_string(own.join("new")).unwrap(), "more\n");
        assert!(open(&listed).ends_with("listed\n"));
        // A file that another process has open is refused as well.
        let held = fs::File::open(&theirs).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&held);
        refused(Path::new(&format!("/proc/{}/fd/{fd}", std::process::id())));
        refused(Path::new(&format!("/proc/{}/root{}", std::process::id(), theirs.display())));
    }
}
