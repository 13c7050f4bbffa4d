//! Cluster that `kubectl flexvol` works on, and its objects.

use crate::fence::store::kubernetes::{GROUP, VERSION};
use crate::kubectl::asking::Kubectl;
use crate::kubectl::objects::Objects;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Selection of the cluster, with the flags of kubectl.
#[derive(Args)]
pub(super) struct Cluster {
    /// Context in kubectl's configuration
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Configuration file of kubectl
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl Cluster {
    pub(super) fn is_named(&self) -> bool {
        self.context.is_some() || self.kubeconfig.is_some()
    }

    pub(super) fn kubectl(&self) -> Result<Kubectl> {
        Kubectl::find(self.context.as_deref(), self.kubeconfig.as_deref())
    }
}

/// Reads locks, tasks and nodes. Locks come first: the node of a lock that is found is read later.
pub(super) fn locks(kubectl: &Kubectl) -> Result<Objects> {
    let mut objects = Objects::default();
    kubectl.list(&path_of("flexattachments"), |object| objects.add_lock(&object))?;
    kubectl.list(&path_of("flexdetachtasks"), |object| objects.add_task(&object))?;
    kubectl.list("/api/v1/nodes", |object| objects.add_node(&object))?;
    Ok(objects)
}

/// Returns the path of a kind in all namespaces.
pub(super) fn path_of(kind: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/{kind}")
}

/// Returns the path of a kind in one namespace, or in all.
pub(super) fn path_in(namespace: Option<&str>, kind: &str) -> String {
    namespace.map_or_else(|| format!("/api/v1/{kind}"), |of| format!("/api/v1/namespaces/{of}/{kind}"))
}
