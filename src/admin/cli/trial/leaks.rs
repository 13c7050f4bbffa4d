//! Leftovers of a trial: searched for, not assumed.

use super::LEAKS;
use super::stage::Stage;
use anyhow::{Context as _, Result, bail};
use flexvol_linux::fs::directory::Kind;
use flexvol_linux::fs::{files, listing};
use flexvol_linux::mount::mount_table;
use flexvol_linux::proc::namespace;
use flexvol_model::paths;
use flexvol_node::driver_log;
use flexvol_terminal::report::{Report, Row, RowOutcome};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Limit for the wait until leftovers are gone: a loop device disappears a moment after its last
/// mount, and a process a moment after its answer.
const SETTLE: Duration = Duration::from_secs(2);

/// Searches for all leftovers. Mounts come first, as a leftover mount hides the files below it.
pub(super) fn look(stage: &Stage, report: &mut Report<'_>) -> Result<()> {
    let root = stage.path();
    report.row(row("mounts", || mounts(root)))?;
    report.row(row("loop devices", || loop_devices(root)))?;
    report.row(row("processes", namespace::companions))?;
    let tried = drivers(report);
    report.row(row("files", || others(stage, &tried.iter().map(String::as_str).collect::<Vec<_>>())))
}

/// Returns the drivers that were tried, not skipped.
fn drivers(report: &Report<'_>) -> Vec<String> {
    let tried = report.results().filter(|(part, result)| *result != RowOutcome::Skipped && *part != LEAKS);
    let mut parts: Vec<_> = tried.map(|(part, _)| part.to_owned()).collect();
    parts.dedup();
    parts
}

/// Returns a row that succeeds if `find` finds nothing, at once or after a moment.
fn row(what: &str, find: impl Fn() -> Result<Vec<String>>) -> Row {
    Row::noted(LEAKS, what, none(find))
}

fn none(find: impl Fn() -> Result<Vec<String>>) -> Result<String> {
    let start = Instant::now();
    loop {
        match find()?.as_slice() {
            [] => return Ok("none".to_owned()),
            left if start.elapsed() > SETTLE => bail!("left behind: {}", left.join(", ")),
            _ => sleep(Duration::from_millis(20)),
        }
    }
}

fn mounts(root: &Path) -> Result<Vec<String>> {
    let entries = mount_table::below(root)?;
    Ok(entries.iter().map(|entry| format!("{} at {}", entry.file_system, entry.target.display())).collect())
}

fn loop_devices(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let all = Path::new("/sys/block");
    for name in listing::names(all).context("list block devices: is /sys mounted?")? {
        let backing = files::read_text(&all.join(&name).join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim_end()).starts_with(root) {
            found.push(format!("{} with {}", name.to_string_lossy(), backing.trim_end()));
        }
    }
    Ok(found)
}

/// Returns unexpected files on the stage, and all files except the log in flexvol's own directory
/// in /run, which was empty at the start.
fn others(stage: &Stage, drivers: &[&str]) -> Result<Vec<String>> {
    let expected = Stage::expected(drivers)?;
    let mut found = Vec::new();
    walk(stage.path(), &mut found)?;
    found.retain(|path| path.strip_prefix(stage.path()).is_ok_and(|path| !expected.contains(path)));
    let mut remembered = Vec::new();
    if Path::new(paths::RUN).exists() {
        walk(Path::new(paths::RUN), &mut remembered)?;
    }
    // The log, and its rotated part.
    let logs = driver_log::directory();
    found.extend(remembered.into_iter().filter(|path| !path.is_dir() && !path.starts_with(&logs)));
    Ok(found.iter().map(|path| path.display().to_string()).collect())
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in listing::list(directory)? {
        let path = directory.join(entry.name);
        found.push(path.clone());
        if entry.kind == Kind::Directory {
            walk(&path, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_expected_is_a_leak() {
        let stage = Stage::set().unwrap();
        // A trial starts with an empty /run, and the machine of this test may have volumes.
        let before = others(&stage, &[]).unwrap();
        assert!(before.iter().all(|path| path.starts_with(paths::RUN)), "{before:?}");
        std::fs::File::create(stage.shared().join("unexpected")).unwrap();
        let mut found = others(&stage, &[]).unwrap();
        found.retain(|path| !path.starts_with(paths::RUN));
        assert!(found.len() == 1 && found[0].ends_with("shared/unexpected"), "{found:?}");
    }

    #[test]
    fn a_mount_is_seen_and_waited_for() {
        assert!(!mounts(Path::new("/")).unwrap().is_empty());
        assert!(none(|| Ok(vec!["x".to_owned()])).unwrap_err().to_string().contains("left behind: x"));
    }
}
