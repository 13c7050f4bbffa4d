//! Disk images by qemu-storage-daemon, on nodes without the kernel's nbd: it shows the image's content as a file (FUSE),
//! and a loop device makes a block device of that.
//!
//! The daemon has a mount table of its own, and nobody else sees the file: nothing of it is on the node that could
//! be removed or left. It must not see the file system that is mounted from it either: a daemon that were the last
//! to see it would have to write to itself when it ends, and could never end.
//!
//! Whoever writes an image chooses what its header says, and qemu follows it: a backing file or a data file could
//! be any file of the node. An image with either is refused. qemu's own lock keeps the image from being opened twice,
//! on this node or, where the file system has such locks, on another.

use super::holding::{Holding, Id};
use super::{Backend, Found, Site, TICK, With};
use crate::failure::{Code, Failure};
use crate::plan::{DiskImage, Ownership};
use crate::policy::Allowed;
use crate::quantity::Quantity;
use crate::sys::bytes::size_of;
use crate::sys::deadline::Deadline;
use crate::sys::files::is_mount_root;
use crate::sys::helper::Helper;
use crate::sys::loop_device::{LoopDevice, SERVED};
use crate::sys::scope::Scope;
use crate::sys::window::Window;
use crate::sys::{below, disk_image, namespace, process, qmp};
use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use serde_json::json;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the daemon may take to write back and end.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a device may stay that nobody uses any more.
const LETTING_GO: Duration = Duration::from_secs(1);

/// The daemon's node of the image.
const NODE: &str = "disk";

const PROGRAM: &str = "qemu-storage-daemon";

/// The images whose daemons have lost their records, and whose content no device shows any more.
fn orphans() -> impl Iterator<Item = Id> {
    let id = |pid: i32| {
        let line = process::command_line(pid)?;
        let id = Id::named(line.split_once(NAME)?.1.split_once('"')?.0);
        (Holding::read(&id).is_none() && !is_shown(pid)).then_some(id)
    };
    process::running(PROGRAM, NAME).into_iter().filter_map(id)
}

/// Whether a device shows what a daemon serves, or that cannot be told.
fn is_shown(pid: i32) -> bool {
    let shown = || LoopDevice::find(open_content(&seen(pid, CONTENT), true)?.as_fd(), &Window::default());
    let patience = Deadline::for_undo(LETTING_GO);
    loop {
        match shown() {
            Ok(None) => return false,
            Err(_) => return true,
            Ok(Some(_)) if patience.expired() => return true,
            Ok(Some(_)) => std::thread::sleep(TICK),
        }
    }
}

/// Whether there are any.
pub(super) fn has_orphans() -> bool {
    orphans().next().is_some()
}

/// Ends them.
pub(super) fn end_orphans(deadline: &Deadline) {
    for id in orphans() {
        // Whoever has it locked is just bringing it.
        let Ok(_lock) = id.lock(&Deadline::after(Duration::ZERO)) else { continue };
        if orphans().any(|orphan| orphan == id) {
            let at = Site { id: &id, deadline };
            Home::of(&at).end(&at);
        }
    }
}

/// Only root may look at other volumes.
const PRIVATE: Ownership = Ownership { mode: 0o700, uid: 0, gid: 0 };

/// What the daemon's words have before the image's name.
const NAME: &str = r#""id":"image-"#;

/// How much memory: for two names.
const ROOM: u64 = 1 << 20;

/// Covered with memory in the daemon's mount table.
const COVERED: &str = "/var";

/// There: the file that is the image's content.
const CONTENT: &str = SERVED;

/// And the socket that the daemon takes commands from.
const CONTROL: &str = "/var/control";

/// What a process has at a path, as we see it.
fn seen(pid: i32, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root{path}"))
}

/// All that one image's daemon has.
struct Home {
    name: String,
    scope: Scope,
}

