//! Changes of directories, as the kernel reports them (inotify(7)).
//!
//! [`Inotify`] is the kernel's interface and nothing more: a watch is on one directory, not on
//! those below. For a whole tree, use a [`Tree`](crate::fs::watch_tree::Tree).
//!
//! The kernel queues changes until they are read, at most `fs.inotify.max_queued_events`.
//! Then it reports [`What::Overflow`]. Any change may be lost then: check everything again.

use crate::proc::signal;
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::time::Duration;

/// Size of one read, in bytes: about two thousand changes.
const BUFFER: usize = 1 << 16;

/// Approximate limit for the changes that one [`Inotify::read`] returns: if the queue never becomes
/// empty, the caller has other work in between.
const ENOUGH: usize = 1 << 14;

/// One queue of changes, and the watches that fill it. Closed when dropped.
#[derive(Debug)]
pub struct Inotify {
    fd: OwnedFd,
    buffer: Vec<MaybeUninit<u8>>,
}

/// One watched directory or file.
/// The kernel reuses a number only after it has used two thousand million others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Watch(i32);

/// Events to report for a watched directory or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(WatchFlags);

impl Interest {
    /// Changes of entries: names are added, removed or renamed, and their files are written to or
    /// get another mode, owner or time. This last kind includes the watched directory itself.
    pub const ENTRIES: Self = Self(
        WatchFlags::CREATE
            .union(WatchFlags::DELETE)
            .union(WatchFlags::MOVE)
            .union(WatchFlags::MODIFY)
            .union(WatchFlags::ATTRIB),
    );
    /// The watched file or directory itself is removed or renamed.
    /// A removal is reported only when it is no longer in use: an open file, or a directory that a
    /// process is in, is reported later.
    pub const ITSELF: Self = Self(WatchFlags::DELETE_SELF.union(WatchFlags::MOVE_SELF));
    /// The watched file or directory itself is renamed.
    pub const MOVED: Self = Self(WatchFlags::MOVE_SELF);
    /// A file or directory is opened, or a file is executed.
    pub const OPENED: Self = Self(WatchFlags::OPEN);
    /// A file that was open for writing is closed.
    pub const WRITTEN: Self = Self(WatchFlags::CLOSE_WRITE);
    /// Only directories can be watched: for any other file, the watch fails.
    pub(crate) const DIRECTORY: Self = Self(WatchFlags::ONLYDIR);

    /// Combines two sets of events.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0.union(other.0))
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The watch that reports it; `None` for [`What::Overflow`].
    pub watch: Option<Watch>,
    /// Kind of event.
    pub what: What,
    /// True if it happened to a directory.
    pub directory: bool,
    /// Affected entry of the watched directory; `None` for the directory itself.
    pub name: Option<OsString>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A name is new: a file, directory or symlink was made, or a file got a further link.
    Created,
    /// A name is new or names another file now: a file was renamed to it.
    MovedIn,
    /// A name is gone: removed, not renamed.
    Removed,
    /// A name is gone: its file was renamed, to a name in this directory or anywhere else.
    MovedOut,
    /// Content was written or cut.
    Modified,
    /// Mode, owner, times, number of links or extended attributes were changed.
    Attributes,
    /// A file was opened or executed.
    Opened,
    /// A file was closed by a process that could write to it.
    Written,
    /// The watched file or directory was removed.
    SelfRemoved,
    /// The watched file or directory was renamed; the watch stays on it.
    SelfMoved,
    /// The file system of the watched file or directory was unmounted.
    Unmounted,
    /// The watch has ended: it was removed, or the watched file or its file system is gone.
    Ended,
    /// The queue was full: changes are lost.
    Overflow,
}

impl Inotify {
    /// Creates an empty queue.
    pub fn new() -> Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(refused);
        let fd = fd.context("watch for changes")?;
        Ok(Self { fd, buffer: vec![MaybeUninit::uninit(); BUFFER] })
    }

    /// Watches a directory or a file from now on, following symlinks.
    /// A second watch on the same file replaces the first one and has the same number.
    pub fn watch(&self, path: &Path, interest: Interest) -> Result<Watch> {
        let watch = self.add(path, interest, WatchFlags::empty()).map_err(refused);
        watch.with_context(|| format!("watch {}", path.display()))
    }

    /// Watches a real directory; fails with `NOTDIR` or `LOOP` for anything else, symlinks
    /// included, and with `NOSPC` when the kernel's limit is reached.
    pub(crate) fn watch_directory(&self, path: &Path, interest: Interest) -> rustix::io::Result<Watch> {
        self.add(path, interest, WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW)
    }

    /// Removes a watch. A watch that has already ended is ignored.
    pub fn unwatch(&self, watch: Watch) {
        // The only possible error is that the watch is gone.
        let _ = inotify::remove_watch(&self.fd, watch.0);
    }

    /// Returns the events so far, oldest first. Equal events in a row are merged into one.
    pub fn read(&mut self) -> Result<Vec<Notice>> {
        let mut notices = Vec::new();
        let mut reader = Reader::new(&self.fd, &mut self.buffer);
        while notices.len() < ENOUGH || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) => notices.push(notice(&event)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("read what changed"),
            }
        }
        Ok(notices)
    }

    /// Waits until an event is queued, the timeout ends (`None`: no timeout), or the process is
    /// asked to stop. Returns true if there is an event to read.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        signal::wait_readable(self.fd.as_fd(), timeout).context("wait for a change")
    }

    fn add(&self, path: &Path, interest: Interest, flags: WatchFlags) -> rustix::io::Result<Watch> {
        inotify::add_watch(&self.fd, path, interest.0 | flags).map(Watch)
    }
}

