//! Removal of a driver from the plugin directory: unlink, then rmdir.
//!
//! The executable is removed first: for kubelet that is the clean end of a driver. The side file is
//! removed last, because it marks the directory as ours, and a killed uninstall must be able to
//! continue. Only files that flexvol installed, or has a copy of, are removed.

use super::found::{Broken, Executable, Foreign, Found, LEFTOVER, Ours, Program};
use super::in_use::{self, Volume};
use super::install::{self, Source, keep, stage};
use super::opened::{Opened, PluginDirPath};
use super::receipt::{Receipt, Receipts};
use super::refusal::{Reason, Refusal};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory::Directory;
use flexvol_linux::mount::mount_table;
use flexvol_model::settings::{SIDE_FILE, Settings};
use flexvol_protocol::DriverName;
use flexvol_protocol::text::one_line;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Limit for a foreign file's name in a message, in bytes.
const NAME_LIMIT: usize = 255;

/// Request to uninstall a driver.
#[derive(Clone, Debug)]
pub struct UninstallRequest {
    /// The driver.
    pub name: DriverName,
    /// The plugin directory.
    pub place: PluginDirPath,
    /// Directory in which replaced drivers are kept, as a path on the node.
    pub state: PathBuf,
    /// Behaviour while volumes are mounted.
    pub busy: Busy,
}

/// Behaviour while volumes of the driver are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Refuse.
    Refuse,
    /// Wait for so long until none is mounted, then refuse.
    Wait(Duration),
    /// Remove the driver nevertheless, also if mounts cannot be seen: pods with such volumes do not
    /// terminate until the driver is back.
    Ignore,
}

/// Result of an uninstallation.
#[derive(Clone, Debug)]
pub struct Removed {
    /// True if anything was there.
    pub was_there: bool,
    /// Notes for the admin.
    pub warnings: Vec<String>,
}

/// Removes one driver from one plugin directory. If the error is a [`Refusal`], it has the reason.
pub fn uninstall(request: &UninstallRequest) -> Result<Removed> {
    let start = Instant::now();
    loop {
        let patience = match request.busy {
            Busy::Wait(patience) => patience.saturating_sub(start.elapsed()),
            Busy::Refuse | Busy::Ignore => Duration::ZERO,
        };
        // The wait holds no lock: others may install meanwhile.
        if request.busy != Busy::Ignore && is_ours(request)? {
            in_use::sees_mounts(&request.place.path()?, ", or uninstall it with --force")?;
            in_use::wait_until_idle(&request.name, &state(request)?, patience)?;
        }
        match attempt(request) {
            Err(error) if is_busy(&error) && !patience.is_zero() => {}
            done => return done,
        }
    }
}

fn is_busy(error: &anyhow::Error) -> bool {
    Refusal::reason_of(error) == Some(Reason::InUse)
}

/// Reports whether the driver is ours: otherwise a wait is useless.
fn is_ours(request: &UninstallRequest) -> Result<bool> {
    let plugins = Opened::open(&request.place)?;
    let found = plugins
        .map_or(Ok(Found::Absent), |plugins| look(request, &plugins.directory).map(|(found, _)| found))?;
    Ok(Installed::of(&found).is_some())
}

/// Returns the driver that is there, and its receipt.
fn look(request: &UninstallRequest, plugins: &Directory) -> Result<(Found, Option<Receipt>)> {
    receipts(request)?.known_again(Found::look(plugins, &request.name)?, plugins)
}

/// Driver that flexvol has installed.
struct Installed {
    settings: Settings,
    /// The executable, if it is a regular file.
    program: Option<Program>,
}

impl Installed {
    /// Returns a driver that flexvol has installed. If its executable is still a foreign symlink,
    /// the take-over was not completed.
    fn of(found: &Found) -> Option<Self> {
        let (settings, program) = match found {
            Found::Ours(Ours { settings, program, .. }) => (settings, program.clone()),
            Found::Foreign(Foreign {
                executable: Executable::Link(_),
                side_file: Some(Ok(settings)),
                ..
            }) if settings.hash.is_some() => (settings, None),
            _ => return None,
        };
        Some(Self { settings: settings.clone(), program })
    }
}

fn attempt(request: &UninstallRequest) -> Result<Removed> {
    let Some(plugins) = Opened::open(&request.place)? else {
        return Ok(Removed { was_there: false, warnings: forget(request).into_iter().collect() });
    };
    let plugins = plugins.lock(&request.place)?.directory;
    stage::clean(&plugins)?;
    let name = &request.name;
    let (found, receipt) = look(request, &plugins)?;
    if let Some(installed) = Installed::of(&found) {
        return remove(request, &plugins, &installed, receipt.as_ref());
    }
    match found {
        Found::Absent => Ok(Removed { was_there: false, warnings: forget(request).into_iter().collect() }),
        Found::Broken(Broken::Empty) => {
            remove_directory(&plugins, name)?;
            Ok(Removed { was_there: true, warnings: forget(request).into_iter().collect() })
        }
        _ => Err(not_ours(name, "the driver").into()),
    }
}

