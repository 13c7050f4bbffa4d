//! Processes of a /proc: their identity and their view of the node.
//!
//! All data of one process is read through its opened directory: if the process ends and its PID is
//! reused, reads fail instead of mixing the two.

use crate::fs::root::{self, Root};
use crate::mount::mount_table::{self, Entry};
use crate::proc::proc_mem::{Reader, read_at};
use anyhow::{Context, Result};
use rustix::fs::{self, Mode, OFlags, openat};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// Limit for a command line that is read, in bytes; a longer one is cut.
const COMMAND_LINE: u64 = 256 << 10;
/// Limit for a mount table, in bytes.
const MOUNT_TABLE: u64 = 64 << 20;
/// Bit of `CAP_SYS_ADMIN`.
const SYS_ADMIN: u64 = 1 << 21;

/// A mounted procfs.
#[derive(Debug)]
pub struct ProcessTable(OwnedFd);

/// One process.
#[derive(Debug)]
pub struct Process {
    /// Its PID in the table's PID namespace.
    pub pid: u32,
    /// Its command line.
    pub words: Vec<String>,
    /// Path of its executable; `None` if access is denied.
    pub executable: Option<PathBuf>,
    /// Its working directory; `None` if access is denied.
    pub cwd: Option<PathBuf>,
    /// Its users and privileges.
    pub identity: Identity,
    directory: OwnedFd,
}

/// Users and privileges of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Real and effective user.
    pub users: (u32, u32),
    /// True if it is in a PID namespace below the table's.
    pub is_nested: bool,
    /// True if it has `CAP_SYS_ADMIN`, which every mount requires.
    pub may_mount: bool,
    /// True if it is in another user namespace than ours: any user can make one, and is root in it
    /// and only there.
    pub is_root_of_its_own: bool,
}

impl ProcessTable {
    /// Opens a mounted procfs. `None` if nothing, or something else, is mounted there.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(fd) = openat(fs::CWD, path, flags, Mode::empty()) else { return Ok(None) };
        let kind = fs::fstatfs(&fd).with_context(|| format!("look at {}", path.display()))?.f_type;
        Ok((kind == fs::PROC_SUPER_MAGIC).then_some(Self(fd)))
    }

    /// Returns the processes with a wanted command line, in the order of their PIDs.
    /// Leaves out those that end meanwhile, and those whose command line cannot be read. Each one
    /// is opened when it is next: any user can start many.
    pub fn matching(
        &self,
        wanted: impl Fn(&[String], Option<&Path>) -> bool,
    ) -> Result<impl Iterator<Item = Process>> {
        let again = || openat(&self.0, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let mut lines = Reader::start(again().context("open /proc")?, "cmdline", COMMAND_LINE)?;
        let names = fs::Dir::new(again().context("open /proc")?).context("list /proc")?;
        let mut pids: Vec<u32> =
            names.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok()).collect();
        pids.sort_unstable();
        Ok(pids.into_iter().filter_map(move |pid| self.process(pid, &mut lines, &wanted)))
    }

    fn process(
        &self,
        pid: u32,
        lines: &mut Reader,
        wanted: impl Fn(&[String], Option<&Path>) -> bool,
    ) -> Option<Process> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.0, pid.to_string(), flags, Mode::empty()).ok()?;
        // Read by its PID: if the later reads in its directory succeed, no other process had the
        // PID.
        let words = words(&lines.read(pid));
        let executable = root::link(directory.as_fd(), "exe");
        if words.is_empty() || !wanted(&words, executable.as_deref()) {
            return None;
        }
        let status = String::from_utf8_lossy(&read(&directory, "status", COMMAND_LINE)?).into_owned();
        let mut identity = identity(&status)?;
        if !status.contains("\nNSpid:") {
            identity.is_nested = self.is_elsewhere(&directory);
        }
        identity.is_root_of_its_own = self.has_other_users(&directory);
        let cwd = root::link(directory.as_fd(), "cwd");
        Some(Process { pid, words, executable, cwd, identity, directory })
    }

    /// Reports whether a process is in another PID namespace, on kernels before 4.1, which do not
    /// list its PIDs. A process that cannot be compared is not ours.
    fn is_elsewhere(&self, directory: &OwnedFd) -> bool {
        let own = root::link(self.0.as_fd(), "self/ns/pid");
        own.is_none() || root::link(directory.as_fd(), "ns/pid") != own
    }

    /// Reports whether a process is in another user namespace.
    /// If access to that is denied, compares the mapped users, which everybody may read.
    fn has_other_users(&self, directory: &OwnedFd) -> bool {
        let namespace = |of: &OwnedFd, name: &str| root::link(of.as_fd(), name);
        if let (Some(its), Some(own)) = (namespace(directory, "ns/user"), namespace(&self.0, "self/ns/user"))
        {
            return its != own;
        }
        let its = read(directory, "uid_map", COMMAND_LINE);
        its.is_some() && its != read(&self.0, "self/uid_map", COMMAND_LINE)
    }

    /// Returns the mount namespace of another process of the table; `None` if access is denied.
    pub fn mount_namespace(&self, pid: &str) -> Option<PathBuf> {
        root::link(self.0.as_fd(), &format!("{pid}/ns/mnt"))
    }
}

