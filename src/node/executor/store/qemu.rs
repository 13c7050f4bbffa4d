//! Daemon of a disk image, qemu-storage-daemon, for the drivers that make a block device of what it
//! shows.
//!
//! The header of an image says what its writer has chosen, and qemu follows it: a backing file or a
//! data file could be any file of the node. An image with either is refused, and the content of an
//! image never decides whether it is a raw one. A lock keeps the image from being opened twice, on
//! this node or, where the file system has such locks, on another.

use super::attachment_record::AttachmentRecord;
use super::{Site, TICK, With};
use anyhow::{Context as _, Result, bail};
use flexvol_linux::block::loop_device::LoopDevice;
use flexvol_linux::block::window::Window;
use flexvol_linux::block::{disk_image, qmp};
use flexvol_linux::fs::bytes::size_of;
use flexvol_linux::fs::lock::{self, Hold};
use flexvol_linux::fs::opened::{self, OFlags};
use flexvol_linux::fs::private::Private;
use flexvol_linux::fs::{files, openat_beneath};
use flexvol_linux::proc::bare_root::{self, BareRoot};
use flexvol_linux::proc::daemon::Daemon;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Invocation;
use flexvol_linux::proc::scope::Scope;
use flexvol_linux::proc::{namespace, process};
use flexvol_model::paths;
use flexvol_model::plan::{DiskImage, ImageFormat, Ownership};
use flexvol_model::policy::Allowed;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::quantity::Quantity;
use flexvol_protocol::text::find_word;
use serde_json::{Value, json};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the daemon's program.
pub(super) const PROGRAM: &str = "qemu-storage-daemon";

/// Limit for the daemon to write back and end.
const QUIT_WAIT: Duration = Duration::from_secs(10);

/// Limit for waiting for an image's lock: a call that is just ending may have it.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Directory that the daemon's root covers, in the daemon's mount table.
const COVERED: &str = "/var";

/// File systems of a node's own disks, as statfs(2) reports them: ext4, overlays, xfs, btrfs, f2fs,
/// ZFS, and tmpfs.
const LOCAL: [u32; 7] =
    [0xEF53, 0x794C_7630, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x2FC1_2FC1, 0x0102_1994];

/// Path of the image in the daemon's root.
const IMAGE: &str = "/image";

/// Name of the image's block node in the daemon.
pub(super) const NODE: &str = "disk";

/// Mode and owner of directories: only root may look at other volumes.
const PRIVATE: Ownership = Ownership { mode: 0o700, uid: 0, gid: 0 };

/// Form in which an image is shown.
pub(super) struct Shown {
    pub(super) format: ImageFormat,
    pub(super) read_only: bool,
    /// Further arguments for the command line.
    pub(super) server: Vec<String>,
    pub(super) export: Value,
}

/// Reports whether a process with the store's name in its command line is the daemon that we have
/// started for it: it is in the store's control group, or the record names it. A daemon that an
/// older version has started, on a node without control groups, is known only by the record of its
/// device.
pub(super) fn is_ours(pid: i32, at: &Site<'_>) -> bool {
    let is_recorded = |record: AttachmentRecord| match record.daemon {
        Some((number, started)) => number == pid && process::started(pid) == Some(started),
        None => record.device.is_some() && !scope(at).is_left(),
    };
    scope(at).holds(pid) || AttachmentRecord::read(at.id).is_some_and(is_recorded)
}

/// Records the daemon that was started.
pub(super) fn note(daemon: &Daemon, at: &Site<'_>) -> Result<()> {
    let Some(record) = AttachmentRecord::read(at.id) else { return Ok(()) };
    let started = process::started(daemon.pid()).map(|started| (daemon.pid(), started));
    AttachmentRecord { daemon: started, ..record }.write()
}

/// Returns the control group of an image's daemons. The PID namespace is in its name, because
/// several nodes, each in its container, may share the groups.
pub(super) fn scope(at: &Site<'_>) -> Scope {
    Scope::named(&format!("{}-{}", at.id.as_str(), process::namespace()))
}

/// Ends the processes in the group: at once, unless all were asked to end and may still write back.
pub(super) fn end_scope(scope: &Scope, was_asked: bool, at: &Site<'_>) {
    scope.end(if was_asked { QUIT_WAIT.min(at.deadline.remaining()) } else { Duration::ZERO });
}

/// Returns the deadline for the daemon's answer that it will end: a silent daemon is killed.
pub(super) fn quitting(at: &Site<'_>) -> Deadline {
    Deadline::after(QUIT_WAIT.min(at.deadline.remaining()))
}

/// Resources of one image's daemon.
pub(super) struct ImageDaemon {
    pub(super) private: Private,
    scope: Scope,
}

