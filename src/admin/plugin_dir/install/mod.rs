//! Installation of a driver in the plugin directory.
//!
//! ```text
//! first     .flexvol-1 .flexvol-2     staged, synced, checked by init
//!           .flexvol-3/{driver,.flexvol.json}
//!           vendor~driver/            one rename: kubelet sees a complete driver
//! upgrade   vendor~driver/.flexvol-1  staged, synced, checked by init
//!           vendor~driver/driver      one rename: kubelet sees the old one or the new one
//! ```
//!
//! Everything works on the opened plugin directory and under its flock(2). A killed installer
//! leaves hidden names, which the next one removes; at any moment kubelet sees the old state or the
//! new one. A kubelet that *starts* while a hidden directory exists would watch it, and take a
//! change in it for a change of a driver. So that directory exists for two renames only, and files
//! are staged outside it.

mod advice;
mod attached;
mod change;
mod check;
pub(crate) mod keep;
pub mod plan;
mod preflight;
mod programs;
mod roll_back;
pub mod side_file_changes;
pub(super) mod source;
pub(super) mod stage;

pub use plan::{Allowed, InstallOutcome, Plan, Step};
pub use roll_back::{RolledBack, roll_back};
pub use side_file_changes::SideFileChanges;
pub use source::Source;

use super::found::{Found, Ours, SideFile};
use super::opened::{Opened, PluginDirPath};
use super::receipt::{Known, Receipt, Receipts};
use super::refusal::{Reason, Refusal};
use anyhow::Result;
use change::{Changed, Changing};
use check::Guise;
use flexvol_linux::fs::directory::Directory;
use flexvol_model::paths;
use flexvol_model::settings::Settings;
use flexvol_protocol::{Capabilities, DriverName};
use plan::{Init, Wanted};
use preflight::{Candidate, Findings};
use std::path::{Path, PathBuf};

/// Request to install a driver.
#[derive(Clone, Debug)]
pub struct InstallRequest {
    /// The driver.
    pub name: DriverName,
    /// The plugin directory.
    pub place: PluginDirPath,
    /// Directory of state, for replaced drivers and receipts, as a path on the node;
    /// [`paths::STATE`] by default.
    pub state: PathBuf,
    /// Changes of its side file.
    pub side_file_changes: SideFileChanges,
    /// Permission to replace other drivers.
    pub allowed: Allowed,
    /// True if nothing is changed, and only the plan is reported.
    pub dry_run: bool,
    /// Receipt of the previous installation, if the state directory has none: for `deploy`, whose
    /// state directory may be lost while it runs.
    pub receipt: Option<Receipt>,
}

/// Report of an installation, or of a dry run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The driver.
    pub name: DriverName,
    /// The plugin directory, as a path for this process.
    pub directory: PathBuf,
    /// The outcome and the steps.
    pub plan: Plan,
    /// The side file; its version and hash are those of the executable.
    pub settings: Settings,
    /// The driver's answer to `init`; `None` if it was not run.
    pub capabilities: Option<Capabilities>,
    /// Notes for the admin.
    pub warnings: Vec<String>,
    /// Receipt of what is installed now; `None` in a dry run.
    pub receipt: Option<Receipt>,
}

/// Callback with the hidden executable, after all checks and before it becomes visible.
pub type Mark<'a> = &'a mut dyn FnMut(&Path) -> Result<()>;

impl InstallRequest {
    /// Makes a request for a driver with its own name and default settings.
    pub fn new(name: DriverName, place: PluginDirPath) -> Self {
        let (side_file_changes, allowed) = (SideFileChanges::default(), Allowed::default());
        Self {
            name,
            place,
            state: paths::STATE.into(),
            side_file_changes,
            allowed,
            dry_run: false,
            receipt: None,
        }
    }

    /// Returns the directory for replaced drivers of this name, as a path for this process.
    pub(crate) fn kept_in(&self) -> Result<PathBuf> {
        Ok(self.place.below(&self.state)?.join(paths::REPLACED).join(self.name.directory()))
    }
}

impl InstallRequest {
    /// Returns the location of the driver's receipt.
    pub(crate) fn receipts(&self) -> Result<Receipts> {
        Receipts::of(&self.place, &self.state, &self.name.directory())
    }
}

/// Installs or updates one driver in one plugin directory. If the error is a [`Refusal`], it has
/// the reason.
pub fn install(request: &InstallRequest, source: &Source) -> Result<Report> {
    install_marked(request, source, &mut |_| Ok(()))
}

/// Does the same, and calls `mark` just before the driver becomes visible, if it does.
pub fn install_marked(request: &InstallRequest, source: &Source, mark: Mark<'_>) -> Result<Report> {
    let mut report = perform(request, source, mark)?;
    // This runs without the lock, because it runs programs of others, which may take their time.
    let plugins = Directory::open(&report.directory).ok().flatten();
    if let Some(plugins) = plugins.filter(|_| !report.plan.steps.is_empty()) {
        let advice = advice::gather(request, &plugins, &report.settings, report.capabilities);
        report.warnings.extend(advice.into_iter().chain(ambiguous(&request.name)));
    }
    Ok(report)
}

