//! Working directory of a driver, and the path by which it is executed.

use super::ordeal::{Demand, endure, needs_sandbox};
use crate::check::evidence::{Played, Stopped};
use crate::check::subject::{KUBELET_ROOT, Subject};
use crate::sandbox::Trouble;
use flexvol_protocol::DriverName;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink as make_link;
use std::path::{Path, PathBuf};

/// Plugin directory with an unusual name.
const ODD: &str = "plug ins  of another kubelet";

/// Plugin directory with an ordinary name.
const PLAIN: &str = "other-plugins";

pub(super) fn deleted_directory(subject: &mut Subject<'_>) -> Played {
    let gone = tempfile::tempdir()?;
    let played = endure(subject, "in a directory that was removed", Demand::Works, |subject| {
        std::env::set_current_dir(gone.path())?;
        fs::remove_dir(gone.path())?;
        subject.terms.directory = None;
        Ok(())
    });
    std::env::set_current_dir("/")?;
    played
}

pub(super) fn detached_directory(subject: &mut Subject<'_>) -> Played {
    needs_sandbox(subject)?;
    let place = tempfile::tempdir()?;
    let played = endure(subject, "in a directory that no path leads to", Demand::Works, |subject| {
        let covered = subject.inside.show(place.path(), place.path())?;
        std::env::set_current_dir(place.path())?;
        drop(covered);
        subject.terms.directory = None;
        Ok(())
    });
    std::env::set_current_dir("/")?;
    played
}

pub(super) fn other_path(subject: &mut Subject<'_>) -> Played {
    needs_sandbox(subject)?;
    let elsewhere = Elsewhere::new(subject, ODD)?;
    let played = endure(subject, "in another plugin directory", Demand::Works, |subject| {
        let shown = elsewhere.show(subject)?;
        subject.executable.clone_from(&elsewhere.executable);
        Ok(shown)
    });
    elsewhere.remove()?;
    played
}

pub(super) fn symlink(subject: &mut Subject<'_>) -> Played {
    needs_sandbox(subject)?;
    let elsewhere = Elsewhere::new(subject, PLAIN)?;
    elsewhere.link(subject)?;
    let played = endure(subject, "executed through a symbolic link", Demand::Works, |subject| {
        subject.executable.clone_from(&elsewhere.executable);
        Ok(())
    });
    elsewhere.remove()?;
    played
}

/// Another plugin directory, for the driver's directory.
struct Elsewhere {
    plugins: PathBuf,
    directory: PathBuf,
    executable: PathBuf,
}

impl Elsewhere {
    /// Makes the directories.
    fn new(subject: &Subject<'_>, plugins: &str) -> Result<Self, Stopped> {
        let (here, file) = parts(&subject.given.driver)?;
        let plugins = Path::new(KUBELET_ROOT).join(plugins);
        let directory = match here.file_name().filter(|_| is_driver_directory(&subject.given.driver)) {
            Some(name) => plugins.join(name),
            None => plugins.join(file),
        };
        fs::create_dir_all(&directory)?;
        let executable = directory.join(file);
        Ok(Self { plugins, directory, executable })
    }

    /// Shows the driver's present directory at the new place, whether it is its own or not.
    fn show(&self, subject: &Subject<'_>) -> Result<Trouble, Stopped> {
        let (here, _) = parts(&subject.given.driver)?;
        Ok(subject.inside.show(here, &self.directory)?)
    }

    /// Makes a link to the driver.
    /// If its directory is a driver directory, makes a link to every other entry of it too.
    fn link(&self, subject: &Subject<'_>) -> Played {
        let driver = &subject.given.driver;
        let (here, file) = parts(driver)?;
        let mut names = vec![file.to_owned()];
        if is_driver_directory(driver) {
            let others = fs::read_dir(here)?.filter_map(|entry| Some(entry.ok()?.file_name()));
            names.extend(others.filter(|name| name != file));
        }
        Ok(names.iter().try_for_each(|name| make_link(here.join(name), self.directory.join(name)))?)
    }

    /// Removes the links, and files that the driver has put beside them.
    fn remove(&self) -> Played {
        for entry in fs::read_dir(&self.directory)? {
            fs::remove_file(entry?.path())?;
        }
        fs::remove_dir(&self.directory)?;
        Ok(fs::remove_dir(&self.plugins)?)
    }
}

/// Reports whether kubelet would find the driver where it is.
fn is_driver_directory(driver: &Path) -> bool {
    let name = driver.parent().and_then(Path::file_name).unwrap_or_default();
    DriverName::executable_in(name) == driver.file_name().unwrap_or_default()
}

fn parts(driver: &Path) -> Result<(&Path, &OsStr), Stopped> {
    let parts = driver.parent().zip(driver.file_name());
    parts.ok_or_else(|| Stopped::Skipped("the driver is in no directory".to_owned()))
}