impl ImageDaemon {
    /// Returns the daemon of the store.
    pub(super) fn of(at: &Site<'_>) -> Self {
        Self { private: Private::at(paths::run(paths::IMAGE_DAEMONS).join(at.id.as_str())), scope: scope(at) }
    }

    /// Returns the path of the socket on which the daemon takes commands.
    pub(super) fn control(&self) -> PathBuf {
        self.private.file("control")
    }

    /// Reports whether the daemon runs. Its socket may be lost with /run, but it must not be
    /// started again while it is in use: if neither a record nor a control group tells, its command
    /// line does.
    pub(super) fn is_alive(&self, at: &Site<'_>) -> bool {
        let is_unknown = || AttachmentRecord::read(at.id).is_none() && !self.scope.is_left();
        let is_it = |pid: i32| is_ours(pid, at) || is_unknown();
        qmp::is_listening(&self.control()) || self.daemons().into_iter().any(is_it)
    }

    /// Returns the processes that have the daemon's directory in their command line.
    fn daemons(&self) -> Vec<i32> {
        let place = format!("{}/", self.private.file("").display()).replace("//", "/");
        process::running(PROGRAM, &place)
    }

    /// Starts the daemon, which shows the image in the form `shown`; it is ready when `is_ready`.
    pub(super) fn serve(
        &self,
        image: &OwnedFd,
        shown: Shown,
        at: &Site<'_>,
        is_ready: impl Fn() -> bool,
    ) -> Result<()> {
        let (control, place) = (self.control(), self.private.file(""));
        confined(image, &[&place], shown.read_only, |root| {
            let directory = opened::open(&place, OFlags::PATH)?;
            root.show(&place, &directory, false)?;
            let is_ready = || is_ready() && control.exists();
            start(&self.scope, image, (root, &control, shown), at, is_ready)
        })
    }

    /// Makes the image larger.
    pub(super) fn grow(&self, size: u64, at: &Site<'_>) -> Result<()> {
        self.tell("block_resize", &json!({"node-name": NODE, "size": size}), at)
    }

    /// Has the daemon execute a command.
    pub(super) fn tell(&self, command: &str, arguments: &Value, at: &Site<'_>) -> Result<()> {
        qmp::execute(&self.control(), command, arguments, at.deadline)
    }

    /// Ends the daemon and removes its files. A missing daemon counts as ended.
    pub(super) fn end(&self, at: &Site<'_>) -> Result<()> {
        let asked = qmp::quit(&self.control(), &quitting(at));
        end_scope(&self.scope, asked, at);
        // For a node without control groups, and for a lost record.
        process::end(self.daemons());
        self.private.remove()
    }
}

/// Runs `work` with a root that has the image in it, and nothing else of the node but programs:
/// whatever the image's header says while a program reads it, there is nothing else to open. Mounts
/// that lead to `kept` are there as well.
pub(super) fn confined<T>(
    image: &OwnedFd,
    kept: &[&Path],
    read_only: bool,
    work: impl FnOnce(&BareRoot) -> Result<T>,
) -> Result<T> {
    let path = bare_root::path_of(image)?;
    let kept: Vec<_> = kept.iter().copied().chain([path.as_path()]).collect();
    namespace::secluded(&kept, || {
        // Before anything is covered: the image may lie there.
        let here = bare_root::again(image, &path)?;
        let root = BareRoot::make("flexvol", Path::new(COVERED))?;
        root.show(Path::new(IMAGE), &here, read_only)?;
        work(&root)
    })
}

/// Reports whether the image can be written, on a file system that only this node can have.
pub(super) fn is_of_node(image: &DiskImage) -> bool {
    opened::file_system_number(&image.file).is_ok_and(|number| LOCAL.contains(&number))
        && opened::is_writable(&image.file)
}

/// Starts the daemon in a control group and a root, where it takes commands at a path and shows the
/// image; it is ready when `is_ready`.
pub(super) fn start(
    scope: &Scope,
    image: &OwnedFd,
    (root, control, shown): (&BareRoot, &Path, Shown),
    at: &Site<'_>,
    is_ready: impl Fn() -> bool,
) -> Result<()> {
    let mut helper = Invocation::of(PROGRAM).within(root)?;
    // Kept only for its lock.
    helper.keep(image.as_fd())?;
    let (ours, its) = UnixStream::pair().context("make a connection for qemu-storage-daemon")?;
    let connection = helper.keep(its.as_fd())?;
    drop(its);
    let words = words(control, &connection, Path::new(IMAGE), shown);
    let mut daemon = helper.args(words).launch(scope)?;
    note(&daemon, at)?;
    while !is_ready() {
        if let Some(status) = daemon.ended()? {
            let text = format!("qemu-storage-daemon cannot show the image ({status}): {}", daemon.words());
            bail!(Failure::new(code_of(&text), text));
        }
        at.deadline.check("waiting for qemu-storage-daemon")?;
        std::thread::sleep(TICK);
    }
    refuse_other_files(ours, at)
}