/// Installs under the lock of the plugin directory, once that directory exists.
fn perform(request: &InstallRequest, source: &Source, mark: Mark<'_>) -> Result<Report> {
    let installer = |plugins| Installer { request, source, plugins };
    let opened = Opened::open(&request.place)?;
    if opened.is_none() {
        preflight::creatable(&request.place.path()?, request.place.root(), source)?;
        // A wrong request must not make a directory.
        installer(None).decide(None)?;
    }
    if request.dry_run {
        return installer(opened.as_ref().map(|plugins| &plugins.directory)).perform(mark);
    }
    let plugins = opened.map_or_else(|| Opened::make(&request.place), Ok)?.lock(&request.place)?;
    installer(Some(&plugins.directory)).perform(mark)
}

/// Installation in progress.
struct Installer<'a> {
    request: &'a InstallRequest,
    source: &'a Source,
    /// `None` if it does not exist.
    plugins: Option<&'a Directory>,
}

/// Decision about an installation.
struct Decision {
    plan: Plan,
    settings: Settings,
    side_file: String,
    /// True if the settings have `attach: true` only because the installed driver attaches.
    stays_attached: bool,
    found: Found,
    /// Receipt of the previous installation, and the receipt in the state directory.
    receipt: Option<Receipt>,
    noted: Option<Receipt>,
}

