//! Text and JSON about the drivers that kubelet loads from a plugin directory, or fails to load.

use super::capabilities;
use flexvol_kubelet::scan::{Failed, Loaded};
use flexvol_protocol::text::one_line;
use serde_json::{Value, json};
use std::ffi::OsStr;

/// Makes a name on disk, which may contain anything, safe for a terminal.
pub fn plain(name: &OsStr) -> String {
    printable(&name.to_string_lossy())
}

/// Makes text that contains such names safe for a terminal.
pub fn printable(text: &str) -> String {
    one_line(text, usize::MAX)
}

/// Returns what a loaded driver can do, in one line.
pub fn in_service(loaded: &Loaded) -> String {
    capabilities::names(loaded.capabilities)
}

/// Returns kubelet's message about a driver and the fix, each in one line.
pub fn why(failed: &Failed) -> Vec<String> {
    let fix = failed.fix.iter().map(|fix| format!("fix: {fix}"));
    std::iter::once(failed.logged.clone()).chain(fix).map(|line| printable(&line)).collect()
}

/// Returns the JSON members of a loaded driver.
pub fn loaded_as_json(loaded: &Loaded) -> Value {
    json!({
        "driver": loaded.name.to_string(),
        "executable": loaded.executable.to_string_lossy(),
        "capabilities": capabilities::json(loaded.capabilities),
        "initMilliseconds": u64::try_from(loaded.took.as_millis()).unwrap_or(u64::MAX),
    })
}
