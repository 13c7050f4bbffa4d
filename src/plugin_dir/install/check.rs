//! The driver's own `init`, run as kubelet would, before kubelet can.

use crate::kubelet::{Caller, Terms};
use crate::plugin_dir::refusal::{Reason, Refusal};
use crate::protocol::{Capabilities, DriverName};
use crate::settings::SIDE_FILE;
use crate::sys::directory::Directory;
use anyhow::{Context as _, Result};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long `init` may take. It is pure: this is for a node that swaps.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a private directory is made, in this order: an image without anything has no /tmp.
const PLACES: [&str; 2] = ["/run/flexvol", "/"];

/// A directory `vendor~driver` of our own with a side file: an executable that is told that it is called so
/// reads that side file, wherever it is itself.
pub(super) struct Guise {
    _temporary: tempfile::TempDir,
    name: PathBuf,
}

impl Guise {
    /// The guise of a driver with this side file.
    pub(super) fn new(name: &DriverName, side_file: &str) -> Result<Self> {
        let temporary = temporary().context("make a temporary directory: set TMPDIR to a writable one")?;
        let home = Directory::open(temporary.path())?.context("the temporary directory is gone")?;
        let home = home.create_directory(name.directory(), 0o700)?;
        home.create(SIDE_FILE, 0o600)?.write_all(side_file.as_bytes()).context("write a side file")?;
        Ok(Self { name: home.path_of(name.executable()), _temporary: temporary })
    }

    /// Asks `program` for its capabilities under this guise.
    pub(super) fn init(&self, program: &Path) -> Result<Capabilities, String> {
        init(program, Some(&self.name))
    }
}

/// Nobody but us may read it: the side file may hold default options that are secret.
fn temporary() -> std::io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    let named = builder.prefix("flexvol-");
    let first = named.tempdir();
    PLACES
        .iter()
        .fold(first, |found, place| found.or_else(|error| named.tempdir_in(place).map_err(|_| error)))
}

/// Asks an executable for its capabilities as kubelet does, but under a bare environment.
pub(super) fn init(program: &Path, name: Option<&Path>) -> Result<Capabilities, String> {
    let mut caller = Caller::new(program);
    let name = name.map(|name| name.as_os_str().to_owned());
    caller.terms = Terms { name, environment: Vec::new(), patience: PATIENCE, ..Terms::default() };
    let (exchange, capabilities) = caller.init();
    capabilities.map_err(|failure| match exchange.hint() {
        Some(hint) => format!("{hint} (kubelet would log: {})", failure.message()),
        None => format!("kubelet would log: {}", failure.message()),
    })
}

/// That a driver failed its check before anybody could see it.
pub(super) fn never_visible(name: &DriverName, why: &str) -> Refusal {
    let text = format!(
        "{name} fails its own init and was not installed: {why}: mend the driver or its side file, then install again"
    );
    Refusal::new(Reason::SelfCheck, text)
}

/// That a driver fails where kubelet will call it, although it passed the check elsewhere.
pub(super) fn visible(name: &DriverName, place: &Path, why: &str) -> Refusal {
    let text = format!(
        "{name} passed its check, but fails as {}: {why}: mend the plugin directory, then install again",
        place.display()
    );
    Refusal::new(Reason::SelfCheck, text)
}
