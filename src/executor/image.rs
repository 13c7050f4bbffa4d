//! The steps of image files: make, attach, format, check, grow.
//!
//! One flock on the image file covers all of them, so that two pods that start at once make, format and
//! attach it once. It is taken on a descriptor of its own: the loop driver keeps the one it was given open as
//! long as the device lives, and a lock on that would live as long.

use super::node::{Node, Undo, denied, open_place};
use crate::failure::{Code, Failure};
use crate::file_system::FileSystem;
use crate::mount_options::MountFlags;
use crate::plan::{Allocation, Ownership, Region};
use crate::policy::Allowed;
use crate::protocol::{TargetPath, Verb};
use crate::settings::Settings;
use crate::sys::bytes::size_of;
use crate::sys::deadline::Deadline;
use crate::sys::image_file::{self, Formatting};
use crate::sys::lock::{self, Hold};
use crate::sys::loop_device::{Backing, Inode, LoopDevice, Window};
use crate::sys::place::Look;
use crate::sys::{below, blank, format, mount_table, partition, signature};
use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a loop device without a file system is waited for to go.
const LETTING_GO: Duration = Duration::from_secs(2);

/// How long an mkfs may run on after its call's deadline: until it is killed, and the time stamps' rounding.
const AFTER_DEADLINE: Duration = Duration::from_secs(20);

/// What the image steps of one call hand to each other.
#[derive(Debug, Default)]
pub(super) struct Workpiece {
    lock: Option<OwnedFd>,
    file: Option<OwnedFd>,
    window: Window,
    device: Option<LoopDevice>,
    in_use: bool,
    formatted: bool,
}

impl Workpiece {
    /// Lets go of the device; the kernel detaches it unless somebody else uses it.
    pub(super) fn release(&mut self) {
        self.device = None;
    }

    fn device(&self) -> Result<&LoopDevice> {
        self.device.as_ref().context("no device is attached: the plan lacks a step")
    }

    fn lock(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.lock.as_ref().context("no image is locked: the plan lacks a step")?.as_fd())
    }

    fn file(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.file.as_ref().context("no image is open: the plan lacks a step")?.as_fd())
    }
}

/// A device that was looked at and can be mounted.
pub(super) struct Recognised {
    pub(super) kind: FileSystem,
    pub(super) path: String,
    pub(super) read_only: bool,
}

/// Symlinks on the way are followed, as they are when somebody mounts there.
pub(super) fn expect_mount(path: &Path) -> Result<()> {
    let real = path.canonicalize().with_context(|| format!("look at {}", path.display()))?;
    if mount_table::at(&real)?.is_none() {
        let text = format!("nothing is mounted at {}: mount the share there first", path.display());
        return Err(Failure::new(Code::NotFound, text).into());
    }
    Ok(())
}

