//! Loop devices: a window of a file as a block device (loop(4), linux/loop.h).
//!
//! Every device is attached with `LO_FLAGS_AUTOCLEAR`: the kernel detaches it once its last
//! descriptor and its last mount are gone. So no code has to detach it, and a process killed at any
//! point leaks none. In return, a [`LoopDevice`] must be kept until its mount exists.

mod leaked;
mod silent;
mod sweep;

pub use leaked::{leaked, release};

pub use crate::block::window::Window;
use crate::fs::bytes::size_of;
use crate::mount::mount_table;
use crate::raw::{self, LoopCall, LoopConfig, LoopInfo};
use anyhow::{Context, Result, bail};
use flexvol_protocol::failure::{Code, Failure};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, major, makedev, open, statat};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
pub use sweep::{detach, detach_all, hold, over};

const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;

/// Major number of loop devices (Documentation/admin-guide/devices.txt).
const MAJOR: u32 = 7;

/// Limit for attempts to get a free device before other processes, and to wait for udev to make a
/// node; and the pause between two.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Identity of a file, whatever its names are: two open files are the same if these are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl Inode {
    /// Returns the identity of an open file.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = fstat(file)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns the identity of a name in a directory, without following a symlink.
    pub fn named(directory: BorrowedFd<'_>, name: &Path) -> io::Result<Self> {
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// File and window that a loop device shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The file.
    pub inode: Inode,
    /// The part of the file.
    pub window: Window,
}

/// An attached loop device, held by an open descriptor: as long as this exists, the device cannot
/// get another file.
#[derive(Debug)]
pub struct LoopDevice {
    fd: OwnedFd,
    path: PathBuf,
    number: u32,
    backing: Backing,
    read_only: bool,
}

impl LoopDevice {
    /// Attaches `window` of `file` to a free loop device.
    ///
    /// `file` must be open for writing unless `read_only`.
    /// `file_name` is only for the output of losetup(8). `direct_io` avoids caching everything
    /// twice; if the file system below does not support it, the device works without it.
    ///
    /// Fails with `BadOptions` if the window is not within the file, with `ToolMissing` if the
    /// kernel has no loop devices, and with `Busy` if other processes take every free one first.
    pub fn attach(
        file: BorrowedFd<'_>,
        file_name: &Path,
        window: &Window,
        read_only: bool,
        direct_io: bool,
    ) -> Result<Self> {
        let action = || format!("attach {} to a loop device", file_name.display());
        let device = size_of(file)
            .map_err(anyhow::Error::from)
            .and_then(|total| Ok(window.sectors_within(total)?))
            .and_then(|_| attach_free(file, &info(file_name, window, read_only)))
            .with_context(action)?;
        if device.read_only && !read_only {
            bail!("{}: the file is not open for writing", action());
        }
        if direct_io {
            device.set_direct_io(true).with_context(action)?;
        }
        Ok(device)
    }

    /// Returns a device that already shows this window of this file, whichever process attached it
    /// and however it specified the window.
    ///
    /// The comparison is by inode, while the device is open: the device cannot disappear
    /// afterwards, and its `lo_file_name` does not matter. The caller checks
    /// [`LoopDevice::is_read_only`]. A device of another program may lack autoclear; it is not
    /// changed.
    ///
    /// Fails with `Busy` if a device shows a part of the window or more than it: both devices would
    /// cache the same bytes separately, and two file systems on them would destroy each other.
    pub fn find(file: BorrowedFd<'_>, window: &Window) -> Result<Option<Self>> {
        Self::find_among(file, window, |name| !name.contains(SERVED))
    }

    /// Does the same for a file that a daemon of ours serves at a path of its own.
    pub fn find_served(file: BorrowedFd<'_>, path: &str) -> Result<Option<Self>> {
        Self::find_among(file, &Window::default(), |name| name.ends_with(path))
    }