impl Process {
    /// Returns its mount namespace; `None` if access is denied.
    pub fn mount_namespace(&self) -> Option<PathBuf> {
        root::link(self.directory.as_fd(), "ns/mnt")
    }

    /// Opens the very file that it executes, whatever file has that name now.
    /// `None` if the process has ended or access is denied.
    pub fn open_executable(&self) -> Option<OwnedFd> {
        openat(&self.directory, "exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Opens its root directory.
    pub fn root(&self) -> Result<Root> {
        Root::open_at(self.directory.as_fd(), "root").with_context(|| format!("of process {}", self.pid))
    }

    /// Returns its mount table.
    pub fn mounts(&self) -> Result<Vec<Entry>> {
        let text = read(&self.directory, "mountinfo", MOUNT_TABLE);
        text.map(|text| mount_table::parse_all(&text))
            .with_context(|| format!("read /proc/{}/mountinfo", self.pid))
    }
}

fn read(directory: &OwnedFd, name: &str, limit: u64) -> Option<Vec<u8>> {
    read_at(directory.as_fd(), name, limit)
}

fn words(command_line: &[u8]) -> Vec<String> {
    let text = command_line.strip_suffix(b"\0").unwrap_or(command_line);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn identity(status: &str) -> Option<Identity> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let mut users = field("Uid:")?.split_whitespace().map_while(|uid| uid.parse().ok());
    let held = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
    Some(Identity {
        users: (users.next()?, users.next()?),
        is_nested: field("NSpid:").is_some_and(|pids| pids.split_whitespace().count() > 1),
        may_mount: held & SYS_ADMIN != 0,
        is_root_of_its_own: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this() -> Process {
        let table = ProcessTable::open(Path::new("/proc")).unwrap().unwrap();
        let own = std::process::id();
        let all: Vec<_> = table.matching(|_, _| true).unwrap().collect();
        assert!(all.is_sorted_by_key(|process| process.pid));
        all.into_iter().find(|process| process.pid == own).unwrap()
    }

    #[test]
    fn this_process_is_among_them() {
        let process = this();
        let words: Vec<_> = std::env::args().collect();
        assert_eq!(process.words, words);
        assert_eq!(process.executable, std::env::current_exe().ok());
        assert_eq!(process.cwd, std::env::current_dir().ok());
        assert_eq!(process.identity.users.0, nix::unistd::getuid().as_raw());
        assert!(!process.identity.is_nested && !process.identity.is_root_of_its_own);
        let table = ProcessTable::open(Path::new("/proc")).unwrap().unwrap();
        assert!(process.mount_namespace() == table.mount_namespace("self"));
        assert!(process.mounts().unwrap().iter().any(|entry| entry.target == Path::new("/")));
        assert!(process.root().unwrap().holds(Path::new("/proc/self")));
    }

    #[test]
    fn another_directory_is_no_table() {
        assert!(ProcessTable::open(Path::new("/")).unwrap().is_none());
        assert!(ProcessTable::open(Path::new("/none")).unwrap().is_none());
    }

    #[test]
    fn status_says_who_it_is() {
        let status = "Name:\tx\nUid:\t0\t5\t0\t0\nNSpid:\t812\t7\nCapEff:\t0000000000200000\n";
        let expected =
            Identity { users: (0, 5), is_nested: true, may_mount: true, is_root_of_its_own: false };
        assert_eq!(identity(status), Some(expected));
        let status = "Uid:\t1\t1\t1\t1\nNSpid:\t812\nCapEff:\t00000000a80425fb\n";
        let expected =
            Identity { users: (1, 1), is_nested: false, may_mount: false, is_root_of_its_own: false };
        assert_eq!(identity(status), Some(expected));
        assert_eq!(identity("Uid:\n"), None);
    }

    #[test]
    fn a_command_line_ends_with_one_nul() {
        assert_eq!(words(b"a\0b\0"), ["a", "b"]);
        assert_eq!(words(b"a b\0\0\0"), ["a b", "", ""]);
        assert!(words(b"").is_empty());
    }
}
