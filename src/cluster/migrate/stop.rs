//! Stop and restart of workloads. The former number of replicas is an annotation of the workload
//! itself, set in the same write.

use super::context::{AGAIN, Run};
use super::decide::precondition;
use super::found::mark;
use super::plan::{BEFORE, Kind, MARK, Workload};
use crate::controllers::blocking::Answer;
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use std::thread::sleep;
use std::time::Instant;

/// Limit for attempts while others write the workload, too.
const TRIES: usize = 60;

/// Stops a workload, so that it creates no more pods.
pub(super) fn stop(run: &Run<'_>, workload: &Workload) -> Result<()> {
    let (field, stopped) = workload.kind.stopped();
    let change = |found: &Value| {
        let metadata = &found["metadata"];
        ensure!(metadata["uid"] == *workload.uid, "{} is another one than was planned for", workload.shown());
        match mark(metadata) {
            Some(id) if id == run.plan.id => return Ok(None),
            Some(id) => bail!("{} is stopped by migration {id}", workload.shown()),
            None => {}
        }
        let before = match &found["spec"][field] {
            Value::Null if workload.kind == Kind::CronJob => json!(false),
            Value::Null => json!(1),
            value => value.clone(),
        };
        let notes = json!({ MARK: run.plan.id, BEFORE: before.to_string() });
        Ok(Some(json!({"metadata": {"annotations": notes}, "spec": { field: stopped }})))
    };
    write(run, workload, "stop", change).map(drop)
}

/// Starts a workload again, if this migration has stopped it. Returns true if it did. Changes that
/// others have made since then stay.
pub(super) fn start(run: &Run<'_>, workload: &Workload) -> Result<bool> {
    let (field, stopped) = workload.kind.stopped();
    write(run, workload, "start", |found| {
        let metadata = &found["metadata"];
        if metadata["uid"] != *workload.uid || mark(metadata).is_none_or(|id| id != run.plan.id) {
            return Ok(None);
        }
        let before =
            metadata["annotations"][BEFORE].as_str().and_then(|text| serde_json::from_str(text).ok());
        let mut change = json!({"metadata": {"annotations": { MARK: null, BEFORE: null }}});
        if let Some(before) = before.filter(|_: &Value| found["spec"][field] == stopped) {
            change["spec"] = json!({ field: before });
        }
        Ok(Some(change))
    })
}

/// Changes a workload, and tries again while others are faster. Returns true if there was anything
/// to change.
fn write(
    run: &Run<'_>,
    workload: &Workload,
    step: &str,
    change: impl Fn(&Value) -> Result<Option<Value>>,
) -> Result<bool> {
    for _ in 0..TRIES {
        let Some(found) = run.session.get(&workload.path())? else {
            ensure!(step != "stop", "{} is gone: make a new plan", workload.shown());
            return Ok(false);
        };
        let Some(mut change) = change(&found)? else { return Ok(false) };
        precondition(&mut change, &found);
        match run.write(&workload.shown(), step, ("PATCH", &workload.path(), Some(change)))? {
            Answer::Done(_) => return Ok(true),
            Answer::Refused(why) => bail!("{step} {}: {why}", workload.shown()),
            Answer::Missing(_) | Answer::Conflict | Answer::Unsure(_) => sleep(AGAIN / 10),
        }
    }
    bail!("{step} {}: somebody else goes on changing it", workload.shown())
}

/// Waits until all pods are ready.
pub(super) fn wait_ready(run: &Run<'_>, workloads: &[Workload]) -> Result<()> {
    let begun = Instant::now();
    for workload in workloads {
        while !run.ready_wait.is_zero() {
            let Some(found) = run.session.get(&workload.path())? else { break };
            if is_ready(workload.kind, &found) {
                break;
            }
            ensure!(
                begun.elapsed() < run.ready_wait,
                "{} does not become ready: see its pods, and then go on \
                with migrate apply, or back with migrate rollback",
                workload.shown()
            );
            sleep(AGAIN);
        }
    }
    Ok(())
}

/// Reports whether all wanted pods are ready, and all have the present template.
pub(super) fn is_ready(kind: Kind, found: &Value) -> bool {
    let (spec, status) = (&found["spec"], &found["status"]);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let is_seen = number(&status["observedGeneration"]) >= number(&found["metadata"]["generation"]);
    let wanted = spec["replicas"].as_u64().unwrap_or(1);
    match kind {
        Kind::CronJob => true,
        Kind::DaemonSet => {
            let wanted = number(&status["desiredNumberScheduled"]);
            is_seen
                && number(&status["numberReady"]) >= wanted
                && number(&status["updatedNumberScheduled"]) >= wanted
        }
        Kind::ReplicaSet | Kind::ReplicationController => {
            is_seen && number(&status["readyReplicas"]) >= wanted
        }
        Kind::Deployment | Kind::StatefulSet => {
            let (ready, updated) = (number(&status["readyReplicas"]), number(&status["updatedReplicas"]));
            is_seen && ready >= wanted && updated >= wanted && number(&status["replicas"]) <= wanted
        }
    }
}
