//! `flexvol try`: the whole life of a pod for each driver, on this machine, without a cluster.
//!
//! Everything happens in a mount namespace and a directory of its own. The output shows what was
//! observed: the installed copy of this executable answers, data is written through the mount and
//! read back, and at the end the mount table, the loop devices, the processes and the files are
//! searched for leftovers.

mod leaks;
mod life;
mod stage;

use anyhow::Result;
use clap::Args;
use flexvol_linux::proc::{namespace, signal};
use flexvol_model::settings::Settings;
use flexvol_protocol::ordered::filled;
use flexvol_terminal::report::{Report, Row, RowOutcome};
use flexvol_terminal::screen::Screen;
use serde_json::json;
use stage::Part;
use stage::Stage;
use std::process::ExitCode;

/// Part of the table that belongs to no driver.
const LEAKS: &str = "leaks";

/// Try the drivers on this machine, as kubelet would use them, without a cluster
#[derive(Args)]
#[command(after_help = "\
Needs root, for mounts. They are made in a mount namespace of their own: nothing outside it sees them.

Examples:
  sudo flexvol try
  sudo flexvol try --json | jq '.rows[] | select(.result != \"ok\")'

Exit status: 0 if every call did what it should and nothing was left behind.")]
pub(super) struct Trial {}

impl Trial {
    pub(super) fn run(screen: &mut Screen) -> Result<ExitCode> {
        namespace::enter()?;
        signal::install()?;
        namespace::cover_run()?;
        let stage = Stage::set()?;
        let version = env!("CARGO_PKG_VERSION");
        let intro = format!(
            "flexvol {version}: exercising its own drivers as kubelet would, in a mount namespace of its own"
        );
        let mut report = Report::begin(screen, &intro, "DRIVER", 7)?;
        for part in parts(&stage) {
            life::live(&stage, &part, &mut report)?;
        }
        leaks::look(&stage, &mut report)?;
        let struck = stage.strike();
        report.row(Row::of(LEAKS, "remove the directory", struck))?;
        end(report)
    }
}

fn end(report: Report<'_>) -> Result<ExitCode> {
    let (totals, clean) =
        (report.totals(), report.results().all(|(part, result)| part != LEAKS || result == RowOutcome::Ok));
    let skipped = if totals.skipped == 0 { String::new() } else { format!(", {} skipped", totals.skipped) };
    let left = if clean { "nothing left behind" } else { "something left behind, see above" };
    let line = format!("{} calls, {} failures{skipped}, {left}", totals.calls, totals.failures);
    report.end(totals.failures == 0, &line, json!({"clean": clean}))?;
    Ok(if totals.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the drivers that need only this machine.
fn parts(stage: &Stage) -> [Part; 3] {
    let own =
        |pairs: &[(&str, &str)]| filled(pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())));
    [
        Part { driver: "tmpfs", options: own(&[("size", "16Mi")]), keeps_data: false, ..Part::default() },
        Part {
            driver: "image",
            options: own(&[
                ("file", stage::IMAGE),
                ("size", "64Mi"),
                ("fsType", "ext4"),
                ("format", "ifBlank"),
            ]),
            settings: Settings { policy: stage.policy(), ..Settings::default() },
            keeps_data: true,
            tool: Some("mkfs.ext4"),
            device: Some("/dev/loop-control"),
        },
        Part {
            driver: "bind",
            options: own(&[("source", &stage.shared().to_string_lossy())]),
            settings: Settings { policy: stage.policy(), ..Settings::default() },
            keeps_data: true,
            ..Part::default()
        },
    ]
}
