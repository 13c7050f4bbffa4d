//! Block devices of Ceph by the kernel: what Documentation/ABI/testing/sysfs-bus-rbd says.
//!
//! The user's key travels through the key ring of this thread, which no one else reads and which
//! ends with it: what is written to /sys names the key, and can be read again there.

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

/// Where the kernel's rbd is, if it has one.
pub const BUS: &str = "/sys/bus/rbd";

/// No attribute is longer.
const PAGE: usize = 4096;

/// The feature that keeps two nodes from writing (`RBD_FEATURE_EXCLUSIVE_LOCK`).
const EXCLUSIVE_LOCK: u64 = 1 << 2;

/// How long the node of a new device may take to appear.
const APPEARING: Duration = Duration::from_secs(5);

/// How often it is looked for.
const TICK: Duration = Duration::from_millis(10);

/// A mapped image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    id: u32,
}

/// What is mapped: the same for two devices that show the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity([String; 4]);

/// All that are mapped, by whomever.
pub fn all() -> Result<Vec<Mapped>> {
    let names = match read_dir(Path::new(BUS).join("devices")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.context("list the devices of rbd")?,
    };
    let id = |name: io::Result<std::fs::DirEntry>| name.ok()?.file_name().to_str()?.parse().ok();
    Ok(names.filter_map(id).map(|id| Mapped { id }).collect())
}

/// The one that was mapped with the key of this name.
pub fn by_key(name: &str) -> Result<Option<Mapped>> {
    Ok(all()?.into_iter().find(|mapped| mapped.key_name().is_ok_and(|key| key.as_deref() == Some(name))))
}

/// Maps an image: `monitor` is an address with its port, `options` have no key yet.
///
/// Returns when the image can be read, or not at all while the cluster's disks do not answer; a
/// signal that ends the process ends that, too.
pub fn map(monitor: &str, options: &str, image: &Image<'_>, key: &Key<'_>) -> Result<(), Errno> {
    let name = CString::new(key.name).map_err(|_| Errno::INVAL)?;
    raw::add_thread_key(c"ceph", &name, key.bytes).map_err(|error| errno_of(&error))?;
    let snapshot = image.snapshot.unwrap_or("-");
    let words = format!("{monitor} {options},key={} {} {} {snapshot}", key.name, image.pool, image.image);
    write("add", &words)
}

/// What is mapped, in the kernel's words.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The image.
    pub image: &'a str,
    /// A snapshot of it.
    pub snapshot: Option<&'a str>,
}

/// Who maps it.
#[derive(Clone, Copy)]
pub struct Key<'a> {
    /// What the key is called, by which the device is found again.
    pub name: &'a str,
    /// The key itself, decoded.
    pub bytes: &'a [u8],
}

/// Older kernels have a major number for each device.
fn write(what: &str, words: &str) -> Result<(), Errno> {
    let open = |name: String| OpenOptions::new().write(true).open(Path::new(BUS).join(name));
    let file = match open(format!("{what}_single_major")) {
        Err(error) if error.kind() == ErrorKind::NotFound => open(what.to_owned()),
        file => file,
    };
    // At once: the kernel takes each call for a whole line.
    match file.and_then(|mut file| file.write(words.as_bytes())) {
        Ok(_) => Ok(()),
        Err(error) => Err(errno_of(&error)),
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Mapped {
    /// The device node.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/rbd{}", self.id))
    }

    /// The same, once it is there.
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

    /// The name of the key that it was mapped with.
    pub fn key_name(&self) -> Result<Option<String>> {
        Ok(key_name(&self.attribute("config_info")?).map(str::to_owned))
    }

    /// What it shows.
    pub fn identity(&self) -> Result<Identity> {
        let read = |name| self.attribute(name);
        Ok(Identity([read("cluster_fsid")?, read("pool_id")?, read("image_id")?, read("current_snap")?]))
    }

    /// Whether it was mapped by this monitor, as this image in Ceph's own spelling.
    pub fn is_of(&self, monitor: &str, spec: &str) -> Result<bool> {
        let [pool, image, snapshot] = ["pool", "name", "current_snap"].map(|name| self.attribute(name));
        // Older kernels know of no namespaces.
        let space = self.attribute("pool_ns").ok().filter(|space| !space.is_empty());
        let space = space.map(|space| format!("{space}/")).unwrap_or_default();
        let snapshot = Some(snapshot?).filter(|name| name != "-").map(|name| format!("@{name}"));
        let is = format!("{}/{space}{}{}", pool?, image?, snapshot.unwrap_or_default());
        let words = self.attribute("config_info")?;
        Ok(is == spec && words.split_whitespace().next() == Some(monitor))
    }

    /// Whether the image can be claimed for one node.
    pub fn has_exclusive_lock(&self) -> Result<bool> {
        let features = self.attribute("features")?;
        let bits = u64::from_str_radix(features.trim_start_matches("0x"), 16).context("read the features")?;
        Ok(bits & EXCLUSIVE_LOCK != 0)
    }

    /// Whether it cannot be written through.
    pub fn is_read_only(&self) -> bool {
        let path = format!("/sys/block/rbd{}/ro", self.id);
        read_small(Path::new(&path), PAGE).is_ok_and(|text| text.is_some_and(|text| text.trim() == "1"))
    }

    /// In bytes.
    pub fn size(&self) -> Result<u64> {
        self.attribute("size")?.parse().context("read the size")
    }

    /// Has the kernel look at the image again.
    pub fn refresh(&self) -> Result<()> {
        let path = Path::new(BUS).join("devices").join(self.id.to_string()).join("refresh");
        let write = || OpenOptions::new().write(true).open(&path)?.write_all(b"1");
        write().with_context(|| format!("write {}", path.display()))
    }

    /// Unmaps it; what is not there is unmapped. `BUSY` while anybody has it open.
    pub fn unmap(&self) -> Result<(), Errno> {
        match write("remove", &self.id.to_string()) {
            Err(Errno::NOENT) => Ok(()),
            unmapped => unmapped,
        }
    }
}

/// The name of the key in what was written to map a device.
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
