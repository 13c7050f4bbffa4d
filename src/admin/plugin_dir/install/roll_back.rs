//! Rollback to the driver that was replaced last: one that was taken over, or the version that
//! `--binary` installed before.

use super::plan::Step;
use super::stage::{self, Labels, Stage};
use super::{InstallRequest, home, keep};
use crate::plugin_dir::found::{Executable, Foreign, Found, Ours};
use crate::plugin_dir::in_use;
use crate::plugin_dir::opened::Opened;
use crate::plugin_dir::receipt::{Known, Receipt};
use crate::plugin_dir::refusal::{Reason, Refusal};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory::Directory;
use flexvol_model::settings::{SIDE_FILE, Settings};
use flexvol_node::executor::record::Record;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Code, Failure};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Result of a rollback, or of a dry run.
#[derive(Clone, Debug)]
pub struct RolledBack {
    /// The copy that was restored. The copy of a driver that was taken over stays.
    pub copy: PathBuf,
    /// The steps; empty if the driver was there already.
    pub steps: Vec<Step>,
    /// Notes for the admin.
    pub warnings: Vec<String>,
}

/// Restores the driver that was replaced last. kubelet sees one event for the executable, and one
/// for every other file of the driver that is missing by now.
pub fn roll_back(request: &InstallRequest) -> Result<RolledBack> {
    let Some(plugins) = Opened::open(&request.place)? else { return Err(nothing_kept(request)) };
    let plugins = if request.dry_run { plugins } else { plugins.lock(&request.place)? };
    let kept = keep::kept(&request.kept_in()?)?.pop().ok_or_else(|| nothing_kept(request))?;
    let driver = Found::inside(&kept, request.name.executable())?;
    let back = RollBack { request, plugins: &plugins.directory, kept: &kept, driver };
    let steps = back.steps()?;
    let copy = kept.path().to_owned();
    let warnings = inherited(&request.name, &request.state).into_iter().collect();
    if request.dry_run {
        return Ok(RolledBack { copy, steps, warnings });
    }
    stage::clean(&plugins.directory)?;
    match steps.first() {
        None => {}
        Some(Step::Appear) => back.appear()?,
        Some(_) => back.replace()?,
    }
    home(&plugins.directory, &request.name)?.map_or(Ok(()), |home| stage::clean(&home))?;
    back.note()?;
    keep::forget_version(&request.kept_in()?, &kept)?;
    Ok(RolledBack { copy, steps, warnings })
}

/// Reports whether the kept version is installed already.
fn is_same(there: &Ours, kept: &Ours) -> bool {
    there.is_intact() && (&there.settings, &there.program) == (&kept.settings, &kept.program)
}

/// Returns a warning about volumes that flexvol has mounted under this name: from now on the other
/// driver must unmount them. A driver that unmounts only its own volumes refuses, and their pods
/// never end. If the volumes cannot be found, the warning says why, and the rollback goes on.
fn inherited(name: &DriverName, state: &Path) -> Option<String> {
    let volumes = match in_use::volumes(name, state) {
        Ok(volumes) => volumes,
        Err(error) => return Some(format!("which volumes of {name} are mounted is not known: {error:#}")),
    };
    let mut ours = Record::all();
    ours.retain(|record| volumes.iter().any(|volume| volume.target == record.target));
    if ours.is_empty() {
        return None;
    }
    Some(format!(
        "{} by flexvol {} left to the driver that was there before: {}: if it refuses to unmount them, their pods do not \
         end: end those pods first, or take over again with flexvol install {name} --take-over",
        if ours.len() == 1 {
            "a volume mounted".to_owned()
        } else {
            format!("{} volumes mounted", ours.len())
        },
        if ours.len() == 1 { "is" } else { "are" },
        named(&ours)
    ))
}

