//! Disk images by qemu-storage-daemon, on nodes without the kernel's nbd: the daemon shows the
//! image's content as a file (FUSE), and a loop device makes a block device of that file.
//!
//! The daemon has a mount table of its own, and no other process sees the file: so nothing is on
//! the node that could be removed or left behind. The daemon must not see the file system that is
//! mounted from it either. If it were the last process that sees it, it would have to write to
//! itself when it ends, and could never end.
//!
//! [`qemu`] says which images are refused, and how an image is kept from being opened twice.

use super::attachment_record::{AttachmentRecord, Id};
use super::qemu::{self, NODE, PROGRAM, Shown};
use super::{Backend, Found, Served, Site, TICK, With, is_claimed};
use anyhow::{Context as _, Result};
use flexvol_linux::block::block_status::{self, Zeros};
use flexvol_linux::block::loop_device::{self, LoopDevice, SERVED};
use flexvol_linux::block::qmp;
use flexvol_linux::block::window::Window;
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::files::{self, is_mount_root_at};
use flexvol_linux::fs::openat_beneath;
use flexvol_linux::fs::opened::{self, FileType, OFlags};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Tools;
use flexvol_linux::proc::process;
use flexvol_linux::proc::scope::Scope;
use flexvol_model::plan::{DiskImage, ImageFormat};
use flexvol_protocol::failure::{Code, Failure};
use serde_json::json;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit for an unused device to stay.
const LETTING_GO: Duration = Duration::from_secs(1);

/// Returns the daemons of images, with their PIDs.
fn daemons() -> impl Iterator<Item = (i32, Id)> {
    let named = |pid: i32| {
        let line = process::command_line(pid)?;
        Some((pid, Id::named(line.split_once(NAME)?.1.split_once('"')?.0)))
    };
    process::running(PROGRAM, NAME).into_iter().filter_map(named)
}

/// Returns the images whose daemons have no record any more, and whose content no device shows any
/// more.
fn orphans() -> impl Iterator<Item = Id> {
    daemons()
        .filter(|(pid, id)| AttachmentRecord::read(id).is_none() && !is_shown(id, *pid))
        .map(|(_, id)| id)
}

/// Reports whether a device shows what a daemon serves; true if that is unknown.
fn is_shown(id: &Id, pid: i32) -> bool {
    let path = content(id.as_str());
    let is_older = !has_content(pid, &path);
    let patience = Deadline::for_undo(LETTING_GO);
    while loop_device::shows(if is_older { SERVED } else { &path }).unwrap_or(true) {
        if patience.expired() {
            return true;
        }
        std::thread::sleep(TICK);
    }
    false
}

/// Daemons of killed calls, without a record.
pub(super) struct Daemons;

impl Served for Daemons {
    fn driver(&self) -> &'static str {
        "qcow2"
    }

    fn has_orphans(&self) -> bool {
        orphans().next().is_some()
    }

    fn end_orphans(&self, tools: Tools<'_>) {
        for id in orphans() {
            // Another call has locked the image, and is just attaching it.
            let Ok(_lock) = id.lock_name(&Deadline::after(Duration::ZERO)) else { continue };
            if orphans().any(|orphan| orphan == id) {
                let at = Site::of(&id, tools);
                ImageDaemon::of(&at).end();
            }
        }
    }
}

/// Text before the image's name in the daemon's command line.
const NAME: &str = r#""id":"image-"#;

/// Returns the path of the image's content in the daemon's root. No other image has the same path.
/// The kernel tells the path that a device shows without asking the daemon, which may not answer.
/// In a daemon of an older version the path is [`SERVED`].
fn content(name: &str) -> String {
    format!("{SERVED}-{name}")
}

/// Reports whether a daemon shows an image's content at a path in its root.
fn has_content(pid: i32, path: &str) -> bool {
    seen(pid, path, OFlags::PATH).is_ok_and(|content| is_mount_root_at(content.as_fd()))
}

/// Socket in the daemon's root on which the daemon takes commands.
const CONTROL: &str = "/var/control";