    /// Searches the devices whose file has such a name in the kernel. Inspecting a device asks the
    /// server of its file, which may not answer, and may not even be on this node.
    fn find_among(
        file: BorrowedFd<'_>,
        window: &Window,
        is_candidate: impl Fn(&str) -> bool,
    ) -> Result<Option<Self>> {
        let inode = Inode::of(file).context("stat a file")?;
        let total = size_of(file).context("learn the size")?;
        let wanted = window.within(total)?;
        let mut overlapping = None;
        let mut numbers = bound_numbers().context("list loop devices")?;
        numbers.retain(|number| backing_name(*number).is_none_or(|name| is_candidate(&name)));
        let table = if numbers.is_empty() { Vec::new() } else { mount_table::read()? };
        for number in numbers {
            if silent::is_silent(number, inode.device, &table)? {
                continue;
            }
            let opened = match Self::open(number) {
                // The server of its file is gone. Ours was just inspected, so it is another file.
                Err(error) if error.downcast_ref().is_some_and(is_of_the_dead) => continue,
                opened => opened.with_context(|| format!("look at /dev/loop{number}"))?,
            };
            let Some(device) = opened else { continue };
            if device.backing.inode != inode {
                continue;
            }
            match device.backing.window.within(total) {
                Ok(shown) if shown == wanted => return device.writable().map(Some),
                Ok((start, size)) if start < wanted.0 + wanted.1 && wanted.0 < start + size => {
                    overlapping = Some(device.path);
                }
                _ => {}
            }
        }
        match overlapping {
            None => Ok(None),
            Some(path) => Err(Failure::new(
                Code::Busy,
                format!("{} shows another part of the image that overlaps: use one partition or offset in all volumes of the file", path.display()),
            )
            .into()),
        }
    }

    /// Returns the device node, `/dev/loop3`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open device, writable unless [`LoopDevice::is_read_only`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the 3 of `/dev/loop3`.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Reports whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the identity of its file.
    pub fn backing_inode(&self) -> Inode {
        self.backing.inode
    }

    /// Returns the capacity in bytes, as the kernel sees it now.
    pub fn size(&self) -> io::Result<u64> {
        size_of(self.fd())
    }

    /// Makes the kernel read the file's length again, after the file grew (`LOOP_SET_CAPACITY`).
    pub fn refresh_capacity(&self) -> Result<()> {
        raw::loop_call(self.fd(), LoopCall::SetCapacity, 0)
            .with_context(|| format!("refresh the size of {}", self.path.display()))
            .map(drop)
    }

    /// Switches direct I/O on or off. Returns false if the device does not follow: the file system
    /// below may not support it, or the offset may not fit its blocks.
    pub fn set_direct_io(&self, on: bool) -> Result<bool> {
        match raw::loop_call(self.fd(), LoopCall::SetDirectIo, on.into()) {
            Ok(_) => Ok(true),
            Err(error) if is(&error, &[Errno::INVAL, Errno::NOTTY, Errno::OPNOTSUPP]) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("set direct I/O of {}", self.path.display())),
        }
    }

    /// Opens an attached device, for reading only: closing a writable descriptor makes udev probe
    /// the device again. Returns `None` if it is gone or has no file, or if the server of its file
    /// is gone: a file that the caller has open still has its server.
    fn open(number: u32) -> Result<Option<Self>> {
        let Some(fd) = open_node(number, OFlags::RDONLY)? else { return Ok(None) };
        let info = match status(fd.as_fd()) {
            Err(error) if error.downcast_ref().is_some_and(is_of_no_server) => return Ok(None),
            info => info?,
        };
        let Some(info) = info else { return Ok(None) };
        Ok(Some(Self::new(number, &info, info.flags & READ_ONLY != 0, fd)))
    }

    /// Opens the same device for writing, if possible.
    fn writable(self) -> Result<Self> {
        if self.read_only {
            return Ok(self);
        }
        Ok(match open_node(self.number, OFlags::RDWR)? {
            Some(fd) => Self { fd, ..self },
            None => Self { read_only: true, ..self },
        })
    }

    fn new(number: u32, info: &LoopInfo, read_only: bool, fd: OwnedFd) -> Self {
        let backing = backing(info);
        Self { fd, path: node(number), number, backing, read_only }
    }
}

