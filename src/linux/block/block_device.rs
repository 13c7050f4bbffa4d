//! Data of the kernel about a block device, besides its content.

use crate::block::device_mapper;
use crate::fs::bytes::size_of;
use crate::proc::helper::Tools;
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use rustix::fs::{fstat, major, minor};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// Names of the storage itself, below the device's directory in /sys: the identifier of device
/// mapper, those of SCSI and `NVMe`, and those of RBD.
const IDENTIFIERS: [&str; 6] =
    ["dm/uuid", "wwid", "device/wwid", "device/cluster_fsid", "device/pool_id", "device/image_id"];

/// Identity by which a device is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The boot, the size, and the storage's own names, in one line.
    pub storage: String,
    /// Number that the kernel gave only to this instance of the device; empty before Linux 5.15.
    pub instance: String,
    /// Amount of data written through it since this node has it.
    pub written: String,
}

/// Returns the identity of a device.
pub fn identity(device: BorrowedFd<'_>) -> Result<Identity> {
    let size = size_of(device).context("learn the size")?;
    let about = about(device)?;
    let says = |path: PathBuf| {
        std::fs::read_to_string(path).unwrap_or_default().trim().replace(char::is_whitespace, "_")
    };
    let boot = says("/proc/sys/kernel/random/boot_id".into());
    let names = IDENTIFIERS.map(|name| says(about.join(name))).join(":");
    let statistics = std::fs::read_to_string(about.join("stat")).unwrap_or_default();
    let written = statistics.split_whitespace().nth(6).unwrap_or_default().to_owned();
    Ok(Identity { storage: format!("{boot} {size} {names}"), instance: says(about.join("diskseq")), written })
}

/// Returns the end of the last mapped part of a thin volume: parts that were never written read as
/// zero. Returns `None` for any other device.
pub fn end_of_mapped(device: BorrowedFd<'_>, tools: Tools<'_>) -> Option<u64> {
    let about = about(device).ok()?.join("dm");
    let name = std::fs::read_to_string(about.join("name")).ok()?;
    device_mapper::end_of_mapped(name.trim_end(), tools)
}

/// Reports whether a timeout is the only cause of an error.
pub fn is_late(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Failure>().is_some_and(|failure| failure.code() == Code::Timeout)
}

fn about(device: BorrowedFd<'_>) -> Result<PathBuf> {
    let number = fstat(device).context("look at the device")?.st_rdev;
    Ok(PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number))))
}

/// Returns all paths of a device that the kernel knows: programs use one of them.
pub fn nodes(device: &Path) -> Vec<PathBuf> {
    let number = number_of(device.as_os_str());
    let about = PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
    let kernel = std::fs::read_link(&about).ok();
    let kernel = kernel.as_deref().and_then(Path::file_name).map(|name| Path::new("/dev").join(name));
    let mapped = std::fs::read_to_string(about.join("dm/name")).ok();
    let mapped = mapped.map(|name| Path::new("/dev/mapper").join(name.trim_end()));
    let others = kernel.into_iter().chain(mapped);
    let is_it = |path: &PathBuf| number != 0 && number_of(path.as_os_str()) == number;
    std::iter::once(device.to_owned()).chain(others.filter(is_it)).collect()
}

/// Returns the number of the device node that a mount's source names; 0 for any other source.
pub fn number_of(source: &std::ffi::OsStr) -> u64 {
    std::fs::metadata(source).map_or(0, |node| std::os::unix::fs::MetadataExt::rdev(&node))
}
