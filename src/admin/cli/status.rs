//! `flexvol status`.

use super::which_volumes::{WhichVolumes, asked_for};
use crate::inventory::{self, Volume};
use crate::kubelet_log;
use anyhow::Result;
use clap::Args;
use flexvol_linux::mount::mount_health::{Vitals, words};
use flexvol_linux::proc::{clock, process, signal};
use flexvol_terminal::probing::printable;
use flexvol_terminal::screen::{Screen, Tone, bytes, counted};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Limit for a call that is not worth showing, in seconds.
const BRIEF: u64 = 3;

/// Pause between two checks for an interrupt.
const TICK: Duration = Duration::from_millis(100);

/// Show every flex volume of this node: pod, source, usage, and whether it answers
#[derive(Args)]
#[command(after_help = "\
Shows the volumes of all drivers, foreign ones too: from the mount table, kubelet's directories of pods, and the records \
of flexvol's drivers. Each is asked how it is in a process of its own, so a server that is silent delays the answer by a few seconds \
and holds up nothing.

  alive        it answers
  dead         who served it is gone (Transport endpoint is not connected, …): flexvol doctor
  hung         it does not answer: its server is down, or the program that serves it is stuck
  not mounted  a pod waits for it: the driver failed (flexvol logs), or kubelet did not call it

What pods wait for comes first, with how often that failed and since when. Why is what the driver said, else what kubelet's log says.
A call that has not ended is shown from its third second on.

SINCE is when it was mounted; of a foreign driver's when kubelet made its directory.

Examples:
  sudo flexvol status
  sudo flexvol status --watch             the same every two seconds, until Ctrl-C
  sudo flexvol status --driver fstab/cifs --pod shop/web
  sudo flexvol status --json | jq -r '.volumes[] | select(.health != \"alive\") | .target'

Exit status: 0 all of them are alive, 1 one is not, 2 wrong usage.")]
pub(super) struct Status {
    #[command(flatten)]
    which: WhichVolumes,
    /// kubelet's own directory; may be repeated [default: all in use, mounted or recorded]
    #[arg(long, value_name = "DIR")]
    kubelet_root: Vec<PathBuf>,
    /// kubelet's log [default: /var/log/kubelet.log, or the journal of the last hour]
    #[arg(long, value_name = "FILE")]
    kubelet_log: Option<PathBuf>,
    /// Seconds to wait for a volume to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    patience: u8,
    /// Repeat the output every SECONDS, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    watch: Option<u16>,
}

/// Volumes that were found.
struct Seen {
    /// Volumes that match the request.
    volumes: Vec<Volume>,
    /// Number of all other volumes.
    others: usize,
}

impl Status {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        signal::install()?;
        let mut seen = self.look()?;
        let Some(seconds) = self.watch else {
            show(&seen, screen)?;
            return Ok(verdict(&seen.volumes));
        };
        while !signal::interrupted() {
            if screen.wants_json() {
                screen.line(&as_json(&seen.volumes).to_string())?;
            } else {
                if screen.is_terminal() {
                    screen.text("\x1b[H\x1b[2J")?;
                }
                screen.line(&clock::now())?;
                show(&seen, screen)?;
            }
            rest(Duration::from_secs(seconds.into()));
            seen = self.look()?;
        }
        Ok(verdict(&seen.volumes))
    }

    fn look(&self) -> Result<Seen> {
        let mut volumes = inventory::volumes(&self.kubelet_root, Duration::from_secs(self.patience.into()))?;
        let roots = inventory::roots(&self.kubelet_root)?;
        inventory::note_waiting(&mut volumes, &roots, &kubelet_log::text(self.kubelet_log.as_deref())?);
        let (volumes, others): (Vec<_>, Vec<_>) = volumes.into_iter().partition(|volume| self.wants(volume));
        let (mut volumes, well): (Vec<_>, Vec<_>) =
            volumes.into_iter().partition(|volume| volume.failing.is_some());
        volumes.extend(well);
        Ok(Seen { volumes, others: others.len() })
    }

    fn wants(&self, volume: &Volume) -> bool {
        let WhichVolumes { pod, volume: name, driver } = &self.which;
        let or_empty = |text: &'_ Option<String>| text.clone().unwrap_or_default();
        asked_for(pod.as_deref(), &[&or_empty(&volume.pod), &or_empty(&volume.uid)])
            && asked_for(name.as_deref(), &[&volume.name])
            && asked_for(driver.as_deref(), &[&volume.driver_name(), &volume.driver])
    }
}

fn rest(time: Duration) {
    let end = Instant::now() + time;
    while !signal::interrupted() && Instant::now() < end {
        std::thread::sleep(TICK.min(end.saturating_duration_since(Instant::now())));
    }
}

