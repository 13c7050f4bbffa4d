//! The plugin directory of a command that reads drivers from it.

use crate::failure::{Code, Failure};
use crate::plugin_dir::locate::{Request, locate};
use crate::protocol::DriverName;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};

/// The directory that was given, or else the one kubelet reads. Absolute: drivers are executed in `/`.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return std::path::absolute(given).context("find the plugin directory");
    }
    let located = locate(&Request::default())?;
    let chosen = located.chosen();
    let directory = chosen.first().and_then(|candidate| candidate.directory());
    directory.map(Path::to_owned).ok_or_else(|| {
        let text = "no plugin directory is known here: name it (flexvol locate says why)";
        Failure::new(Code::NotFound, text).into()
    })
}

/// What kubelet executes for a driver.
pub(super) fn executable(plugin_dir: &Path, name: &DriverName) -> Result<PathBuf> {
    let path = plugin_dir.join(name.directory()).join(name.executable());
    if path.exists() {
        return Ok(path);
    }
    let text = format!("there is no {}: install {name}, or name another plugin directory", path.display());
    Err(Failure::new(Code::NotFound, text).into())
}
