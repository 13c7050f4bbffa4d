//! Leftovers of killed installers in a plugin directory: hidden names. The next installation
//! removes them.

use super::install::stage;
use super::opened::{Opened, PluginDirPath};
use anyhow::Result;
use flexvol_linux::fs::directory::{Directory, Kind};
use flexvol_linux::fs::files;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::process;
use std::path::Path;
use std::time::Duration;

/// Limit for the lock of an installer at its usual work.
const USUAL: Duration = Duration::from_secs(2);

/// Returns the names; in drivers' directories as `vendor~driver/name`. Empty while an installer
/// works.
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

/// Returns the process that holds the directory for longer than an installer usually does: `pid 7,
/// flexvol, running for 90 s`.
pub fn holder(plugins: &Path) -> Option<String> {
    let directory = Directory::open(plugins).ok()??;
    directory.lock(&Deadline::for_undo(USUAL)).err()?;
    let locks = files::read_text(Path::new("/proc/locks")).unwrap_or_default();
    let inode = directory.identity().ok()?.1;
    // `1: FLOCK  ADVISORY  WRITE 7 08:01:1234 0 EOF`: only the inode is compared. A lock on the
    // same inode of another device is unlikely.
    let holds = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { return None };
        let pid: i32 = pid.parse().ok().filter(|pid| *pid > 0)?;
        (file.rsplit(':').next()?.parse() == Ok(inode)).then_some(pid)
    };
    let pid = locks.lines().find_map(holds);
    Some(pid.map_or_else(
        || "another process".to_owned(),
        |pid| {
            let age = process::age(pid).unwrap_or_default().as_secs();
            format!("pid {pid}, {}, running for {age} s", process::name(pid).unwrap_or_default())
        },
    ))
}

/// Removes the leftovers, under the lock.
pub fn clear(plugins: &Path) -> Result<()> {
    let place = PluginDirPath::new(plugins);
    let Some(opened) = Opened::open(&place)? else { return Ok(()) };
    let directory = opened.lock(&place)?.directory;
    stage::clean(&directory)?;
    homes(&directory).iter().try_for_each(|(_, home)| stage::clean(home))
}

/// Returns the directories of all drivers, ours and foreign ones.
fn homes(plugins: &Directory) -> Vec<(String, Directory)> {
    let names = plugins.names().unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
    let drivers = names.filter(|name| name.contains('~') && !name.starts_with('.'));
    let directories = drivers
        .filter(|name| plugins.look(name).ok().flatten().is_some_and(|entry| entry.kind == Kind::Directory));
    directories.filter_map(|name| Some((name.clone(), plugins.child_not_mounted(&name).ok()??))).collect()
}