fn verdict(volumes: &[Volume]) -> ExitCode {
    let well = volumes.iter().all(|volume| matches!(volume.vitals, Some(Vitals::Alive(_))));
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(Seen { volumes, others }: &Seen, screen: &mut Screen) -> Result<()> {
    if screen.wants_json() {
        return screen.json(&as_json(volumes));
    }
    if process::own_user() != 0 {
        screen.line("this is not run as root: what drivers did, and the directories of pods, could not be read: run it with sudo")?;
    }
    if volumes.is_empty() {
        return screen.line(&nothing(*others));
    }
    let heading =
        ["POD", "VOLUME", "DRIVER", "SOURCE", "TYPE", "SIZE", "USED", "SINCE", "HEALTH"].map(str::to_owned);
    let now = clock::seconds();
    let rows = volumes.iter().map(|volume| row(volume, now));
    screen.table(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())?;
    let count = |health: &str| volumes.iter().filter(|volume| self::health(volume).0 == health).count();
    let kinds = ["alive", "dead", "hung", "not mounted"].map(|kind| (kind, count(kind)));
    let kinds: Vec<_> = kinds.iter().filter(|(_, n)| *n > 0).map(|(kind, n)| format!("{n} {kind}")).collect();
    let tone = if kinds.len() == 1 && count("alive") > 0 { Tone::Good } else { Tone::Bad };
    let line = screen.paint(tone, &kinds.join(", "));
    screen.line(&line)
}

/// Returns the message for the case that no volume is shown.
fn nothing(others: usize) -> String {
    if others == 0 {
        return "no flex volume is on this node: sudo flexvol locate says whether a kubelet runs here"
            .to_owned();
    }
    format!(
        "{} on this node, and none matches --pod, --volume and --driver: sudo flexvol status shows all",
        counted(others, "flex volume")
    )
}

fn row(volume: &Volume, now: u64) -> [String; 9] {
    let (health, why) = health(volume);
    let none = || "-".to_owned();
    let (size, used) = match volume.vitals {
        Some(Vitals::Alive(usage)) if usage.size > 0 => {
            // Round up, as df does.
            let percent = u128::from(usage.used) * 100;
            (bytes(usage.size), format!("{}%", percent.div_ceil(u128::from(usage.size))))
        }
        _ => (none(), none()),
    };
    let pod = volume.pod.clone().or_else(|| volume.uid.clone());
    let pod = pod.unwrap_or_else(|| if volume.is_device() { "(device)".to_owned() } else { none() });
    [
        pod,
        volume.name.clone(),
        volume.driver_name(),
        volume.source().unwrap_or_else(none),
        volume.mount.as_ref().map_or_else(none, |entry| entry.file_system.clone()),
        size,
        used,
        volume.since.map_or_else(none, |since| age(now.saturating_sub(since))),
        why.map_or_else(|| health.to_owned(), |why| format!("{health}: {why}")),
    ]
}

/// Returns the health in a word, and the reason.
fn health(volume: &Volume) -> (&'static str, Option<String>) {
    match volume.vitals {
        None => ("not mounted", waits(volume)),
        Some(Vitals::Alive(_)) if volume.layers > 1 => {
            ("alive", Some(format!("mounted {} times", volume.layers)))
        }
        Some(Vitals::Alive(_)) => ("alive", waits(volume)),
        Some(Vitals::Dead(number)) => ("dead", Some(words(number))),
        Some(Vitals::Hung) => ("hung", waits(volume)),
    }
}

/// Returns what kubelet waits for: a running call, and the failed calls before it.
fn waits(volume: &Volume) -> Option<String> {
    let running = volume.running.as_ref().filter(|call| call.seconds >= BRIEF);
    let running =
        running.map(|call| format!("{} running for {} s (pid {})", call.verb, call.seconds, call.pid));
    let failing = volume.failing.as_ref().map(|failing| format!("{}; {failing}", failing.reason()));
    match (running, failing) {
        (Some(running), Some(failing)) => Some(format!("{running}; before: {failing}")),
        (running, failing) => running.or(failing),
    }
}

/// Returns the age in the largest unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn as_json(volumes: &[Volume]) -> Value {
    json!({"time": clock::now(), "volumes": volumes.iter().map(volume_as_json).collect::<Vec<_>>()})
}

fn volume_as_json(volume: &Volume) -> Value {
    let (health, why) = health(volume);
    let usage = match volume.vitals {
        Some(Vitals::Alive(usage)) => Some(usage),
        _ => None,
    };
    json!({
        "pod": volume.pod,
        "podUid": volume.uid,
        "volume": volume.name,
        "driver": volume.driver_name(),
        "target": volume.target.to_string_lossy(),
        "device": volume.is_device(),
        "source": volume.source().map(|source| printable(&source)),
        "fileSystem": volume.mount.as_ref().map(|entry| &entry.file_system),
        "readOnly": volume.mount.as_ref().map(|entry| entry.read_only || entry.superblock_read_only),
        "layers": volume.layers,
        "sizeBytes": usage.map(|usage| usage.size),
        "usedBytes": usage.map(|usage| usage.used),
        "since": volume.since.map(|since| clock::timestamp(Duration::from_secs(since))),
        "byFlexvol": volume.is_ours,
        "health": health,
        "why": why,
        "failed": volume.failing.as_ref().map(|failing| json!({
            "verb": if failing.goes { "unmount" } else { "mount" },
            "message": failing.why,
            "fix": failing.fix,
            "since": failing.times.0,
            "last": failing.times.1,
            "count": failing.count,
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_are_short() {
        let sizes = [0, 999, 1024, 1536, 16 << 20, (1 << 40) - 1, u64::MAX].map(bytes);
        assert_eq!(sizes, ["0", "999", "1Ki", "1.5Ki", "16Mi", "1023Gi", "15Ei"]);
        assert_eq!([0, 119, 120, 7200, 172_800].map(age), ["0s", "119s", "2m", "2h", "2d"]);
    }
}
