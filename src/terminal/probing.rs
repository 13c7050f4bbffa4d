//! What `probe` and `watch` have in common: which directory, and how findings are shown.

use super::{capabilities, driver_dir};
use anyhow::Result;
use clap::Args;
use flexvol_kubelet::prober::{Behaviour, Failed, Loaded};
use flexvol_protocol::text::one_line;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::PathBuf;

/// Which directory, and whose prober.
#[derive(Args)]
pub struct Probing {
    /// The plugin directory [default: the one flexvol locate finds]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Do what the kubelet of that release of Kubernetes does: 1.36, 1.22, 1.8 or any other
    #[arg(long, value_name = "RELEASE")]
    as_kubelet: Option<Behaviour>,
}

impl Probing {
    /// The directory that was named, or the one kubelet reads.
    pub fn plugin_dir(&self) -> Result<PathBuf> {
        driver_dir::find(self.plugin_dir.as_deref())
    }

    /// Whose prober it is; without a word the documented one.
    pub fn behaviour(&self) -> Behaviour {
        self.as_kubelet.unwrap_or(Behaviour::Design)
    }
}

/// A name on disk, which may hold anything, for a terminal.
pub fn plain(name: &OsStr) -> String {
    printable(&name.to_string_lossy())
}

/// Text that was made of such names.
pub fn printable(text: &str) -> String {
    one_line(text, usize::MAX)
}

/// What a loaded driver can do, in one line.
pub fn in_service(loaded: &Loaded) -> String {
    capabilities::names(loaded.capabilities)
}

/// What kubelet says of a driver, and how it is fixed, each in one line.
pub fn why(failed: &Failed) -> Vec<String> {
    let fix = failed.fix.iter().map(|fix| format!("fix: {fix}"));
    std::iter::once(failed.logged.clone()).chain(fix).map(|line| printable(&line)).collect()
}

/// The members of a loaded driver.
pub fn loaded_as_json(loaded: &Loaded) -> Value {
    json!({
        "driver": loaded.name.to_string(),
        "executable": loaded.executable.to_string_lossy(),
        "capabilities": capabilities::json(loaded.capabilities),
        "initMilliseconds": u64::try_from(loaded.took.as_millis()).unwrap_or(u64::MAX),
    })
}
