//! Start of a migration: the check that the plan still fits the cluster, and the execution of all
//! its groups, several at a time.

use super::context::Run;
use super::decide::Goal;
use super::found::{Found, mark};
use super::make::make;
use super::plan::{Group, MARK, Plan, Volume};
use anyhow::{Result, anyhow, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Limit for the names in a message.
const NAMED: usize = 10;

/// Result of a piece of the plan.
#[derive(Debug)]
pub enum Told {
    /// It has its desired state: its name, and true if there was anything to do.
    Done(String, bool),
    /// It failed: its name, and the reason.
    Failed(String, anyhow::Error),
}

/// Checks that the objects of the plan are unchanged, except for those that this migration has
/// begun with.
///
/// # Errors
///
/// Fails if something has changed, and names it.
pub fn unchanged(plan: &Plan, found: &Found) -> Result<()> {
    ensure!(found.cluster == plan.cluster, "the plan is of another cluster");
    let now = make(found, &plan.selection, plan.made.clone());
    let volumes: BTreeMap<&str, (&Volume, &Group)> = now
        .groups
        .iter()
        .flat_map(|group| group.volumes.iter().map(move |volume| (&*volume.name, (volume, group))))
        .collect();
    let mut changed = Vec::new();
    for group in plan.groups.iter().filter(|group| !has_begun(plan, found, group)) {
        for volume in &group.volumes {
            let same = volumes.get(&*volume.name).is_some_and(|(other, its)| {
                version(other) == version(volume)
                    && other.after == volume.after
                    && its.workloads == group.workloads
            });
            if !same {
                changed.push(format!("PersistentVolume {}", volume.name));
            }
        }
    }
    let others = changed.len().saturating_sub(NAMED);
    changed.truncate(NAMED);
    let more = if others > 0 { format!(" and {others} more") } else { String::new() };
    ensure!(
        changed.is_empty(),
        "what the plan was made of has changed: {}{more}: make a new plan",
        changed.join(", ")
    );
    Ok(())
}

fn version(volume: &Volume) -> [&Value; 2] {
    ["uid", "resourceVersion"].map(|key| &volume.before["metadata"][key])
}

/// Reports whether any object of the group has this migration's mark.
fn has_begun(plan: &Plan, found: &Found, group: &Group) -> bool {
    let is_ours = |id: Option<String>| id.as_deref() == Some(&plan.id);
    let stopped = |uid: &str| found.workloads.get(uid).is_some_and(|workload| is_ours(workload.mark.clone()));
    group.workloads.iter().any(|workload| stopped(&workload.uid))
        || group.volumes.iter().any(|volume| {
            let object = found.volumes.iter().find(|object| object["metadata"]["name"] == *volume.name);
            let claim = volume.claim.as_ref();
            let claim =
                claim.and_then(|claim| found.claims.get(&(claim.namespace.clone(), claim.name.clone())));
            object.is_some_and(|object| is_ours(mark(&object["metadata"])))
                || claim.is_some_and(|claim| is_ours(claim.mark.clone()))
        })
}

/// Returns the progress of a volume, for people.
pub fn state(plan: &Plan, volume: &Volume, object: Option<&Value>) -> &'static str {
    let Some(object) = object else { return "being made again" };
    let is_ours = object["metadata"]["annotations"][MARK] == *plan.id;
    let is_after = object["spec"]["csi"].is_object() == volume.after["spec"]["csi"].is_object();
    match (is_ours, is_after, object["status"]["phase"].as_str()) {
        (true, true, Some("Bound" | "Available" | "Released")) => "moved",
        (true, true, _) => "being bound",
        (true, false, _) => "begun",
        (false, true, _) => "moved by something else",
        (false, false, _) => "not begun",
    }
}

/// Carries out the plan. With a canary, it changes that many groups, and then no others.
pub fn carry_out(run: &Run<'_>, at_once: usize, canary: Option<usize>, mut tell: impl FnMut(Told)) {
    let groups = run.plan.groups.len();
    let pieces = groups + run.plan.inline.len();
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let left = AtomicUsize::new(canary.unwrap_or(usize::MAX));
    let (told, hear) = channel();
    thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, pieces.max(1)) {
            let told: Sender<Told> = told.clone();
            let (next, is_over, left) = (&next, &is_over, &left);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) && left.load(Ordering::SeqCst) > 0 {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= pieces {
                        return;
                    }
                    let (name, done) = piece(run, number, groups);
                    match &done {
                        Ok(true) => drop(
                            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)),
                        ),
                        Ok(false) => {}
                        Err(_) => is_over.store(true, Ordering::SeqCst),
                    }
                    let _ = told.send(done.map_or_else(
                        |error| Told::Failed(name.clone(), error),
                        |was| Told::Done(name.clone(), was),
                    ));
                }
            });
        }
        drop(told);
        while let Ok(one) = hear.recv() {
            tell(one);
        }
    });
}

/// Carries out one piece. A rollback reverses the order: workloads before what they use.
fn piece(run: &Run<'_>, number: usize, groups: usize) -> (String, Result<bool>) {
    let number = match run.goal {
        Goal::Forward => number,
        Goal::Back => groups + run.plan.inline.len() - 1 - number,
    };
    if let Some(group) = run.plan.groups.get(number) {
        let names: Vec<_> = group.volumes.iter().map(|volume| &*volume.name).collect();
        return (names.join(", "), run.group(group));
    }
    let inline = number.checked_sub(groups).and_then(|number| run.plan.inline.get(number));
    let name = inline.map_or_else(String::new, |inline| inline.workload.shown());
    (
        name,
        if inline.is_some() { run.inline(number - groups) } else { Err(anyhow!("there is no such group")) },
    )
}
