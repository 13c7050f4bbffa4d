//! Volumes in the template of a workload: they are changed in place, if they are still as they were
//! read. Kubernetes then replaces the pods.

use super::context::{AGAIN, Run};
use super::decide::Goal;
use super::plan::{Change, Inline, Kind};
use super::stop::is_ready;
use crate::controllers::blocking::Answer;
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use std::thread::sleep;
use std::time::Instant;

/// Changes a workload. Returns true if there was anything to change.
pub(super) fn change(run: &Run<'_>, inline: &Inline) -> Result<bool> {
    let workload = &inline.workload;
    loop {
        let Some(found) = run.session.get(&workload.path())? else {
            bail!("{} is gone: make a new plan", workload.shown());
        };
        ensure!(
            found["metadata"]["uid"] == *workload.uid,
            "{} is another one than was planned for",
            workload.shown()
        );
        let Some(patch) = patch(&found, inline, run.goal) else { return wait(run, inline) };
        match run.write(&workload.shown(), "change", ("PATCH", &workload.path(), Some(patch)))? {
            Answer::Refused(why) => bail!("{} was changed since the plan was made: {why}", workload.shown()),
            Answer::Missing(_) => bail!("{} is gone: make a new plan", workload.shown()),
            Answer::Done(_) => return wait(run, inline).map(|_| true),
            Answer::Conflict | Answer::Unsure(_) => sleep(AGAIN),
        }
    }
}

/// Returns a patch that tests each volume before it replaces it; `None` if nothing has to change.
fn patch(found: &Value, inline: &Inline, goal: Goal) -> Option<Value> {
    let mut steps = vec![json!({"op": "test", "path": "/metadata/uid", "value": inline.workload.uid})];
    let mut is_changed = false;
    for Change { path, before, after } in &inline.changes {
        let (from, to) = match goal {
            Goal::Forward => (before, after),
            Goal::Back => (after, before),
        };
        if found.pointer(path).unwrap_or(&Value::Null) == to {
            continue;
        }
        is_changed = true;
        if path.starts_with("/metadata/annotations/") && !found["metadata"]["annotations"].is_object() {
            steps.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
        }
        match (from.is_null(), to.is_null()) {
            (false, false) => {
                steps.push(json!({"op": "test", "path": path, "value": from}));
                steps.push(json!({"op": "replace", "path": path, "value": to}));
            }
            (false, true) => {
                steps.push(json!({"op": "test", "path": path, "value": from}));
                steps.push(json!({"op": "remove", "path": path}));
            }
            (true, _) => steps.push(json!({"op": "add", "path": path, "value": to})),
        }
    }
    is_changed.then(|| steps.into())
}

/// Waits until the workload's pods have the new template.
fn wait(run: &Run<'_>, inline: &Inline) -> Result<bool> {
    let (workload, begun) = (&inline.workload, Instant::now());
    while !run.ready_wait.is_zero() && workload.kind != Kind::CronJob {
        let Some(found) = run.session.get(&workload.path())? else { break };
        if is_ready(workload.kind, &found) {
            break;
        }
        ensure!(
            begun.elapsed() < run.ready_wait,
            "{} does not become ready: see its pods, and then go on with \
            migrate apply, or back with migrate rollback",
            workload.shown()
        );
        sleep(AGAIN);
    }
    Ok(false)
}
