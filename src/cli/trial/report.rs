//! The rows of the table, printed as they come, or all as JSON at the end.

use crate::cli::screen::{Screen, Tone};
use crate::kubelet::{Action, Exchange, Journal, Record};
use crate::sys::signal;
use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// The part of the table that is no driver's.
pub(super) const LEAKS: &str = "leaks";

/// One thing that was done or looked at.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    part: &'static str,
    step: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<String>,
    seconds: Option<f64>,
    result: Outcome,
    note: String,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Outcome {
    Ok,
    Failed,
    Skipped,
}

impl Outcome {
    fn shown(self) -> (Tone, &'static str) {
        match self {
            Self::Ok => (Tone::Good, "ok"),
            Self::Failed => (Tone::Bad, "FAIL"),
            Self::Skipped => (Tone::Warning, "SKIP"),
        }
    }
}

impl Row {
    /// Something of ours that worked or did not.
    pub(super) fn of(part: &'static str, step: &str, done: Result<()>) -> Self {
        Self::noted(part, step, done.map(|()| String::new()))
    }

    /// The same, with something to say about it.
    pub(super) fn noted(part: &'static str, step: &str, done: Result<String>) -> Self {
        let (result, note) = match done {
            Ok(note) => (Outcome::Ok, note),
            Err(error) => (Outcome::Failed, format!("{error:#}")),
        };
        Self { part, step: step.to_owned(), arguments: Vec::new(), seconds: None, result, note }
    }

    /// Something that cannot be tried here, and what to do about it.
    pub(super) fn skipped(part: &'static str, why: String) -> Self {
        let step = "everything".to_owned();
        Self { part, step, arguments: Vec::new(), seconds: None, result: Outcome::Skipped, note: why }
    }

    /// Something kubelet did.
    pub(super) fn kubelet(part: &'static str, record: &Record, note: &str) -> Self {
        let failed = record.error.as_ref().map(|error| {
            let hint = record.exchange.as_ref().and_then(Exchange::hint);
            hint.map_or_else(|| error.clone(), |hint| format!("{error}; {hint}"))
        });
        Self {
            part,
            step: record.action.to_string(),
            arguments: record
                .exchange
                .as_ref()
                .map(|exchange| exchange.arguments.clone())
                .unwrap_or_default(),
            seconds: Some(record.took.as_secs_f64()),
            result: if failed.is_some() { Outcome::Failed } else { Outcome::Ok },
            note: failed.unwrap_or_else(|| note.to_owned()),
        }
    }
}

/// The table so far.
pub(super) struct Report<'a> {
    screen: &'a mut Screen,
    rows: Vec<Row>,
    calls: usize,
}

impl<'a> Report<'a> {
    /// Prints the heading.
    pub(super) fn begin(screen: &'a mut Screen) -> Result<Self> {
        if !screen.wants_json() {
            let version = env!("CARGO_PKG_VERSION");
            screen.line(&format!(
                "flexvol {version}: what kubelet does to a driver, done to its own, in a mount namespace of its own\n"
            ))?;
            screen.heading(&format!(
                "{:<7}{:<26}{:>9}  {:<6}{}",
                "DRIVER", "STEP", "TIME", "RESULT", " NOTE"
            ))?;
        }
        Ok(Self { screen, rows: Vec::new(), calls: 0 })
    }

    /// Adds a row. Fails once somebody wants us to stop: then the stage is removed on the way out.
    pub(super) fn row(&mut self, row: Row) -> Result<()> {
        ensure!(!signal::interrupted(), "interrupted");
        if !self.screen.wants_json() {
            let first = self.rows.last().is_none_or(|last| last.part != row.part);
            let line = self.line(&row, first);
            self.screen.line(&line)?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// The drivers that were tried, not skipped.
    pub(super) fn parts(&self) -> Vec<&'static str> {
        let tried = self.rows.iter().filter(|row| row.result != Outcome::Skipped && row.part != LEAKS);
        let mut parts: Vec<_> = tried.map(|row| row.part).collect();
        parts.dedup();
        parts
    }

    /// Adds the calls of a journal and whatever else of it is worth a row; whether it went well.
    pub(super) fn journal(&mut self, part: &'static str, journal: &Journal, note: &str) -> Result<bool> {
        for record in &journal.records {
            let executed = record.exchange.as_ref().is_some_and(|exchange| exchange.run.is_some());
            self.calls += usize::from(executed);
            let telling =
                matches!(record.action, Action::Call(_) | Action::ChangeGroup | Action::FindMounted);
            if telling || record.error.is_some() {
                let note = if record.action == Action::ChangeGroup { "" } else { note };
                self.row(Row::kubelet(part, record, note))?;
            }
        }
        Ok(journal.is_success())
    }

    /// Prints the last line, or everything as JSON; the exit status.
    pub(super) fn end(self) -> Result<ExitCode> {
        let count = |outcome| self.rows.iter().filter(|row| row.result == outcome).count();
        let (failures, skipped) = (count(Outcome::Failed), count(Outcome::Skipped));
        let clean = self.rows.iter().all(|row| row.part != LEAKS || row.result == Outcome::Ok);
        if self.screen.wants_json() {
            self.screen.json(&json!({
                "version": env!("CARGO_PKG_VERSION"), "rows": self.rows, "calls": self.calls,
                "failures": failures, "skipped": skipped, "clean": clean,
            }))?;
        } else {
            let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
            let left = if clean { "nothing left behind" } else { "something left behind, see above" };
            let line = format!("{} calls, {failures} failures{skipped}, {left}", self.calls);
            let tone = if failures == 0 { Tone::Good } else { Tone::Bad };
            let line = self.screen.paint(tone, &line);
            self.screen.line(&format!("\n{line}"))?;
        }
        Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn line(&self, row: &Row, first: bool) -> String {
        let part = if first { row.part } else { "" };
        let time = row.seconds.map(|seconds| duration(Duration::from_secs_f64(seconds))).unwrap_or_default();
        let (tone, word) = row.result.shown();
        let word = self.screen.paint(tone, &format!("{word:<6}"));
        format!("{part:<7}{:<26}{time:>9}  {word} {}", row.step, row.note).trim_end().to_owned()
    }
}

fn duration(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_fitting_unit() {
        assert_eq!(duration(Duration::from_micros(1234)), "1.2 ms");
        assert_eq!(duration(Duration::from_millis(61_500)), "61.50 s");
    }
}
