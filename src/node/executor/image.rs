//! Steps of image files: make, attach, grow. [`disk`](super::disk) has what is done to the file
//! system in them.
//!
//! One flock on the image file covers all steps, so that two pods that start at the same time make,
//! format and attach it once. The lock is on a descriptor of its own: the loop driver keeps its
//! descriptor open as long as the device lives, and a lock on that one would last as long.

use super::context::{Context, denied};
use super::disk::{Disk, Guard};
use super::undo::Undo;
use anyhow::{Context as _, Result};
use flexvol_linux::block::image_file::{self, Formatting};
use flexvol_linux::block::loop_device::{Backing, Inode, LoopDevice, Window};
use flexvol_linux::block::{blank, partition, signature};
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::bytes::size_of;
use flexvol_linux::fs::lock::{self, Hold};
use flexvol_linux::fs::opened::{self, FileType, OFlags};
use flexvol_linux::fs::{files, openat_beneath};
use flexvol_linux::mount::mount_table;
use flexvol_linux::proc::bare_root;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Tools;
use flexvol_model::plan::{Allocation, Ownership, Region};
use flexvol_model::policy::Allowed;
use flexvol_model::settings::Settings;
use flexvol_protocol::failure::{Code, Failure};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for a loop device without a file system to disappear.
const LETTING_GO: Duration = Duration::from_secs(2);

/// Image on its loop device.
pub(super) struct Attached {
    file: OwnedFd,
    window: Window,
    /// Part of the file that must be blank before the image is formatted.
    proof: Window,
    device: LoopDevice,
}

impl Disk for Attached {
    fn noun(&self) -> &'static str {
        "image"
    }

    fn name(&self) -> String {
        bare_root::path_of(&self.file)
            .map_or_else(|_| "the image".to_owned(), |file| format!("image {}", file.display()))
    }

    fn path(&self) -> &Path {
        self.device.path()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.device.fd()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn prove_blank(&self, _: bool, tools: Tools<'_>) -> Result<()> {
        let proven = blank::prove_blank(self.file.as_fd(), &self.proof, tools.deadline);
        if self.proof == self.window {
            return proven;
        }
        proven.context(
            "an offset, and a partition that overlaps another, is formatted only if the whole file is blank",
        )
    }

    fn formatting(&self, allowed: Duration, _: &Deadline) -> Result<Formatting> {
        formatting(self.file.as_fd(), &self.window, allowed)
    }

    fn note_formatting(&self, _: Duration) {
        image_file::note_formatting(self.file.as_fd(), &self.window);
    }

    /// Syncs first: the loop driver has written to the file, but that is on the disk only now.
    fn forget_formatting(&self) -> Result<()> {
        opened::sync(self.file.as_fd()).context("write the new file system to disk")?;
        image_file::forget_formatting(self.file.as_fd())
    }

    fn blank_again(&self) -> Result<()> {
        image_file::blank_again(self.file.as_fd(), &self.window)?;
        image_file::forget_formatting(self.file.as_fd())
    }
}

/// Returns the state of an mkfs. Fails for an image that was written after its mkfs was
/// interrupted: it is neither formatted nor mounted.
fn formatting(file: BorrowedFd<'_>, window: &Window, allowed: Duration) -> Result<Formatting> {
    match image_file::formatting(file, window, allowed)? {
        Formatting::Overwritten => Err(Failure::new(
            Code::Conflict,
            "mkfs was interrupted on this image and it was written since: if it holds data, \
             setfattr -x trusted.flexvol.formatting it, else remove it",
        )
        .into()),
        formatting => Ok(formatting),
    }
}

/// Fails unless something is mounted there. Follows symlinks on the way, as a mount there does.
pub(super) fn expect_mount(path: &Path) -> Result<()> {
    let real = path.canonicalize().with_context(|| format!("look at {}", path.display()))?;
    if mount_table::at(&real)?.is_none() {
        let text = format!("nothing is mounted at {}: mount the share there first", path.display());
        return Err(Failure::new(Code::NotFound, text).into());
    }
    Ok(())
}

