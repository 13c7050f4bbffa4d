//! Loop devices of others that are not in use and will not be detached: attached without autoclear,
//! and forgotten.

use super::{backing_name, bound_numbers, node, open_node, status};
use crate::raw::{self, LoopCall};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::OFlags;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// The devices, and the files they show, as far as `concerns` says that it may be about such a
/// file.
pub fn leaked(concerns: impl Fn(&Path) -> bool) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    for number in bound_numbers().context("list loop devices")? {
        let Some(file) = backing_name(number).map(PathBuf::from) else {
            continue;
        };
        if concerns(&file) && unused(number).is_some() {
            found.push((node(number), file));
        }
    }
    Ok(found)
}

/// Detaches a device, if it still shows that file and is not in use.
pub fn release(device: &Path, file: &Path) -> Result<()> {
    let number = device.to_str().and_then(|path| super::number_in(path.strip_prefix("/dev/")?));
    let number = number.with_context(|| format!("{} is no loop device", device.display()))?;
    let Some(held) = unused(number) else { return Ok(()) };
    // While it is held no other file can become this device's.
    let shown = backing_name(number).map(PathBuf::from);
    ensure!(shown.as_deref() == Some(file), "{} shows another file by now: look again", device.display());
    raw::loop_call(held.as_fd(), LoopCall::ClearFd, 0)
        .with_context(|| format!("let {} go", device.display()))?;
    Ok(())
}

/// The device, held alone: what is mounted in whatever namespace, or used by another device, cannot
/// be. One that the kernel clears by itself is never left.
fn unused(number: u32) -> Option<OwnedFd> {
    let fd = open_node(number, OFlags::RDONLY | OFlags::EXCL).ok()??;
    let info = status(fd.as_fd()).ok()??;
    (info.flags & super::AUTOCLEAR == 0).then_some(fd)
}
