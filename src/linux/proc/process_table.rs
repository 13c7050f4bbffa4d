//! The processes of a /proc: who they are and what they see.
//!
//! All of one process is read through its opened directory: when it ends and another gets its
//! number, reads fail instead of mixing the two.

use crate::fs::root::{self, Root};
use crate::mount::mount_table::{self, Entry};
use crate::proc::proc_mem::{Reader, read_at};
use anyhow::{Context, Result};
use rustix::fs::{self, Mode, OFlags, openat};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// The longest command line that is read, in bytes; one that is longer is cut.
const COMMAND_LINE: u64 = 256 << 10;
/// The longest mount table, in bytes.
const MOUNT_TABLE: u64 = 64 << 20;
/// `CAP_SYS_ADMIN`, by its number.
const SYS_ADMIN: u64 = 1 << 21;

/// A mounted procfs.
#[derive(Debug)]
pub struct ProcessTable(OwnedFd);

/// One process.
#[derive(Debug)]
pub struct Process {
    /// Its number in the table's pid namespace.
    pub pid: u32,
    /// Its command line.
    pub words: Vec<String>,
    /// What it executes; `None` if that may not be seen.
    pub executable: Option<PathBuf>,
    /// The directory it is in; `None` if that may not be seen.
    pub cwd: Option<PathBuf>,
    /// Whose it is, and what it may.
    pub identity: Identity,
    directory: OwnedFd,
}

/// Whose a process is, and what it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Real and effective user.
    pub users: (u32, u32),
    /// Whether it is in a pid namespace below the table's.
    pub is_nested: bool,
    /// Whether it has `CAP_SYS_ADMIN`, without which nothing can be mounted.
    pub may_mount: bool,
    /// Whether it is in a user namespace other than ours: whoever makes one is root in it and may
    /// do anything, in it.
    pub is_root_of_its_own: bool,
}

impl ProcessTable {
    /// `None` if nothing, or something else, is mounted there.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(fd) = openat(fs::CWD, path, flags, Mode::empty()) else { return Ok(None) };
        let kind = fs::fstatfs(&fd).with_context(|| format!("look at {}", path.display()))?.f_type;
        Ok((kind == fs::PROC_SUPER_MAGIC).then_some(Self(fd)))
    }

    /// The processes with a command line that is wanted, in the order of their numbers; those that
    /// end meanwhile, and those whose command line cannot be had, are left out. Each is opened when
    /// it is its turn: anybody can start many.
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
        // By its number: if what is read of the directory afterwards can be read, no one else had
        // that.
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

    /// For kernels before 4.1, which do not list the numbers of a process: what cannot be compared
    /// is not ours.
    fn is_elsewhere(&self, directory: &OwnedFd) -> bool {
        let own = root::link(self.0.as_fd(), "self/ns/pid");
        own.is_none() || root::link(directory.as_fd(), "ns/pid") != own
    }

    /// Where the namespaces may not be seen, by what anybody may read: the users that are mapped.
    fn has_other_users(&self, directory: &OwnedFd) -> bool {
        let namespace = |of: &OwnedFd, name: &str| root::link(of.as_fd(), name);
        if let (Some(its), Some(own)) = (namespace(directory, "ns/user"), namespace(&self.0, "self/ns/user"))
        {
            return its != own;
        }
        let its = read(directory, "uid_map", COMMAND_LINE);
        its.is_some() && its != read(&self.0, "self/uid_map", COMMAND_LINE)
    }

    /// The mount namespace of another process of the table; `None` if it may not be seen.
    pub fn mount_namespace(&self, pid: &str) -> Option<PathBuf> {
        root::link(self.0.as_fd(), &format!("{pid}/ns/mnt"))
    }
}

impl Process {
    /// Its mount namespace; `None` if that may not be seen.
    pub fn mount_namespace(&self) -> Option<PathBuf> {
        root::link(self.directory.as_fd(), "ns/mnt")
    }

    /// The very file it executes, whatever has that name now; `None` if it ended or that may not be
    /// seen.
    pub fn open_executable(&self) -> Option<OwnedFd> {
        openat(&self.directory, "exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Its root directory.
    pub fn root(&self) -> Result<Root> {
        Root::open_at(self.directory.as_fd(), "root").with_context(|| format!("of process {}", self.pid))
    }

    /// Its mount table.
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