/// Opens a path in the root of a process. The process may be any user's, and may have a link to
/// anything there: no link is followed.
fn seen(pid: i32, path: &str, flags: OFlags) -> Result<OwnedFd> {
    let root = format!("/proc/{pid}/root");
    let opened = opened::open(Path::new(&root), OFlags::PATH | OFlags::DIRECTORY);
    let root = opened.with_context(|| format!("open {root}"))?;
    openat_beneath::open(root.as_fd(), Path::new(path.trim_start_matches('/')), flags)
}

/// Returns a path that leads to the opened socket, and to nothing else.
fn through(socket: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd()))
}

/// Opens the socket on which a daemon takes commands.
fn control(pid: i32) -> Result<OwnedFd> {
    seen(pid, CONTROL, OFlags::PATH)
}

/// Resources of one image's daemon.
struct ImageDaemon<'a> {
    at: &'a Site<'a>,
    name: &'a str,
    scope: Scope,
}

impl<'a> ImageDaemon<'a> {
    fn of(at: &'a Site<'a>) -> Self {
        Self { at, name: at.id.as_str(), scope: qemu::scope(at) }
    }

    /// Returns the processes with this name. No two images have the same name, and no name is the
    /// beginning of another.
    fn namesakes(&self) -> Vec<i32> {
        process::running(PROGRAM, &format!("{NAME}{}\"", self.name))
    }

    /// Returns those processes that we have started.
    fn daemons(&self) -> Vec<i32> {
        self.namesakes().into_iter().filter(|pid| qemu::is_ours(*pid, self.at)).collect()
    }

    /// Returns the daemon that shows the content, and the path of the content.
    fn daemon(&self) -> Option<Server> {
        self.daemons().into_iter().find_map(|pid| self.server(pid))
    }

    fn server(&self, pid: i32) -> Option<Server> {
        let mut paths = [content(self.name), SERVED.to_owned()].into_iter();
        paths.find(|path| has_content(pid, path)).map(|path| Server { pid, path })
    }

    /// Returns the device that shows what a process serves, if the device is in use and neither a
    /// record nor a control group tells whose the process is. The data written to such a device is
    /// not on the disk yet.
    fn used(&self, pid: i32) -> Option<PathBuf> {
        if qemu::is_ours(pid, self.at) {
            return None;
        }
        let device = self.server(pid)?.shown().ok()??;
        is_claimed(device.path()).unwrap_or(true).then(|| device.path().to_owned())
    }

    fn refuse_used(&self) -> Result<()> {
        let used = |pid: i32| Some((pid, self.used(pid)?));
        let Some((pid, device)) = self.namesakes().into_iter().find_map(used) else { return Ok(()) };
        let device = device.display();
        let text = format!(
            "{device} shows the image already, served by process {pid}, and the record of it is lost: unmount the volume everywhere first"
        );
        Err(Failure::new(Code::Busy, text).into())
    }

    fn end(&self) {
        let (daemons, patience) = (self.daemons(), qemu::quitting(self.at));
        let told = |pid: &&i32| control(**pid).is_ok_and(|socket| qmp::quit(&through(&socket), &patience));
        let asked = daemons.iter().filter(told).count();
        // A daemon that could not be found has not been asked.
        qemu::end_scope(&self.scope, asked > 0 && asked == daemons.len(), self.at);
        // For nodes without control groups, and for other processes with such a name.
        process::end(self.namesakes().into_iter().filter(|pid| self.used(*pid).is_none()).collect());
    }
}

impl Backend for DiskImage {
    fn find(&self, at: &Site<'_>) -> Result<Option<Found>> {
        match ImageDaemon::of(at).daemon().map_or(Ok(None), |server| server.shown()) {
            // The image's daemon was killed, or is just being killed.
            Err(error) if matches!(error.downcast_ref(), Some(&(Errno::NOTCONN | Errno::CONNABORTED))) => {
                Ok(None)
            }
            shown => Ok(shown?.map(Found::of_loop)),
        }
    }

    /// Returns the device only if it is found: a loop device disappears with the daemon.
    fn hold(&self, at: &Site<'_>, device: &Path) -> Option<Found> {
        self.find(at).ok().flatten().filter(|found| found.path == device)
    }

