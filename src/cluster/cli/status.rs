//! `kubectl flexvol status`: the `FlexVolumes` of a cluster, their pods, nodes and locks.

use super::cluster::{Cluster, locks, path_in};
use crate::fence::store::kubernetes::is_name;
use crate::kubectl::objects::Objects;
use crate::kubectl::volumes::{Row, rows};
use anyhow::{Result, ensure};
use clap::Args;
use flexvol_terminal::probing::printable;
use flexvol_terminal::screen::{Screen, counted};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Show the flex volumes of a cluster: pod, node, and the storage that is held for each
#[derive(Args)]
#[command(after_help = "\
Examples:
  kubectl flexvol status              of all namespaces
  kubectl flexvol status -n shop      of one

What drivers on a node do, and whether what is mounted answers, says sudo flexvol status on that node.")]
pub(super) struct Status {
    /// Only volumes of this namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: Cluster,
}

impl Status {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let of = self.namespace.as_deref();
        ensure!(of.is_none_or(is_name), "{:?} is no name of Kubernetes", of.unwrap_or_default());
        let kubectl = self.cluster.kubectl()?;
        let mut objects = locks(&kubectl)?;
        kubectl.list("/api/v1/persistentvolumes", |object| objects.add_volume(&object))?;
        kubectl.list(&path_in(of, "pods"), |object| objects.add_pod(&object))?;
        let (rows, tasks) = (rows(&objects, of), tasks(&objects));
        if screen.wants_json() {
            let rows: Vec<_> = rows.iter().map(Row::as_json).collect();
            screen.json(&json!({"volumes": rows, "tasks": tasks}))?;
        } else {
            show(screen, rows, &tasks)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(screen: &mut Screen, rows: Vec<Row>, tasks: &BTreeMap<String, usize>) -> Result<()> {
    if rows.is_empty() {
        screen.line("no FlexVolume is there")?;
    } else {
        let mut all = vec![["POD", "VOLUME", "DRIVER", "NODE", "STORAGE", "STATE"].map(str::to_owned)];
        all.extend(rows.into_iter().map(Row::cells));
        screen.table(&all)?;
    }
    for (node, count) in tasks {
        let text = format!("node {node} has {} to clean up", counted(*count, "hold"));
        screen.line(&printable(&text))?;
    }
    Ok(())
}

/// Counts the tasks of each node.
fn tasks(objects: &Objects) -> BTreeMap<String, usize> {
    let mut tasks = BTreeMap::new();
    for task in &objects.tasks {
        *tasks.entry(task.holder.node.name.clone()).or_default() += 1;
    }
    tasks
}
