//! Processes that use a mount: for the message of a failed unmount, never for a decision.

use crate::proc::process;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns ` by nginx (pid 123), bash (pid 7)`, or an empty text if no process is found: a process
/// in another mount namespace can use the mount unseen.
pub fn of(target: &Path) -> String {
    let users: Vec<_> = process::all().filter(|pid| uses(*pid, target)).map(describe).take(3).collect();
    if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) }
}

fn uses(pid: i32, target: &Path) -> bool {
    let base = PathBuf::from(format!("/proc/{pid}"));
    let below = |link: PathBuf| fs::read_link(link).is_ok_and(|path| path.starts_with(target));
    let files = fs::read_dir(base.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    below(base.join("cwd"))
        || below(base.join("root"))
        || below(base.join("exe"))
        || files.into_iter().any(below)
}

/// Describes a process by its name alone: its arguments may contain a secret.
pub(crate) fn describe(pid: i32) -> String {
    format!("{} (pid {pid})", process::name(pid).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        let _open = fs::File::create(&file).unwrap();
        assert!(
            of(&fs::canonicalize(dir.path()).unwrap()).contains(&format!("(pid {})", std::process::id()))
        );
        assert_eq!(of(Path::new("/nowhere")), "");
    }
}