impl Home {
    fn of(at: &Site<'_>) -> Self {
        let name = at.id.as_str();
        Self {
            name: name.to_owned(),
            // Several nodes, each in its container, may share the control groups.
            scope: Scope::named(&format!("{name}-{}", process::namespace())),
        }
    }

    /// Two images can have no name in common, nor can the beginning of one be another's.
    fn daemons(&self) -> Vec<i32> {
        process::running(PROGRAM, &format!("{NAME}{}\"", self.name))
    }

    /// The daemon that shows the content.
    fn daemon(&self) -> Option<i32> {
        self.daemons().into_iter().find(|pid| is_mount_root(&seen(*pid, CONTENT)))
    }

    fn end(&self, at: &Site<'_>) {
        let daemons = self.daemons();
        let asked = daemons
            .iter()
            .filter(|pid| qmp::execute(&seen(**pid, CONTROL), "quit", &json!({}), at.deadline).is_ok());
        self.scope.end(if asked.count() == daemons.len() {
            PATIENCE.min(at.deadline.remaining())
        } else {
            Duration::ZERO
        });
        // On a node without control groups.
        self.daemons().into_iter().for_each(process::end);
    }
}

impl Backend for DiskImage {
    fn find(&self, at: &Site<'_>) -> Result<Option<Found>> {
        let Some(pid) = Home::of(at).daemon() else { return Ok(None) };
        let content = match open_content(&seen(pid, CONTENT), true) {
            // Its daemon was killed.
            Err(error) if error.downcast_ref() == Some(&Errno::NOTCONN) => return Ok(None),
            content => content?,
        };
        let device = LoopDevice::find(content.as_fd(), &Window::default())?;
        Ok(device.map(Found::of_loop))
    }

    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        let home = Home::of(at);
        // What a killed call left.
        home.end(at);
        let image = self.open(at, with)?;
        self.serve(&home, &image, at, with).inspect_err(|_| home.end(at))
    }

    fn detach(&self, at: &Site<'_>, _: Option<&Path>) -> Result<()> {
        Home::of(at).end(at);
        Ok(())
    }

    fn grow(&self, at: &Site<'_>, _: &Path, size: u64) -> Result<()> {
        let gone = "the image's daemon is gone: unmount it and mount it again";
        let pid = Home::of(at).daemon().context(gone)?;
        let content = open_content(&seen(pid, CONTENT), false)?;
        if length(&content)? < size {
            let arguments = json!({"node-name": NODE, "size": size});
            qmp::execute(&seen(pid, CONTROL), "block_resize", &arguments, at.deadline)
                .with_context(|| format!("grow {}", self.file.display()))?;
            length(&content)?;
        }
        LoopDevice::find(content.as_fd(), &Window::default())?
            .context("the image has no loop device any more: mount it again")?
            .refresh_capacity()
    }
}

impl Found {
    fn of_loop(device: LoopDevice) -> Self {
        Self { path: device.path().to_owned(), held: Some(device) }
    }
}

impl DiskImage {
    /// The image, made if it may be. One that a killed call left empty is made anew.
    fn open(&self, at: &Site<'_>, with: &With<'_>) -> Result<OwnedFd> {
        let Allowed { root, below } = with.policy.image(&self.file)?;
        let read_only = with.read_only;
        let name = || format!("image {}", self.file.display());
        let size = self.size.filter(|_| !read_only);
        if size.is_some() {
            std::fs::create_dir_all(&root).with_context(name)?;
        }
        let root = below::open_root(&root)?;
        let flags = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = flags | OFlags::NONBLOCK;
        let image = match (below::open_if_there(root.as_fd(), &below, flags).with_context(name)?, size) {
            (Some(image), _) => image,
            (None, Some(_)) => create(root.as_fd(), &below).with_context(name)?,
            (None, None) => return Err(absent(&self.file).into()),
        };
        if let Some(size) = size.filter(|_| size_of(image.as_fd()).is_ok_and(|size| size == 0)) {
            make(&image, size, at).with_context(|| format!("make {}", self.file.display()))?;
        }
        disk_image::refuse_foreign_parts(image.as_fd()).with_context(name)?;
        Ok(image)
    }

