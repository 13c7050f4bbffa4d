//! Check of a driver by its own `init`, run as kubelet would, before kubelet can run it.

use crate::plugin_dir::refusal::{Reason, Refusal};
use anyhow::{Context as _, Result};
use flexvol_kubelet::{Caller, Terms};
use flexvol_linux::fs::directory::{self, Directory};
use flexvol_linux::fs::files::{self, TempDir};
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::paths;
use flexvol_model::settings::SIDE_FILE;
use flexvol_protocol::{Capabilities, DriverName};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deadline for `init`. It is pure: only a node that swaps needs this long.
const INIT_WAIT: Duration = Duration::from_secs(30);

/// Directory of our own, removed when dropped. Only we may read it: default options in a side file
/// may be secret.
#[derive(Debug)]
pub(super) enum Scratch {
    /// In the directory for all installers, which is root's alone; each installer locks its own
    /// part. After a kill, the next installer removes it.
    Swept { all: Directory, own: Directory, name: String },
    /// Anywhere else, if we may not write there.
    Temporary(TempDir),
}

impl Scratch {
    pub(super) fn new() -> Result<Self> {
        if let Ok(swept) = Self::swept() {
            return Ok(swept);
        }
        let made = files::temporary("flexvol-");
        Ok(Self::Temporary(made.context("make a temporary directory: set TMPDIR to a writable one")?))
    }

    fn swept() -> Result<Self> {
        directory::make_private(Path::new(paths::RUN))?;
        let gone = |path: &str| format!("{path} is gone");
        let run = Directory::open(Path::new(paths::RUN))?.with_context(|| gone(paths::RUN))?;
        let all = run.child_or_new(paths::CHECK, 0o700)?;
        // Held until our own directory is locked: else another installer takes it for a leftover.
        let sweeping = run.child(paths::CHECK)?.with_context(|| gone(paths::CHECK))?;
        sweeping.lock(&Deadline::after(INIT_WAIT))?;
        for left in all.names()? {
            let killed =
                all.child(&left)?.is_some_and(|left| left.lock(&Deadline::after(Duration::ZERO)).is_ok());
            if killed {
                all.remove_tree(left)?;
            }
        }
        let now = clock::since_1970();
        let name = format!("{}-{}", std::process::id(), now.as_nanos());
        let own = all.create_directory(&name, 0o700).and_then(|own| {
            own.lock(&Deadline::after(INIT_WAIT))?;
            Ok(own)
        });
        match own {
            Ok(own) => Ok(Self::Swept { all, own, name }),
            Err(error) => {
                // The directory exists but cannot be used. The next run may have nothing to check.
                let _ = all.remove_tree(name);
                Err(error)
            }
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Swept { own, .. } => own.path(),
            Self::Temporary(directory) => directory.path(),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Self::Swept { all, name, .. } = self {
            // Retry once: the next run may have nothing to check, and only a run with a check
            // cleans up.
            let _ = all.remove_tree(&*name).or_else(|_| all.remove_tree(name));
        }
    }
}

/// Directory `vendor~driver` of our own with a side file: an executable that is called by this name
/// reads that side file, wherever the executable is.
#[derive(Debug)]
pub(super) struct Guise {
    name: PathBuf,
    _scratch: Scratch,
}

impl Guise {
    /// Makes the directory for a driver with this side file.
    pub(super) fn new(name: &DriverName, side_file: &str) -> Result<Self> {
        let scratch = Scratch::new()?;
        let home = Directory::open(scratch.path())?.context("the temporary directory is gone")?;
        let home = home.create_directory(name.directory(), 0o700)?;
        home.create(SIDE_FILE, 0o600)?.write_all(side_file.as_bytes()).context("write a side file")?;
        Ok(Self { name: home.path_of(name.executable()), _scratch: scratch })
    }

    /// Asks `program` for its capabilities under this name.
    pub(super) fn init(&self, program: &Path) -> Result<Capabilities, String> {
        init(program, Some(&self.name))
    }
}

/// Asks an executable for its capabilities as kubelet does, but under a bare environment.
pub(super) fn init(program: &Path, name: Option<&Path>) -> Result<Capabilities, String> {
    let mut caller = Caller::new(program);
    let name = name.map(|name| name.as_os_str().to_owned());
    caller.terms = Terms { name, environment: Vec::new(), patience: INIT_WAIT, ..Terms::default() };
    let (exchange, capabilities) = caller.init();
    capabilities.map_err(|failure| match exchange.hint() {
        Some(hint) => format!("{hint} (kubelet would log: {})", failure.message()),
        None => format!("kubelet would log: {}", failure.message()),
    })
}

/// Returns the refusal for a driver that failed its check before it became visible.
pub(super) fn never_visible(name: &DriverName, why: &str) -> Refusal {
    let text = format!(
        "{name} fails its own init and was not installed: {why}: fix the driver or its side file, then install again"
    );
    Refusal::new(Reason::SelfCheck, text)
}

/// Returns the refusal for a driver that fails where kubelet will call it, but passed elsewhere.
pub(super) fn visible(name: &DriverName, place: &Path, why: &str) -> Refusal {
    let text = format!(
        "{name} passed its check, but fails as {}: {why}: fix the plugin directory, then install again",
        place.display()
    );
    Refusal::new(Reason::SelfCheck, text)
}
