//! Block devices of Ceph through the kernel, as in Documentation/ABI/testing/sysfs-bus-rbd.
//!
//! The user's key is passed in the key ring of this thread, which no other process reads and which
//! ends with the thread. The text for /sys can be read again, so it only names the key.

use crate::fs::files::read_small;
use crate::proc::deadline::Deadline;
use crate::raw;
use anyhow::{Context, Result};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::{OpenOptions, read_dir};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Directory of the kernel's rbd, if it has one.
pub const BUS: &str = "/sys/bus/rbd";

/// Limit for an attribute, in bytes.
const PAGE: usize = 4096;

/// Feature that prevents two nodes from writing (`RBD_FEATURE_EXCLUSIVE_LOCK`).
const EXCLUSIVE_LOCK: u64 = 1 << 2;

/// Limit for the time until the node of a new device appears.
const APPEARING: Duration = Duration::from_secs(5);

/// Pause between two checks for it.
const TICK: Duration = Duration::from_millis(10);

/// A mapped image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    id: u32,
}

/// Identity of a mapped image: equal for two devices that show the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity([String; 4]);

/// Returns all mapped images, whichever program mapped them.
pub fn all() -> Result<Vec<Mapped>> {
    let names = match read_dir(Path::new(BUS).join("devices")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.context("list the devices of rbd")?,
    };
    let id = |name: io::Result<std::fs::DirEntry>| name.ok()?.file_name().to_str()?.parse().ok();
    Ok(names.filter_map(id).map(|id| Mapped { id }).collect())
}

/// Returns the image that was mapped with the key of this name.
pub fn by_key(name: &str) -> Result<Option<Mapped>> {
    Ok(all()?.into_iter().find(|mapped| mapped.key_name().is_ok_and(|key| key.as_deref() == Some(name))))
}

/// Maps an image. `monitor` is an address with its port, `options` contain no key yet.
///
/// Returns once the image can be read, and never while the cluster's disks do not answer.
/// A signal that ends the process ends that, too.
pub fn map(monitor: &str, options: &str, image: &Image<'_>, key: &Key<'_>) -> Result<(), Errno> {
    let name = CString::new(key.name).map_err(|_| Errno::INVAL)?;
    raw::add_thread_key(c"ceph", &name, key.bytes).map_err(|error| errno_of(&error))?;
    let snapshot = image.snapshot.unwrap_or("-");
    let words = format!("{monitor} {options},key={} {} {} {snapshot}", key.name, image.pool, image.image);
    write("add", &words)
}

/// Image to map, in the kernel's terms.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The image.
    pub image: &'a str,
    /// A snapshot of it.
    pub snapshot: Option<&'a str>,
}

/// Key for mapping.
#[derive(Clone, Copy)]
pub struct Key<'a> {
    /// Name of the key, by which the device is found again.
    pub name: &'a str,
    /// The key itself, decoded.
    pub bytes: &'a [u8],
}

/// Writes to a file of the bus. Older kernels have a major number for each device.
fn write(what: &str, words: &str) -> Result<(), Errno> {
    let open = |name: String| OpenOptions::new().write(true).open(Path::new(BUS).join(name));
    let file = match open(format!("{what}_single_major")) {
        Err(error) if error.kind() == ErrorKind::NotFound => open(what.to_owned()),
        file => file,
    };
    // In one write: the kernel takes each call for a whole line.
    match file.and_then(|mut file| file.write(words.as_bytes())) {
        Ok(_) => Ok(()),
        Err(error) => Err(errno_of(&error)),
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Mapped {
    /// Returns the device node.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/rbd{}", self.id))
    }

    /// Waits until the device node exists, and returns it.
    pub fn wait(&self, deadline: &Deadline) -> Result<PathBuf> {
        let (path, patience) = (self.path(), Deadline::after(APPEARING.min(deadline.remaining())));
        while !path.exists() {
            patience.check(&format!("waiting for {}, which devtmpfs or udev makes", path.display()))?;
            std::thread::sleep(TICK);
        }
        Ok(path)
    }

    fn attribute(&self, name: &str) -> Result<String> {
        let path = Path::new(BUS).join("devices").join(self.id.to_string()).join(name);
        let text = read_small(&path, PAGE)?.with_context(|| format!("{} is gone", path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// Returns the name of the key that it was mapped with.
    pub fn key_name(&self) -> Result<Option<String>> {
        Ok(key_name(&self.attribute("config_info")?).map(str::to_owned))
    }

    /// Returns the identity of its image.
    pub fn identity(&self) -> Result<Identity> {
        let read = |name| self.attribute(name);
        Ok(Identity([read("cluster_fsid")?, read("pool_id")?, read("image_id")?, read("current_snap")?]))
    }

    /// Reports whether it was mapped through this monitor, as this image in Ceph's own spelling.
    pub fn is_of(&self, monitor: &str, spec: &str) -> Result<bool> {
        let [pool, image, snapshot] = ["pool", "name", "current_snap"].map(|name| self.attribute(name));
        // Older kernels do not know namespaces.
        let space = self.attribute("pool_ns").ok().filter(|space| !space.is_empty());
        let space = space.map(|space| format!("{space}/")).unwrap_or_default();
        let snapshot = Some(snapshot?).filter(|name| name != "-").map(|name| format!("@{name}"));
        let is = format!("{}/{space}{}{}", pool?, image?, snapshot.unwrap_or_default());
        let words = self.attribute("config_info")?;
        Ok(is == spec && words.split_whitespace().next() == Some(monitor))
    }

    /// Reports whether the image can be locked for one node.
    pub fn has_exclusive_lock(&self) -> Result<bool> {
        let features = self.attribute("features")?;
        let bits = u64::from_str_radix(features.trim_start_matches("0x"), 16).context("read the features")?;
        Ok(bits & EXCLUSIVE_LOCK != 0)
    }

    /// Reports whether writes to it are refused.
    pub fn is_read_only(&self) -> bool {
        let path = format!("/sys/block/rbd{}/ro", self.id);
        read_small(Path::new(&path), PAGE).is_ok_and(|text| text.is_some_and(|text| text.trim() == "1"))
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> Result<u64> {
        self.attribute("size")?.parse().context("read the size")
    }

    /// Makes the kernel inspect the image again.
    pub fn refresh(&self) -> Result<()> {
        let path = Path::new(BUS).join("devices").join(self.id.to_string()).join("refresh");
        let write = || OpenOptions::new().write(true).open(&path)?.write_all(b"1");
        write().with_context(|| format!("write {}", path.display()))
    }

    /// Unmaps it. Succeeds if it does not exist; fails with `BUSY` while any process has it open.
    pub fn unmap(&self) -> Result<(), Errno> {
        match write("remove", &self.id.to_string()) {
            Err(Errno::NOENT) => Ok(()),
            unmapped => unmapped,
        }
    }
}

/// Returns the name of the key in the text that was written to map a device.
fn key_name(words: &str) -> Option<&str> {
    words.split_whitespace().nth(1)?.split(',').find_map(|option| option.strip_prefix("key="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_key() {
        let words = "10.0.0.1:6789 name=key=x,ro,key=flexvol-a pool image -";
        assert_eq!(key_name(words), Some("flexvol-a"));
        assert_eq!(key_name("10.0.0.1:6789 name=a,secret=key=flexvol-a pool key=flexvol-a -"), None);
        assert_eq!(key_name(""), None);
    }
}