/// Names the volumes and their pods, for people.
fn named(records: &[Record]) -> String {
    /// Maximum number of volumes that are named.
    const NAMED: usize = 10;
    let shown = records.iter().take(NAMED).map(|Record { pod, volume, target, .. }| match pod.as_str() {
        "" | "/" => target.display().to_string(),
        pod => format!("{volume} of {pod}"),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match records.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn nothing_kept(request: &InstallRequest) -> anyhow::Error {
    let text = format!(
        "no driver was replaced by {}: there is nothing to roll back to in {}",
        request.name,
        request.state.display()
    );
    Failure::new(Code::NotFound, text).into()
}

struct RollBack<'a> {
    request: &'a InstallRequest,
    plugins: &'a Directory,
    kept: &'a Directory,
    /// The driver in `kept`.
    driver: Found,
}

impl RollBack<'_> {
    fn steps(&self) -> Result<Vec<Step>> {
        let name = &self.request.name;
        let refuse = |text: &str| Err(Refusal::new(Reason::Foreign, format!("{name} {text}")).into());
        match (self.found()?, &self.driver) {
            (_, Found::Foreign(Foreign { executable: Executable::Missing | Executable::Other, .. })) => {
                refuse("had no executable when it was replaced: install the driver again")
            }
            (Found::Absent, _) => Ok(vec![Step::Appear]),
            (Found::Ours(there), Found::Ours(kept)) if is_same(&there, kept) => Ok(vec![]),
            (Found::Ours(_), _) => Ok(vec![Step::WriteSideFile, Step::ReplaceProgram]),
            (Found::Foreign(there), Found::Foreign(kept)) if there.executable == kept.executable => {
                // Only a side file of ours beside it is left to be replaced.
                let is_ours = |settings: &Settings| settings.hash.is_some();
                let ours = there.side_file.as_ref().is_some_and(|read| read.as_ref().is_ok_and(is_ours));
                Ok(if ours { vec![Step::WriteSideFile] } else { vec![] })
            }
            _ => refuse("is not flexvol's any more: move away what is there, then roll back"),
        }
    }

    /// Notes what is installed now: nothing, if a foreign driver is back.
    fn note(&self) -> Result<()> {
        let receipts = self.request.receipts()?;
        let home = home(self.plugins, &self.request.name)?;
        match (&self.driver, home) {
            (Found::Ours(Ours { settings, program: Some(program), .. }), Some(home)) => {
                let programs = vec![Known::of(&program.fingerprint, &home, self.request.name.executable())];
                receipts
                    .write(&Receipt { settings: settings.clone(), programs })
                    .context("note what is installed")
            }
            _ => receipts.forget().context("forget what was installed"),
        }
    }

    fn found(&self) -> Result<Found> {
        let found = Found::look(self.plugins, &self.request.name)?;
        Ok(self.request.receipts()?.known_again(found, self.plugins)?.0)
    }

    fn names(&self) -> Result<Vec<OsString>> {
        self.kept.names()
    }

    /// Makes the whole directory appear by one rename.
    fn appear(&self) -> Result<()> {
        let labels = Labels::of(self.plugins, &self.request.name)?;
        let mut stage = Stage::new(self.plugins, &labels);
        let hidden = stage.name();
        let restored = self.fill(&mut stage, &hidden);
        let shown = restored
            .and_then(|()| self.plugins.rename_new(&hidden, self.plugins, self.request.name.directory()));
        if shown.is_err() {
            stage.discard();
        }
        shown.and_then(|()| self.plugins.sync())
    }

    /// Fills the hidden directory. Files are staged outside it, as kubelet may watch inside it.
    fn fill(&self, stage: &mut Stage<'_>, hidden: &str) -> Result<()> {
        let names = self.names()?;
        let staged: Vec<_> = names.iter().map(|_| stage.name()).collect();
        for (name, staged) in names.iter().zip(&staged) {
            keep::restore(self.kept, name, self.plugins, staged)?;
            stage.label_name(staged);
        }
        let made = self.plugins.create_directory(hidden, super::change::DIRECTORY_MODE)?;
        stage.label_directory(&made);
        for (name, staged) in names.iter().zip(&staged) {
            self.plugins.rename(staged, &made, name)?;
        }
        made.sync()
    }

    /// Replaces files in the existing directory: missing ones first, then the executable, and the
    /// side file last, as it marks the driver as ours until then.
    fn replace(&self) -> Result<()> {
        let home = home(self.plugins, &self.request.name)?.context("the driver's directory is gone")?;
        let labels = Labels::of(self.plugins, &self.request.name)?;
        let mut stage = Stage::new(&home, &labels);
        let replaced = self.rename_each(&home, &mut stage);
        if replaced.is_err() {
            stage.discard();
        }
        replaced?;
        home.sync()
    }

    fn rename_each(&self, home: &Directory, stage: &mut Stage<'_>) -> Result<()> {
        let executable = OsStr::new(self.request.name.executable());
        let names = self.names()?;
        for name in names.iter().filter(|name| *name != executable && *name != SIDE_FILE) {
            if home.look(name)?.is_none() {
                self.bring(name, home, stage)?;
            }
        }
        self.bring(executable, home, stage)?;
        if names.iter().any(|name| name == SIDE_FILE) {
            return self.bring(SIDE_FILE.as_ref(), home, stage);
        }
        home.remove(SIDE_FILE)
    }

    fn bring(&self, name: &OsStr, home: &Directory, stage: &mut Stage<'_>) -> Result<()> {
        let staged = stage.name();
        keep::restore(self.kept, name, home, &staged)?;
        stage.label_name(&staged);
        home.rename(&staged, home, name)
    }
}
