//! `kubectl flexvol force-detach`: unmounts volumes by force and releases their storage.

use super::cluster::{Cluster, path_in, path_of};
use crate::agent::force::PLAN;
use crate::fence::record::Record;
use crate::fence::store::kubernetes::is_name;
use crate::kubectl::asking::Kubectl;
use crate::kubectl::forced::{Forced, Standing};
use crate::kubectl::held::{bound_volume, held, held_for};
use crate::kubectl::objects::{Objects, Volume};
use anyhow::{Result, bail, ensure};
use clap::{ArgGroup, Args};
use flexvol_terminal::probing::printable;
use flexvol_terminal::screen::{Screen, counted};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const KIND: &str = "flexdetachtasks";

/// Duration of one watch.
const WATCH: Duration = Duration::from_mins(1);

/// Pause after a watch that ended at once.
const PAUSE: Duration = Duration::from_secs(1);

/// Unmount volumes by force on the nodes that hold them, and release their storage
#[derive(Args)]
#[command(
    group = ArgGroup::new("which").required(true).multiple(true).args(["claim", "handle", "node", "selector"]),
    after_help = "\
Examples:
  kubectl flexvol force-detach data-db-0 -n shop --dry-run    what would be unmounted for a claim
  kubectl flexvol force-detach --node node-7 --yes            all that a node holds
  kubectl flexvol force-detach --handle rbd:/kube/pg-data --yes
  kubectl flexvol force-detach -l team=shop --yes             what locks (FlexAttachments) with this label are of

The agent of each node does it, as far as it must: the driver's own unmount, umount -f, which aborts a FUSE daemon's
connection, umount -l, and the driver again. Data that was not written is lost. Storage is released when nothing is
mounted or attached any more, and never before: the pods that use it have to go first, kubectl delete pod.

A node that is not ready is not asked: it may still write. See kubectl flexvol why CLAIM.

Exit status: 0 all released, 1 not all, 2 wrong usage.")]
pub(super) struct ForceDetach {
    /// Claim (`PersistentVolumeClaim`) of the volume
    #[arg(value_name = "CLAIM")]
    claim: Option<String>,
    /// Namespace of the claim [default: that of kubectl's context]
    #[arg(short, long, value_name = "NAME", requires = "claim")]
    namespace: Option<String>,
    /// Storage to release, as locks shows it
    #[arg(long, value_name = "STORAGE")]
    handle: Option<String>,
    /// Only what this node holds
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Only locks (`FlexAttachment`) with these labels
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Show what would be done, and do nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Do it; otherwise it is only shown
    #[arg(long)]
    yes: bool,
    /// Also delete the claims and `PersistentVolumes` of what was released
    #[arg(long)]
    delete_claims: bool,
    /// Seconds to wait for the nodes
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    #[command(flatten)]
    cluster: Cluster,
}

