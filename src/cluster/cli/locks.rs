//! `flexvold locks`: shows who holds which storage, and which nodes are off.

use super::cluster::{self, Cluster};
use super::stores::{Open, Store};
use super::why;
use crate::fence::record::Record;
use crate::fence::store::Off;
use crate::fence::store::file::FileStore;
use crate::kubectl::held::{Held, held};
use anyhow::{Result, ensure};
use clap::Args;
use flexvol_terminal::screen::Screen;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Text for an empty result.
const NOTHING: &str = "no storage is held";

/// Show who holds which storage, or mark a node as off
#[derive(Args)]
#[command(after_help = "\
Examples:
  kubectl flexvol locks                        all that is held in a cluster
  kubectl flexvol locks data-db-0 -n shop      who holds the storage of a claim: as why says it
  flexvold locks --store file:/srv/locks       all that is held in a directory

--off gives the storage of a node to whoever asks for it next. Two nodes that write to one file system destroy it: power
the node down first, or cut it from the storage. A node that only does not answer may still write.")]
pub(super) struct Locks {
    /// Claim (`PersistentVolumeClaim`) whose storage to show
    #[arg(value_name = "CLAIM", conflicts_with_all = ["store", "off", "on"])]
    claim: Option<String>,
    /// Namespace of the claim [default: that of kubectl's context]
    #[arg(short, long, value_name = "NAME", requires = "claim")]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    store: Store,
    /// Mark this node as off: it no longer writes
    #[arg(long, value_name = "NODE", conflicts_with = "on")]
    off: Option<String>,
    /// Mark this node as on again
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
}

impl Locks {
    /// Shows the locks of a cluster through kubectl, or those of the given store.
    pub(super) fn run(self, by_kubectl: bool, screen: &mut Screen) -> Result<ExitCode> {
        if let Some(claim) = &self.claim {
            return why::said(&self.cluster, self.namespace.as_deref(), claim, screen);
        }
        let of_cluster = by_kubectl && self.store.is_default() && self.off.is_none() && self.on.is_none();
        if of_cluster || self.cluster.is_named() {
            return self.of_cluster(screen);
        }
        let store = self.store.open(false)?;
        match &store {
            Open::File(_, store) => self.mark(store)?,
            Open::Kubernetes(..) => {
                let node = self.off.as_deref().or(self.on.as_deref());
                ensure!(
                    node.is_none(),
                    "--off and --on are for locks in a directory: docs/agent.md says what else does it"
                );
            }
        }
        let store = store.records();
        let (records, off) = (store.list()?, store.off()?);
        let json = screen.wants_json().then(|| as_json(&records, &off));
        let done = if let Some(json) = json { screen.json(&json) } else { print(screen, &records, &off) };
        done.map(|()| ExitCode::SUCCESS)
    }
}

impl Locks {
    fn of_cluster(&self, screen: &mut Screen) -> Result<ExitCode> {
        let objects = cluster::locks(&self.cluster.kubectl()?)?;
        let held = held(&objects, |_| false);
        if screen.wants_json() {
            let locks: Vec<_> = held.iter().map(Held::as_json).collect();
            screen.json(&json!({"locks": locks}))?;
        } else if held.is_empty() {
            screen.line(NOTHING)?;
        } else {
            let mut rows = vec![["STORAGE", "POD", "NODE", "SINCE"].map(str::to_owned)];
            rows.extend(held.iter().map(|held| {
                [held.record.handle.clone(), held.pod(), held.node(), held.holder.since.clone()]
            }));
            screen.table(&rows)?;
        }
        if objects.strange > 0 {
            screen.line(&format!("{} more cannot be read: kubectl get fxa,fxd -A", objects.strange))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn mark(&self, store: &FileStore) -> Result<()> {
        if let Some(node) = &self.off {
            let boots = store.set_off(node)?;
            ensure!(!boots.is_empty(), "node {node} holds nothing: check its name with flexvold locks");
        }
        self.on.as_ref().map_or(Ok(()), |node| Ok(store.set_on(node)?))
    }
}

fn as_json(records: &[Record], off: &[Off]) -> Value {
    let records: Vec<_> = records.iter().map(Record::to_json).collect();
    let off: Vec<_> = off.iter().map(|off| &off.node).collect();
    json!({"records": records, "off": off})
}

fn print(screen: &mut Screen, records: &[Record], off: &[Off]) -> Result<()> {
    let mut rows = vec![["STORAGE", "SHARING", "EPOCH", "POD", "NODE", "SINCE"].map(str::to_owned)];
    for record in records {
        for holder in &record.holders {
            let said = off.iter().any(|off| off.is_about(&holder.node));
            let node = &holder.node.name;
            rows.push([
                record.handle.clone(),
                record.sharing.name().to_owned(),
                record.epoch.to_string(),
                format!("{}/{}", holder.pod.namespace, holder.pod.name),
                if said { format!("{node} (off)") } else { node.clone() },
                holder.since.clone(),
            ]);
        }
    }
    if rows.len() == 1 { screen.line(NOTHING) } else { screen.table(&rows) }
}
