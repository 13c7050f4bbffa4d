//! Device mapper: which devices it has, and what its programs have to be told where udev does not run.

use super::deadline::Deadline;
use super::helper::Helper;
use anyhow::{Context, Result};
use rustix::fs::{major, minor, stat};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Where udev listens, if it runs.
const UDEV: &str = "/run/udev/control";

/// In a container and on small nodes nobody makes device nodes for libdevmapper, which would wait for them: it makes
/// them itself where this variable is set.
#[must_use]
pub fn without_udev(helper: Helper) -> Helper {
    if Path::new(UDEV).exists() { helper } else { helper.env("DM_DISABLE_UDEV", "1") }
}

/// The device of this name, if it is of this kind: the kernel knows who made it by an identifier, of which this is the start, and
/// the length. Asks no disk.
pub fn find(name: &str, (start, length): (&str, usize)) -> Result<Option<PathBuf>> {
    let path = Path::new("/dev/mapper").join(name);
    let number = match stat(&path) {
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno).with_context(|| format!("look at {}", path.display())),
        Ok(device) => device.st_rdev,
    };
    let about = format!("/sys/dev/block/{}:{}/dm", major(number), minor(number));
    let says = |what: &str| std::fs::read_to_string(Path::new(&about).join(what)).unwrap_or_default();
    let identifier = says("uuid");
    let is_kind = identifier.trim_end().len() == length && identifier.starts_with(start);
    Ok((says("name").trim_end() == name && is_kind).then_some(path))
}

/// Removes a device that nobody uses, if there is one of this name: also one that a killed program left without a table, of
/// which neither /sys nor /dev knows.
pub fn remove(name: &str, deadline: &Deadline) -> Result<()> {
    let dmsetup =
        |words: &[&str]| Helper::find("dmsetup").map(|helper| without_udev(helper).args(words).args([name]));
    // Nodes without it keep what is left.
    let Ok(asked) = dmsetup(&["info", "--columns", "--noheadings"]) else { return Ok(()) };
    if !asked.run(deadline)?.success() {
        return Ok(());
    }
    let removed = dmsetup(&["remove", "--retry"])?.run_to_success(deadline);
    removed.with_context(|| format!("remove device {name}")).map(drop)
}