impl Node<'_> {
    pub(super) fn create_image(
        &mut self,
        file: &Path,
        size: u64,
        allocation: Allocation,
    ) -> Result<Option<Undo>> {
        let made = self.make_parent(file)?;
        let done =
            self.create_in_parent(file, size, allocation).with_context(|| format!("make {}", file.display()));
        match done {
            Ok(true) => Ok(Some(Undo::RemoveImage(file.to_owned(), made))),
            Ok(false) => Ok(None),
            Err(error) => {
                self.remove_directories_of(file, &made)?;
                Err(error)
            }
        }
    }

    /// Whether it was made. If its size cannot be set there is none; if it cannot be locked, whoever holds
    /// the lock uses it.
    fn create_in_parent(&mut self, file: &Path, size: u64, allocation: Allocation) -> Result<bool> {
        let (parent, name) = self.image_parent(file)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || match rustix::fs::openat(&parent, &name, flags, Mode::from_raw_mode(0o600)) {
            Err(Errno::EXIST) => {
                let existing = |flags| open_image(parent.as_fd(), &name, flags);
                Ok((open_for_device(existing, false)?.0, false))
            }
            fd => Ok((fd?, true)),
        };
        let (fd, made) = self.lock_image(parent.as_fd(), &name, open)?;
        // Another call may have been faster between our making and locking it: then it is that call's.
        let made = made && size_of(fd.as_fd())? == 0;
        let sized = Self::size_image(fd.as_fd(), size, allocation);
        self.image.lock = Some(fd);
        if sized.is_err() && made {
            rustix::fs::unlinkat(parent, &name, AtFlags::empty())?;
        }
        sized.map(|()| made)
    }

    /// Opens and locks the image, again if it was removed meanwhile: a lock on a file without a name guards
    /// nothing.
    fn lock_image(
        &self,
        parent: BorrowedFd<'_>,
        name: &Path,
        open: impl Fn() -> Result<(OwnedFd, bool)>,
    ) -> Result<(OwnedFd, bool)> {
        loop {
            let (fd, made) = open()?;
            lock::wait(
                fd.as_fd(),
                Hold::Alone,
                &self.deadline,
                "waiting for another pod's use of the image",
            )?;
            let named = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
            let locked = Inode::of(fd.as_fd())?;
            if named.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (locked.device, locked.inode)) {
                return Ok((fd, made));
            }
            self.deadline.check("waiting for the image to stay")?;
        }
    }

    /// The admin's root, and below it what the volume's name asks for; only root may look at other volumes.
    fn make_parent(&self, file: &Path) -> Result<Vec<PathBuf>> {
        const PRIVATE: Ownership = Ownership { mode: 0o700, uid: 0, gid: 0 };
        let Allowed { root, below } = self.settings.policy.image(file)?;
        DirBuilder::new().recursive(true).mode(PRIVATE.mode).create(&root)?;
        let above = below.parent().unwrap_or(Path::new(""));
        below::make_directories(below::open_root(&root)?.as_fd(), above, PRIVATE, PRIVATE)
    }

    fn remove_directories_of(&self, file: &Path, made: &[PathBuf]) -> Result<()> {
        let Allowed { root, .. } = self.settings.policy.image(file)?;
        below::remove_directories(below::open_root(&root)?.as_fd(), made)
    }

    /// Gives a new file its size, and one that a killed call left without; any other keeps its own.
    fn size_image(fd: BorrowedFd<'_>, size: u64, allocation: Allocation) -> Result<()> {
        if size_of(fd)? != 0 {
            return Ok(());
        }
        if allocation == Allocation::Full {
            image_file::reserve(fd, size)?;
        }
        // Last: the size says that the blocks are there.
        image_file::resize(fd, size)
    }

    pub(super) fn remove_image(&self, file: &Path, made: &[PathBuf]) -> Result<()> {
        let (parent, name) = self.image_parent(file)?;
        rustix::fs::unlinkat(parent, &name, AtFlags::empty())
            .with_context(|| format!("remove {}", file.display()))?;
        self.remove_directories_of(file, made)
    }

    /// The opened directory the image is in, and its name there.
    fn image_parent(&self, file: &Path) -> Result<(OwnedFd, PathBuf)> {
        let Allowed { root, below } = self.settings.policy.image(file)?;
        let name = below.file_name().context("names a directory: name a file below it")?;
        let above = below.parent().unwrap_or(Path::new(""));
        let root = below::open_root(&root)?;
        Ok((below::open(root.as_fd(), above, OFlags::PATH | OFlags::DIRECTORY)?, name.into()))
    }

    pub(super) fn attach_loop(
        &mut self,
        file: &Path,
        region: Region,
        direct_io: bool,
        read_only: bool,
    ) -> Result<()> {
        let (parent, name) = self.image_parent(file).with_context(|| format!("image {}", file.display()))?;
        let open = |flags| open_image(parent.as_fd(), &name, flags).with_context(|| absent(file));
        if self.image.lock.is_none() {
            let unlocked = || Ok((open(OFlags::RDONLY)?, false));
            self.image.lock = Some(self.lock_image(parent.as_fd(), &name, unlocked)?.0);
        }
        let (fd, read_only) = open_for_device(open, read_only)?;
        let window = window(fd.as_fd(), region).with_context(|| format!("image {}", file.display()))?;
        let found = self.find_device(fd.as_fd(), &window)?;
        self.image.in_use = found.is_some();
        self.image.device = Some(match found {
            Some(device) => device,
            None => LoopDevice::attach(fd.as_fd(), file, &window, read_only, direct_io)?,
        });
        (self.image.file, self.image.window) = (Some(fd), window);
        Ok(())
    }

    /// A device that shows the image already. One without a file system is most likely just being let go, by
    /// a mkfs that was killed with its call: it is waited for, so that the image can be formatted.
    fn find_device(&self, file: BorrowedFd<'_>, window: &Window) -> Result<Option<LoopDevice>> {
        let patience = Deadline::for_undo(LETTING_GO);
        loop {
            match LoopDevice::find(file, window)? {
                Some(device) if !patience.expired() && self.is_unfinished(file, &device)? => drop(device),
                found => return Ok(found),
            }
            self.deadline.check("waiting for the image's loop device")?;
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_unfinished(&self, file: BorrowedFd<'_>, device: &LoopDevice) -> Result<bool> {
        let identified = signature::identify(device.fd(), &Window::default())?;
        Ok(identified.is_none() || self.formatting(file)? == Formatting::Interrupted)
    }

    /// What is noted of an mkfs before; an image that was written since is nobody's to format or to mount.
    fn formatting(&self, file: BorrowedFd<'_>) -> Result<Formatting> {
        let allowed = self.settings.deadlines.of(Verb::Mount) + AFTER_DEADLINE;
        match image_file::formatting(file, allowed)? {
            Formatting::Overwritten => Err(Failure::new(
                Code::Conflict,
                "mkfs was interrupted on this image and it was written since: if it holds data, \
                 setfattr -x trusted.flexvol.formatting it, else remove it",
            )
            .into()),
            formatting => Ok(formatting),
        }
    }

    /// Only what is proven blank, and what this very step left half made when it was killed.
    pub(super) fn format(&mut self, kind: FileSystem, words: &[String]) -> Result<()> {
        let (device, file) = (self.image.device()?, self.image.file()?);
        if self.formatting(file)? == Formatting::Never {
            if signature::identify(device.fd(), &Window::default())?.is_some() {
                return Ok(());
            }
            blank::prove_blank(file, &self.image.window, &self.deadline)?;
        }
        if self.image.in_use {
            let path = device.path().display();
            let text = format!("the blank image is attached to {path} already: detach it (losetup -d)");
            return Err(Failure::new(Code::Busy, text).into());
        }
        image_file::note_formatting(file);
        let made = format::make_file_system(kind, device.path(), words, self.image.lock()?, &self.deadline)
            .and_then(|()| rustix::fs::fsync(file).context("write the new file system to disk"));
        if let Err(error) = made {
            return Err(self.unmake(file, error));
        }
        image_file::forget_formatting(file)?;
        self.image.formatted = true;
        Ok(())
    }

    /// The undo of an mkfs that failed: the image was blank, and is again. Not while mkfs may still write to
    /// it.
    fn unmake(&self, file: BorrowedFd<'_>, error: anyhow::Error) -> anyhow::Error {
        let still_runs = error.downcast_ref().is_some_and(|failure: &Failure| !failure.residue().is_empty());
        if still_runs {
            return error;
        }
        let undone = image_file::blank_again(file, &self.image.window)
            .and_then(|()| image_file::forget_formatting(file));
        match undone {
            Ok(()) => error,
            Err(left) => {
                Failure::from(error).with_residue(format!("a half made file system: {left:#}")).into()
            }
        }
    }

    pub(super) fn check_file_system(&self, kind: Option<FileSystem>) -> Result<()> {
        let device = self.image.device()?;
        if self.image.in_use || self.image.formatted || device.is_read_only() {
            return Ok(());
        }
        // A blank or a different file system is the mount step's to refuse; a checker would only guess at it.
        match identify(device)? {
            Some(found) if kind.is_none_or(|kind| kind == found) => {
                format::check_file_system(found, device.path(), self.image.lock()?, &self.deadline).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// What the attached device holds, if it is what was asked for and can be mounted so.
    pub(super) fn recognise(&self, wanted: Option<&str>, flags: MountFlags) -> Result<Recognised> {
        let device = self.image.device()?;
        if self.formatting(self.image.file()?)? == Formatting::Interrupted {
            bail!(Failure::new(
                Code::Conflict,
                "mkfs was interrupted on this image: mount it read-write with format: ifBlank once"
            ));
        }
        let kind = identify(device)?.ok_or_else(|| {
            Failure::new(
                Code::NotFound,
                "the image holds no file system: set option format to ifBlank and mount it read-write once, or copy one into it",
            )
        })?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != kind.name()) {
            bail!(Failure::new(
                Code::Conflict,
                format!(
                    "the image holds {}, but fsType says {wanted}: correct the volume's fsType",
                    kind.name()
                )
            ));
        }
        let read_only = device.is_read_only() || kind.read_only();
        if read_only && !flags.read_only {
            bail!(Failure::new(
                Code::Denied,
                format!(
                    "the {} image cannot be written: set readOnly: true on the pod's flexVolume or persistentVolumeClaim",
                    kind.name()
                )
            ));
        }
        Ok(Recognised { kind, path: device.path().display().to_string(), read_only })
    }

    pub(super) fn grow_image(&mut self, size: u64, allocation: Allocation) -> Result<()> {
        let (device, file) = (self.image.device()?, self.image.file()?);
        if device.is_read_only() {
            return Err(denied("the image cannot be written: it cannot grow".into()));
        }
        if size_of(file)? < size {
            if allocation == Allocation::Full {
                image_file::reserve(file, size).context("grow the image")?;
            }
            image_file::resize(file, size).context("grow the image")?;
        }
        device.refresh_capacity()
    }

    pub(super) fn grow_file_system(&self, target: &TargetPath) -> Result<()> {
        let device = self.image.device()?;
        let place = open_place(target)?;
        let Look::Mount(mounted) = place.look()? else {
            bail!(Failure::new(Code::NotFound, format!("{target} is not mounted: mount it before it grows")));
        };
        let entry = mount_table::by_id(mounted.id)?.context("the mount is gone")?;
        if entry.source != device.path().as_os_str() {
            bail!(Failure::new(
                Code::Conflict,
                format!(
                    "{target} shows {} and not the volume's image: unmount it first",
                    entry.source.to_string_lossy()
                )
            ));
        }
        format::grow_file_system(
            FileSystem::parse(&entry.file_system)?,
            device.path(),
            target.as_path(),
            &self.deadline,
        )
    }
}

/// Whether a loop device shows this image, whatever the name of either.
pub(super) fn is_file(backing: &Backing, file: &Path, settings: &Settings) -> bool {
    let open = || -> Result<OwnedFd> {
        let Allowed { root, below } = settings.policy.image(file)?;
        below::open(below::open_root(&root)?.as_fd(), &below, OFlags::PATH)
    };
    open().and_then(|fd| Ok(Inode::of(fd.as_fd())?)).is_ok_and(|inode| inode == backing.inode)
}

/// The number of the device node a mount's source names; 0 for anything else.
pub(super) fn device_number(source: &OsStr) -> u64 {
    std::fs::metadata(source).map_or(0, |node| node.rdev())
}

fn absent(file: &Path) -> String {
    format!("image {}: a volume with option size that is mounted read-write makes it", file.display())
}

fn open_image(parent: BorrowedFd<'_>, name: &Path, flags: OFlags) -> Result<OwnedFd> {
    // Not blocking: a fifo put there must not hold us up before we see what it is.
    let fd = below::open(parent, name, flags | OFlags::NONBLOCK)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::RegularFile => Ok(fd),
        _ => Err(denied("it is no regular file".into())),
    }
}

/// For writing if that can be; an image on a read-only or immutable place can still be read.
fn open_for_device(open: impl Fn(OFlags) -> Result<OwnedFd>, read_only: bool) -> Result<(OwnedFd, bool)> {
    if read_only {
        return Ok((open(OFlags::RDONLY)?, true));
    }
    match open(OFlags::RDWR) {
        Err(error) if matches!(error.downcast_ref(), Some(&(Errno::ROFS | Errno::PERM | Errno::ACCESS))) => {
            Ok((open(OFlags::RDONLY)?, true))
        }
        fd => Ok((fd?, false)),
    }
}

fn window(fd: BorrowedFd<'_>, region: Region) -> Result<Window> {
    match region {
        Region::Whole => Ok(Window::default()),
        Region::Offset(offset) => Ok(Window { offset, size: None }),
        Region::Partition(number) => partition::partition_window(fd, number),
    }
}

/// The kernel's ext4 serves ext2 and ext3, too.
fn identify(device: &LoopDevice) -> Result<Option<FileSystem>> {
    let Some(found) = signature::identify(device.fd(), &Window::default())? else { return Ok(None) };
    let name = match found.name() {
        "ext2" | "ext3" => "ext4",
        name => name,
    };
    match FileSystem::ALL.into_iter().find(|kind| kind.name() == name) {
        Some(kind) => Ok(Some(kind)),
        None => Err(Failure::new(
            Code::Conflict,
            format!("the image holds {}, which this driver does not mount", found.describe()),
        )
        .into()),
    }
}