/// Returns the file and window of a loop device; `None` if it is no loop device or has no file.
/// `device` is the `st_dev` of a file in it, or the `st_rdev` of its node. This tells whether the
/// mount on a target is a certain image.
pub fn backing_of(device: u64) -> Result<Option<Backing>> {
    if major(device) != MAJOR {
        return Ok(None);
    }
    // The minor is the number only if the module's max_part is 0: sysfs always knows.
    let link = format!("/sys/dev/block/{MAJOR}:{}", rustix::fs::minor(device));
    let target = match fs::read_link(&link) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        target => target.with_context(|| format!("read {link}"))?,
    };
    let Some(number) = target.file_name().and_then(|name| number_in(name.to_str()?)) else { return Ok(None) };
    let device = LoopDevice::open(number).with_context(|| format!("look at /dev/loop{number}"))?;
    Ok(device.map(|device| device.backing))
}

fn info(file_name: &Path, window: &Window, read_only: bool) -> LoopInfo {
    let mut info = LoopInfo {
        offset: window.offset,
        size_limit: window.size.unwrap_or(0),
        flags: AUTOCLEAR | if read_only { READ_ONLY } else { 0 },
        ..LoopInfo::EMPTY
    };
    // One byte less than the field has: the text ends with a zero.
    let room = info.file_name.len() - 1;
    let text = file_name.as_os_str().as_bytes();
    let length = text.len().min(room);
    info.file_name[..length].copy_from_slice(&text[..length]);
    info
}

fn backing(info: &LoopInfo) -> Backing {
    // The kernel's new_encode_dev(): 12 bits major in the middle, the minor's high bits above
    // (linux/kdev_t.h).
    let [major, minor] =
        [(info.device >> 8) & 0xfff, (info.device & 0xff) | ((info.device >> 12) & 0xf_ff00)]
            .map(|part| u32::try_from(part).unwrap_or(u32::MAX));
    let window = Window { offset: info.offset, size: Some(info.size_limit).filter(|size| *size > 0) };
    Backing { inode: Inode { device: makedev(major, minor), inode: info.inode }, window }
}

fn attach_free(file: BorrowedFd<'_>, info: &LoopInfo) -> Result<LoopDevice> {
    let control = open_control()?;
    let mode = if info.flags & READ_ONLY == 0 { OFlags::RDWR } else { OFlags::RDONLY };
    let mut missing = None;
    for _ in 0..ATTEMPTS {
        let number = free_number(control.as_fd())?;
        let Some(fd) = open_node(number, mode)? else {
            missing = Some(number);
            sleep(PAUSE);
            continue;
        };
        missing = None;
        match configure(fd.as_fd(), file, info) {
            Ok(()) => return taken(number, fd),
            // Another process took it between the two calls, or is probing it.
            Err(error) if is(&error, &[Errno::BUSY, Errno::AGAIN, Errno::NXIO]) => sleep(PAUSE),
            Err(error) => return Err(error).with_context(|| format!("configure /dev/loop{number}")),
        }
    }
    Err(no_device(missing).into())
}

fn no_device(missing: Option<u32>) -> Failure {
    match missing {
        Some(number) => Failure::new(
            Code::ToolMissing,
            format!(
                "/dev/loop{number} is missing: mknod it (b {MAJOR} {number}) or give the container the host's /dev"
            ),
        ),
        None => Failure::new(Code::Busy, "other processes took every free loop device first: try again"),
    }
}

fn taken(number: u32, fd: OwnedFd) -> Result<LoopDevice> {
    let info =
        status(fd.as_fd())?.with_context(|| format!("/dev/loop{number} was detached by someone else"))?;
    Ok(LoopDevice::new(number, &info, info.flags & READ_ONLY != 0, fd))
}

