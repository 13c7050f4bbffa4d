//! Report of `try` and `pod`: rows of a table, printed as they come, or everything as JSON at the
//! end.

use crate::progress;
use crate::screen::{Screen, Tone};
use anyhow::{Result, ensure};
use flexvol_kubelet::{Action, Exchange, Journal, Record, Verdict};
use flexvol_linux::proc::signal;
use flexvol_protocol::Verb;
use flexvol_protocol::text::seconds;
use serde::Serialize;
use std::time::Duration;

/// One action or check.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    part: String,
    step: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<String>,
    seconds: Option<f64>,
    result: RowOutcome,
    note: String,
}

/// Result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RowOutcome {
    /// It worked as it should.
    Ok,
    /// It did not work.
    Failed,
    /// The driver does not have the verb.
    NotSupported,
    /// It cannot be done here.
    Skipped,
}

impl RowOutcome {
    fn shown(self) -> (Tone, &'static str) {
        match self {
            Self::Ok => (Tone::Good, "ok"),
            Self::Failed => (Tone::Bad, "FAIL"),
            Self::NotSupported => (Tone::Warning, "lacks"),
            Self::Skipped => (Tone::Warning, "SKIP"),
        }
    }
}

impl Row {
    /// Describes an action of ours that worked or failed.
    pub fn of(part: &str, step: &str, done: Result<()>) -> Self {
        Self::noted(part, step, done.map(|()| String::new()))
    }

    /// Does the same, with a note if it worked.
    pub fn noted(part: &str, step: &str, done: Result<String>) -> Self {
        let (result, note) = match done {
            Ok(note) => (RowOutcome::Ok, note),
            Err(error) => (RowOutcome::Failed, format!("{error:#}")),
        };
        Self {
            part: part.to_owned(),
            step: step.to_owned(),
            arguments: Vec::new(),
            seconds: None,
            result,
            note,
        }
    }

    /// Describes a part that cannot be tried here, and what to do about it.
    pub fn skipped(part: &str, why: String) -> Self {
        let step = "everything".to_owned();
        let part = part.to_owned();
        Self { part, step, arguments: Vec::new(), seconds: None, result: RowOutcome::Skipped, note: why }
    }

    /// Describes an action of kubelet.
    pub fn kubelet(part: &str, record: &Record, note: &str) -> Self {
        let failed = record.error.as_ref().map(|error| {
            let hint = record.exchange.as_ref().and_then(Exchange::hint);
            hint.map_or_else(|| error.clone(), |hint| format!("{error}; {hint}"))
        });
        let (result, note) = match (failed, lacking(record)) {
            (_, Some(verb)) => (RowOutcome::NotSupported, verb.spec().not_supported.to_owned()),
            (Some(error), None) => (RowOutcome::Failed, error),
            (None, None) => (RowOutcome::Ok, note.to_owned()),
        };
        Self {
            part: part.to_owned(),
            step: record.action.to_string(),
            arguments: record
                .exchange
                .as_ref()
                .map(|exchange| exchange.arguments.clone())
                .unwrap_or_default(),
            seconds: Some(record.took.as_secs_f64()),
            result,
            note,
        }
    }
}

/// Returns the verb if the driver answered that it does not have it. Not for `init`: a driver
/// without it is not loaded.
fn lacking(record: &Record) -> Option<Verb> {
    let lacks = record.exchange.as_ref().is_some_and(|exchange| exchange.verdict == Verdict::NotSupported);
    match record.action {
        Action::Call(verb) if lacks && verb != Verb::Init => Some(verb),
        _ => None,
    }
}

/// Table of the rows so far.
pub struct Report<'a> {
    screen: &'a mut Screen,
    width: usize,
    rows: Vec<Row>,
    calls: usize,
}

/// Numbers of calls and rows.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Totals {
    /// Number of driver calls.
    pub calls: usize,
    /// Number of failed rows.
    pub failures: usize,
    /// Number of skipped rows.
    pub skipped: usize,
}

impl<'a> Report<'a> {
    /// Prints what is about to be done, and the heading. The caller chooses the name and the width
    /// of the first column.
    pub fn begin(screen: &'a mut Screen, intro: &str, first: &str, width: usize) -> Result<Self> {
        if !screen.wants_json() {
            screen.line(&format!("{intro}\n"))?;
            let others = format!("{:<26}{:>9}  {:<6}{}", "STEP", "TIME", "RESULT", " NOTE");
            screen.heading(&format!("{first:<width$}{others}"))?;
        }
        Ok(Self { screen, width, rows: Vec::new(), calls: 0 })
    }

