//! A FUSE file system that nobody serves: silent as long as its device is open, dead from then on.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// Mounted until dropped.
pub(crate) struct Silent {
    device: Option<File>,
    target: PathBuf,
}

impl Silent {
    pub(crate) fn mount(target: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("silent"), target, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        Self { device: Some(device), target: target.to_owned() }
    }

    /// Its server is gone; the mount stays.
    pub(crate) fn end(&mut self) {
        self.device = None;
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.device = None;
        let _ = umount2(&self.target, MntFlags::MNT_DETACH);
    }
}
