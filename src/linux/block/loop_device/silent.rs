//! Devices over a file whose server does not answer: to look at such a device asks the server, and
//! no signal ends that. A call for another image must not wait for it.

use super::{LoopDevice, backing_name};
use crate::mount::mount_table::Entry;
use crate::proc::process::{Ended, Worker};
use anyhow::Result;
use std::path::Path;
use std::time::Duration;

/// How long a server may take to say what its file is.
const ANSWER: Duration = Duration::from_secs(2);

/// File systems without a block device below that need no server all the same.
const LOCAL: &[&str] =
    &["bcachefs", "btrfs", "devtmpfs", "overlay", "ramfs", "rootfs", "shiftfs", "tmpfs", "ubifs", "zfs"];

/// Whether a device is over a file on another file system than `own`, whose server does not answer.
///
/// Where that file is, its name and the mount table tell; the name may be from another one. So a
/// name decides only whether to ask in a process of its own, and what answers is looked at like any
/// other.
pub(super) fn is_silent(number: u32, own: u64, table: &[Entry]) -> Result<bool> {
    let Some(name) = backing_name(number) else { return Ok(false) };
    let below = |entry: &&Entry| Path::new(&name).starts_with(&entry.target);
    // The last one of those at one place covers the others.
    let Some(entry) = table.iter().filter(below).max_by_key(|entry| entry.target.components().count()) else {
        return Ok(false);
    };
    let is_local = entry.device.0 != 0 || LOCAL.contains(&entry.file_system.as_str());
    if is_local || entry.device_number() == own {
        return Ok(false);
    }
    let asked = Worker::start(|| {
        let _ = LoopDevice::open(number);
        "looked\n".to_owned()
    })?;
    Ok(!matches!(asked.wait(ANSWER), Ended::Replied(_)))
}