impl AsFd for Inotify {
    /// Returns a descriptor to wait for, together with others: readable when an event is queued.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Converts an errno: for the kernel's limits, adds the fix.
pub(crate) fn refused(errno: Errno) -> anyhow::Error {
    let limit = match errno {
        Errno::NOSPC => "of watches is reached: raise it with sysctl -w fs.inotify.max_user_watches",
        Errno::MFILE => {
            "of inotify instances is reached: raise it with sysctl -w fs.inotify.max_user_instances"
        }
        other => return other.into(),
    };
    Failure::new(Code::Busy, format!("the kernel's limit {limit}=<twice the value now>")).into()
}

fn notice(event: &inotify::Event<'_>) -> Notice {
    let flags = event.events();
    let what = what(flags);
    Notice {
        watch: (what != What::Overflow).then(|| Watch(event.wd())),
        what,
        directory: flags.contains(ReadFlags::ISDIR),
        name: event.file_name().map(|name| OsString::from_vec(name.to_bytes().to_vec())),
    }
}

/// Returns the kind of an event. The kernel sets one of these bits in each event.
fn what(flags: ReadFlags) -> What {
    let known = [
        (ReadFlags::QUEUE_OVERFLOW, What::Overflow),
        (ReadFlags::IGNORED, What::Ended),
        (ReadFlags::UNMOUNT, What::Unmounted),
        (ReadFlags::DELETE_SELF, What::SelfRemoved),
        (ReadFlags::MOVE_SELF, What::SelfMoved),
        (ReadFlags::CREATE, What::Created),
        (ReadFlags::MOVED_TO, What::MovedIn),
        (ReadFlags::DELETE, What::Removed),
        (ReadFlags::MOVED_FROM, What::MovedOut),
        (ReadFlags::MODIFY, What::Modified),
        (ReadFlags::OPEN, What::Opened),
        (ReadFlags::CLOSE_WRITE, What::Written),
    ];
    known.into_iter().find(|(flag, _)| flags.contains(*flag)).map_or(What::Attributes, |(_, what)| what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::to_failure;
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    fn seen(inotify: &mut Inotify) -> Vec<(What, bool, String)> {
        let text = |name: Option<OsString>| name.map_or(String::new(), |name| name.into_string().unwrap());
        let notices = inotify.read().unwrap().into_iter();
        notices.map(|notice| (notice.what, notice.directory, text(notice.name))).collect()
    }

    #[test]
    fn every_change_is_told_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let (watched, file) = (dir.path().join("w"), dir.path().join("w/f"));
        fs::create_dir(&watched).unwrap();
        let mut inotify = Inotify::new().unwrap();
        assert!(!inotify.wait(Some(Duration::ZERO)).unwrap() && inotify.read().unwrap().is_empty());
        let interest = Interest::ENTRIES.and(Interest::ITSELF).and(Interest::OPENED).and(Interest::WRITTEN);
        let watch = inotify.watch(&watched, interest).unwrap();
        assert_eq!(inotify.watch_directory(&watched, interest).unwrap(), watch);

        drop(File::create(&file).unwrap());
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        fs::rename(&file, watched.join("g")).unwrap();
        fs::remove_file(watched.join("g")).unwrap();
        fs::create_dir(watched.join("d")).unwrap();
        fs::rename(&watched, dir.path().join("v")).unwrap();
        assert!(inotify.wait(None).unwrap());
        let expected = [
            (What::Created, false, "f"),
            (What::Opened, false, "f"),
            (What::Written, false, "f"),
            (What::Attributes, false, "f"),
            (What::MovedOut, false, "f"),
            (What::MovedIn, false, "g"),
            (What::Removed, false, "g"),
            (What::Created, true, "d"),
            (What::SelfMoved, false, ""),
        ];
        assert_eq!(seen(&mut inotify), expected.map(|(what, dir, name)| (what, dir, name.to_owned())));

        fs::remove_dir_all(dir.path().join("v")).unwrap();
        let last = seen(&mut inotify);
        assert_eq!(
            last[last.len() - 2..].iter().map(|each| each.0).collect::<Vec<_>>(),
            [What::SelfRemoved, What::Ended]
        );
        inotify.unwatch(watch);
    }

    #[test]
    fn only_real_directories_are_watched_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let inotify = Inotify::new().unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        File::create(dir.path().join("file")).unwrap();
        for name in ["link", "file"] {
            let error = inotify.watch_directory(&dir.path().join(name), Interest::ENTRIES).unwrap_err();
            assert_eq!(error, Errno::NOTDIR, "{name}");
        }
        let error = inotify.watch(&dir.path().join("none"), Interest::ENTRIES).unwrap_err();
        assert_eq!(to_failure(error).code(), Code::NotFound);
        assert!(inotify.watch(&dir.path().join("link"), Interest::ENTRIES).is_ok());
    }

    #[test]
    fn limits_name_their_fix() {
        for (errno, fix) in [(Errno::NOSPC, "max_user_watches"), (Errno::MFILE, "max_user_instances")] {
            assert!(refused(errno).to_string().contains(fix));
        }
        assert_eq!(refused(Errno::PERM).downcast_ref(), Some(&Errno::PERM));
    }
}
