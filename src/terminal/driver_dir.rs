//! Plugin directory of a command that reads drivers from it.

use anyhow::{Context as _, Result};
use flexvol_kubelet::locate::{LocateRequest, locate};
use flexvol_model::drivers;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Code, Failure};
use std::path::{Path, PathBuf};

/// Returns the given directory, or else the one that kubelet reads. The path is absolute, because
/// drivers are executed in `/`.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return std::path::absolute(given).context("find the plugin directory");
    }
    let located = locate(&LocateRequest::default())?;
    let chosen: Vec<_> = located.chosen().into_iter().filter_map(|each| each.directory()).collect();
    let text = match chosen[..] {
        [one] => return Ok(one.to_owned()),
        [] => "no plugin directory is known here: name it (flexvol locate says why)".to_owned(),
        _ => {
            let all: Vec<_> = chosen.iter().map(|each| each.display().to_string()).collect();
            format!("several plugin directories are read: name one of {}", all.join(", "))
        }
    };
    Err(Failure::new(Code::NotFound, text).into())
}

/// Returns the path that kubelet executes for a driver.
pub fn executable(plugin_dir: &Path, name: &DriverName) -> Result<PathBuf> {
    let path = plugin_dir.join(name.directory()).join(name.executable());
    if path.exists() {
        return Ok(path);
    }
    let fix = match (drivers::with_vendor(name), name.vendor()) {
        (Some(meant), _) => format!("write {meant}, which is what flexvol install {name} installs"),
        (None, Some(_)) => format!("install {name}"),
        (None, None) => "write vendor/driver, as its directory vendor~driver says".to_owned(),
    };
    let text = format!("there is no {}: {fix}, or name another plugin directory", path.display());
    Err(Failure::new(Code::NotFound, text).into())
}
