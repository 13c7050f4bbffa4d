//! All loop devices over the files of some file systems, to be removed together with these.

use super::{ATTEMPTS, Backing, LoopDevice, PAUSE, bound_numbers, shows_a_served_file};
use crate::raw::{self, LoopCall};
use anyhow::{Context as _, Result};
use rustix::fs::fstat;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;

/// Returns the devices over files on the file systems of these numbers (`st_dev`), and over files
/// on those devices.
pub fn over(file_systems: &BTreeSet<u64>) -> Result<Vec<PathBuf>> {
    Ok(devices_over(file_systems)?.into_iter().map(|device| device.path).collect())
}

/// Detaches the devices of [`over`], or lets the kernel do it when their last user closes them, in
/// a limited time. The file systems must exist: otherwise their numbers may belong to others.
pub fn detach_all(file_systems: &BTreeSet<u64>) {
    detach(hold(file_systems));
}

/// Opens the devices of [`over`], to be [detached](detach): they stay the same even if their file
/// systems disappear.
pub fn hold(file_systems: &BTreeSet<u64>) -> Vec<LoopDevice> {
    devices_over(file_systems).unwrap_or_default()
}

/// Detaches devices as [`detach_all`] does.
pub fn detach(devices: Vec<LoopDevice>) {
    let mut left: Vec<_> = devices.iter().map(let_go).collect();
    drop(devices);
    for _ in 0..ATTEMPTS {
        left.retain(Shown::is_still);
        if left.is_empty() {
            return;
        }
        sleep(PAUSE);
    }
}

/// Releases the file, now or when the last user closes the device. Returns what the device showed.
fn let_go(device: &LoopDevice) -> Shown {
    let _ = raw::loop_call(device.fd(), LoopCall::ClearFd, 0);
    Shown { number: device.number, backing: device.backing, sequence: sequence_of(device.number) }
}

/// The file that a device shows, to distinguish it from a later one.
struct Shown {
    number: u32,
    backing: Backing,
    /// Counter that increases whenever the device gets another file, since Linux 5.15.
    sequence: Option<String>,
}

impl Shown {
    fn is_still(&self) -> bool {
        let device = LoopDevice::open(self.number).ok().flatten();
        device.is_some_and(|device| device.backing == self.backing)
            && sequence_of(self.number) == self.sequence
    }
}

fn sequence_of(number: u32) -> Option<String> {
    fs::read_to_string(format!("/sys/block/loop{number}/diskseq")).ok()
}

/// Returns the devices, all of them open: none gets another file before it is released.
fn devices_over(file_systems: &BTreeSet<u64>) -> Result<Vec<LoopDevice>> {
    let mut bound = Vec::new();
    for number in bound_numbers().context("list loop devices")? {
        // Their servers are not asked: they may be stopped.
        if shows_a_served_file(number) {
            continue;
        }
        // A device that cannot be inspected is not ours: we could make ours.
        if let Ok(Some(device)) = LoopDevice::open(number) {
            let own = fstat(&device.fd)?.st_rdev;
            bound.push((device, own));
        }
    }
    let (mut known, mut found) = (file_systems.clone(), Vec::new());
    // A device may be over a file on another device, which may come later in the list.
    while let Some(at) = bound.iter().position(|(device, _)| known.contains(&device.backing.inode.device)) {
        let (device, own) = bound.swap_remove(at);
        known.insert(own);
        found.push(device);
    }
    found.sort_unstable_by_key(LoopDevice::number);
    Ok(found)
}
