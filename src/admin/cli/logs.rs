//! `flexvol logs`.

use super::which_volumes::{WhichVolumes, asked_for};
use crate::deploy::tail::Tail;
use anyhow::Result;
use clap::Args;
use flexvol_linux::fs::{append, files};
use flexvol_linux::proc::signal;
use flexvol_model::diagnostics;
use flexvol_node::driver_log::{self, Entry};
use flexvol_protocol::ordered::filled;
use flexvol_terminal::probing::printable;
use flexvol_terminal::screen::{Screen, Tone};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Pause between two checks for new lines.
const TICK: Duration = Duration::from_millis(200);

/// Limit for one part of the log, in bytes; no part is that long.
const LONGEST: u64 = 4 << 20;

/// Show the calls of drivers on this node, and their results
#[derive(Args)]
#[command(after_help = "\
Every call of a flexvol driver is a line of /run/flexvol/log/drivers.jsonl, written after the reply; it grows to 1 MiB and is kept \
once more beside it, and is gone with the node's next boot. There is no option and no secret in it. init is not logged. All calls \
for the same volume in the same pod have the same id, so --id follows a volume from mount to unmount.

Examples:
  sudo flexvol logs --failed
  sudo flexvol logs --pod shop/web --follow
  sudo flexvol logs --driver example/nfs --last 20
  sudo flexvol logs --id 3f2a90c1
  sudo flexvol logs --json | jq -r 'select(.tookMs > 1000) | .target'

Exit status: 0 done, also if there is no such line, 1 failed, 2 wrong usage.")]
pub(super) struct Logs {
    #[command(flatten)]
    which: WhichVolumes,
    /// Only calls with this id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Only calls that failed
    #[arg(long)]
    failed: bool,
    /// Only the newest LINES calls
    #[arg(long, short = 'n', value_name = "LINES")]
    last: Option<usize>,
    /// Follow new calls until Ctrl-C
    #[arg(long, short)]
    follow: bool,
}

impl Logs {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        signal::install()?;
        let log = driver_log::path();
        readable(&log)?;
        // From here on no line is missed. A line written meanwhile comes twice, and is shown once.
        let mut tail = self.follow.then(|| Tail::from_now(log.clone())).transpose()?;
        let lines = written(&log)?;
        let mut ids = self.ids(lines.iter().filter_map(|line| Entry::parse(line)));
        let wanted: Vec<_> = lines
            .iter()
            .filter_map(|line| Entry::parse(line))
            .filter(|entry| self.wants(entry, &ids))
            .collect();
        let skipped = self.last.map_or(0, |last| wanted.len().saturating_sub(last));
        wanted[skipped..].iter().try_for_each(|entry| show(entry, screen))?;
        if wanted.is_empty() && !self.follow && !screen.wants_json() {
            screen.line("no such call is in the log of this node: it starts empty at every boot, and has calls of flexvol's drivers only")?;
        }
        while let Some(tail) = tail.as_mut().filter(|_| !signal::interrupted()) {
            let mut new = Vec::new();
            tail.read(|line| new.extend(Entry::parse(line)))?;
            for entry in new.into_iter().filter(|entry| !wanted.contains(entry)) {
                ids.extend(self.ids([entry.clone()].into_iter()));
                if self.wants(&entry, &ids) {
                    show(&entry, screen)?;
                }
            }
            std::thread::sleep(TICK);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the ids of the volumes of the requested pod: only a `mount` names the pod.
    fn ids(&self, entries: impl Iterator<Item = Entry>) -> BTreeSet<String> {
        let Some(pod) = &self.which.pod else { return BTreeSet::new() };
        let of_pod =
            entries.filter(|entry| entry.pod.as_ref().is_some_and(|name| name.contains(pod.as_str())));
        filled(of_pod.filter_map(|entry| entry.id))
    }

    fn wants(&self, entry: &Entry, ids: &BTreeSet<String>) -> bool {
        let WhichVolumes { pod, volume, driver } = &self.which;
        let of_pod = pod.is_none() || entry.id.as_ref().is_some_and(|id| ids.contains(id));
        // People know both spellings of a driver.
        let driver = driver.as_ref().map(|driver| driver.replace('/', "~"));
        of_pod
            && asked_for(volume.as_deref(), entry.volume.as_deref().as_slice())
            && asked_for(driver.as_deref(), &[&entry.driver])
            && self.id.as_ref().is_none_or(|id| entry.id.as_ref() == Some(id))
            && (!self.failed || entry.outcome == "Failure")
    }
}

/// Fails if the log may not be read: it is not the same as an empty log.
fn readable(log: &Path) -> Result<()> {
    match log.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            anyhow::bail!("{} may not be read: run this as root", log.display())
        }
        _ => Ok(()),
    }
}

/// Returns the lines of both parts of the log, the older first. A missing part has no lines.
fn written(log: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for part in [append::previous(log), log.to_owned()] {
        if part.is_file() {
            lines.extend(files::end(&part, LONGEST)?.lines().map(str::to_owned));
        }
    }
    Ok(lines)
}

fn show(entry: &Entry, screen: &mut Screen) -> Result<()> {
    if screen.wants_json() {
        return screen.text(&entry.to_line());
    }
    let (tone, word) = match &*entry.outcome {
        "Success" => (Tone::Good, "ok"),
        "Failure" => (Tone::Bad, "FAIL"),
        _ => (Tone::Warning, "lacks"),
    };
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let (time, verb) = (printable(&entry.time), printable(&entry.verb));
    let what = format!("{} {} {}", entry.driver, or_none(&entry.pod), or_none(&entry.volume));
    let word = screen.paint(tone, &format!("{word:<5}"));
    let took = format!("{} ms", entry.took_ms);
    let (id, what) = (printable(&or_none(&entry.id)), printable(&what));
    screen.line(&format!("{time}  {id:<8}  {word}  {verb:<10}  {took:>9}  {what}"))?;
    let Some(message) = &entry.message else { return Ok(()) };
    screen.line(&format!("  {}", printable(message)))?;
    let known_error = diagnostics::explain(message).map(|explained| explained.known_error);
    match known_error.filter(|known_error| !message.contains(known_error.cause)) {
        Some(known_error) => screen.line(&format!("  fix: {}", known_error.hint())),
        None => Ok(()),
    }
}
