//! Keeper that installs: an installation keeps a driver in place, and does not touch a correct one.

use super::{DriverHome, Keeper, Put};
use crate::plugin_dir::install::{InstallOutcome, InstallRequest, Report, Source, install};
use crate::plugin_dir::receipt::Receipt;
use crate::plugin_dir::uninstall::{self, Busy, uninstall};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::files;
use flexvol_linux::fs::fingerprint::short;
use flexvol_model::settings::{SIDE_FILE, SIZE_LIMIT};
use serde_json::Value;
use std::time::Duration;

/// Limit for the wait on exit until another installer unlocks the plugin directory: a pod that is
/// told to stop has ten seconds.
const LAST_LOCK_WAIT: Duration = Duration::from_secs(8);

/// Repeated installation of the same drivers.
///
/// A removed driver comes back with the settings it had, whoever set them: an admin's edits of the
/// side file do not count as damage.
#[derive(Debug)]
pub struct Installs {
    source: Source,
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    home: DriverHome,
    request: InstallRequest,
    settings: Option<Value>,
    receipt: Option<Receipt>,
}

impl Installs {
    /// Takes one request for each driver and plugin directory.
    pub fn new(source: Source, requests: Vec<InstallRequest>) -> Result<Self> {
        let kept = requests.into_iter().map(|request| {
            let home = DriverHome { name: request.name.clone(), plugin_dir: request.place.path()? };
            Ok(Kept { home, request, settings: None, receipt: None })
        });
        Ok(Self { source, kept: kept.collect::<Result<_>>()? })
    }

    /// Returns the places of the drivers.
    pub fn homes(&self) -> Vec<DriverHome> {
        self.kept.iter().map(|kept| kept.home.clone()).collect()
    }
}

impl Keeper for Installs {
    fn put(&mut self, home: &DriverHome) -> Result<Put> {
        let kept = self.kept.iter_mut().find(|kept| kept.home == *home);
        let kept = kept.context("a driver that was not asked for")?;
        let mut request = InstallRequest { receipt: kept.receipt.clone(), ..kept.request.clone() };
        match files::read_small(&home.directory().join(SIDE_FILE), SIZE_LIMIT) {
            Ok(None) => {
                request.side_file_changes.settings =
                    kept.settings.clone().or(request.side_file_changes.settings);
            }
            Ok(Some(text)) if flexvol_model::side_file::parse(&text).is_ok() => {}
            // An admin is just writing it, or has made a mistake: a take-over would then start
            // without the policy of the admin.
            _ => request.allowed.take_over &= kept.settings.is_none(),
        }
        let report = install(&request, &self.source)?;
        kept.settings = serde_json::to_value(&report.settings).ok();
        kept.receipt.clone_from(&report.receipt);
        Ok(told(&report))
    }

    fn remove(&mut self, home: &DriverHome) -> Result<()> {
        let kept =
            self.kept.iter().find(|kept| kept.home == *home).context("a driver that was not asked for")?;
        let InstallRequest { name, mut place, state, .. } = kept.request.clone();
        place.patience = place.patience.min(LAST_LOCK_WAIT);
        uninstall(&uninstall::UninstallRequest { name, place, state, busy: Busy::Refuse }).map(drop)
    }
}

fn told(report: &Report) -> Put {
    let outcome = report.plan.outcome;
    let version = report.settings.version.as_deref().unwrap_or("of unknown version");
    let hash = short(report.settings.hash.as_deref().unwrap_or_default());
    let words = std::iter::once(format!("{version}, {hash}")).chain(report.warnings.iter().cloned());
    let message = words.collect::<Vec<_>>().join("; ");
    Put { changed: outcome != InstallOutcome::Unchanged, word: outcome.word(), message }
}
