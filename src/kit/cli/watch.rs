//! `flexvol watch`.

use crate::prober::{Event, Habits, Watcher};
use anyhow::Result;
use clap::Args;
use flexvol_kubelet::scan::{Failed, Loaded};
use flexvol_linux::proc::clock;
use flexvol_linux::proc::signal;
use flexvol_terminal::probing::{self, plain, printable};
use flexvol_terminal::screen::{Screen, Tone};
use flexvol_terminal::{capabilities, driver_dir};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Limits for the display on a terminal: rows of the table, and events below it.
const ROWS: usize = 40;
const LAST: usize = 8;

/// Watch a plugin directory and its drivers as kubelet does
#[derive(Args)]
#[command(after_help = "\
Follows the directory by inotify and runs init of each driver that appears or changes, at most once a second. A \
driver whose new init fails is reported and out of service. On a terminal it shows the table of drivers as it is \
now; elsewhere, and with --json, one line an event: added, updated, removed, failed, or noted of the watch itself. \
A plugin directory that disappears is made again, as kubelet does.

Examples:
  flexvol watch
  flexvol watch --plugin-dir /var/lib/kubelet/volumeplugins
  flexvol watch --json --for 60 | jq -r 'select(.event == \"failed\") | .reason'

Exit status: 0 when the time is over or after SIGINT or SIGTERM, 1 if there is nothing to watch, 2 wrong usage.")]
pub(super) struct Watch {
    /// The plugin directory [default: the one flexvol locate finds]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Seconds after which to end [default: never]
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<u32>,
    /// Create the plugin directory if it is missing, as kubelet does when it starts
    #[arg(long)]
    create: bool,
}

impl Watch {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        signal::install()?;
        let habits = Habits { create: self.create, ..Habits::default() };
        let mut watcher = Watcher::new(&driver_dir::find(self.plugin_dir.as_deref())?, habits)?;
        let end = self.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
        let mut view = View::of(screen);
        while !signal::interrupted() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            let events = watcher.next(left.unwrap_or(Duration::MAX))?;
            view.show(&events, &watcher, screen)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Form in which events are shown.
enum View {
    Json,
    Lines,
    /// Table of the drivers, with the last events.
    Table(VecDeque<String>),
}

impl View {
    fn of(screen: &Screen) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        match () {
            () if screen.wants_json() => Self::Json,
            () if io::stdout().is_terminal() && !dumb => Self::Table(VecDeque::new()),
            () => Self::Lines,
        }
    }

    fn show(&mut self, events: &[Event], watcher: &Watcher, screen: &mut Screen) -> Result<()> {
        let time = clock::now();
        match self {
            Self::Json => events.iter().try_for_each(|event| screen.line(&as_json(event, &time).to_string())),
            Self::Lines => events.iter().try_for_each(|event| screen.line(&line(event, &time))),
            Self::Table(_) if events.is_empty() => Ok(()),
            Self::Table(last) => {
                last.extend(events.iter().map(|event| line(event, &time)));
                last.drain(..last.len().saturating_sub(LAST));
                table(watcher, last, screen)
            }
        }
    }
}

/// Redraws the whole screen: clear, table, last events.
fn table(watcher: &Watcher, last: &VecDeque<String>, screen: &mut Screen) -> Result<()> {
    let stats = watcher.stats();
    screen.text("\x1b[H\x1b[2J")?;
    screen.line(&format!(
        "{}: {} in service, {} changes, {} probes, {} looks, {} overflows",
        watcher.plugin_dir().display(),
        watcher.loaded().count(),
        stats.changes,
        stats.probes,
        stats.looks,
        stats.overflows
    ))?;
    let heading = ["STATE", "DIRECTORY", "CAPABILITIES, OR WHY NOT"].map(str::to_owned);
    let rows = watcher.table().iter().map(|(name, known)| row(name, known)).take(ROWS);
    screen.table(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())?;
    let more = watcher.table().len().saturating_sub(ROWS);
    if more > 0 {
        screen.line(&format!("… and {more} more"))?;
    }
    let heading = screen.paint(Tone::Heading, "LAST");
    screen.line(&format!("\n{heading}"))?;
    last.iter().try_for_each(|line| screen.line(line))
}

fn row(name: &OsStr, known: &Result<Loaded, Failed>) -> [String; 3] {
    let (state, text) = match known {
        Ok(loaded) => ("LOADED", probing::in_service(loaded)),
        Err(failed) => ("FAILED", probing::why(failed).join("; ")),
    };
    [state.to_owned(), plain(name), text]
}

fn line(event: &Event, time: &str) -> String {
    let name = event.driver.as_deref().map_or_else(|| plain(&event.directory), printable);
    let able = event.capabilities.map(capabilities::names);
    let fix = event.fix.as_ref().map(|fix| format!("fix: {fix}"));
    let said = able.into_iter().chain(event.reason.clone()).chain(fix);
    let said = printable(&said.collect::<Vec<_>>().join("; "));
    format!("{time}  {:<7}  {name}  {said}", event.kind.name()).trim_end().to_owned()
}

fn as_json(event: &Event, time: &str) -> Value {
    let members = [
        ("time", Some(json!(time))),
        ("event", Some(json!(event.kind.name()))),
        ("driver", event.driver.as_ref().map(|driver| json!(driver))),
        ("directory", Some(json!(event.directory.to_string_lossy()))),
        ("inService", event.driver.as_ref().map(|_| json!(event.capabilities.is_some()))),
        ("capabilities", event.capabilities.map(|held| capabilities::json(held).into())),
        ("reason", event.reason.as_ref().map(|reason| json!(reason))),
        ("fix", event.fix.as_ref().map(|fix| json!(fix))),
    ];
    let members = members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Object(members.collect::<Map<_, _>>())
}
