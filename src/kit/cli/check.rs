//! `flexvol check`: checks case by case whether a driver is what kubelet needs.

mod arguments;
mod list;
mod progress;
mod template;
mod text;
mod volume;

use crate::check::{self, Report};
use anyhow::{Context as _, Result};
use arguments::RunArguments;
use clap::{Args, Subcommand, ValueEnum};
use flexvol_protocol::failure::Failure;
use flexvol_terminal::exit::{USAGE, complain};
use flexvol_terminal::program::Program as _;
use flexvol_terminal::screen::Screen;
use progress::Progress;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Check whether a driver does what kubelet needs, case by case
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Plays kubelet against any FlexVolume driver, in any language, and says what kubelet would trip
over, why that matters and how it is fixed. Every case is played in a sandbox of its own: the
machine's files, mounts, processes and network are not touched. Without a volume only what needs
none is checked: init, argv, output, unknown verbs. A case that must hold is one that a real
kubelet makes so, and cites the run that showed it; one that should hold is robustness that users
gain from; of those to harden a driver no kubelet sends what they do, but people and programs may.

Examples:
  sudo flexvol check ./mydriver
  sudo flexvol check ./mydriver --options '{\"server\":\"10.0.0.1\",\"share\":\"/data\"}' --network host
  sudo flexvol check ./mydriver --volume pv.yaml --secret secret.yaml -t 'mount::*' -t 'unmount::*'
  sudo flexvol check ./mydriver --options @options.json --format junit --output report.xml
  flexvol check list --level must
  flexvol check template tmpfs > mydriver                 a well-behaved one to begin with

Exit status: 0 all cases that must hold do (--level says others), 1 one does not, 2 the driver could
not be checked."
)]
pub(super) struct Check {
    #[command(subcommand)]
    action: Option<Action>,
    /// The executable, or its directory vendor~driver
    #[arg(required = true)]
    driver: Option<PathBuf>,
    /// Format of the report: text for people, json for programs, junit for build servers, tap
    /// (version 14) for test harnesses. The last two have no levels: they report a failed should as
    /// a failure
    #[arg(long, value_enum, value_name = "text|json|junit|tap", hide_possible_values = true)]
    format: Option<Format>,
    /// Write the report to a file, and the text to standard output as well
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Subcommand)]
enum Action {
    List(list::List),
    Template(template::Template),
}

/// Format of the report.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Junit,
    Tap,
}

impl Check {
    /// Runs the command. Errors are wrong usage or failures of the kit itself, never of a driver.
    pub(super) fn run(&self, screen: &mut Screen) -> ExitCode {
        let done = match &self.action {
            Some(Action::List(list)) => list.run(screen),
            Some(Action::Template(template)) => template.run(screen),
            None => self.check(screen),
        };
        done.unwrap_or_else(|error| {
            let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
            if !error.downcast_ref().is_some_and(closed) {
                complain(error, super::Cli::failed, screen.wants_json());
            }
            ExitCode::from(USAGE)
        })
    }

    fn check(&self, screen: &mut Screen) -> Result<ExitCode> {
        let format = self.format(screen)?;
        let chosen = self.run.chosen()?;
        let driver = self.driver.as_deref().ok_or_else(|| Failure::call("name a driver"))?;
        let given = self.run.given(driver)?;
        // Create the file before the run: if it cannot be written, no run is wasted.
        let create = |file: &PathBuf| {
            File::create(file).with_context(|| format!("write the report to {}", file.display()))
        };
        let file = self.output.as_ref().map(create).transpose()?;
        let is_text = format == Format::Text || file.is_some();
        let mut progress = Progress::new(screen, chosen.reported.len(), is_text);
        progress.begin(&given)?;
        let report = check::run(&given, &chosen, &mut |result| progress.done(result))?;
        progress.end()?;
        let shown = if let Some(mut file) = file {
            let plain = |_, text: &str| text.to_owned();
            file.write_all(rendered(format, &report, &plain)?.as_bytes())?;
            Format::Text
        } else {
            format
        };
        let text = rendered(shown, &report, &|tone, text| screen.paint(tone, text))?;
        screen.text(&text)?;
        Ok(ExitCode::from(report.exit_status()))
    }

    /// Returns the format; the global `--json` selects JSON, too.
    fn format(&self, screen: &Screen) -> Result<Format> {
        match (self.format, screen.wants_json()) {
            (None | Some(Format::Json), true) => Ok(Format::Json),
            (Some(_), true) => {
                Err(Failure::call("--json and --format contradict each other: give one of them").into())
            }
            (format, false) => Ok(format.unwrap_or(Format::Text)),
        }
    }
}

fn rendered(format: Format, report: &Report, paint: text::Paint<'_>) -> Result<String> {
    Ok(match format {
        Format::Text => text::rendered(report, paint),
        Format::Json => serde_json::to_string_pretty(&report.to_json())? + "\n",
        Format::Junit => report.to_junit(),
        Format::Tap => report.to_tap(),
    })
}

/// Returns an error for wrong usage.
fn wrong(text: impl Into<String>) -> anyhow::Error {
    Failure::call(text).into()
}