fn open_control() -> Result<OwnedFd> {
    match open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Err(Failure::new(
            Code::ToolMissing,
            "no /dev/loop-control: load the kernel module loop, or give the container the host's /dev",
        )
        .into()),
        control => control.context("open /dev/loop-control"),
    }
}

fn free_number(control: BorrowedFd<'_>) -> Result<u32> {
    let number = raw::loop_call(control, LoopCall::GetFree, 0).context("ask for a free loop device")?;
    u32::try_from(number).context("number of a loop device")
}

fn configure(device: BorrowedFd<'_>, file: BorrowedFd<'_>, info: &LoopInfo) -> io::Result<()> {
    let fd = file.as_raw_fd().cast_unsigned();
    match raw::loop_configure(device, &LoopConfig { fd, block_size: 0, info: *info, reserved: [0; 8] }) {
        // Kernels before 5.8 do not know the call. From a newer kernel, this may be a real error:
        // then the old calls fail in the same way.
        Err(error) if is(&error, &[Errno::INVAL, Errno::NOTTY, Errno::NOSYS]) => {
            configure_in_two_steps(device, file, info)
        }
        result => result,
    }
}

/// For kernels before 5.8: between the steps, the device shows the whole file and lacks autoclear.
fn configure_in_two_steps(device: BorrowedFd<'_>, file: BorrowedFd<'_>, info: &LoopInfo) -> io::Result<()> {
    let fd = usize::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?;
    raw::loop_call(device, LoopCall::SetFd, fd)?;
    let result = set_status(device, info);
    if result.is_err() {
        // If this fails, too, nothing more can be done; the first error is the one to report.
        let _ = raw::loop_call(device, LoopCall::ClearFd, 0);
    }
    result
}

/// Sets the window and flags.
/// Old kernels return `EAGAIN` while a foreign probe has pages in the cache.
fn set_status(device: BorrowedFd<'_>, info: &LoopInfo) -> io::Result<()> {
    for _ in 1..ATTEMPTS {
        match raw::loop_set_status(device, info) {
            Err(error) if is(&error, &[Errno::AGAIN]) => sleep(PAUSE),
            result => return result,
        }
    }
    raw::loop_set_status(device, info)
}

/// Returns the state of a device; `None` if it has no file.
fn status(device: BorrowedFd<'_>) -> Result<Option<LoopInfo>> {
    match raw::loop_status(device) {
        Ok(info) => Ok(Some(info)),
        Err(error) if is(&error, &[Errno::NXIO, Errno::NODEV]) => Ok(None),
        Err(error) => Err(error).context("read the state of a loop device"),
    }
}

/// Reports whether the kernel cannot identify the file because its server is gone.
fn is_of_no_server(error: &io::Error) -> bool {
    is(error, &[Errno::NOTCONN, Errno::CONNABORTED, Errno::STALE])
}

fn node(number: u32) -> PathBuf {
    format!("/dev/loop{number}").into()
}

/// Opens a node; `None` if it or its device does not exist, or if a writable open is refused.
fn open_node(number: u32, mode: OFlags) -> Result<Option<OwnedFd>> {
    let path = node(number);
    let fd = match open(&path, mode | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => return Ok(None),
        // The kernel may forbid writing to a mounted device.
        Err(Errno::ACCESS | Errno::ROFS | Errno::BUSY) if mode.contains(OFlags::RDWR) => return Ok(None),
        fd => fd.with_context(|| format!("open {}", path.display()))?,
    };
    let stat = fstat(&fd).with_context(|| format!("stat {}", path.display()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice || major(stat.st_rdev) != MAJOR {
        bail!("{} is not a loop device: remove it and mknod it (b {MAJOR} {number})", path.display());
    }
    Ok(Some(fd))
}

/// Beginning of the paths at which our daemons serve files for loop devices, in their own mount
/// namespaces.
pub const SERVED: &str = "/var/flexvol.content";

/// Reports whether a device shows a file that a daemon of ours serves at a path of its own.
/// Asks only the kernel.
pub fn shows(path: &str) -> Result<bool> {
    let mut numbers = bound_numbers().context("list loop devices")?.into_iter();
    Ok(numbers.any(|number| backing_name(number).is_some_and(|name| name.ends_with(path))))
}

fn shows_a_served_file(number: u32) -> bool {
    backing_name(number).is_some_and(|path| path.contains(SERVED))
}

/// Returns the name of the file that it shows, from the kernel: no server is asked.
fn backing_name(number: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    Some(name.trim_end_matches('\n').to_owned())
}

/// Returns the devices with a file: only they have a directory `loop` in sysfs.
fn bound_numbers() -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // Not `exists`, which returns false for every error: an overlooked device would be made a
        // second time.
        if entry.path().join("loop").try_exists()? {
            numbers.extend(entry.file_name().to_str().and_then(number_in));
        }
    }
    Ok(numbers)
}