    fn serve(&self, home: &Home, image: &OwnedFd, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        let mut helper = Helper::find(PROGRAM)?;
        let path = helper.keep(image.as_fd())?;
        let words = words(&home.name, &path, with.read_only);
        let helper = helper.args(words);
        let content = namespace::secluded(|| {
            namespace::cover("flexvol", Path::new(COVERED), Some(ROOM))?;
            File::create_new(CONTENT)?;
            let mut daemon = helper.launch(&home.scope)?;
            while !(is_mount_root(Path::new(CONTENT)) && Path::new(CONTROL).exists()) {
                if let Some(status) = daemon.ended()? {
                    let text =
                        format!("qemu-storage-daemon cannot show the image ({status}): {}", daemon.words());
                    let busy = text.contains("lock");
                    bail!(Failure::new(if busy { Code::Busy } else { Code::Internal }, text));
                }
                at.deadline.check("waiting for qemu-storage-daemon")?;
                std::thread::sleep(TICK);
            }
            open_content(Path::new(CONTENT), with.read_only)
        })?;
        let whole = Window::default();
        LoopDevice::attach(content.as_fd(), &self.file, &whole, with.read_only, false).map(Found::of_loop)
    }
}

/// In JSON, where no comma of a name means anything.
fn words(name: &str, image: &Path, read_only: bool) -> Vec<String> {
    let file = json!({"driver": "file", "node-name": "file", "filename": image, "read-only": read_only});
    let disk = json!({
        "driver": "qcow2", "node-name": NODE, "file": "file", "backing": null, "read-only": read_only,
        "discard": "unmap", "detect-zeroes": "off",
    });
    let export = json!({
        "type": "fuse", "id": format!("image-{name}"), "node-name": NODE, "mountpoint": CONTENT,
        "writable": !read_only,
    });
    let control = format!("socket,id=control,server=on,wait=off,path={CONTROL}");
    [("--blockdev", file.to_string()), ("--blockdev", disk.to_string()), ("--export", export.to_string())]
        .into_iter()
        .chain([("--chardev", control), ("--monitor", "chardev=control".to_owned())])
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect()
}

fn absent(file: &Path) -> Failure {
    let text = "is not there: a volume with option size that is mounted read-write makes it";
    Failure::new(Code::NotFound, format!("image {} {text}", file.display()))
}

fn create(root: BorrowedFd<'_>, below: &Path) -> Result<OwnedFd> {
    let above = below.parent().unwrap_or(Path::new(""));
    below::make_directories(root, above, PRIVATE, PRIVATE)?;
    let directory = below::open(root, above, OFlags::PATH | OFlags::DIRECTORY)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = below.file_name().context("names a directory: name a file below it")?;
    Ok(rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o600))?)
}

fn make(image: &OwnedFd, size: u64, at: &Site<'_>) -> Result<()> {
    let mut helper = Helper::find("qemu-img")?;
    let path = helper.keep(image.as_fd())?;
    let words = ["create", "-q", "-f", "qcow2"];
    let made =
        helper.args(words).args([path.as_os_str(), size.to_string().as_ref()]).run_to_success(at.deadline);
    if made.is_err() {
        // Else the next call would take half of one for somebody's.
        rustix::fs::ftruncate(image, 0)?;
    }
    made.with_context(|| format!("make an image of {}", Quantity(size))).map(drop)
}

/// How long the content is now: the kernel remembers what it was, and asks only who says so.
fn length(content: &OwnedFd) -> Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let stat =
        rustix::fs::statx(content, "", flags, StatxFlags::SIZE).context("look at an image's content")?;
    Ok(stat.stx_size)
}

fn open_content(path: &Path, read_only: bool) -> Result<OwnedFd> {
    let flags = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("open {}", path.display()))
}
