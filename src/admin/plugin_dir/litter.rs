//! What killed installers left in a plugin directory: hidden names, which the next installation
//! removes.

use super::install::stage;
use super::opened::{Opened, PluginDirPath};
use anyhow::Result;
use flexvol_linux::fs::directory::{Directory, Kind};
use flexvol_linux::proc::deadline::Deadline;
use std::path::Path;
use std::time::Duration;

/// The names, those inside of drivers' directories as `vendor~driver/name`; none while an installer
/// is at work.
pub fn of(plugins: &Path) -> Vec<String> {
    let Ok(Some(directory)) = Directory::open(plugins) else { return Vec::new() };
    if directory.lock(&Deadline::for_undo(Duration::ZERO)).is_err() {
        return Vec::new();
    }
    let text = |name: std::ffi::OsString| name.to_string_lossy().into_owned();
    let mut names: Vec<_> = stage::leftovers(&directory).unwrap_or_default().into_iter().map(text).collect();
    for (name, home) in homes(&directory) {
        let inside = stage::leftovers(&home).unwrap_or_default().into_iter().map(text);
        names.extend(inside.map(|inner| format!("{name}/{inner}")));
    }
    names
}

/// Removes them, under the lock.
pub fn clear(plugins: &Path) -> Result<()> {
    let place = PluginDirPath::new(plugins);
    let Some(opened) = Opened::open(&place)? else { return Ok(()) };
    let directory = opened.lock(&place)?.directory;
    stage::clean(&directory)?;
    homes(&directory).iter().try_for_each(|(_, home)| stage::clean(home))
}

/// The directories of drivers, of whoever.
fn homes(plugins: &Directory) -> Vec<(String, Directory)> {
    let names = plugins.names().unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
    let drivers = names.filter(|name| name.contains('~') && !name.starts_with('.'));
    let directories = drivers
        .filter(|name| plugins.look(name).ok().flatten().is_some_and(|entry| entry.kind == Kind::Directory));
    directories.filter_map(|name| Some((name.clone(), plugins.child_not_mounted(&name).ok()??))).collect()
}