impl Installer<'_> {
    fn perform(&self, mark: Mark<'_>) -> Result<Report> {
        let home = self.plugins.map_or(Ok(None), |plugins| home(plugins, &self.request.name))?;
        let decision = self.decide(home.as_ref())?;
        let Changed { capabilities, mut warnings } = match self.plugins {
            Some(plugins) if !decision.plan.steps.is_empty() => self.change(plugins, &decision, mark)?,
            _ => Changed::default(),
        };
        if let (Some(home), []) = (home.as_ref().filter(|_| !self.request.dry_run), &*decision.plan.steps) {
            warnings.extend(self.note(&decision, home, self.request.name.executable()));
        }
        if self.source.is_own() {
            warnings.extend(self.request.side_file_changes.stays(&self.request.name, &decision.settings));
        }
        if decision.stays_attached {
            warnings.push(attached::told(&self.request.name));
        }
        if let (Some(plugins), false) = (self.plugins, self.request.dry_run) {
            stage::clean(plugins)?;
            home.as_ref().map_or(Ok(()), stage::clean)?;
        }
        let now = |home: Directory| self.receipt(&decision, &home, self.request.name.executable());
        let receipt = match self.plugins.filter(|_| !self.request.dry_run) {
            Some(plugins) => self::home(plugins, &self.request.name)?.map(now),
            None => None,
        };
        Ok(Report {
            receipt,
            name: self.request.name.clone(),
            directory: self.request.place.path()?,
            plan: decision.plan,
            settings: decision.settings,
            capabilities,
            warnings,
        })
    }

    fn decide(&self, home: Option<&Directory>) -> Result<Decision> {
        let InstallRequest { name, side_file_changes, allowed, .. } = self.request;
        let found = self.plugins.map_or(Ok(Found::Absent), |plugins| Found::look(plugins, name))?;
        let noted = match self.request.receipts()?.read() {
            // The side file alone identifies the driver.
            Err(_) if matches!(found, Found::Ours(_)) => None,
            noted => noted?,
        };
        let receipt = noted.clone().or_else(|| self.request.receipt.clone());
        let found = match (&receipt, self.plugins) {
            (Some(receipt), Some(plugins)) => {
                receipt.recognize(found, plugins, &name.directory(), Some(self.source))?
            }
            _ => found,
        };
        let before = found.settings().or_else(|| self.before(&found, receipt.as_ref()?));
        let mut settings = side_file_changes
            .settle(name, before, self.source.fingerprint(), self.source.is_own())
            .map_err(|failure| Refusal::new(Reason::Usage, failure.message()))?;
        let stays_attached = self.stays_attached(&found, &settings);
        settings.attach = settings.attach.or(stays_attached.then_some(true));
        let side_file = side_file_changes::render(&settings)?;
        let interrupted = home.map_or(anyhow::Ok(false), |home| Ok(!stage::leftovers(home)?.is_empty()))?;
        let wanted = Wanted {
            name,
            program: self.source.fingerprint(),
            settings: &settings,
            with_old_side_file: self.with_old_side_file(&found, &settings, &side_file)?,
            interrupted,
        };
        let plan = Plan::new(&found, &wanted, *allowed)?;
        Ok(Decision { plan, settings, side_file, stays_attached, found, receipt, noted })
    }

    /// Returns the settings of a driver whose files are gone, unless another one is requested now.
    fn before<'a>(&self, found: &Found, receipt: &'a Receipt) -> Option<&'a Settings> {
        let SideFileChanges { driver, profile, .. } = &self.request.side_file_changes;
        let before = Some(&receipt.settings).filter(|_| found.is_nothing())?;
        let is_same = |wished: &Option<String>, was: &Option<String>| wished.is_none() || wished == was;
        (is_same(driver, &before.driver) && is_same(profile, &before.profile)).then_some(before)
    }

    /// Returns the receipt for an executable in `home`.
    fn receipt(&self, decision: &Decision, home: &Directory, program: &str) -> Receipt {
        let programs = vec![Known::of(self.source.fingerprint(), home, program)];
        Receipt { settings: decision.settings.clone(), programs }
    }

    /// Writes the receipt for an executable in `home`, unless it exists already. If the node's
    /// state cannot be written, the driver is still installed, and the reason is returned.
    fn note(&self, decision: &Decision, home: &Directory, program: &str) -> Option<String> {
        let mut receipt = self.receipt(decision, home, program);
        if !decision.plan.steps.is_empty() {
            let before = decision.program_before(&self.request.name, self.plugins);
            let before = before.filter(|before| !receipt.programs.contains(before));
            receipt.programs.extend(before);
        }
        if decision.noted.as_ref() == Some(&receipt) {
            return None;
        }
        let written = self.request.receipts().and_then(|receipts| receipts.write(&receipt));
        let told = |error: anyhow::Error| {
            let what = "is installed, but what was installed could not be noted";
            format!(
                "{} {what}: {error:#}: make room in {}, then install again",
                self.request.name,
                self.request.state.display()
            )
        };
        written.err().map(told)
    }

    /// Compares the program's answers to `init` for the existing and the new side file. The program
    /// runs from where it is now.
    fn with_old_side_file(&self, found: &Found, settings: &Settings, side_file: &str) -> Result<Init> {
        let old = match (found, found.settings()) {
            (Found::Ours(Ours { side_file: SideFile::Garbled(_), .. }), _) => return Ok(Init::Failure),
            (Found::Ours(Ours { side_file: SideFile::Missing, .. }), _) => "{}".to_owned(),
            (_, Some(old)) if plan::asks_init(found, settings) => side_file_changes::render(old)?,
            _ => return Ok(Init::Same),
        };
        let name = &self.request.name;
        let answer = |text: &str| anyhow::Ok(Guise::new(name, text)?.init(self.source.path()).ok());
        Ok(match answer(&old)? {
            None => Init::Failure,
            old if old == answer(side_file)? => Init::Same,
            Some(_) => Init::Other,
        })
    }

    /// Checks that the node is suitable, and installs unless it is a dry run.
    fn change(&self, plugins: &Directory, decision: &Decision, mark: Mark<'_>) -> Result<Changed> {
        let (request, source) = (self.request, self.source);
        let copies = decision.plan.steps.iter().filter(|step| step.is_visible()).count() as u64;
        let root = request.place.root();
        let findings = Findings::gather(&Candidate { plugins, root, source, copies })?.into_result()?;
        let mut changed = Changed::default();
        if !request.dry_run {
            // Leftovers in the driver's directory stay for now: they show that kubelet may have
            // missed a change, and must not be removed before that is fixed.
            stage::clean(plugins)?;
            let runs_here = !findings.other_machine;
            changed = Changing { installer: self, plugins, decision, runs_here }.change(mark)?;
        }
        changed.warnings.splice(0..0, findings.warnings);
        Ok(changed)
    }
}

impl Decision {
    /// Returns the executable that is there until the new one replaces it.
    fn program_before(&self, name: &DriverName, plugins: Option<&Directory>) -> Option<Known> {
        let there = match &self.found {
            Found::Ours(ours) if ours.has_whole_program() => ours.program.as_ref(),
            _ => None,
        };
        let home = plugins.and_then(|plugins| home(plugins, name).ok().flatten());
        match (there, home) {
            (Some(program), Some(home)) => Some(Known::of(&program.fingerprint, &home, name.executable())),
            _ => self.receipt.as_ref()?.programs.first().cloned(),
        }
    }
}

/// Returns the driver's directory, if it is one.
pub(super) fn home(plugins: &Directory, name: &DriverName) -> Result<Option<Directory>> {
    let is_directory = change::is_directory(plugins, &name.directory())?;
    if is_directory { plugins.child(name.directory()) } else { Ok(None) }
}

/// Warns of a name like those of kubelet's own plugins.
fn ambiguous(name: &DriverName) -> Option<String> {
    (name.vendor() == Some("kubernetes.io")).then(|| {
        format!(
            "{name} may be taken for one of kubelet's own plugins: choose another vendor than kubernetes.io"
        )
    })
}