/// Returns the code of a daemon's last words: another process has locked the image, or an error.
fn code_of(words: &str) -> Code {
    if find_word(words, "lock").is_some() { Code::Busy } else { Code::Internal }
}

/// Fails if the daemon has opened other files: the header may have changed since we read it.
fn refuse_other_files(daemon: UnixStream, at: &Site<'_>) -> Result<()> {
    let arguments = json!({"flat": true});
    let nodes = qmp::talk(daemon, "query-named-block-nodes", &arguments, at.deadline.remaining())
        .context("ask qemu-storage-daemon what it has opened")?;
    let nodes = nodes.as_array().context("qemu-storage-daemon does not say what it has opened")?;
    let name = |node: &Value| node["node-name"].as_str().map(str::to_owned);
    if nodes.iter().all(|node| name(node).is_some_and(|name| ["file", NODE].contains(&name.as_str()))) {
        return Ok(());
    }
    let text = "the image says that its data is in another file, which may be any of the node: make it whole (qemu-img convert -O qcow2)";
    Err(Failure::new(Code::Denied, text).into())
}

/// Opens the image, or makes it if allowed. An image that a killed call left empty or half made is
/// made again.
pub(super) fn open(
    image: &DiskImage,
    format: ImageFormat,
    at: &Site<'_>,
    with: &With<'_>,
) -> Result<OwnedFd> {
    let Allowed { root, below } = with.policy.image(&image.file)?;
    let read_only = with.read_only;
    let name = || format!("image {}", image.file.display());
    let size = image.size.filter(|_| !with.reader);
    if size.is_some() {
        files::make_directories(&root, 0o777).with_context(name)?;
    }
    let root = openat_beneath::open_root(&root)?;
    let flags = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let flags = flags | OFlags::NONBLOCK;
    let file = match (openat_beneath::open_if_there(root.as_fd(), &below, flags).with_context(name)?, size) {
        (Some(file), _) => file,
        (None, Some(_)) => create(root.as_fd(), &below).with_context(name)?,
        (None, None) => return Err(absent(&image.file).into()),
    };
    if let Some(size) = size
        && is_unmade(&file, format).with_context(name)?
    {
        make(&file, format, size, at).with_context(|| format!("make {}", image.file.display()))?;
    }
    match format {
        ImageFormat::Qcow2 => disk_image::refuse_foreign_parts(file.as_fd()).with_context(name)?,
        ImageFormat::Raw => keep_others_out(&file, read_only).with_context(name)?,
    }
    Ok(file)
}

/// Returns the daemon's arguments. They describe the image in JSON, where a comma in a name has no
/// meaning. The daemon takes commands on a connection that it inherits, and on later ones.
fn words(control: &Path, connection: &Path, image: &Path, shown: Shown) -> Vec<String> {
    let Shown { format, read_only, server, export } = shown;
    let file = json!({"driver": "file", "node-name": "file", "filename": image, "read-only": read_only});
    let mut disk = json!({
        "driver": format.name(), "node-name": NODE, "file": "file", "read-only": read_only,
        "discard": "unmap", "detect-zeroes": "off",
    });
    if format == ImageFormat::Qcow2 {
        disk["backing"] = Value::Null;
    }
    let control = format!("socket,id=control,server=on,wait=off,path={}", control.display());
    let first = connection.file_name().unwrap_or_default().to_string_lossy();
    let devices = [("--blockdev", file.to_string()), ("--blockdev", disk.to_string())];
    let rest = [
        ("--export", export.to_string()),
        ("--chardev", control),
        ("--monitor", "chardev=control".to_owned()),
        ("--chardev", format!("socket,id=first,fd={first}")),
        ("--monitor", "chardev=first".to_owned()),
    ];
    let flat = |(option, value): (&str, String)| [option.to_owned(), value];
    devices.into_iter().flat_map(flat).chain(server).chain(rest.into_iter().flat_map(flat)).collect()
}

fn absent(file: &Path) -> Failure {
    let text = "is not there: a volume with option size that is mounted read-write makes it";
    Failure::new(Code::NotFound, format!("image {} {text}", file.display()))
}

fn create(root: BorrowedFd<'_>, below: &Path) -> Result<OwnedFd> {
    let above = below.parent().unwrap_or(Path::new(""));
    openat_beneath::make_directories(root, above, PRIVATE, PRIVATE)?;
    let directory = openat_beneath::open(root, above, OFlags::PATH | OFlags::DIRECTORY)?;
    let name = below.file_name().context("names a directory: name a file below it")?;
    Ok(opened::create_in(directory.as_fd(), name.as_ref())?)
}

