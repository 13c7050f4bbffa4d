//! Leaked loop devices of other programs: not in use, and never detached because they were attached
//! without autoclear.

use super::{backing_name, bound_numbers, node, open_node, status};
use crate::raw::{self, LoopCall};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::OFlags;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// Returns the devices and the files that they show, for files that `concerns` accepts.
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

/// Detaches a device if it still shows that file and is not in use.
pub fn release(device: &Path, file: &Path) -> Result<()> {
    let number = device.to_str().and_then(|path| super::number_in(path.strip_prefix("/dev/")?));
    let number = number.with_context(|| format!("{} is no loop device", device.display()))?;
    let Some(held) = unused(number) else { return Ok(()) };
    // While the device is held, it cannot get another file.
    let shown = backing_name(number).map(PathBuf::from);
    ensure!(shown.as_deref() == Some(file), "{} shows another file by now: look again", device.display());
    raw::loop_call(held.as_fd(), LoopCall::ClearFd, 0)
        .with_context(|| format!("let {} go", device.display()))?;
    Ok(())
}

/// Opens the device exclusively, which fails if it is mounted in any namespace or used by another
/// device. Skips a device that the kernel clears itself: it is never leaked.
fn unused(number: u32) -> Option<OwnedFd> {
    let fd = open_node(number, OFlags::RDONLY | OFlags::EXCL).ok()??;
    let info = status(fd.as_fd()).ok()??;
    (info.flags & super::AUTOCLEAR == 0).then_some(fd)
}
