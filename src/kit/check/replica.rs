//! Copy of the driver and of the files beside it, for cases that replace the driver: its own
//! directory must not be changed.

use super::evidence::{Played, Stopped, skip};
use super::staging::make_directory;
use super::subject::{KUBELET_ROOT, Subject};
use flexvol_protocol::DriverName;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Limit for the size of the driver with the files beside it, in bytes: larger ones are not copied.
const LARGEST: u64 = 256 << 20;

/// Files that replace the executable, one after the other; both have the same content.
const STOCK: [&str; 2] = [".check-one", ".check-two"];

/// Name of such a file until it replaces the executable.
const NEXT: &str = ".check-next";

/// Copy in a plugin directory of the sandbox.
#[derive(Debug)]
pub(super) struct Replica {
    executable: PathBuf,
    replaced: AtomicUsize,
}

impl Subject<'_> {
    /// Plays a scene in which a copy of the driver is called instead of the driver.
    pub(super) fn with_replica(&mut self, scene: impl FnOnce(&mut Self, &Replica) -> Played) -> Played {
        let replica = Replica::of(&self.given.driver)?;
        self.executable.clone_from(&replica.executable);
        let played = scene(self, &replica);
        self.executable.clone_from(&self.given.driver);
        replica.remove()?;
        played
    }
}

impl Replica {
    fn of(driver: &PathBuf) -> Result<Self, Stopped> {
        let Some((from, name)) = driver.parent().zip(driver.file_name()) else {
            return skip("the driver is in no directory");
        };
        // Other files belong to the driver only if this is its own driver directory.
        let is_own = DriverName::executable_in(from.file_name().unwrap_or_default()) == name;
        let mut all = vec![driver.clone()];
        for entry in fs::read_dir(from)? {
            let path = entry?.path();
            if is_own && path != *driver && path.is_file() {
                all.push(path);
            }
        }
        let sizes = all.iter().filter_map(|path| fs::metadata(path).ok());
        if sizes.map(|about| about.len()).sum::<u64>() > LARGEST {
            return skip("the driver is too large to be copied");
        }
        let home = Path::new(KUBELET_ROOT).join("volumeplugins").join(from.file_name().unwrap_or(name));
        make_directory(&home)?;
        for path in &all {
            fs::copy(path, home.join(path.file_name().unwrap_or_default()))?;
        }
        let executable = home.join(name);
        for stock in STOCK {
            fs::copy(driver, home.join(stock))?;
        }
        Ok(Self { executable, replaced: AtomicUsize::new(0) })
    }

    /// Replaces the executable as an installer does: a new file takes the name of the old one.
    pub(super) fn replace(&self) -> io::Result<()> {
        let stock = STOCK[self.replaced.fetch_add(1, Ordering::Relaxed) % STOCK.len()];
        let next = self.executable.with_file_name(NEXT);
        fs::hard_link(self.executable.with_file_name(stock), &next)?;
        fs::rename(next, &self.executable)
    }

    /// Removes the copy: one directory of plain files.
    fn remove(&self) -> Played {
        let Some(home) = self.executable.parent() else { return Ok(()) };
        for entry in fs::read_dir(home)? {
            fs::remove_file(entry?.path())?;
        }
        fs::remove_dir(home)?;
        Ok(home.parent().map_or(Ok(()), fs::remove_dir)?)
    }
}
