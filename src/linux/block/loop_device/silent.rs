//! Loop devices over a file whose server does not answer: inspecting such a device asks the server,
//! and no signal ends that. A call for another image must not wait for it.

use super::{LoopDevice, backing_name};
use crate::mount::mount_table::Entry;
use crate::proc::process::{Ended, Worker};
use anyhow::Result;
use std::path::Path;
use std::time::Duration;

/// Limit for a server's answer about its file.
const ANSWER: Duration = Duration::from_secs(2);

/// File systems without a block device below that need no server nevertheless.
const LOCAL: &[&str] =
    &["bcachefs", "btrfs", "devtmpfs", "overlay", "ramfs", "rootfs", "shiftfs", "tmpfs", "ubifs", "zfs"];

/// Reports whether a device's file has a silent server, on another file system than `own`.
///
/// The file's name and the mount table tell where the file is, but the name may come from another
/// mount table. So the name decides only whether to ask in a separate process. A device that
/// answers is inspected like any other.
pub(super) fn is_silent(number: u32, own: u64, table: &[Entry]) -> Result<bool> {
    let Some(name) = backing_name(number) else { return Ok(false) };
    let below = |entry: &&Entry| Path::new(&name).starts_with(&entry.target);
    // Of several mounts at one place, the last one covers the others.
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
