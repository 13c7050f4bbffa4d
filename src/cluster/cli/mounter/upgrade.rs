//! `kubectl flexvol mounter upgrade`: replaces the mount pod of a node while it serves nothing.

use crate::cli::cluster::Cluster;
use crate::fence::store::kubernetes::is_name;
use crate::kubectl::mount_pods::MountPod;
use crate::kubectl::session::Session;
use crate::kubectl::upgrade::mark::MARK;
use crate::kubectl::upgrade::{Done, Preview, Upgrade, Wanted, named};
use anyhow::{Result, ensure};
use clap::Args;
use flexvol_terminal::probing::printable;
use flexvol_terminal::screen::{Screen, counted};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// Replace the mount pod of a node: its volumes are drained first, so that none breaks
///
/// The volumes that a mount pod serves end with it. So the node gets a taint that evicts the pods
/// that use them (and others without a toleration; no `PodDisruptionBudget` prevents that). The
/// mount pod is deleted once it serves nothing, its DaemonSet creates a new one, and the taint is
/// removed when that one answers. If this command is killed, the next run completes the work.
#[derive(Args)]
#[command(after_help = "\
Examples:
  kubectl flexvol mounter upgrade --node node-1 --dry-run     say what would be done, and who would be evicted
  kubectl flexvol mounter upgrade --node node-1
  kubectl flexvol mounter upgrade --node node-1 --name tools  of several mount pods that of this DaemonSet")]
pub(super) struct UpgradeNode {
    /// The node
    #[arg(long, value_name = "NODE")]
    node: String,
    /// DaemonSet, if the node has mount pods of several
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The namespace of the DaemonSet [default: any]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Replace it even if it runs the newest template: its image may be newer under the same name
    #[arg(long)]
    again: bool,
    /// Do not ask the pod whether it serves anything: rely on the API's data about the node's pods
    #[arg(long)]
    trust_api: bool,
    /// Seconds for each wait: for the volumes to be unmounted, and for the new pod
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    #[command(flatten)]
    cluster: Cluster,
}

impl UpgradeNode {
    pub(super) fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        for name in [Some(&self.node), self.name.as_ref(), self.namespace.as_ref()].into_iter().flatten() {
            ensure!(is_name(name), "{name:?} is no name of Kubernetes");
        }
        let kubectl = self.cluster.kubectl()?;
        let session = Session::start(&kubectl)?;
        let wanted = Wanted {
            node: self.node,
            name: self.name,
            namespace: self.namespace,
            is_dry: self.dry_run,
            again: self.again,
            trusts_api: self.trust_api,
            patience: Duration::from_secs(self.timeout),
        };
        let mut say = |line: &str| if screen.wants_json() { Ok(()) } else { screen.line(&printable(line)) };
        let done = Upgrade::new(&wanted, &kubectl, &session, &mut say).run()?;
        show(screen, &wanted.node, &done).map(|()| ExitCode::SUCCESS)
    }
}

fn show(screen: &mut Screen, node: &str, done: &Done) -> Result<()> {
    let (old, new) = match done {
        Done::Would(preview) => return preview_of(screen, node, preview),
        Done::Newest(pod) => (&pod.uid, pod),
        Done::Replaced(old, new) => (old, new),
    };
    if screen.wants_json() {
        return screen.json(&json!({"node": node, "old": old, "new": new.uid, "pod": new.shown()}));
    }
    screen.line(&printable(&match done {
        Done::Newest(pod) => format!("mount pod {} runs the newest template: nothing to do", pod.shown()),
        _ => format!("node {node} has mount pod {}, and the taint is removed", new.shown()),
    }))
}

fn preview_of(screen: &mut Screen, node: &str, preview: &Preview) -> Result<()> {
    let Preview { pod, is_marked, users, others } = preview;
    let users: Vec<_> = users.iter().map(|user| user.pod.clone()).collect();
    if screen.wants_json() {
        let pod = pod.as_ref().map(MountPod::shown);
        return screen.json(
            &json!({"node": node, "pod": pod, "evicted": users, "evictedBesides": others, "dryRun": true}),
        );
    }
    let mut lines = Vec::new();
    if let Some(old) = pod {
        if !is_marked {
            lines.push(format!("would taint node {node} with {MARK}={}:NoExecute", old.uid));
        }
        lines.push(match &*users {
            [] => format!("no pod of the node has a volume of {}", old.plugins.join(", ")),
            users => format!("would wait until these pods are evicted: {}", named(users)),
        });
        lines.push(format!("{} without such a volume would be evicted, too", counted(*others, "pod")));
        lines.push(format!("would delete mount pod {} once it serves nothing", old.shown()));
    }
    lines.push("would wait until the new mount pod is registered and answers".to_owned());
    lines.push(format!("would remove the taint of node {node}"));
    lines.iter().try_for_each(|line| screen.line(&printable(line)))
}
