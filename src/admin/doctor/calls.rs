//! Calls of drivers: those that hang now, and those that failed last.

use super::{DoctorRequest, Finding};
use anyhow::Result;
use flexvol_kubelet::locate;
use flexvol_linux::proc::process;
use flexvol_linux::proc::process_table::ProcessTable;
use flexvol_model::diagnostics::{self, known_errors};
use flexvol_node::driver_log::{self, Entry};
use std::path::{Path, PathBuf};

/// A call that takes longer than this holds up a pod: kubelet gives up waiting after 123 s.
const LONG: u64 = 120;

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let mut findings = hanging(&request.plugin_dirs().unwrap_or_default())?;
    findings.extend(driver_log::failing().iter().map(of_call));
    Ok(findings)
}

/// Processes of executables in the plugin directories. Their arguments hold secrets: only the verb
/// is told.
fn hanging(plugins: &[PathBuf]) -> Result<Vec<Finding>> {
    let inside: Vec<_> =
        locate::kubelets().unwrap_or_default().into_iter().filter_map(|kubelet| kubelet.inside).collect();
    let is_driver = |words: &[String]| {
        // A script's interpreter comes first.
        words
            .iter()
            .take(2)
            .any(|word| plugins.iter().chain(&inside).any(|directory| Path::new(word).starts_with(directory)))
    };
    let Some(table) = ProcessTable::open(Path::new("/proc"))? else { return Ok(Vec::new()) };
    let calls = table.matching(|words, _| is_driver(words))?;
    let age = |pid: u32| process::age(i32::try_from(pid).ok()?);
    let long = calls.filter_map(|call| Some((age(call.pid)?.as_secs(), call))).filter(|(age, _)| *age > LONG);
    let finding = |(age, call): (u64, flexvol_linux::proc::process_table::Process)| {
        let at = call.words.iter().position(|word| {
            plugins.iter().chain(&inside).any(|directory| Path::new(word).starts_with(directory))
        });
        let word = |after: usize| at.and_then(|at| call.words.get(at + after)).map_or("?", String::as_str);
        let target = if word(1).contains("mount") && word(2).starts_with('/') { word(2) } else { "" };
        let evidence = format!(
            "pid {}, {} {} {target}, has run for {age} s, and kubelet waits for it for ever",
            call.pid,
            word(0),
            word(1)
        );
        Finding::error(
            "call-hangs",
            &evidence,
            "see what it waits for (its children, /proc/PID/stack, its server); end it, and kubelet calls again",
        )
    };
    Ok(long.map(finding).collect())
}

fn of_call(entry: &Entry) -> Finding {
    let target = entry.target.as_deref().unwrap_or_default();
    let evidence = format!("{} of {target} by {} failed at {}", entry.verb, entry.driver, entry.time);
    let Some(message) = &entry.message else {
        return Finding::of_known_error("call-failed", &evidence, &known_errors::WORDLESS);
    };
    let evidence = format!("{evidence}: {message}");
    if let Some(explained) = diagnostics::explain(message) {
        return Finding::of_known_error("call-failed", &evidence, explained.known_error);
    }
    // Drivers of all kinds write them: no one knows what in them is a cause, a value or a fix.
    Finding::error("call-failed", &evidence, known_errors::SAID.fix)
}