fn remove(
    request: &UninstallRequest,
    plugins: &Directory,
    installed: &Installed,
    receipt: Option<&Receipt>,
) -> Result<Removed> {
    let name = &request.name;
    let kept = keep::kept(&kept_in(request)?)?;
    let home = plugins.child(name.directory())?.context("the driver's directory was removed meanwhile")?;
    check_mounts(&home)?;
    let others = others(name, &home)?;
    check_content(name, installed, (&home, &others), &kept, receipt)?;
    let busy = in_use::volumes(name, &state(request)?)?;
    if !busy.is_empty() && request.busy != Busy::Ignore {
        return Err(in_use_refusal(name, &busy, request.busy).into());
    }
    // The receipt is removed before the side file, as the side file alone marks the driver as ours.
    let mut warnings: Vec<_> = forget(request).into_iter().collect();
    home.remove(name.executable())?;
    for other in &others {
        home.remove_tree(other)?;
    }
    stage::clean(&home)?;
    home.remove(SIDE_FILE)?;
    remove_directory(plugins, name)?;
    let busy = in_use::volumes(name, &state(request)?)?;
    if !busy.is_empty() {
        warnings.push(format!(
            "volumes of {name} are still mounted: {}: install it again, or their pods cannot end; if kubelet is restarted before that, restart it once more afterwards",
            in_use::describe(&busy)
        ));
    }
    if let Some(copy) = kept.last() {
        warnings.push(format!(
            "the driver that was there before is kept in {}: flexvol install --roll-back {name} restores it",
            copy.path().display()
        ));
    }
    Ok(Removed { was_there: true, warnings })
}

/// Fails if anything is mounted in the driver's directory. Some drivers mount there what their
/// volumes share: removing the directory would empty it.
fn check_mounts(home: &Directory) -> Result<()> {
    let path = home.path().canonicalize().with_context(|| format!("look at {}", home.path().display()))?;
    match mount_table::below(&path)?.first() {
        None => Ok(()),
        Some(entry) => {
            let text = format!("something is mounted on {}: unmount it first", entry.target.display());
            Err(Refusal::new(Reason::InUse, text).into())
        }
    }
}

fn remove_directory(plugins: &Directory, name: &DriverName) -> Result<()> {
    if let Some(home) = install::home(plugins, name)? {
        stage::clean(&home)?;
    }
    plugins.remove_directory(name.directory())?;
    plugins.sync()
}

/// Returns the node's directory of state, as a path for this process.
fn state(request: &UninstallRequest) -> Result<PathBuf> {
    request.place.below(&request.state)
}

fn receipts(request: &UninstallRequest) -> Result<Receipts> {
    Receipts::of(&request.place, &request.state, &request.name.directory())
}

/// Removes the receipt, or returns a warning: with the receipt, the next installation would reuse
/// the settings of this one.
fn forget(request: &UninstallRequest) -> Option<String> {
    let forgotten = receipts(request).and_then(|receipts| Ok(receipts.forget()?));
    let told = |error: anyhow::Error| {
        format!("{} would be installed with its settings of now: {error:#}: uninstall it again", request.name)
    };
    forgotten.err().map(told)
}

fn kept_in(request: &UninstallRequest) -> Result<PathBuf> {
    let UninstallRequest { name, place, state, .. } = request;
    install::InstallRequest {
        state: state.clone(),
        ..install::InstallRequest::new(name.clone(), place.clone())
    }
    .kept_in()
}

/// Returns the names, as exact bytes, of all files that an installer does not put there.
fn others(name: &DriverName, home: &Directory) -> Result<Vec<OsString>> {
    let mut names = home.names()?;
    names.retain(|other| {
        let is_leftover = other.as_encoded_bytes().starts_with(LEFTOVER.as_bytes());
        *other != name.executable() && *other != SIDE_FILE && !is_leftover
    });
    Ok(names)
}

/// Fails unless every file is ours, or has an equal copy.
fn check_content(
    name: &DriverName,
    installed: &Installed,
    (home, others): (&Directory, &[OsString]),
    kept: &[Directory],
    receipt: Option<&Receipt>,
) -> Result<()> {
    for other in others {
        if !is_kept(other, home, kept)? {
            return Err(not_ours(name, &one_line(&other.to_string_lossy(), NAME_LIMIT)).into());
        }
    }
    if !is_executable_ours(name, installed, home, receipt)?
        && !is_kept(name.executable().as_ref(), home, kept)?
    {
        return Err(not_ours(name, name.executable()).into());
    }
    Ok(())
}

/// Reports whether an equal copy is kept. Fails if none is, and one could not be compared.
fn is_kept(name: &OsStr, home: &Directory, kept: &[Directory]) -> Result<bool> {
    let mut failed = None;
    for copy in kept {
        match keep::is_same(name, home, copy) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(false), Err)
}

fn is_executable_ours(
    name: &DriverName,
    installed: &Installed,
    home: &Directory,
    receipt: Option<&Receipt>,
) -> Result<bool> {
    let Some(program) = &installed.program else { return Ok(home.look(name.executable())?.is_none()) };
    let is_installed = Some(&program.fingerprint.hash) == installed.settings.hash.as_ref();
    Ok(is_installed
        || program.fingerprint.version.is_some()
        || receipt.map_or(anyhow::Ok(false), |receipt| {
            receipt.claims(program, home, name.executable(), Source::own().ok().as_ref())
        })?
        || stage::is_half_replaced(home, &program.fingerprint)?)
}

fn not_ours(name: &DriverName, what: &str) -> Refusal {
    let text =
        format!("{} holds {what}, which flexvol did not put there: move it away yourself", name.directory());
    Refusal::new(Reason::Foreign, text)
}

fn in_use_refusal(name: &DriverName, busy: &[Volume], asked: Busy) -> Refusal {
    let (still, fix) = match asked {
        Busy::Wait(patience) => (format!("still mounted after {} s", patience.as_secs()), "wait longer"),
        Busy::Refuse | Busy::Ignore => ("mounted".to_owned(), "add --when-idle to wait"),
    };
    let text = format!(
        "cannot uninstall {name}: {} {still}: {}: end those pods, or {fix}",
        if busy.len() == 1 { "a volume is".to_owned() } else { format!("{} volumes are", busy.len()) },
        in_use::describe(busy)
    );
    Refusal::new(Reason::InUse, text)
}
