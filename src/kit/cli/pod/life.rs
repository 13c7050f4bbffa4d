//! `up` and `down`: every operation of every volume, with retries if requested.

use crate::cli::objects::title;
use anyhow::{Result, ensure};
use flexvol_kubelet::{Journal, NodeDriver, PodVolume, Terms, clean_up, is_down, pauses};
use flexvol_linux::proc::signal;
use flexvol_protocol::DriverName;
use flexvol_protocol::quantity::Quantity;
use flexvol_protocol::text::seconds;
use flexvol_terminal::report::{Report, Row};
use flexvol_terminal::{capabilities, driver_dir};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Name of the part of the table that belongs to no volume.
const PODS: &str = "pods";

/// Operation of a driver.
type Operation<'a> = &'a dyn Fn(&mut NodeDriver, &PodVolume) -> Journal;

/// State of one run of the command.
pub(super) struct Life<'a> {
    report: Report<'a>,
    driver_dir: PathBuf,
    node: String,
    terms: Terms,
    retries: usize,
    /// Drivers by name, each loaded once; `None` if that failed.
    drivers: BTreeMap<DriverName, Option<NodeDriver>>,
    fates: Vec<Fate>,
}

/// Result for one volume.
#[derive(Serialize)]
struct Fate {
    volume: String,
    path: PathBuf,
    done: bool,
    /// Text of the pod's Event, if the volume failed.
    event: Option<String>,
}

impl<'a> Life<'a> {
    pub(super) fn new(
        report: Report<'a>,
        driver_dir: &Path,
        node: String,
        terms: Terms,
        retries: usize,
    ) -> Self {
        let (drivers, fates) = (BTreeMap::new(), Vec::new());
        Self { report, driver_dir: driver_dir.to_owned(), node, terms, retries, drivers, fates }
    }

    pub(super) fn up(mut self, volumes: &[PodVolume], expand: Option<Quantity>) -> Result<ExitCode> {
        let grow = |driver: &mut NodeDriver, volume: &PodVolume| match expand {
            Some(size) => driver.expand(volume, size.0),
            None => Journal::default(),
        };
        for volume in volumes {
            self.run(volume, &[&NodeDriver::attach, &NodeDriver::mount, &grow])?;
        }
        self.end("up")
    }

    pub(super) fn down(mut self, volumes: &[PodVolume]) -> Result<ExitCode> {
        for volume in volumes.iter().rev() {
            if is_down(volume)? {
                self.report.row(Row::noted(&title(volume), "is down", Ok("nothing to do".into())))?;
                self.note(volume, true, None)?;
            } else {
                self.run(volume, &[&NodeDriver::unmount, &NodeDriver::unmount_device, &NodeDriver::detach])?;
            }
        }
        if self.fates.iter().all(|fate| fate.done) {
            self.report.journal(PODS, &clean_up(volumes), "")?;
        }
        self.end("down")
    }

    /// Runs one operation after the other, up to the first that fails for good.
    fn run(&mut self, volume: &PodVolume, operations: &[Operation<'_>]) -> Result<()> {
        if !self.load(volume)? {
            let event = format!("no volume plugin matched name {}", volume.driver);
            return self.note(volume, false, Some(event));
        }
        for operation in operations {
            if let Some(event) = self.repeat(volume, *operation)? {
                return self.note(volume, false, Some(event));
            }
        }
        self.note(volume, true, None)
    }

    fn note(&mut self, volume: &PodVolume, done: bool, event: Option<String>) -> Result<()> {
        let path = volume.target()?.as_path().to_owned();
        self.fates.push(Fate { volume: title(volume), path, done, event });
        Ok(())
    }

    /// Loads the volume's driver, once. Reports whether that succeeded.
    fn load(&mut self, volume: &PodVolume) -> Result<bool> {
        if !self.drivers.contains_key(&volume.driver) {
            let loaded = self.load_now(volume)?;
            self.drivers.insert(volume.driver.clone(), loaded);
        }
        Ok(self.drivers.get(&volume.driver).is_some_and(Option::is_some))
    }

    fn load_now(&mut self, volume: &PodVolume) -> Result<Option<NodeDriver>> {
        let (name, part) = (&volume.driver, title(volume));
        let executable = match driver_dir::executable(&self.driver_dir, name) {
            Ok(executable) => executable,
            Err(missing) => {
                self.report.row(Row::noted(&part, "find driver", Err(missing)))?;
                return Ok(None);
            }
        };
        let (journal, driver) = NodeDriver::load(executable, self.terms.clone(), &self.node);
        let note = driver.as_ref().map(|driver| capabilities::names(driver.capabilities()));
        self.report.journal(&part, &journal, &note.unwrap_or_default())?;
        Ok(driver)
    }

    /// Runs an operation with retries. Returns the Event of the last failure if it never succeeds.
    fn repeat(&mut self, volume: &PodVolume, operation: Operation<'_>) -> Result<Option<String>> {
        let Some(Some(driver)) = self.drivers.get_mut(&volume.driver) else { return Ok(None) };
        let part = title(volume);
        let mut waits = pauses().take(self.retries);
        loop {
            let journal = self.report.watched(|| operation(driver, volume));
            if self.report.journal(&part, &journal, "")? {
                return Ok(None);
            }
            let Some(wait) = waits.next() else { return Ok(journal.event(&volume.name)) };
            let seconds = seconds(wait, 1);
            let seconds = seconds.strip_suffix(".0").unwrap_or(&seconds);
            self.report.row(Row::noted(&part, "wait", Ok(format!("{seconds} s"))))?;
            sleep(wait)?;
        }
    }

    fn end(self, direction: &str) -> Result<ExitCode> {
        let totals = self.report.totals();
        let done = self.fates.iter().filter(|fate| fate.done).count();
        let good = done == self.fates.len();
        let mut lines: Vec<_> = self.fates.iter().filter_map(|fate| fate.event.clone()).collect();
        if direction == "up" {
            let up = self.fates.iter().filter(|fate| fate.done);
            lines.extend(up.map(|fate| format!("{} is at {}", fate.volume, fate.path.display())));
        }
        let count = self.fates.len();
        lines.push(format!("{done} of {count} volumes {direction}, {} calls", totals.calls));
        self.report.end(good, &lines.join("\n"), json!({"volumes": self.fates}))?;
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Sleeps; fails if a signal asks the program to stop.
fn sleep(time: Duration) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < time {
        ensure!(!signal::interrupted(), "interrupted");
        std::thread::sleep(Duration::from_millis(50).min(time.saturating_sub(start.elapsed())));
    }
    Ok(())
}
