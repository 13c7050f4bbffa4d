//! Execution of the steps of a plan.

use super::check::{self, Guise};
use super::keep::Kept;
use super::stage::{Labels, Stage};
use super::{Decision, Installer, Mark, Step, keep, side_file_changes};
use crate::plugin_dir::found::{Found, Ours, SideFile};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory::{Directory, Kind};
use flexvol_model::settings::{SIDE_FILE, SIZE_LIMIT};
use flexvol_protocol::Capabilities;

/// Permissions of a driver's directory.
pub(super) const DIRECTORY_MODE: u32 = 0o755;

/// Context of a change.
pub(super) struct Changing<'a> {
    pub(super) installer: &'a Installer<'a>,
    /// The plugin directory, locked.
    pub(super) plugins: &'a Directory,
    pub(super) decision: &'a Decision,
    /// True if the program is for this machine.
    pub(super) runs_here: bool,
}

/// Result of a change.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) capabilities: Option<Capabilities>,
    pub(super) warnings: Vec<String>,
}

/// Hidden names of the staged files.
struct Staged {
    side_file: Option<String>,
    programs: Vec<String>,
}

impl Changing<'_> {
    /// Stages all files, checks them, and renames them into place. After an error, it leaves only
    /// the file that marks the owner of a half-replaced driver.
    pub(super) fn change(&self, mark: Mark<'_>) -> Result<Changed> {
        let labels = Labels::of(self.plugins, &self.installer.request.name)?;
        let appears = self.decision.plan.steps.contains(&Step::Appear);
        let home = if appears { None } else { Some(self.home()?) };
        let mut stage = Stage::new(home.as_ref().unwrap_or(self.plugins), &labels);
        let changed = self.staged_and_renamed(&mut stage, home.as_ref(), mark);
        if changed.is_err() {
            stage.discard();
        }
        changed
    }

    fn home(&self) -> Result<Directory> {
        let home = self.plugins.child(self.installer.request.name.directory())?;
        home.context("the driver's directory was removed meanwhile: install again")
    }

    fn staged_and_renamed(
        &self,
        stage: &mut Stage<'_>,
        home: Option<&Directory>,
        mark: Mark<'_>,
    ) -> Result<Changed> {
        let mut staged = self.stage(stage)?;
        // This one becomes visible last, and stays.
        let path = staged.programs.first().map(|program| stage.home().path_of(program));
        let capabilities = self.check(path.as_deref().unwrap_or(self.installer.source.path()))?;
        path.map_or(Ok(()), |path| mark(&path))?;
        let mut warnings = self.note(stage, home, &staged);
        for step in &self.decision.plan.steps {
            match home {
                Some(home) => self.in_place(*step, home, stage, &mut staged)?,
                None => self.appear(stage, &mut staged)?,
            }
        }
        stage.set_witness(None);
        self.check_visible()?;
        warnings.extend(stage.take_warning());
        Ok(Changed { capabilities, warnings })
    }

    /// Writes the receipt before the change, and saves an unreadable side file. Returns warnings.
    fn note(&self, stage: &Stage<'_>, home: Option<&Directory>, staged: &Staged) -> Vec<String> {
        let name = &self.installer.request.name;
        let program = staged.programs.first().map_or(name.executable(), String::as_str);
        let noted = self.installer.note(self.decision, stage.home(), program);
        let aside = match (&self.decision.found, home) {
            (Found::Ours(Ours { side_file: SideFile::Garbled(why), .. }), Some(home)) => {
                Some(self.set_aside(home, why))
            }
            _ => None,
        };
        noted.into_iter().chain(aside).collect()
    }

    /// Saves the side file, as its content may matter to someone.
    fn set_aside(&self, home: &Directory, why: &str) -> String {
        let kept = home
            .read(SIDE_FILE, SIZE_LIMIT)
            .and_then(|content| self.installer.request.receipts()?.set_aside(&content.unwrap_or_default()));
        let text = format!("the side file could not be read ({why}) and was put back as it was installed");
        kept.map_or_else(
            |_| text.clone(),
            |path| format!("{text}: what was there is kept in {}", path.display()),
        )
    }

    fn stage(&self, stage: &mut Stage<'_>) -> Result<Staged> {
        let Decision { plan, settings, side_file, .. } = self.decision;
        let wants_side_file =
            plan.steps.iter().any(|step| matches!(step, Step::Appear | Step::WriteSideFile));
        let mode = side_file_changes::side_file_mode(settings);
        let side_file = if wants_side_file { Some(stage.side_file(side_file, mode)?) } else { None };
        let copies = plan.steps.iter().filter(|step| step.is_visible());
        let programs = copies.map(|_| stage.program(self.installer.source)).collect::<Result<_>>()?;
        Ok(Staged { side_file, programs })
    }

    /// Checks the driver before it becomes visible.
    fn check(&self, program: &std::path::Path) -> Result<Option<Capabilities>> {
        if !self.runs_here {
            return Ok(None);
        }
        let name = &self.installer.request.name;
        let answer = Guise::new(name, &self.decision.side_file)?.init(program);
        Ok(Some(answer.map_err(|why| check::never_visible(name, &why))?))
    }

    /// Checks it once more, at the path where kubelet will call it.
    fn check_visible(&self) -> Result<()> {
        let name = &self.installer.request.name;
        let place = self.plugins.path_of(name.directory()).join(name.executable());
        if self.runs_here {
            check::init(&place, None).map_err(|why| check::visible(name, &place, &why))?;
        }
        Ok(())
    }

    /// Makes a complete directory appear by one rename. Before, it is hidden for two renames only.
    fn appear(&self, stage: &mut Stage<'_>, staged: &mut Staged) -> Result<()> {
        let name = &self.installer.request.name;
        let (program, side_file) = (staged.programs.pop(), staged.side_file.take());
        let (program, side_file) = program.zip(side_file).context("nothing is staged")?;
        let hidden = stage.name();
        let made = self.plugins.create_directory(&hidden, DIRECTORY_MODE)?;
        stage.label_directory(&made);
        self.plugins.rename(side_file, &made, SIDE_FILE)?;
        self.plugins.rename(program, &made, name.executable())?;
        made.sync()?;
        self.plugins.rename_new(hidden, self.plugins, name.directory())?;
        self.plugins.sync()
    }

    /// Performs one step in the existing directory.
    fn in_place(
        &self,
        step: Step,
        home: &Directory,
        stage: &mut Stage<'_>,
        staged: &mut Staged,
    ) -> Result<()> {
        const NOTHING: &str = "nothing is staged";
        match step {
            Step::Keep => {
                let is_ours = matches!(self.decision.found, Found::Ours(_));
                let what = if is_ours { Kept::Version } else { Kept::Foreign };
                return keep::keep(&self.installer.request.kept_in()?, home, what);
            }
            Step::WriteSideFile => {
                let side_file = staged.side_file.take().context(NOTHING)?;
                home.rename(side_file, home, SIDE_FILE)?;
                stage.set_witness(None);
            }
            Step::ReplaceProgram | Step::Appear => {
                let program = staged.programs.pop().context(NOTHING)?;
                home.rename(program, home, self.installer.request.name.executable())?;
                // `None` if it is in place already.
                stage.set_witness(staged.side_file.clone());
            }
        }
        home.sync()
    }
}

/// Reports whether a directory entry is a directory.
pub(super) fn is_directory(parent: &Directory, name: &str) -> Result<bool> {
    Ok(parent.look(name)?.is_some_and(|entry| entry.kind == Kind::Directory))
}
