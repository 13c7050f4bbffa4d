//! `flexvol probe`.

use anyhow::Result;
use clap::Args;
use flexvol_kubelet::scan::{Finding, Found, Scan, scan, terms};
use flexvol_linux::proc::signal;
use flexvol_terminal::driver_dir;
use flexvol_terminal::exit::say;
use flexvol_terminal::probing;
use flexvol_terminal::screen::{Screen, Tone};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Show which drivers kubelet would load from a plugin directory, or why not
#[derive(Args)]
#[command(after_help = "\
Runs init of every driver in the directory, as kubelet does when it starts, and changes nothing. Of a driver that \
is not loaded it says what kubelet would write to its log, and how that is fixed.

Examples:
  flexvol probe
  flexvol probe --plugin-dir /var/lib/kubelet/volumeplugins
  flexvol probe --json | jq -r '.found[] | select(.state == \"failed\") | .directory'

Exit status: 0 every driver is loaded, 1 one is not, or there is no driver, 2 wrong usage.")]
pub(super) struct Probe {
    /// The plugin directory [default: the one flexvol locate finds]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
}

impl Probe {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        signal::install()?;
        let scan = scan(&driver_dir::find(self.plugin_dir.as_deref())?, &terms())?;
        if signal::interrupted() {
            return Ok(ExitCode::FAILURE);
        }
        if screen.wants_json() {
            screen.json(&as_json(&scan))?;
        } else if !scan.found.is_empty() {
            show(&scan, screen)?;
        }
        let tried = scan.found.iter().filter(|found| !matches!(found.finding, Finding::Ignored(_)));
        let (good, bad): (Vec<_>, _) = tried.partition(|found| matches!(found.finding, Finding::Loaded(_)));
        if !screen.wants_json() && good.is_empty() && bad.is_empty() {
            let path = scan.plugin_dir.display();
            say(
                &format!(
                    "plugin directory {path} holds no driver: flexvol install puts one there, --plugin-dir names another directory"
                ),
                false,
            );
        }
        Ok(if bad.is_empty() && !good.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn show(scan: &Scan, screen: &mut Screen) -> Result<()> {
    let heading = ["STATE", "DIRECTORY", "CAPABILITIES, OR WHY NOT"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(heading).chain(scan.found.iter().flat_map(rows)).collect();
    screen.table(&rows)?;
    let loaded = scan.found.iter().filter(|found| matches!(found.finding, Finding::Loaded(_))).count();
    let tone = if loaded == 0 { Tone::Warning } else { Tone::Good };
    let text = screen.paint(tone, &format!("{loaded} loaded"));
    screen.line(&format!("{text} from {}", scan.plugin_dir.display()))
}

fn rows(found: &Found) -> Vec<[String; 3]> {
    let (state, lines) = match &found.finding {
        Finding::Loaded(loaded) => ("LOADED", vec![probing::in_service(loaded)]),
        Finding::Failed(failed) => ("FAILED", probing::why(failed)),
        Finding::Ignored(why) => ("IGNORED", vec![why.to_string()]),
    };
    let cells = std::iter::once((state.to_owned(), probing::plain(&found.directory)));
    let cells = cells.chain(std::iter::repeat_with(Default::default));
    cells.zip(lines).map(|((state, directory), line)| [state, directory, line]).collect()
}

fn as_json(scan: &Scan) -> Value {
    json!({
        "pluginDir": scan.plugin_dir.to_string_lossy(),
        "found": scan.found.iter().map(found_as_json).collect::<Vec<_>>(),
    })
}

fn found_as_json(found: &Found) -> Value {
    let (state, mut value) = match &found.finding {
        Finding::Loaded(loaded) => ("loaded", probing::loaded_as_json(loaded)),
        Finding::Failed(failed) => ("failed", json!({"reason": failed.logged, "fix": failed.fix})),
        Finding::Ignored(why) => ("ignored", json!({"reason": why.to_string()})),
    };
    value["directory"] = found.directory.to_string_lossy().into();
    value["state"] = state.into();
    value
}
