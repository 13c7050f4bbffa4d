//! Common part of the commands that change plugin directories: the directories, and the results.

use crate::plugin_dir::opened::PluginDirPath;
use crate::plugin_dir::refusal::{Reason, Refusal};
use anyhow::Result;
use clap::Args;
use flexvol_kubelet::locate::{self, check_root, locate};
use flexvol_linux::fs::directory;
use flexvol_model::drivers::VENDOR;
use flexvol_model::paths;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::text::one_line;
use flexvol_terminal::exit::say;
use flexvol_terminal::screen::{Screen, Tone};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Directories to work on.
#[derive(Args)]
pub(super) struct Placing {
    /// kubelet's plugin directory; may be repeated [default: the one flexvol locate finds]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Vec<PathBuf>,
    /// Directory where the node's file system is mounted: an image, or the host in a container
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Directory for replaced drivers, and for records of what was installed
    #[arg(long = "state-dir", value_name = "DIR", default_value = paths::STATE)]
    pub(super) state: PathBuf,
    /// Seconds to wait for another installer
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    lock_timeout: u64,
}

impl Placing {
    /// Returns every plugin directory to work on. If none was named, prints those found, and why.
    pub(super) fn places(&self, screen: &Screen) -> Result<Vec<PluginDirPath>> {
        check_root(self.root.as_deref())?;
        let directories =
            if self.plugin_dir.is_empty() { self.located(screen)? } else { self.plugin_dir.clone() };
        if let Some(relative) = directories.iter().find(|directory| directory.is_relative()) {
            let text = format!(
                "--plugin-dir {} is relative, and kubelet has another working directory: write it whole, as kubelet has it (flexvol locate)",
                relative.display()
            );
            return Err(Refusal::new(Reason::Usage, text).into());
        }
        let patience = Duration::from_secs(self.lock_timeout);
        let place =
            |directory| PluginDirPath { root: self.root.clone(), patience, ..PluginDirPath::new(directory) };
        Ok(directories.into_iter().map(place).collect())
    }

    fn located(&self, screen: &Screen) -> Result<Vec<PathBuf>> {
        let located = locate(&locate::LocateRequest { explicit: Vec::new(), root: self.root.clone() })?;
        let mut directories = Vec::new();
        for candidate in located.chosen() {
            let seen = match &self.root {
                Some(root) => candidate.below(&std::path::absolute(root)?),
                None => candidate.directory().map(Path::to_owned),
            };
            let Some(directory) = seen else { continue };
            if !screen.wants_json() {
                say(&format!("plugin directory {}: {}", directory.display(), candidate.evidence), false);
            }
            directories.push(directory);
        }
        if directories.is_empty() {
            let text = "no plugin directory was found: name it with --plugin-dir, flexvol locate says why";
            return Err(Failure::new(Code::NotFound, text).into());
        }
        Ok(directories)
    }
}

/// Parses a driver's name, as in manifests or as on disk; the vendor may be omitted.
pub(super) fn name(text: &str) -> Result<DriverName, Failure> {
    match text.find(['/', '~']) {
        Some(at) if text[at..].starts_with('~') => DriverName::from_directory(text),
        Some(_) => DriverName::parse(text),
        None => DriverName::parse(&format!("{VENDOR}/{text}")),
    }
}

/// Returns the exit status for an error.
pub(super) fn status(error: &anyhow::Error) -> u8 {
    match Refusal::reason_of(error) {
        // Arguments that are valid for no call.
        None if error.downcast_ref().is_some_and(|why: &Failure| why.code() == Code::BadCall) => 2,
        None => 1,
        Some(Reason::Usage) => 2,
        Some(Reason::Foreign) => 4,
        Some(Reason::Newer) => 5,
        Some(Reason::InUse) => 6,
        Some(Reason::Preflight) => 7,
        Some(Reason::SelfCheck) => 8,
        Some(Reason::NotCalled) => 9,
        Some(Reason::Locked) => 10,
    }
}

/// Result for one driver in one directory, to be printed.
pub(super) trait Shown {
    /// Returns the text for people.
    fn text(&self) -> String;
    /// Returns an object for programs.
    fn json(&self) -> Value;
    /// Returns further notes for the admin.
    fn warnings(&self) -> &[String];
}

/// One driver in one directory, and its result.
pub(super) type Done<T> = (DriverName, PluginDirPath, Result<T>);

/// Prints every result, good or bad; returns the worst status.
pub(super) fn conclude<T: Shown>(screen: &mut Screen, done: &[Done<T>]) -> Result<ExitCode> {
    if screen.wants_json() {
        screen.json(&done.iter().map(json_of).collect::<Vec<_>>())?;
    } else {
        done.iter().try_for_each(|each| show(screen, each))?;
    }
    let worst = done.iter().filter_map(|(.., result)| result.as_ref().err()).map(status).max();
    Ok(ExitCode::from(worst.unwrap_or(0)))
}

fn show<T: Shown>(screen: &mut Screen, (_, place, result): &Done<T>) -> Result<()> {
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            say(&message(error), false);
            return Ok(());
        }
    };
    screen.line(&format!("{}: {}", place.directory.display(), report.text()))?;
    report.warnings().iter().try_for_each(|warning| {
        let line = screen.paint(Tone::Warning, &format!("  warning: {warning}"));
        screen.line(&line)
    })
}

fn json_of<T: Shown>((name, place, result): &Done<T>) -> Value {
    let mut value = match result {
        Ok(report) => report.json(),
        Err(error) => json!({
            "error": message(error),
            "reason": Refusal::reason_of(error).map_or("failed", Reason::word),
        }),
    };
    if let Ok(report) = result {
        value["warnings"] = json!(report.warnings());
    }
    value["driver"] = json!(name.to_string());
    value["pluginDir"] = json!(place.directory);
    value
}

pub(super) fn message(error: &anyhow::Error) -> String {
    let fix = if directory::is_forbidden(error) { ": run this as root" } else { "" };
    one_line(&format!("{error:#}{fix}"), usize::MAX)
}
