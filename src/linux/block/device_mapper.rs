//! Device mapper: its devices, and settings for its programs on nodes without udev.

use crate::proc::helper::{Invocation, Tools};
use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, major, makedev, minor, mknodat, stat};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Socket of udev, if it runs.
const UDEV: &str = "/run/udev/control";

/// Returns the control device, and makes it if udev has not: opening the new node loads the
/// kernel's module.
pub fn control() -> &'static Path {
    let (directory, path) = (Path::new("/dev/mapper"), Path::new("/dev/mapper/control"));
    if !path.exists() {
        let _ = std::fs::create_dir_all(directory);
        let mode = Mode::RUSR | Mode::WUSR;
        let _ = mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(10, 236));
    }
    path
}

/// Prepares a program for a container or a small node without udev: libdevmapper would wait for
/// udev to make device nodes. With this variable, it makes them itself.
#[must_use]
pub fn without_udev(program: Invocation) -> Invocation {
    if Path::new(UDEV).exists() { program } else { program.env("DM_DISABLE_UDEV", "1") }
}

/// Returns the device of this name, if it is of this kind. The kernel has an identifier of the
/// device's maker: `kind` is its beginning and its length. Asks no disk.
pub fn find(name: &str, kind: (&str, usize)) -> Result<Option<PathBuf>> {
    let path = Path::new("/dev/mapper").join(name);
    let number = match stat(&path) {
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno).with_context(|| format!("look at {}", path.display())),
        Ok(device) => device.st_rdev,
    };
    Ok((name_of(number, kind).as_deref() == Some(name)).then_some(path))
}

/// Returns the name of the device with this number, if it is of this kind.
pub fn name_of(number: u64, (start, length): (&str, usize)) -> Option<String> {
    let about = PathBuf::from(format!("/sys/dev/block/{}:{}/dm", major(number), minor(number)));
    let says = |what: &str| std::fs::read_to_string(about.join(what)).ok();
    let identifier = says("uuid")?;
    let is_kind = identifier.trim_end().len() == length && identifier.starts_with(start);
    says("name").filter(|_| is_kind).map(|name| name.trim_end().to_owned())
}

/// Returns the encryption layer with this device number: its name, and the device below.
pub fn layer(number: u64) -> Option<(String, PathBuf)> {
    let about = PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
    let says = |what: &str| std::fs::read_to_string(about.join("dm").join(what)).ok();
    let mut below = std::fs::read_dir(about.join("slaves")).ok()?.flatten();
    let device = Path::new("/dev").join(below.next()?.file_name());
    let is_one = says("uuid")?.starts_with("CRYPT-") && below.next().is_none();
    is_one.then(|| says("name").map(|name| (name.trim_end().to_owned(), device)))?
}

/// Removes the device of this name, if it exists and is not in use: also one without a table, left
/// by a killed program, which neither /sys nor /dev shows.
pub fn remove(name: &str, tools: Tools<'_>) -> Result<()> {
    let dmsetup = |words: &[&str]| without_udev(Invocation::of("dmsetup")).args(words).args([name]);
    // Nodes without dmsetup keep a leftover.
    if !tools.has("dmsetup") || !tools.run(dmsetup(&["info", "--columns", "--noheadings"]))?.success() {
        return Ok(());
    }
    let removed = tools.run_to_success(dmsetup(&["remove", "--retry"]));
    removed.with_context(|| format!("remove device {name}")).map(drop)
}

/// Returns the end of the last mapped part of a thin volume, in bytes. Returns `None` for a device
/// that is no thin volume, has an origin outside its pool, or is not in order.
pub fn end_of_mapped(name: &str, tools: Tools<'_>) -> Option<u64> {
    let ask = |what: &str| {
        let outcome = tools.run(Invocation::of("dmsetup").args([what, name])).ok()?;
        outcome.success().then_some(outcome.output)
    };
    let table = ask("table")?;
    thin_end(&table, &ask("status")?)
}

/// Parses lines in sectors: `0 LENGTH thin POOL ID` and `0 LENGTH thin MAPPED HIGHEST`.
/// The last word is `-` if no block is mapped.
fn thin_end(table: &str, status: &str) -> Option<u64> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (table, status) = (words(table), words(status));
    let is_thin = |words: &[String]| words.len() == 5 && words[0] == "0" && words[2] == "thin";
    if !is_thin(&table) || !is_thin(&status) || table[1] != status[1] {
        return None;
    }
    match (status[3].as_str(), status[4].as_str()) {
        ("0", "-") => Some(0),
        (mapped, highest) => {
            mapped.parse::<u64>().ok()?;
            highest.parse::<u64>().ok()?.checked_add(1)?.checked_mul(512)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thin_volume_has_mapped_ends_somewhere() {
        let table = "0 4194304 thin 253:4 1\n";
        assert_eq!(thin_end(table, "0 4194304 thin 0 -\n"), Some(0));
        assert_eq!(thin_end(table, "0 4194304 thin 1024 2047\n"), Some(1 << 20));
        for (table, status) in [
            ("0 4194304 thin 253:4 1 253:9\n", "0 4194304 thin 0 -\n"),
            ("0 4194304 linear 8:1 2048\n", "0 4194304 linear \n"),
            (table, "0 4194304 thin Fail\n"),
            (table, "0 4194304 thin 8 -\n"),
            (table, "0 8388608 thin 0 -\n"),
            ("0 8 thin 253:4 1\n8 8 thin 253:4 2\n", "0 8 thin 0 -\n8 8 thin 0 -\n"),
            (table, ""),
        ] {
            assert_eq!(thin_end(table, status), None, "{table} {status}");
        }
    }
}