    /// Adds a row. Fails after a stop signal: then the stage is removed on the way out.
    pub fn row(&mut self, row: Row) -> Result<()> {
        ensure!(!signal::interrupted(), "interrupted");
        if !self.screen.wants_json() {
            let first = self.rows.last().is_none_or(|last| last.part != row.part);
            let line = self.line(&row, first);
            self.screen.line(&line)?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Does something that can take long. People see which program works until the row appears.
    pub fn watched<T>(&self, work: impl FnOnce() -> T) -> T {
        let _progress = progress::show(self.screen);
        work()
    }

    /// Returns all rows so far: part and result.
    pub fn results(&self) -> impl Iterator<Item = (&str, RowOutcome)> {
        self.rows.iter().map(|row| (row.part.as_str(), row.result))
    }

    /// Adds a row for each call of a journal and for other noteworthy records. Returns whether it
    /// went well.
    pub fn journal(&mut self, part: &str, journal: &Journal, note: &str) -> Result<bool> {
        let before = self.totals().failures;
        for record in &journal.records {
            let executed = record.exchange.as_ref().is_some_and(|exchange| exchange.run.is_some());
            self.calls += usize::from(executed);
            // This verb is requested at every step, but executed once.
            let dull = record.action == Action::Call(Verb::GetVolumeName) && !executed;
            if !dull && (is_telling(record.action) || record.error.is_some()) {
                let note =
                    if matches!(record.action, Action::Call(_) | Action::FindMounted) { note } else { "" };
                self.row(Row::kubelet(part, record, note))?;
            }
        }
        if let Some(failure) = journal.failure.clone().filter(|_| self.totals().failures == before) {
            self.row(Row::noted(part, "give up", Err(failure.into())))?;
        }
        Ok(journal.is_success())
    }

    /// Counts the calls, the failed rows and the skipped rows.
    pub fn totals(&self) -> Totals {
        let count = |outcome| self.rows.iter().filter(|row| row.result == outcome).count();
        let (failures, skipped) = (count(RowOutcome::Failed), count(RowOutcome::Skipped));
        Totals { calls: self.calls, failures, skipped }
    }

    /// Prints the end: a line in the colour of success or failure, or everything with `more` as
    /// JSON.
    pub fn end(self, good: bool, line: &str, more: impl Serialize) -> Result<()> {
        #[derive(Serialize)]
        struct All<T> {
            version: &'static str,
            rows: Vec<Row>,
            #[serde(flatten)]
            totals: Totals,
            #[serde(flatten)]
            more: T,
        }
        let totals = self.totals();
        if self.screen.wants_json() {
            return self.screen.json(&All {
                version: env!("CARGO_PKG_VERSION"),
                rows: self.rows,
                totals,
                more,
            });
        }
        let line = self.screen.paint(if good { Tone::Good } else { Tone::Bad }, line);
        self.screen.line(&format!("\n{line}"))
    }

    fn line(&self, row: &Row, first: bool) -> String {
        let (part, width) = (if first { row.part.as_str() } else { "" }, self.width);
        let time = row.seconds.map(|seconds| duration(Duration::from_secs_f64(seconds))).unwrap_or_default();
        let (tone, word) = row.result.shown();
        let word = self.screen.paint(tone, &format!("{word:<6}"));
        format!("{part:<width$}{:<26}{time:>9}  {word} {}", row.step, row.note).trim_end().to_owned()
    }
}

/// Reports whether a successful step is worth a row: kubelet's checks and preparations are not.
fn is_telling(action: Action) -> bool {
    let quiet = [
        Action::Look,
        Action::MakeDirectory,
        Action::RemoveDirectory,
        Action::RemovePod,
        Action::LookGlobal,
        Action::MakeGlobal,
        Action::RemoveGlobal,
        Action::LookDevice,
        Action::Note,
    ];
    !quiet.contains(&action)
}

/// Formats a time with a fitting unit.
pub fn duration(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", seconds(time * 1000, 1)),
        _ => format!("{} s", seconds(time, 2)),
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
