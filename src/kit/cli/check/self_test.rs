//! `flexvol check --self`: checks the kit with drivers that are built to misbehave.

use crate::check::Chosen;
use crate::check::self_test::{self, Depth, Row};
use anyhow::Result;
use flexvol_protocol::failure::Failure;
use flexvol_terminal::report::duration;
use flexvol_terminal::screen::{Screen, Tone};
use std::process::ExitCode;

/// Checks the drivers that the patterns match, or all drivers. A pattern with `::` selects cases.
pub(super) fn run(screen: &mut Screen, patterns: &[String], quick: bool) -> Result<ExitCode> {
    let (cases, drivers): (Vec<_>, Vec<_>) =
        patterns.iter().cloned().partition(|pattern| pattern.contains("::"));
    let chosen = Chosen::new(&cases, None)
        .map_err(|pattern| Failure::call(format!("no case matches {pattern}: flexvol check list")))?;
    let depth = if quick { Depth::OwnCases } else { Depth::Chosen(chosen) };
    let mut shown = screen.passing("looking at the drivers …");
    let matrix = self_test::run(&drivers, &depth, &mut |row| {
        if shown.is_ok() {
            shown = show(screen, row);
        }
    })?;
    shown?;
    if matrix.rows.is_empty() {
        return Err(Failure::call("no such misbehaviour: flexvol check --self shows them all").into());
    }
    if screen.wants_json() {
        screen.json(&matrix)?;
    } else {
        let tone = if matrix.is_exact() { Tone::Good } else { Tone::Bad };
        let verdict = screen.paint(tone, &matrix.verdict());
        screen.line(&verdict)?;
    }
    Ok(ExitCode::from(u8::from(!matrix.is_exact())))
}

fn show(screen: &mut Screen, row: &Row) -> Result<()> {
    if screen.wants_json() {
        return Ok(());
    }
    screen.text(&row.render())?;
    for difference in row.differences() {
        let line = screen.paint(Tone::Bad, &format!("{}: {difference}", row.name));
        screen.line(&line)?;
    }
    screen.passing(&format!("{} took {}", row.name, duration(row.took)))
}
