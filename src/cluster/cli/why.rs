//! `kubectl flexvol why`: explains why the pods of a claim wait, and what ends the wait.

use super::cluster::{Cluster, locks, path_in};
use crate::fence::store::kubernetes::is_name;
use crate::kubectl::held::{Held, bound_volume, held_for, waiting};
use crate::kubectl::objects::{Objects, Pod};
use anyhow::{Result, ensure};
use clap::Args;
use flexvol_terminal::probing::printable;
use flexvol_terminal::screen::Screen;
use serde_json::json;
use std::process::ExitCode;

/// Show who holds a claim's storage, why its pods wait, and what ends the wait
#[derive(Args)]
#[command(after_help = "\
Examples:
  kubectl flexvol why data-db-0 -n shop     why the pods of this claim wait")]
pub(super) struct Why {
    /// The claim (`PersistentVolumeClaim`) whose pods wait
    #[arg(value_name = "CLAIM")]
    claim: String,
    /// Namespace of the claim [default: that of kubectl's context]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: Cluster,
}

impl Why {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        said(&self.cluster, self.namespace.as_deref(), &self.claim, screen)
    }
}

/// Prints the explanation; `locks CLAIM` prints the same.
pub(super) fn said(
    cluster: &Cluster,
    namespace: Option<&str>,
    claim: &str,
    screen: &mut Screen,
) -> Result<ExitCode> {
    let kubectl = cluster.kubectl()?;
    let namespace = &*namespace.map_or_else(|| kubectl.namespace(), |name| Ok(name.to_owned()))?;
    ensure!(is_name(namespace) && is_name(claim), "{namespace}/{claim} is no name of Kubernetes");
    let mut objects = locks(&kubectl)?;
    let path = format!("{}/{claim}", path_in(Some(namespace), "persistentvolumeclaims"));
    let object = kubectl.get(&path)?;
    kubectl.list(&path_in(Some(namespace), "pods"), |object| objects.add_pod(&object))?;
    let held = held_for(&objects, namespace, claim, bound_volume(&object));
    let waiting = waiting(&objects, namespace, claim, &held);
    if screen.wants_json() {
        let locks: Vec<_> = held.iter().map(Held::as_json).collect();
        let waiting: Vec<_> = waiting.iter().map(|pod| &pod.name).collect();
        screen.json(&json!({"locks": locks, "waiting": waiting, "tasks": tasks(&objects, &held)}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in lines(&objects, &held, &waiting) {
        screen.line(&printable(&line))?;
    }
    if held.is_empty() {
        screen.line(&format!("no storage of claim {namespace}/{claim} is held"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(objects: &Objects, held: &[Held<'_>], waiting: &[&Pod]) -> Vec<String> {
    let mut lines = Vec::new();
    for pod in waiting {
        let place = if pod.node.is_empty() { "no node yet".to_owned() } else { format!("node {}", pod.node) };
        lines.push(format!("pod {} on {place} does not have it", pod.shown()));
    }
    lines.extend(held.iter().map(Held::sentence));
    lines.extend(tasks(objects, held));
    lines
}

/// Describes the cleanup tasks of nodes for these holders.
fn tasks(objects: &Objects, held: &[Held<'_>]) -> Vec<String> {
    let of_it = objects.tasks.iter().filter(|task| held.iter().any(|held| held.holder.id == task.holder.id));
    let text = of_it.map(|task| {
        let node = &task.holder.node.name;
        format!("node {node} has to clean up after that pod: {}", task.reason.name())
    });
    text.collect()
}