impl ForceDetach {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let kubectl = self.cluster.kubectl()?;
        let mut all = self.chosen(&kubectl)?;
        if all.is_empty() {
            return nothing(screen);
        }
        if self.yes {
            let waited = self.carry_out(&kubectl, &mut all, screen);
            let deleted = waited.and_then(|()| self.delete_claims(&kubectl, &all));
            show(screen, &all)?;
            deleted?;
        } else {
            show(screen, &all)?;
        }
        let done = all.iter().all(|it| it.standing == Standing::Done);
        Ok(if done || self.dry_run { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Returns the holds that are meant. Reads locks first: the node of a lock that is found is
    /// read later.
    fn chosen(&self, kubectl: &Kubectl) -> Result<Vec<Forced>> {
        let mut objects = Objects::default();
        let mut places = HashMap::new();
        let selector = self.selector.as_deref().unwrap_or_default();
        kubectl.list_where(&path_of("flexattachments"), selector, |object| {
            if let (Some(place), Ok(record)) =
                (object["metadata"]["namespace"].as_str(), Record::from_json(&object["spec"]))
            {
                let holders = record.holders.into_iter().map(|holder| (holder.id, place.to_owned()));
                places.extend(holders);
            }
            objects.add_lock(&object);
        })?;
        kubectl.list("/api/v1/nodes", |object| objects.add_node(&object))?;
        if self.delete_claims {
            kubectl.list("/api/v1/persistentvolumes", |object| objects.add_volume(&object))?;
            // The pods show which volumes are not PersistentVolumes.
            kubectl.list("/api/v1/pods", |object| objects.add_pod(&object))?;
        }
        let held = match &self.claim {
            None => held(&objects, |_| false),
            Some(claim) => {
                let of_context = || kubectl.namespace();
                let namespace = self.namespace.clone().map_or_else(of_context, Ok)?;
                ensure!(
                    is_name(&namespace) && is_name(claim),
                    "{namespace}/{claim} is no name of Kubernetes"
                );
                let path = format!("{}/{claim}", path_in(Some(&namespace), "persistentvolumeclaims"));
                let object = kubectl.get(&path)?;
                if !self.delete_claims {
                    let pods = path_in(Some(&namespace), "pods");
                    kubectl.list(&pods, |object| objects.add_pod(&object))?;
                }
                held_for(&objects, &namespace, claim, bound_volume(&object))
            }
        };
        let meant = held.iter().filter(|held| {
            self.handle.as_ref().is_none_or(|handle| held.record.handle == *handle)
                && self.node.as_ref().is_none_or(|node| held.holder.node.name == *node)
        });
        let planned = |held| Some(Forced::of(held, places.get(&held.holder.id)?, &objects));
        Ok(meant.filter_map(planned).collect())
    }

    /// Asks the nodes, and waits for their reports.
    fn carry_out(&self, kubectl: &Kubectl, all: &mut [Forced], screen: &mut Screen) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(self.timeout);
        let known = Known::list(kubectl)?;
        for it in all.iter_mut().filter(|it| it.standing == Standing::Planned) {
            // A task that exists already, of another user or of ours, is waited for as well.
            if known.object_of(it).is_none() {
                let path = path_of(&format!("namespaces/{}/{KIND}", it.namespace));
                let created = kubectl.create(&path, &it.object());
                // Another user may have been faster.
                if created.is_err() && Known::list(kubectl)?.object_of(it).is_none() {
                    return created;
                }
            }
            it.standing = Standing::Asked;
        }
        // Watch from a version before the tasks were created: an agent may be faster than a list.
        let mut from = Some(known.version);
        while all.iter().any(|it| !it.is_decided()) && Instant::now() < deadline {
            let begun = Instant::now();
            hear(kubectl, all, from.take(), deadline, screen)?;
            if begun.elapsed() < PAUSE {
                std::thread::sleep(PAUSE);
            }
        }
        check(kubectl, all)
    }

    /// Deletes claim and PersistentVolume of each released volume whose claim is certain, nothing
    /// else.
    fn delete_claims(&self, kubectl: &Kubectl, all: &[Forced]) -> Result<()> {
        if !self.delete_claims {
            return Ok(());
        }
        let mut left = 0;
        for it in all.iter().filter(|it| it.standing == Standing::Done) {
            let Some(Volume { name, uid, claim: Some((namespace, claim)), claim_uid, .. }) = &it.persistent
            else {
                left += 1;
                continue;
            };
            let claims = path_in(Some(namespace), "persistentvolumeclaims");
            if !claim_uid.is_empty() {
                kubectl.delete(&format!("{claims}/{claim}"), claim_uid)?;
            }
            kubectl.delete(&format!("/api/v1/persistentvolumes/{name}"), uid)?;
        }
        if left > 0 {
            bail!(
                "{}: no claim was deleted, because it is not certain whose directory it was: \
                kubectl delete pvc, once you know",
                counted(left, "volume")
            );
        }
        Ok(())
    }
}

/// Follows the tasks until all are decided, or until the watch ends. Without a version, lists them
/// first.
fn hear(
    kubectl: &Kubectl,
    all: &mut [Forced],
    from: Option<String>,
    deadline: Instant,
    screen: &mut Screen,
) -> Result<()> {
    let version = if let Some(version) = from {
        version
    } else {
        let known = Known::list(kubectl)?;
        for it in all.iter_mut().filter(|it| it.is_asked()) {
            match known.object_of(it) {
                Some(object) => it.hear(object),
                None => it.gone(),
            }
        }
        known.version
    };
    let left = deadline.saturating_duration_since(Instant::now()).min(WATCH);
    if all.iter().all(Forced::is_decided) || left.is_zero() {
        return Ok(());
    }
    kubectl.watch(&path_of(KIND), &version, left, |event| {
        let object = &event["object"];
        let Some(it) = all.iter_mut().find(|it| it.is_asked() && it.is_asked_by(object)) else {
            return event["type"] != "ERROR";
        };
        it.hear(object);
        if event["type"] == "DELETED" {
            it.gone();
        }
        let _ = screen.passing(&printable(&format!("{}: {}", it.storage, it.result())));
        !all.iter().all(Forced::is_decided)
    })
}

fn show(screen: &mut Screen, all: &[Forced]) -> Result<()> {
    if screen.wants_json() {
        let volumes: Vec<_> = all.iter().map(Forced::as_json).collect();
        return screen.json(&json!({"volumes": volumes}));
    }
    let mut rows = vec![["STORAGE", "POD", "NODE", "RESULT"].map(str::to_owned)];
    rows.extend(all.iter().map(|it| [it.storage.clone(), it.pod.clone(), it.node.clone(), it.result()]));
    screen.table(&rows)?;
    let count = |is: fn(&Forced) -> bool| all.iter().filter(|it| is(it)).count();
    let (planned, left) = (
        count(|it| it.standing == Standing::Planned),
        count(|it| it.is_asked() && it.standing != Standing::Done),
    );
    if planned > 0 && !all.iter().any(Forced::is_asked) {
        let steps: Vec<_> = PLAN.iter().map(|action| action.name()).collect();
        screen.line(&format!("as far as needed: {}", steps.join("; ")))?;
        screen.line(&format!("{}: nothing was done, add --yes", counted(planned, "volume")))?;
    }
    if left > 0 {
        screen.line(&format!(
            "{} not released: the agents go on trying, kubectl get fxd -A; kubectl delete fxd ends that",
            counted(left, "volume")
        ))?;
    }
    Ok(())
}

fn nothing(screen: &mut Screen) -> Result<ExitCode> {
    if screen.wants_json() {
        screen.json(&json!({"volumes": []}))?;
    } else {
        screen.line("nothing of that is held: kubectl flexvol locks shows what is")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Current tasks of nodes.
struct Known {
    objects: Vec<Value>,
    version: String,
}

impl Known {
    fn list(kubectl: &Kubectl) -> Result<Self> {
        let mut list = kubectl.get(&path_of(KIND))?;
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let Value::Array(objects) = list["items"].take() else {
            return Ok(Self { objects: Vec::new(), version });
        };
        Ok(Self { objects, version })
    }

    fn object_of(&self, it: &Forced) -> Option<&Value> {
        self.objects.iter().find(|object| it.is_asked_by(object))
    }
}

/// Marks holds as stuck that are still held without a task: another user may have deleted the task.
fn check(kubectl: &Kubectl, all: &mut [Forced]) -> Result<()> {
    let mut held = HashSet::new();
    kubectl.list(&path_of("flexattachments"), |object| {
        let holders = object["spec"]["holders"].as_array().into_iter().flatten();
        held.extend(holders.map(|holder| (holder["id"].clone(), holder["epoch"].clone())));
    })?;
    for it in all.iter_mut().filter(|it| it.standing == Standing::Done) {
        let holder = &it.task.holder;
        if held.contains(&(json!(holder.id), json!(holder.epoch))) {
            it.standing = Standing::Stuck("somebody has deleted its task, and it is still held".to_owned());
        }
    }
    Ok(())
}
