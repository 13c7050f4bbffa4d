//! The mount table of this process, /proc/self/mountinfo (`proc_pid_mountinfo(5)`).
//!
//! The cost of reading it grows with every mount of the node, so a verb normally does not read it.
//! It is read only if a target is already mounted and has to be recognised, or cannot be unmounted.

use anyhow::{Context, Result};
use flexvol_protocol::ordered;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Mount table of this process.
const OWN: &str = "/proc/self/mountinfo";

/// One line of a mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The mount's id, as statx(2) gives it.
    pub id: u64,
    /// The id of the mount it is mounted on.
    pub parent: u64,
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// Directory of the file system that is the mount's root.
    pub root: PathBuf,
    /// Path of the mount point.
    pub target: PathBuf,
    /// True if the mount, not the file system, is read-only.
    pub read_only: bool,
    /// The file system's type.
    pub file_system: String,
    /// Source that the file system was mounted from.
    pub source: OsString,
    /// True if the file system itself is read-only, in all its mounts.
    pub superblock_read_only: bool,
}

impl Entry {
    /// Returns the device number in the form of stat(2).
    pub fn device_number(&self) -> u64 {
        rustix::fs::makedev(self.device.0, self.device.1)
    }

    /// Returns true if a program serves the file system (FUSE).
    pub fn is_served(&self) -> bool {
        self.file_system.starts_with("fuse")
    }
}

/// Returns all entries, in the kernel's order: of several at one target, the last is on top.
pub fn read() -> Result<Vec<Entry>> {
    Ok(parse_all(&own()?))
}

/// Parses the text of a mount table, for one of another process.
pub fn parse_all(text: &[u8]) -> Vec<Entry> {
    text.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// Returns the entry on top at exactly this path.
pub fn at(target: &Path) -> Result<Option<Entry>> {
    Ok(read()?.into_iter().rfind(|entry| entry.target == target))
}

/// Returns the entry of a mount.
pub fn by_id(id: u64) -> Result<Option<Entry>> {
    Ok(read()?.into_iter().find(|entry| entry.id == id))
}

/// Returns the entries at and below a path, deepest first: in this order they can be unmounted.
pub fn below(target: &Path) -> Result<Vec<Entry>> {
    let mut entries: Vec<_> = read()?.into_iter().filter(|entry| entry.target.starts_with(target)).collect();
    entries.reverse();
    ordered::sort(&mut entries, |entry| std::cmp::Reverse(entry.target.components().count()));
    Ok(entries)
}

/// Returns the mounts inside a mount, in an order in which they can be unmounted.
/// Leaves out mounts inside another mount at the same path, below or above this one.
pub fn inside(mount: u64) -> Result<Vec<Entry>> {
    Ok(subtree(read()?, mount))
}

/// Reports whether mounts made below a path propagate to other mount namespaces.
/// The innermost mount that contains the path decides. Returns `None` if no mount contains it.
pub fn is_shared(path: &Path) -> Result<Option<bool>> {
    Ok(peers(&own()?, path).map(|peers| peers.shared.is_some()))
}

/// Reports whether mounts that another process makes below a path appear here.
/// Returns `None` if its mount table cannot be read, or if no mount contains the path.
pub fn appears_here(pid: u32, path: &Path) -> Result<Option<bool>> {
    let Ok(theirs) = std::fs::read(format!("/proc/{pid}/mountinfo")) else { return Ok(None) };
    let (Some(ours), Some(theirs)) = (peers(&own()?, path), peers(&theirs, path)) else { return Ok(None) };
    let group = theirs.shared;
    Ok(Some(group.is_some() && (group == ours.shared || group == ours.master)))
}

fn own() -> Result<Vec<u8>> {
    std::fs::read(OWN).context("read /proc/self/mountinfo: is /proc mounted?")
}

/// Numbers of peer groups: `shared` gets the mounts made here, and mounts of `master` appear here.
#[derive(Debug, PartialEq, Eq)]
struct Peers {
    shared: Option<u64>,
    master: Option<u64>,
}

/// Returns the peer groups of the innermost mount in a table that contains a path.
fn peers(table: &[u8], path: &Path) -> Option<Peers> {
    let lines = table.split(|byte| *byte == b'\n');
    let around = lines
        .filter_map(|line| Some((parse(line)?, line)))
        .filter(|(entry, _)| path.starts_with(&entry.target));
    let (_, line) = around.max_by_key(|(entry, _)| entry.target.components().count())?;
    let optional = line.split(|byte| *byte == b' ').skip(6).take_while(|field| *field != b"-");
    let optional: Vec<_> = optional.collect();
    let group = |name: &[u8]| optional.iter().find_map(|field| number(field.strip_prefix(name)?));
    Some(Peers { shared: group(b"shared:"), master: group(b"master:") })
}

/// Limit for one wait in the kernel.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// The mount tables of several processes, held open to wait for their changes.
#[derive(Debug)]
pub struct Tables(Vec<File>);

impl Tables {
    /// Opens the tables of this process, of pid 1 and of `others`.
    /// Skips a table that cannot be opened; the table of this process must open.
    pub fn open(others: impl Iterator<Item = u32>) -> Result<Self> {
        let own = File::open(OWN).context("read /proc/self/mountinfo: is /proc mounted?")?;
        let others = [1].into_iter().chain(others);
        let others = others.filter_map(|pid| File::open(format!("/proc/{pid}/mountinfo")).ok());
        Ok(Self([own].into_iter().chain(others).collect()))
    }

    /// Returns all entries of all tables. A process that has ended has none.
    pub fn read(&mut self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.0.retain_mut(|file| {
            let mut text = Vec::new();
            let read = file.rewind().and_then(|()| file.read_to_end(&mut text));
            entries.extend(text.split(|byte| *byte == b'\n').filter_map(parse));
            read.is_ok()
        });
        anyhow::ensure!(!self.0.is_empty(), "no mount table can be read: is /proc mounted?");
        Ok(entries)
    }

    /// Waits until one of the tables changes after it was read, but at most `patience`.
    pub fn wait(&self, patience: Duration) -> Result<()> {
        let mut fds: Vec<_> = self.0.iter().map(|file| PollFd::new(file, PollFlags::PRI)).collect();
        // A longer wait than the kernel can count is cut: the caller waits again.
        let timeout = Timespec::try_from(patience.min(LONGEST_WAIT)).context("a time out of range")?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("wait for a change of the mounts"),
        }
    }
}