impl Context<'_> {
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

    /// Makes and locks the image. Returns whether this call made it. If its size cannot be set, the
    /// new file is removed; if it cannot be locked, the file stays, because the lock's holder uses
    /// it.
    fn create_in_parent(&mut self, file: &Path, size: u64, allocation: Allocation) -> Result<bool> {
        let (parent, name) = self.image_parent(file)?;
        let open = || match opened::create_in(parent.as_fd(), &name) {
            Err(Errno::EXIST) => {
                let existing = |flags| open_image(parent.as_fd(), &name, flags);
                Ok((open_for_device(existing, false)?.0, false))
            }
            fd => Ok((fd?, true)),
        };
        let (fd, made) = self.lock_image(parent.as_fd(), &name, open)?;
        // Another call may have been faster between our making and locking it: then the image
        // belongs to that call.
        let made = made && size_of(fd.as_fd())? == 0;
        let sized = Self::size_image(fd.as_fd(), size, allocation);
        self.disk.lock = Some(Guard::File(fd));
        if sized.is_err() && made {
            opened::remove_in(parent.as_fd(), &name)?;
        }
        sized.map(|()| made)
    }

    /// Opens and locks the image, and starts over if it was removed meanwhile: a lock on a file
    /// without a name protects nothing.
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
            let locked = Inode::of(fd.as_fd())?;
            if Inode::named(parent, name).is_ok_and(|named| named == locked) {
                return Ok((fd, made));
            }
            self.deadline.check("waiting for the image to stay")?;
        }
    }

    /// Makes the admin's root, and below it the directories in the volume's name. Only root may
    /// look at other volumes.
    fn make_parent(&self, file: &Path) -> Result<Vec<PathBuf>> {
        const PRIVATE: Ownership = Ownership { mode: 0o700, uid: 0, gid: 0 };
        let Allowed { root, below } = self.settings.policy.image(file)?;
        let made = files::make_directories(&root, PRIVATE.mode);
        made.with_context(|| format!("make {}", root.display()))?;
        let above = below.parent().unwrap_or(Path::new(""));
        openat_beneath::make_directories(openat_beneath::open_root(&root)?.as_fd(), above, PRIVATE, PRIVATE)
    }

    fn remove_directories_of(&self, file: &Path, made: &[PathBuf]) -> Result<()> {
        let Allowed { root, .. } = self.settings.policy.image(file)?;
        openat_beneath::remove_directories(openat_beneath::open_root(&root)?.as_fd(), made)
    }

    /// Sets the size of a new file, or of one that a killed call left empty; any other file keeps
    /// its size.
    fn size_image(fd: BorrowedFd<'_>, size: u64, allocation: Allocation) -> Result<()> {
        if size_of(fd)? != 0 {
            return Ok(());
        }
        if allocation == Allocation::Full {
            image_file::reserve(fd, size)?;
        }
        // The size comes last: it says that the blocks are reserved.
        image_file::resize(fd, size)
    }

    pub(super) fn remove_image(&self, file: &Path, made: &[PathBuf]) -> Result<()> {
        let (parent, name) = self.image_parent(file)?;
        opened::remove_in(parent.as_fd(), &name).with_context(|| format!("remove {}", file.display()))?;
        self.remove_directories_of(file, made)
    }

    /// Returns the opened directory of the image, and the image's name in it.
    fn image_parent(&self, file: &Path) -> Result<(OwnedFd, PathBuf)> {
        let Allowed { root, below } = self.settings.policy.image(file)?;
        let name = below.file_name().context("names a directory: name a file below it")?;
        let above = below.parent().unwrap_or(Path::new(""));
        let root = openat_beneath::open_root(&root)?;
        Ok((openat_beneath::open(root.as_fd(), above, OFlags::PATH | OFlags::DIRECTORY)?, name.into()))
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
        if self.disk.lock.is_none() {
            let unlocked = || Ok((open(OFlags::RDONLY)?, false));
            self.disk.lock = Some(Guard::File(self.lock_image(parent.as_fd(), &name, unlocked)?.0));
        }
        let (fd, read_only) = open_for_device(open, read_only)?;
        let window = window(fd.as_fd(), region).with_context(|| format!("image {}", file.display()))?;
        let found = self.find_device(fd.as_fd(), &window)?;
        self.disk.in_use = found.is_some();
        let device = match found {
            Some(device) => device,
            None => LoopDevice::attach(fd.as_fd(), file, &window, read_only, direct_io)?,
        };
        let proof = proof(fd.as_fd(), region, window)?;
        self.disk.device = Some(Box::new(Attached { file: fd, window, proof, device }));
        Ok(())
    }

    /// Returns a device that already shows the image. A device without a file system is most likely
    /// being detached, by a mkfs that was killed with its call: waits for its end, so that the
    /// image can be formatted.
    fn find_device(&self, file: BorrowedFd<'_>, window: &Window) -> Result<Option<LoopDevice>> {
        let patience = Deadline::for_undo(LETTING_GO);
        loop {
            match LoopDevice::find(file, window)? {
                Some(device) if !patience.expired() && self.is_unfinished(file, window, &device)? => {
                    drop(device);
                }
                found => return Ok(found),
            }
            self.deadline.check("waiting for the image's loop device")?;
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_unfinished(&self, file: BorrowedFd<'_>, window: &Window, device: &LoopDevice) -> Result<bool> {
        let identified = signature::identify(device.fd(), &Window::default())?;
        Ok(identified.is_none()
            || formatting(file, window, self.longest_formatting())? == Formatting::Interrupted)
    }

    pub(super) fn grow_image(&mut self, size: u64, allocation: Allocation) -> Result<()> {
        let Some(Attached { file, device, .. }) = self.disk.device_as() else {
            anyhow::bail!("no image is attached: the plan lacks a step");
        };
        let file = file.as_fd();
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
}

/// Reports whether a loop device shows this image, whatever names they have.
pub(super) fn is_file(backing: &Backing, file: &Path, settings: &Settings) -> bool {
    let open = || -> Result<OwnedFd> {
        let Allowed { root, below } = settings.policy.image(file)?;
        openat_beneath::open(openat_beneath::open_root(&root)?.as_fd(), &below, OFlags::PATH)
    };
    open().and_then(|fd| Ok(Inode::of(fd.as_fd())?)).is_ok_and(|inode| inode == backing.inode)
}

fn absent(file: &Path) -> String {
    format!("image {}: a volume with option size that is mounted read-write makes it", file.display())
}

fn open_image(parent: BorrowedFd<'_>, name: &Path, flags: OFlags) -> Result<OwnedFd> {
    // Not blocking: a fifo in place of the image must not block us before its type is known.
    let fd = openat_beneath::open(parent, name, flags | OFlags::NONBLOCK)?;
    match opened::kind_of(fd.as_fd())? {
        FileType::RegularFile => Ok(fd),
        _ => Err(denied("it is no regular file".into())),
    }
}

/// Opens for writing if possible; an image in a read-only or immutable place can still be read.
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

/// Returns the part that must be blank. Blank bytes behind the data of a file system may be its
/// free space, so only a partition table tells that a window is used once.
fn proof(fd: BorrowedFd<'_>, region: Region, window: Window) -> Result<Window> {
    let is_apart = match region {
        Region::Partition(number) => !partition::overlaps_another(fd, number)?,
        Region::Whole | Region::Offset(_) => false,
    };
    Ok(if is_apart { window } else { Window::default() })
}