    fn is_of_node(&self, _: &Site<'_>) -> Result<bool> {
        Ok(qemu::is_of_node(self))
    }

    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        let home = ImageDaemon::of(at);
        home.refuse_used()?;
        // Leftovers of a killed call.
        home.end();
        let image = qemu::open(self, ImageFormat::Qcow2, at, with)?;
        serve(self, &home, &image, at, with).inspect_err(|_| home.end())
    }

    /// Returns the holes in the daemon's file: the image has no clusters for them.
    fn zeros(&self, at: &Site<'_>, _: &With<'_>) -> Zeros {
        let holes = |content: OwnedFd| {
            Some(block_status::holes(content.as_fd(), length(&content).ok()?, &at.share()))
        };
        let content = ImageDaemon::of(at).daemon().and_then(|server| server.open(true).ok());
        content.and_then(holes).unwrap_or_default()
    }

    fn detach(&self, at: &Site<'_>, _: Option<&Path>) -> Result<()> {
        ImageDaemon::of(at).end();
        Ok(())
    }

    fn grow(&self, at: &Site<'_>, _: &Path, size: u64) -> Result<()> {
        let gone = "the image's daemon is gone: unmount it and mount it again";
        let home = ImageDaemon::of(at);
        let server = home.daemon().context(gone)?;
        let content = server.open(false)?;
        if length(&content)? < size {
            let arguments = json!({"node-name": NODE, "size": size});
            qmp::execute(&through(&control(server.pid)?), "block_resize", &arguments, at.deadline)
                .with_context(|| format!("grow {}", self.file.display()))?;
            length(&content)?;
        }
        server.shown()?.context("the image has no loop device any more: mount it again")?.refresh_capacity()
    }
}

impl Found {
    fn of_loop(device: LoopDevice) -> Self {
        Self { path: device.path().to_owned(), held: Some(device) }
    }
}

fn serve(
    disk: &DiskImage,
    home: &ImageDaemon,
    image: &OwnedFd,
    at: &Site<'_>,
    with: &With<'_>,
) -> Result<Found> {
    let path = content(home.name);
    let export = json!({
        "type": "fuse", "id": format!("image-{}", home.name), "node-name": NODE, "mountpoint": path,
        "writable": !with.read_only,
    });
    let shown = Shown { format: ImageFormat::Qcow2, read_only: with.read_only, server: Vec::new(), export };
    let content = qemu::confined(image, &[], with.read_only, |root| {
        root.device("fuse")?;
        let (content, control) = (root.at(Path::new(&path)), root.at(Path::new(CONTROL)));
        root.directory(Path::new(&path).parent().unwrap_or(Path::new("/")))?;
        files::make_empty(&content)?;
        let is_ready = || files::is_mount_root(&content) && control.exists();
        qemu::start(&home.scope, image, (root, Path::new(CONTROL), shown), at, is_ready)?;
        open_file(&content, with.read_only)
    })?;
    let whole = Window::default();
    // Never with direct I/O: of two simultaneous writes a QEMU without "fuse: Copy write buffer
    // content before polling" (July 2025) may store the bytes of one as the other. Through the page
    // cache the writes come one after the other.
    LoopDevice::attach(content.as_fd(), &disk.file, &whole, with.read_only, false).map(Found::of_loop)
}

/// Returns the present length of the content.
fn length(content: &OwnedFd) -> Result<u64> {
    opened::length_now(content.as_fd()).context("look at an image's content")
}

/// Daemon, and the path in its root at which it shows an image's content.
struct Server {
    pid: i32,
    path: String,
}

impl Server {
    /// Opens the content without blocking: a process that only pretends to be a daemon may have a
    /// fifo there.
    fn open(&self, read_only: bool) -> Result<OwnedFd> {
        let flags = OFlags::NONBLOCK | if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let content = seen(self.pid, &self.path, flags)?;
        let kind = opened::kind_of(content.as_fd())?;
        anyhow::ensure!(kind == FileType::RegularFile, "what process {} shows is no file", self.pid);
        Ok(content)
    }

    /// Returns the device that shows the content.
    fn shown(&self) -> Result<Option<LoopDevice>> {
        LoopDevice::find_served(self.open(true)?.as_fd(), &self.path)
    }
}

fn open_file(path: &Path, read_only: bool) -> Result<OwnedFd> {
    let flags = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    opened::open(path, flags).with_context(|| format!("open {}", path.display()))
}
