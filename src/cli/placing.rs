//! What the commands that change plugin directories have in common: where, and what came of it.

use super::say;
use super::screen::{Screen, Tone};
use crate::failure::{Failure, one_line};
use crate::plugin_dir::install;
use crate::plugin_dir::opened::Place;
use crate::plugin_dir::refusal::{Reason, Refusal};
use crate::protocol::DriverName;
use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The vendor of a driver that is named without one.
const VENDOR: &str = "flexvol";

/// Where kubelet looks if it is not told otherwise.
const DEFAULT: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

/// Where.
#[derive(Args)]
pub(super) struct Placing {
    /// kubelet's plugin directory; may be repeated [default: the one flexvol locate finds]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Vec<PathBuf>,
    /// Work on the node whose file system is mounted here: an image, or the host in a container
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Where drivers that were replaced are kept
    #[arg(long = "state-dir", value_name = "DIR", default_value = install::STATE)]
    pub(super) state: PathBuf,
    /// How long to wait for another installer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    lock_timeout: u64,
}

impl Placing {
    /// Every plugin directory that is meant.
    pub(super) fn places(&self) -> Vec<Place> {
        let default = [PathBuf::from(DEFAULT)];
        let directories = if self.plugin_dir.is_empty() { &default[..] } else { &self.plugin_dir };
        let patience = Duration::from_secs(self.lock_timeout);
        let place =
            |directory: &PathBuf| Place { root: self.root.clone(), patience, ..Place::new(directory) };
        directories.iter().map(place).collect()
    }
}

/// A driver's name, as in manifests or as on disk; the vendor may be left out.
pub(super) fn name(text: &str) -> Result<DriverName, Failure> {
    match text.find(['/', '~']) {
        Some(at) if text[at..].starts_with('~') => DriverName::from_directory(text),
        Some(_) => DriverName::parse(text),
        None => DriverName::parse(&format!("{VENDOR}/{text}")),
    }
}

/// The exit status for each reason.
fn status(error: &anyhow::Error) -> u8 {
    match Refusal::reason_of(error) {
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

/// One driver in one directory, and what came of it.
pub(super) type Done<T> = (DriverName, Place, Result<T>);

/// Prints what came of each, good or bad; the worst status.
pub(super) fn conclude<T>(
    screen: &mut Screen,
    done: &[Done<T>],
    to_json: &dyn Fn(&T) -> Value,
    describe: &dyn Fn(&T) -> (Tone, String),
) -> Result<ExitCode> {
    if screen.wants_json() {
        let all: Vec<_> = done.iter().map(|each| one(each, to_json)).collect();
        screen.json(&all)?;
    } else {
        for (_, place, result) in done {
            match result {
                Ok(report) => {
                    let (tone, text) = describe(report);
                    let warnings = to_json(report)["warnings"].clone();
                    let text = screen.paint(tone, &text);
                    screen.line(&format!("{}: {text}", place.directory.display()))?;
                    for warning in warnings.as_array().into_iter().flatten().filter_map(Value::as_str) {
                        let warning = screen.paint(Tone::Warning, &format!("  warning: {warning}"));
                        screen.line(&warning)?;
                    }
                }
                Err(error) => say(&message(error), false),
            }
        }
    }
    let worst = done.iter().filter_map(|(.., result)| result.as_ref().err()).map(status).max();
    Ok(ExitCode::from(worst.unwrap_or(0)))
}

fn one<T>((name, place, result): &Done<T>, to_json: &dyn Fn(&T) -> Value) -> Value {
    let mut value = match result {
        Ok(report) => to_json(report),
        Err(error) => json!({
            "error": message(error),
            "reason": Refusal::reason_of(error).map_or("failed", Reason::word),
        }),
    };
    value["driver"] = json!(name.to_string());
    value["pluginDir"] = json!(place.directory);
    value
}

fn message(error: &anyhow::Error) -> String {
    one_line(&format!("{error:#}"), usize::MAX)
}