/// Returns the 3 of `loop3`; `None` for `loop3p1`, which is a partition.
fn number_in(name: &str) -> Option<u32> {
    name.strip_prefix("loop")?.parse().ok()
}

fn is_of_the_dead(error: &io::Error) -> bool {
    is(error, &[Errno::NOTCONN, Errno::STALE])
}

fn is(error: &io::Error, errnos: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| errnos.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::to_failure;
    use crate::wording::wording_of;
    use std::fs::File;
    use std::io::{Seek, SeekFrom, Write};
    use std::time::Instant;

    const MEBIBYTE: u64 = 1 << 20;

    fn image(size: u64) -> Option<File> {
        if !nix::unistd::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            println!("SKIP loop device tests: need root and /dev/loop-control");
            return None;
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        Some(file)
    }

    fn attach(file: &File, window: &Window, read_only: bool) -> LoopDevice {
        LoopDevice::attach(file.as_fd(), Path::new("/srv/test.img"), window, read_only, true).unwrap()
    }

    fn bound(number: u32) -> bool {
        Path::new(&format!("/sys/block/loop{number}/loop/backing_file")).exists()
    }

    fn shows(number: u32, inode: Inode) -> bool {
        LoopDevice::open(number).unwrap().is_some_and(|device| device.backing_inode() == inode)
    }

    #[test]
    fn attaches_a_window_and_detaches_by_itself() {
        let Some(mut file) = image(4 * MEBIBYTE) else { return };
        file.seek(SeekFrom::Start(MEBIBYTE)).unwrap();
        file.write_all(b"here").unwrap();
        let window = Window { offset: MEBIBYTE, size: Some(MEBIBYTE) };
        let device = attach(&file, &window, false);
        let inode = Inode::of(file.as_fd()).unwrap();
        let mut head = [0; 4];
        crate::fs::bytes::read_at(device.fd(), 0, &mut head).unwrap();
        assert_eq!((&head, device.size().unwrap(), device.is_read_only()), (b"here", MEBIBYTE, false));
        assert_eq!(device.path(), Path::new(&format!("/dev/loop{}", device.number())));
        assert_eq!(device.backing_inode(), inode);
        let number = device.number();
        assert!(bound(number));
        drop(device);
        let start = Instant::now();
        while shows(number, inode) {
            assert!(start.elapsed() < crate::pace::deadline(30), "loop{number} leaked");
            sleep(PAUSE);
        }
    }

    #[test]
    fn finds_by_inode_and_window() {
        let Some(file) = image(4 * MEBIBYTE) else { return };
        let window = Window { offset: MEBIBYTE, size: None };
        assert!(LoopDevice::find(file.as_fd(), &window).unwrap().is_none());
        let device = attach(&file, &window, false);
        let found = LoopDevice::find(file.as_fd(), &window).unwrap().unwrap();
        assert_eq!((found.number(), found.is_read_only()), (device.number(), false));
        let named_otherwise = Window { offset: MEBIBYTE, size: Some(3 * MEBIBYTE) };
        assert_eq!(
            LoopDevice::find(file.as_fd(), &named_otherwise).unwrap().unwrap().number(),
            device.number()
        );
        let beside = Window { offset: 0, size: Some(MEBIBYTE) };
        assert!(LoopDevice::find(file.as_fd(), &beside).unwrap().is_none());
        for overlapping in [Window::default(), Window { offset: 2 * MEBIBYTE, size: None }] {
            let error = LoopDevice::find(file.as_fd(), &overlapping).unwrap_err();
            assert_eq!(to_failure(error).code(), Code::Busy);
        }
        let other = image(4 * MEBIBYTE).unwrap();
        assert!(LoopDevice::find(other.as_fd(), &window).unwrap().is_none());
        let number = fstat(device.fd()).unwrap().st_rdev;
        let backing = Backing { inode: Inode::of(file.as_fd()).unwrap(), window };
        assert_eq!(backing_of(number).unwrap(), Some(backing));
        assert_eq!(backing_of(makedev(8, 0)).unwrap(), None);
        assert_eq!(backing_of(makedev(7, 0xf_fff0)).unwrap(), None);
    }

    #[test]
    fn read_only_is_read_only() {
        let Some(file) = image(MEBIBYTE) else { return };
        let device = attach(&file, &Window::default(), true);
        assert!(device.is_read_only());
        assert!(LoopDevice::find(file.as_fd(), &Window::default()).unwrap().unwrap().is_read_only());
        let reader = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let error = LoopDevice::attach(reader.as_fd(), Path::new("/x"), &Window::default(), false, false);
        assert_eq!(format!("{:#}", error.unwrap_err()), wording_of("file-read-only", ["/x"]));
    }

    #[test]
    fn grows_with_the_file() {
        let Some(file) = image(MEBIBYTE) else { return };
        let device = attach(&file, &Window::default(), false);
        file.set_len(3 * MEBIBYTE).unwrap();
        assert_eq!(device.size().unwrap(), MEBIBYTE);
        device.refresh_capacity().unwrap();
        assert_eq!(device.size().unwrap(), 3 * MEBIBYTE);
    }

    #[test]
    fn old_kernels_need_two_steps() {
        let Some(file) = image(2 * MEBIBYTE) else { return };
        let control = open_control().unwrap();
        let window = Window { offset: MEBIBYTE, size: Some(512) };
        for _ in 0..ATTEMPTS {
            let number = free_number(control.as_fd()).unwrap();
            let Some(fd) = open_node(number, OFlags::RDWR).unwrap() else { continue };
            match configure_in_two_steps(fd.as_fd(), file.as_fd(), &info(Path::new("/x"), &window, false)) {
                Err(error) if is(&error, &[Errno::BUSY]) => continue,
                result => result.unwrap(),
            }
            let info = status(fd.as_fd()).unwrap().unwrap();
            assert_eq!(info.flags & AUTOCLEAR, AUTOCLEAR);
            assert_eq!(taken(number, fd).unwrap().size().unwrap(), 512);
            return;
        }
        panic!("no free device");
    }

    #[test]
    fn many_at_once_each_get_their_own() {
        let Some(first) = image(MEBIBYTE) else { return };
        let files: Vec<_> = (0..12).map(|_| image(MEBIBYTE).unwrap()).chain([first]).collect();
        let devices: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                files.iter().map(|file| scope.spawn(|| attach(file, &Window::default(), false))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (file, device) in files.iter().zip(&devices) {
            assert_eq!(Inode::of(file.as_fd()).unwrap(), device.backing_inode());
        }
    }

    #[test]
    fn refuses_windows_outside_the_file() {
        let Some(file) = image(MEBIBYTE) else { return };
        for (offset, size) in [(2 * MEBIBYTE, None), (0, Some(2 * MEBIBYTE)), (100, None), (0, Some(0))] {
            let window = Window { offset, size };
            let error = LoopDevice::attach(file.as_fd(), Path::new("/x"), &window, false, false).unwrap_err();
            assert_eq!(to_failure(error).code(), Code::BadOptions, "{window:?}");
        }
    }
}