fn subtree(mut table: Vec<Entry>, mount: u64) -> Vec<Entry> {
    let (mut found, mut parents) = (Vec::new(), vec![mount]);
    while !parents.is_empty() {
        let children: Vec<_> = table.extract_if(.., |entry| parents.contains(&entry.parent)).collect();
        parents = children.iter().map(|entry| entry.id).collect();
        found.extend(children);
    }
    found.reverse();
    found
}

fn parse(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = || fields.next();
    let (id, parent, device) = (number(next()?)?, number(next()?)?, next()?);
    let (root, target, options) = (unescape(next()?), unescape(next()?), next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(Entry {
        id,
        parent,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: root.into(),
        target: target.into(),
        read_only: is_read_only(options),
        file_system: String::from_utf8_lossy(rest.next()?).into_owned(),
        source: unescape(rest.next()?),
        superblock_read_only: rest.next().is_some_and(is_read_only),
    })
}

fn is_read_only(options: &[u8]) -> bool {
    options.split(|byte| *byte == b',').any(|word| word == b"ro")
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Decodes space, tab, newline, backslash and `#`: a backslash and three octal digits each.
fn unescape(field: &[u8]) -> OsString {
    if !field.contains(&b'\\') {
        return OsStr::from_bytes(field).to_owned();
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = (byte == b'\\').then(|| octal(*tail.first_chunk()?)).flatten();
        bytes.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

fn octal(digits: [u8; 3]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_with_escapes_and_optional_fields() {
        let line = br"36 35 98:0 /mnt1 /a\040b\134c\011 ro,noatime shared:1 master:2 - ext3 /dev/root\040x rw,errors=continue";
        let entry = parse(line).unwrap();
        assert_eq!(entry.target, Path::new("/a b\\c\t"));
        assert_eq!((entry.id, entry.parent, entry.device, entry.read_only), (36, 35, (98, 0), true));
        assert!(
            !entry.superblock_read_only && parse(b"1 2 3:4 / /a rw - a b ro,x").unwrap().superblock_read_only
        );
        assert_eq!(
            (entry.file_system.as_str(), entry.source.as_os_str()),
            ("ext3", OsStr::new("/dev/root x"))
        );
    }

    #[test]
    fn skips_what_it_does_not_understand() {
        for line in
            [&b""[..], b"x", b"1 2 3 4 5", b"36 35 98:0 / /a rw shared:1", b"36 35 98 / /a rw - a b c"]
        {
            assert!(parse(line).is_none());
        }
    }

    #[test]
    fn a_subtree_is_told_by_its_parents_innermost_first() {
        let line = |id, parent, path| format!("{id} {parent} 0:1 / {path} rw - tmpfs tmpfs rw");
        let lines =
            [(9, 4, "/a/b/c"), (3, 1, "/a"), (4, 3, "/a/b"), (5, 3, "/a"), (6, 5, "/a/b"), (7, 1, "/a2")];
        let table: Vec<_> =
            lines.iter().filter_map(|(id, parent, path)| parse(line(id, parent, path).as_bytes())).collect();
        let ids = |mount| subtree(table.clone(), mount).iter().map(|entry| entry.id).collect::<Vec<_>>();
        assert_eq!((ids(5), ids(4), ids(7)), (vec![6], vec![9], vec![]));
        assert_eq!(ids(3), [6, 9, 5, 4]);
    }

    #[test]
    fn peers_are_those_of_the_innermost_mount() {
        let table = b"1 0 0:1 / / rw shared:1 - a b rw\n2 1 0:2 / /k rw shared:2 master:1 - a b rw\n3 1 0:2 / /kk rw - a b rw\n4 2 0:2 / /k/v rw master:7 propagate_from:9 - a shared:8 rw";
        let of = |path: &str| peers(table, Path::new(path)).map(|peers| (peers.shared, peers.master));
        assert_eq!(of("/x"), Some((Some(1), None)));
        assert_eq!(of("/k/pods"), Some((Some(2), Some(1))));
        assert_eq!(of("/kk/pods"), Some((None, None)));
        assert_eq!(of("/k/v/w"), Some((None, Some(7))));
        assert_eq!(peers(b"", Path::new("/")), None);
    }

    #[test]
    fn this_process_has_a_root() {
        assert!(at(Path::new("/")).unwrap().is_some());
    }
}
