//! Prints the effects on volumes that flexvol would take over, for people.

use crate::validate::{Outcome, TakenOver};
use anyhow::Result;
use flexvol_terminal::probing::printable;
use flexvol_terminal::screen::{Screen, Tone, counted, wrap};

const NAMES: usize = 9;

/// Limit for the volume names of one change.
const NAMED: usize = 4;

/// Prints the effects, driver by driver.
pub(super) fn print(screen: &mut Screen, all: &[TakenOver]) -> Result<()> {
    for driver in all {
        screen.heading(&printable(&title(driver)))?;
        for change in &driver.changes {
            let (name, tone) = match change.what {
                Outcome::Refused => ("refused", Tone::Bad),
                Outcome::Unknown => ("unknown", Tone::Bad),
                Outcome::Otherwise => ("otherwise", Tone::Warning),
            };
            fact(screen, name, Some(tone), &change.message)?;
            fact(screen, "", None, &named(&change.volumes))?;
        }
        for line in driver.always {
            fact(screen, "for all", None, line)?;
        }
        fact(screen, "next", None, &next(driver))?;
        screen.line("")?;
    }
    Ok(())
}

fn title(driver: &TakenOver) -> String {
    let TakenOver { driver: name, volumes, unchanged, .. } = driver;
    let volumes = counted(*volumes, "volume");
    match (driver.ours, driver.profile) {
        (None, _) => format!("{name}: {volumes}, of a driver that flexvol does not know"),
        (Some(ours), None) => {
            format!("{name}: {volumes} for flexvol's own {ours}, which understands {unchanged} of them")
        }
        (Some(ours), Some(profile)) => {
            let whose = if profile == name { String::new() } else { format!(" as {profile}") };
            format!("{name}: {volumes}, taken over by {ours}{whose}: {unchanged} as before")
        }
    }
}

fn next(driver: &TakenOver) -> String {
    let TakenOver { driver: name, ours, profile, changes, .. } = driver;
    let refused = changes.iter().any(|change| change.what != Outcome::Otherwise);
    match (ours, profile) {
        (None, _) => format!(
            "keep its program; or say whose options it has: flexvol validate --take-over --profile {name}=NAME"
        ),
        _ if refused => "fix those first; the others are not affected".to_owned(),
        (Some(_), None) => format!("flexvol install {name}"),
        (Some(_), Some(profile)) if profile == name => format!("flexvol install {name} --take-over"),
        (Some(_), Some(profile)) => format!("flexvol install {name}={profile} --take-over"),
    }
}

fn named(volumes: &[String]) -> String {
    let shown = volumes.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match volumes.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Prints a name and its text, wrapped between words.
fn fact(screen: &mut Screen, name: &str, tone: Option<Tone>, text: &str) -> Result<()> {
    let wrapped = wrap(&printable(text), NAMES + 1, screen.width() - 1);
    let name = format!("{name:<NAMES$}");
    let name = tone.map_or(name.clone(), |tone| screen.paint(tone, &name));
    screen.text(&format!("{name} {}", wrapped.trim_start()))
}
