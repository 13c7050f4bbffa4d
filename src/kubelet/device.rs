//! Kubelet's own operations on devices, for drivers that lack the verb
//! (pkg/volume/flexvolume/*-defaults.go).
//!
//! One step is stricter than kubelet's: a device without a known signature is formatted only if
//! every byte of it is zero.

use anyhow::{Context as _, Result, ensure};
use flexvol_linux::block::window::Window;
use flexvol_linux::block::{blank, format, other_devices, signature};
use flexvol_linux::fs::opened::{self, FileType, OFlags};
use flexvol_linux::mount::place::Place;
use flexvol_linux::mount::{self, mount_table};
use flexvol_linux::mount::{BindMount, NewMount, Parameter, Value, Way};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Tools;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::file_system::FileSystem;
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::mount_options::Propagation;
use flexvol_protocol::{Access, TargetPath};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

/// Flags without restrictions: a bind mount keeps the flags of its source, and no others are added.
const ALL_ALLOWED: MountFlags = MountFlags { suid: true, dev: true, exec: true, ..MountFlags::DEFAULT };

/// Deadline for formatting, checking and growing. Kubelet sets none.
const FORMAT_WAIT: Duration = Duration::from_mins(10);

/// Binds the node's global directory to the pod's directory; read-only also if its source is.
pub fn bind(global: &TargetPath, target: &TargetPath, access: Access) -> Result<()> {
    let source = open_directory(global)?;
    let read_only = access == Access::ReadOnly || opened::is_on_read_only_mount(source.as_fd())?;
    let bind = BindMount {
        source: source.as_fd(),
        recursive: false,
        flags: MountFlags { read_only, ..ALL_ALLOWED },
        propagation: Propagation::Private,
        lift: false,
    };
    mount::bind(&bind, &place(target)?, Way::Detached).map(drop)
}

fn open_directory(path: &TargetPath) -> Result<OwnedFd> {
    let place = place(path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    opened::open_in(place.parent(), place.name(), flags).with_context(|| format!("open {path}"))
}

fn place(path: &TargetPath) -> Result<Place> {
    Place::open(path)?.with_context(|| format!("the directory above {path} is gone"))
}

/// Mounts a device on the global directory, with a new file system if the device is blank.
pub fn mount_device(device: &str, global: &TargetPath, fs_type: &str, read_only: bool) -> Result<()> {
    let (path, deadline) = (Path::new(device), Deadline::after(FORMAT_WAIT));
    let opened = open_device(path)?;
    let kind = FileSystem::parse(if fs_type.is_empty() { "ext4" } else { fs_type })?;
    match signature::identify(opened.as_fd(), &Window::default())? {
        None if read_only => {
            let text = format!("{device} holds no file system, and for reading only it is not formatted");
            return Err(Failure::new(Code::Conflict, text).into());
        }
        None => {
            blank::prove_blank(opened.as_fd(), &Window::default(), &deadline)
                .with_context(|| device.to_owned())?;
            format::make_file_system(kind, path, &[], opened.as_fd(), Tools::of_host(&deadline))?;
        }
        Some(_) => {
            other_devices::refuse(kind, opened.as_fd()).with_context(|| format!("mount {device}"))?;
            if !read_only {
                format::check_file_system(kind, path, opened.as_fd(), Tools::of_host(&deadline))?;
            }
        }
    }
    let options: Vec<_> =
        kind.safeguard().map(|(key, text)| Parameter { key, value: Value::Text(text) }).into_iter().collect();
    let new = NewMount {
        file_system: kind.name(),
        source: device,
        flags: MountFlags { read_only, ..MountFlags::DEFAULT },
        superblock_read_only: read_only,
        options: &options,
    };
    mount::mount(&new, &place(global)?, Way::Detached).map(drop)
}

fn open_device(path: &Path) -> Result<OwnedFd> {
    let what = || format!("open the device {}", path.display());
    let file = opened::open(path, OFlags::RDONLY | OFlags::NONBLOCK).with_context(what)?;
    let is_block = opened::kind_of(file.as_fd()).with_context(what)? == FileType::BlockDevice;
    ensure!(is_block, "{} is no block device: attach and waitforattach must name one", path.display());
    Ok(file)
}

/// Grows the file system at a directory to the size of its device.
pub fn grow(device: &str, target: &TargetPath) -> Result<()> {
    let path = Path::new(device);
    let opened = open_device(path)?;
    let found = signature::identify(opened.as_fd(), &Window::default())?;
    let name = found.map_or("nothing", signature::Signature::name);
    format::grow_file_system(
        FileSystem::parse(name)?,
        path,
        target.as_path(),
        Tools::of_host(&Deadline::after(FORMAT_WAIT)),
    )
}

/// Returns the other directories at which the mounted file system shows the same root. While there
/// are any, kubelet does not unmount the device.
pub fn other_mounts(global: &TargetPath) -> Result<Vec<String>> {
    let (global, table) = (place(global)?.resolved()?, mount_table::read()?);
    let Some(ours) = table.iter().rfind(|entry| entry.target == global) else { return Ok(Vec::new()) };
    let same = |entry: &&mount_table::Entry| {
        entry.device == ours.device && entry.root == ours.root && entry.target != global
    };
    Ok(table.iter().filter(same).map(|entry| entry.target.display().to_string()).collect())
}

/// Fails while the device is in use.
pub fn is_free(device: &Path) -> Result<()> {
    let is_block = device.metadata().is_ok_and(|about| about.file_type().is_block_device());
    if !is_block || opened::is_claimed(device) != Ok(true) {
        return Ok(());
    }
    let text = format!("the device {} is still open: the driver must release it", device.display());
    Err(Failure::new(Code::Busy, text).into())
}