/// Keeps other writers out: qemu's lock allows them for a raw image. Our lock lasts as long as the
/// daemon has the file open, and driver `image` respects it. A loop device that driver `image` made
/// before can only be found among the devices.
fn keep_others_out(file: &OwnedFd, read_only: bool) -> Result<()> {
    let hold = if read_only { Hold::Together } else { Hold::Alone };
    let used = |how: &str| {
        let text = format!("it is in use{how}: unmount it there, or name another file");
        Failure::new(Code::Busy, text)
    };
    lock::wait(file.as_fd(), hold, &Deadline::after(LOCK_WAIT), "waiting for the image's lock").map_err(
        |error| match error.downcast::<Failure>() {
            Ok(_) => used(", and locked by who uses it").into(),
            Err(error) => error,
        },
    )?;
    match LoopDevice::find(file.as_fd(), &Window::default())? {
        Some(device) => Err(used(&format!(" as {}", device.path().display())).into()),
        None => Ok(()),
    }
}

fn is_unmade(image: &OwnedFd, format: ImageFormat) -> Result<bool> {
    let is_empty = size_of(image.as_fd())? == 0;
    Ok(is_empty || (format == ImageFormat::Qcow2 && disk_image::is_unmade(image.as_fd())?))
}

/// Makes the image under a lock: another node may be making it as well, and a failure empties it.
fn make(image: &OwnedFd, format: ImageFormat, size: u64, at: &Site<'_>) -> Result<()> {
    lock::wait(
        image.as_fd(),
        Hold::Alone,
        at.deadline,
        "waiting for another call that is creating the image",
    )?;
    let made = if is_unmade(image, format)? { make_alone(image, format, size, at) } else { Ok(()) };
    // The users of the image take a lock of their own kind.
    lock::release(image.as_fd())?;
    made
}

fn make_alone(image: &OwnedFd, format: ImageFormat, size: u64, at: &Site<'_>) -> Result<()> {
    if format == ImageFormat::Raw {
        return opened::set_length(image.as_fd(), size).context("give it its size");
    }
    let words = ["create", "-q", "-f", "qcow2", IMAGE, &size.to_string()];
    // qemu-img reads again what it has written, and others may have written to it by then.
    let made = confined(image, &[], false, |root| {
        at.tools().run_to_success(Invocation::of("qemu-img").within(root)?.args(words))
    });
    if made.is_err() {
        // Otherwise the next call would take the incomplete image for data.
        opened::set_length(image.as_fd(), 0)?;
    }
    made.with_context(|| format!("make an image of {}", Quantity(size))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::attachment_record::Id;
    use super::*;
    use flexvol_linux::proc::helper::Tools;
    use flexvol_model::plan::Store;
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    /// The daemon repeats the option that it stumbled over, and its name has `block` in it.
    #[test]
    fn only_a_lock_means_that_the_image_is_in_use() {
        let of = |words: &str| code_of(&format!("qemu-storage-daemon: --blockdev {{}}: {words}"));
        assert_eq!(of("Failed to get \"write\" lock\nIs another process using the image [/i]?"), Code::Busy);
        assert_eq!(of("Failed to lock byte 100"), Code::Busy);
        for words in ["Could not open '/i': no block device", "Image is not in qcow2 format"] {
            assert_eq!(of(words), Code::Internal, "{words}");
        }
    }

    /// Root in a container can start a process with this name, once the daemon has died.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test starts a process")]
    fn a_namesake_does_not_stand_for_a_daemon_that_has_died() {
        if namespace::enter().and_then(|()| namespace::cover_run()).is_err() {
            return println!("SKIP a_namesake_does_not_stand: needs root for a mount namespace");
        }
        let store = Store::Qcow2(DiskImage { file: "/namesake.qcow2".into(), size: None });
        let (id, deadline) = (Id::of(&store), Deadline::for_undo(Duration::from_mins(1)));
        let (at, program) = (Site::of(&id, Tools::of_host(&deadline)), Path::new("/run").join(PROGRAM));
        let home = ImageDaemon::of(&at);
        symlink("/bin/sh", &program).unwrap();
        let words =
            ["-c", "read line", &home.private.file("control").display().to_string()].map(str::to_owned);
        let mut namesake = Command::new(&program).args(words).stdin(Stdio::piped()).spawn().unwrap();
        while home.daemons().is_empty() {
            std::thread::sleep(TICK);
        }
        let pid = namesake.id().cast_signed();
        assert!(home.is_alive(&at), "nothing else tells");
        let known = |daemon| AttachmentRecord { daemon: Some(daemon), ..AttachmentRecord::new(&id, &store) };
        known((pid, process::started(pid).unwrap())).write().unwrap();
        assert!(home.is_alive(&at), "it is the one of the record");
        known((pid, 1)).write().unwrap();
        assert!(!home.is_alive(&at), "it only calls itself so");
        namesake.kill().unwrap();
        namesake.wait().unwrap();
    }
}
