//! Users of a claim, and the check that all of them can be stopped. Pure.

use super::found::{Found, Job, Owner, Pod, Workload};
use super::plan::Kind;
use super::refusal::Why;
use std::collections::{BTreeSet, HashMap};

/// Pods and workloads by the claims that they use.
#[derive(Debug)]
pub struct Users<'a> {
    found: &'a Found,
    pods: HashMap<(&'a str, &'a str), Vec<&'a Pod>>,
    templates: HashMap<(&'a str, &'a str), Vec<&'a Workload>>,
}

impl<'a> Users<'a> {
    /// Collects the users among the objects that were found.
    pub fn of(found: &'a Found) -> Self {
        let (mut pods, mut templates) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
        for pod in &found.pods {
            for claim in &pod.claims {
                pods.entry((&*pod.namespace, &**claim)).or_default().push(pod);
            }
        }
        for workload in found.workloads.values().filter(|workload| workload.replicas > 0) {
            for claim in &workload.claims {
                templates.entry((&*workload.namespace, &**claim)).or_default().push(workload);
            }
        }
        Self { found, pods, templates }
    }

    /// Returns the uids of the workloads that have to stop for a claim.
    pub fn stops(&self, namespace: &str, claim: &str, may_delete: bool) -> Result<BTreeSet<&'a str>, Why> {
        let mut stops = BTreeSet::new();
        for pod in self.pods.get(&(namespace, claim)).into_iter().flatten() {
            let silent = |node: &str| !self.found.nodes.get(node).is_some_and(|node| node.ready);
            if !pod.node.is_empty() && silent(&pod.node) {
                return Err(Why::NodeSilent(pod.node.clone()));
            }
            stops.extend(self.of_pod(pod, may_delete)?.map(|workload| &*workload.uid));
        }
        for workload in self.templates.get(&(namespace, claim)).into_iter().flatten() {
            if let Some(top) = self.top(workload)? {
                stops.insert(&*top.uid);
            }
        }
        for uid in &stops {
            may_stop(self.found, &self.found.workloads[*uid])?;
        }
        Ok(stops)
    }

    /// Returns the workload that would create a pod again.
    fn of_pod(&self, pod: &Pod, may_delete: bool) -> Result<Option<&'a Workload>, Why> {
        let shown = format!("{}/{}", pod.namespace, pod.name);
        if pod.is_static {
            return Err(Why::StaticPod(shown));
        }
        if pod.ended && !may_delete {
            return Err(Why::CompletedPod(shown));
        }
        let Some(owner) = &pod.owner else {
            return if pod.ended { Ok(None) } else { Err(Why::BarePod(shown)) };
        };
        if let Some(workload) = self.found.workloads.get(&owner.uid) {
            return self.top(workload);
        }
        match self.found.jobs.get(&owner.uid) {
            Some(job) => self.of_job(pod, shown, job),
            None if pod.ended => Ok(None),
            None => Err(Why::UnknownOwner(shown, named(owner))),
        }
    }

    fn of_job(&self, pod: &Pod, shown: String, job: &Job) -> Result<Option<&'a Workload>, Why> {
        let made_by = job.owner.as_ref().and_then(|owner| self.found.workloads.get(&owner.uid));
        match made_by {
            Some(cron) => Ok(Some(cron)),
            None if pod.ended => Ok(None),
            None => Err(Why::JobRuns(shown, job.shown.clone())),
        }
    }

    /// Returns the workload to scale: a `ReplicaSet` is scaled by its `Deployment`.
    fn top(&self, workload: &'a Workload) -> Result<Option<&'a Workload>, Why> {
        match &workload.owner {
            None => Ok(Some(workload)),
            Some(owner) => match self.found.workloads.get(&owner.uid) {
                Some(above) => self.top(above),
                None => Err(Why::WorkloadOwned(shown(workload), named(owner))),
            },
        }
    }
}

fn may_stop(found: &Found, workload: &Workload) -> Result<(), Why> {
    let name = format!("{}/{}", workload.namespace, workload.name);
    match (workload.kind, found.writes_again(workload.gitops.clone()), &workload.mark) {
        (Kind::DaemonSet, ..) => Err(Why::DaemonSet(name)),
        (_, Some(who), _) => Err(Why::WorkloadGitOps(shown(workload), who)),
        (_, _, Some(id)) => Err(Why::Migrating(id.clone())),
        _ if workload.scaled_deletes => Err(Why::ScaledDeletes(name)),
        _ => Ok(()),
    }
}

fn shown(workload: &Workload) -> String {
    format!("{} {}/{}", workload.kind.name(), workload.namespace, workload.name)
}

fn named(owner: &Owner) -> String {
    format!("{} {}", owner.kind, owner.name)
}
