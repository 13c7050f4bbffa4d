//! Calls of drivers that do not end.

use super::{DoctorRequest, Finding, Severity};
use crate::inventory::running::{self, RunningCall};
use anyhow::Result;
use flexvol_kubelet::locate;

/// Limit for a call that is not worth a finding, in seconds.
const BRIEF: u64 = 5;

/// Limit for a note, in seconds: making a file system on a device may take this long.
const USUAL: u64 = 30;

/// Limit for a warning, in seconds: a longer call delays a pod, as kubelet waits for 123 s.
const LONG: u64 = 120;

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let inside = locate::kubelets().unwrap_or_default().into_iter().filter_map(|kubelet| kubelet.inside);
    let directories: Vec<_> = request.plugin_dirs().unwrap_or_default().into_iter().chain(inside).collect();
    let calls = running::calls(&directories)?;
    Ok(calls.iter().filter(|call| call.seconds >= BRIEF).map(finding).collect())
}

fn finding(RunningCall { pid, executable, verb, target, seconds }: &RunningCall) -> Finding {
    let target = target.as_ref().map_or_else(String::new, |target| format!(" of {}", target.display()));
    let evidence = format!("{verb}{target} running for {seconds} s (pid {pid}, {executable})");
    let severity = match *seconds {
        ..USUAL => Severity::Note,
        USUAL..=LONG => Severity::Warning,
        _ => Severity::Error,
    };
    let fix = "kubelet waits for it without end: see what it waits for (its children, /proc/PID/stack, its server); end it, and kubelet calls again";
    Finding { severity, ..Finding::error("call-hangs", &evidence, fix) }
}
