//! Plan for the objects that were found, or the reasons why some stay as they are. Pure.

use super::found::{Claim, Found, Workload, gitops, mark, owner, text};
use super::groups::together;
use super::plan::{self, Change, Group, Inline, Kind, Plan, Refused, Selection, Volume};
use super::refusal::Why;
use super::users::Users;
use flexvol_model::translate::{self, To, Translation, Warning, title};
use flexvol_protocol::ordered;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Finalizers that Kubernetes itself sets on a volume, and removes when the volume may go.
const FINALIZERS: [&str; 3] = [
    "kubernetes.io/pv-protection",
    "kubernetes.io/pv-controller",
    "external-provisioner.volume.kubernetes.io/finalizer",
];

/// Prefix of the finalizer that an attacher sets on an attached volume.
const ATTACHER: &str = "external-attacher/";

/// First minor version of Kubernetes whose kubelets support everything that a CSI volume may need:
/// inline volumes of pods came last.
const KUBELET: u32 = 25;

/// Uids of the workloads that have to stop.
type Stops<'a> = BTreeSet<&'a str>;

/// Makes the plan.
pub fn make(found: &Found, selection: &Selection, made: String) -> Plan {
    let mut plan = Plan::new(made, found.cluster.clone(), selection.clone());
    let maker = Maker { found, selection, users: Users::of(found) };
    let (mut volumes, mut stops) = (Vec::new(), Vec::new());
    for object in found.volumes.iter().filter(|object| maker.is_meant(object)) {
        match maker.volume(object) {
            Ok(Some((volume, its))) => {
                volumes.push(volume);
                stops.push(its);
            }
            Ok(None) => {}
            Err(refused) => plan.refused.push(refused),
        }
    }
    let taken = taken(&volumes);
    plan.groups = maker.groups(volumes, &stops);
    plan.groups.retain(|group| {
        let refused = group.volumes.iter().filter_map(|volume| {
            let other = taken.get(&volume.name)?;
            Some(Refused::new(title(&volume.before), &Why::HandleTaken(other.clone())))
        });
        let before = plan.refused.len();
        plan.refused.extend(refused);
        before == plan.refused.len()
    });
    maker.inline(&mut plan);
    plan.id = plan.own_id();
    plan
}

/// Returns the volumes of the plan that a driver would take for the same: each with the other.
fn taken(volumes: &[Volume]) -> BTreeMap<String, String> {
    let mut first: BTreeMap<(String, String), &str> = BTreeMap::new();
    let mut taken = BTreeMap::new();
    for volume in volumes.iter().filter(|volume| volume.after["spec"]["csi"].is_object()) {
        let csi = &volume.after["spec"]["csi"];
        let other = *first.entry((text(csi, "driver"), text(csi, "volumeHandle"))).or_insert(&volume.name);
        if other != volume.name {
            taken.insert(volume.name.clone(), other.to_owned());
            taken.insert(other.to_owned(), volume.name.clone());
        }
    }
    taken
}

struct Maker<'a> {
    found: &'a Found,
    selection: &'a Selection,
    users: Users<'a>,
}

impl<'a> Maker<'a> {
    /// Reports whether a volume is selected.
    fn is_meant(&self, object: &Value) -> bool {
        let (spec, selection) = (&object["spec"], self.selection);
        let says = |wanted: &[String], value: &Value| {
            wanted.is_empty() || value.as_str().is_some_and(|value| wanted.iter().any(|it| it == value))
        };
        let driver = source(object);
        selection.reverse == spec["csi"].is_object()
            && says(&selection.drivers, &driver["driver"])
            && says(&selection.classes, &spec["storageClassName"])
            && says(&selection.namespaces, &spec["claimRef"]["namespace"])
            && says(&selection.volumes, &object["metadata"]["name"])
    }

    /// Plans a volume, and the workloads that have to stop for it.
    fn volume(&self, object: &Value) -> Result<Option<(Volume, Stops<'a>)>, Refused> {
        let of_it = |why: Why| Refused::new(title(object), &why);
        let Some(translation) = self.translated(object)? else { return Ok(None) };
        self.may_move(object).map_err(of_it)?;
        let claim = self.claim(object).map_err(of_it)?;
        self.is_served(&translation.object).map_err(of_it)?;
        let stops = match &claim {
            Some(claim) => {
                let may_delete = self.selection.delete_completed;
                self.users.stops(&claim.namespace, &claim.name, may_delete).map_err(of_it)?
            }
            None => BTreeSet::new(),
        };
        let name = text(&object["metadata"], "name");
        let nodes = self.nodes_of(object, &name);
        let silent = nodes.iter().find(|node| !self.found.nodes[*node].ready);
        if let Some(node) = silent {
            return Err(of_it(Why::NodeSilent(node.clone())));
        }
        let volume = Volume {
            nodes,
            claim,
            from: text(source(object), "driver"),
            to: text(source(&translation.object), "driver"),
            warnings: translation.warnings.iter().map(ToString::to_string).collect(),
            before: object.clone(),
            after: translation.object,
            name,
        };
        Ok(Some((volume, stops)))
    }

    fn translated(&self, object: &Value) -> Result<Option<Translation>, Refused> {
        let to = self.selection.to.as_deref().map_or(To::Flexvold, To::Driver);
        let done =
            if self.selection.reverse { translate::to_flex(object) } else { translate::to_csi(object, to) };
        let Some(translation) = done.map_err(|refusal| Refused::of(&refusal))? else { return Ok(None) };
        let left = translation.warnings.iter().find_map(|warning| match warning {
            Warning::Left(driver) => Some(Why::NoWay(driver.clone())),
            _ => None,
        });
        left.map_or(Ok(Some(translation)), |why| Err(Refused::new(title(object), &why)))
    }

    /// Checks the volume itself.
    fn may_move(&self, object: &Value) -> Result<(), Why> {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let is_new = self.selection.reverse;
        if let Some(id) = mark(metadata).filter(|_| !is_new) {
            return Err(Why::Migrating(id));
        }
        if let Some(owner) = owner(metadata) {
            return Err(Why::Owned(format!("{} {}", owner.kind, owner.name)));
        }
        if let Some(who) = self.found.writes_again(gitops(metadata)) {
            return Err(Why::GitOps(who));
        }
        let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
        let strange = finalizers.filter_map(Value::as_str).find(|name| !is_known(name));
        if let Some(name) = strange {
            return Err(Why::Finalizer(name.to_owned()));
        }
        let phase = text(&object["status"], "phase");
        let is_bound = spec["claimRef"]["uid"].is_string();
        match (&*phase, is_bound) {
            ("Bound" | "Released", true) | ("Available", _) => Ok(()),
            _ => Err(Why::Phase(if phase.is_empty() { "unknown".to_owned() } else { phase })),
        }
    }

    /// Returns the claim that is bound to it.
    fn claim(&self, object: &Value) -> Result<Option<plan::Claim>, Why> {
        if object["status"]["phase"] != "Bound" {
            return Ok(None);
        }
        let reference = &object["spec"]["claimRef"];
        let [namespace, name, uid] = ["namespace", "name", "uid"].map(|key| text(reference, key));
        let shown = format!("{namespace}/{name}");
        let key = (namespace.clone(), name.clone());
        let Some(found) = self.found.claims.get(&key) else { return Err(Why::ClaimMissing(shown)) };
        let Claim { volume, deleting, pod, grows, .. } = found;
        if found.uid != uid || *volume != text(&object["metadata"], "name") {
            return Err(Why::ClaimOther(shown));
        }
        if *deleting {
            return Err(Why::ClaimDeleting(shown));
        }
        if *grows {
            return Err(Why::ClaimGrows(shown));
        }
        if let Some(id) = &found.mark {
            return Err(Why::Migrating(id.clone()));
        }
        match pod {
            Some(pod) => Err(Why::ClaimOfPod(shown, pod.clone())),
            None => Ok(Some(plan::Claim { namespace, name, uid })),
        }
    }

    /// Checks that every schedulable node has the CSI driver, and that the volume's Secrets exist.
    fn is_served(&self, after: &Value) -> Result<(), Why> {
        let csi = &after["spec"]["csi"];
        if !csi.is_object() {
            return Ok(());
        }
        let (driver, handle) = (text(csi, "driver"), text(csi, "volumeHandle"));
        self.has_driver(&driver)?;
        if let Some(other) = self.found.handles.get(&(driver, handle)).and_then(|names| names.first()) {
            return Err(Why::HandleTaken(format!("PersistentVolume {other}")));
        }
        for secret in secrets_of(csi) {
            if !self.found.secrets.contains_key(&secret) {
                return Err(Why::SecretMissing(format!("{}/{}", secret.0, secret.1)));
            }
        }
        Ok(())
    }

    fn has_driver(&self, driver: &str) -> Result<(), Why> {
        if !self.found.drivers.contains(driver) {
            return Err(Why::NoDriver(driver.to_owned()));
        }
        for (name, node) in self.found.nodes.iter().filter(|(_, node)| node.schedulable) {
            if is_old(&node.version) {
                return Err(Why::OldKubelet(name.clone(), node.version.clone()));
            }
            if !self.found.served.get(name).is_some_and(|served| served.contains(driver)) {
                return Err(Why::NotServed(driver.to_owned(), name.clone()));
            }
        }
        Ok(())
    }

    /// Returns the nodes where it is attached or in use.
    fn nodes_of(&self, object: &Value, name: &str) -> Vec<String> {
        let nodes = self.found.nodes.iter();
        let uses = |names: &BTreeSet<String>| names.iter().any(|it| is_of(it, object, name));
        nodes.filter(|(_, node)| uses(&node.volumes)).map(|(name, _)| name.clone()).collect()
    }

    fn groups(&self, volumes: Vec<Volume>, stops: &[Stops<'a>]) -> Vec<Group> {
        let mut volumes: Vec<_> = volumes.into_iter().map(Some).collect();
        let groups = together(stops).into_iter().map(|(numbers, workloads)| Group {
            volumes: numbers.into_iter().filter_map(|number| volumes[number].take()).collect(),
            workloads: workloads.iter().map(|uid| planned(&self.found.workloads[*uid])).collect(),
        });
        groups.collect()
    }

    /// Plans the volumes in templates of workloads, unless the selection names classes or volumes.
    fn inline(&self, plan: &mut Plan) {
        let Selection { drivers, classes, namespaces, volumes, .. } = self.selection;
        if !classes.is_empty() || !volumes.is_empty() {
            return;
        }
        let in_namespace = |namespace: &String| namespaces.is_empty() || namespaces.contains(namespace);
        let workloads = self.found.workloads.values().filter(|workload| in_namespace(&workload.namespace));
        let mut workloads: Vec<_> =
            workloads.filter_map(|workload| Some((workload, workload.inline.as_ref()?))).collect();
        ordered::sort(&mut workloads, |(workload, _)| {
            (workload.kind, workload.namespace.clone(), workload.name.clone())
        });
        for (workload, object) in workloads {
            match self.of_workload(workload, object) {
                Ok(Some(inline)) => plan.inline.push(inline),
                Ok(None) => {}
                Err(refused) => plan.refused.push(refused),
            }
        }
        let is_meant = |driver: &String| drivers.is_empty() || drivers.contains(driver);
        for pod in self.found.pods.iter().filter(|pod| in_namespace(&pod.namespace) && pod.owner.is_none()) {
            if pod.inline.iter().any(is_meant) && !pod.ended && !self.selection.reverse {
                let object = format!("Pod {}/{}", pod.namespace, pod.name);
                plan.refused.push(Refused::new(object, &Why::NotChanged));
            }
        }
    }

    fn of_workload(&self, workload: &Workload, object: &Value) -> Result<Option<Inline>, Refused> {
        let of_it = |why: Why| Refused::new(title(object), &why);
        let drivers = &self.selection.drivers;
        let its = drivers_in(object);
        let (meant, others): (Vec<_>, Vec<_>) =
            its.into_iter().partition(|driver| drivers.is_empty() || drivers.contains(driver));
        if meant.is_empty() && !self.selection.reverse {
            return Ok(None);
        }
        if let Some(other) = others.first().filter(|_| !self.selection.reverse) {
            return Err(of_it(Why::OtherDriver(other.clone())));
        }
        let Some(translation) = self.translated(object)? else { return Ok(None) };
        let name = workload.name.clone();
        if let Some(owner) = &workload.owner {
            // A ReplicaSet of a Deployment is created again from the Deployment.
            let is_made = self.found.workloads.contains_key(&owner.uid);
            let why = Why::WorkloadOwned(format!("{} {name}", workload.kind.name()), owner.name.clone());
            return if is_made { Ok(None) } else { Err(of_it(why)) };
        }
        if let Some(who) = self.found.writes_again(workload.gitops.clone()) {
            return Err(of_it(Why::GitOps(who)));
        }
        if let Some(id) = &workload.mark {
            return Err(of_it(Why::Migrating(id.clone())));
        }
        if matches!(workload.kind, Kind::ReplicaSet | Kind::ReplicationController) {
            return Err(of_it(Why::NotChanged));
        }
        for driver in csi_drivers_in(&translation.object) {
            self.has_driver(&driver).map_err(of_it)?;
        }
        let changes = changes(object, &translation.object);
        let warnings = translation.warnings.iter().map(ToString::to_string).collect();
        Ok(Some(Inline { workload: planned(workload), changes, warnings }))
    }
}

fn planned(workload: &Workload) -> plan::Workload {
    let Workload { kind, namespace, name, uid, replicas, .. } = workload;
    let (namespace, name, uid) = (namespace.clone(), name.clone(), uid.clone());
    plan::Workload { kind: *kind, namespace, name, uid, replicas: *replicas }
}

/// Returns the source of a volume: `flexVolume` or `csi`.
pub fn source(object: &Value) -> &Value {
    let csi = &object["spec"]["csi"];
    if csi.is_object() { csi } else { &object["spec"]["flexVolume"] }
}

/// Reports whether Kubernetes' own name of a volume on a node means this volume.
pub fn is_of(unique: &str, object: &Value, name: &str) -> bool {
    let csi = &object["spec"]["csi"];
    if csi.is_object() {
        let expected = format!("kubernetes.io/csi/{}^{}", text(csi, "driver"), text(csi, "volumeHandle"));
        return unique == expected;
    }
    let driver = text(&object["spec"]["flexVolume"], "driver");
    unique.strip_prefix(&*driver).and_then(|rest| rest.strip_prefix('/')) == Some(name)
}

/// Reports whether a migration may remove this finalizer.
pub fn is_known(finalizer: &str) -> bool {
    FINALIZERS.contains(&finalizer) || finalizer.starts_with(ATTACHER)
}

/// Returns the Secrets that a source names: namespace and name.
pub fn secrets_of(csi: &Value) -> Vec<(String, String)> {
    let fields = csi.as_object().into_iter().flatten();
    let secrets = fields.filter(|(key, value)| key.ends_with("SecretRef") && value.is_object());
    secrets.map(|(_, value)| (text(value, "namespace"), text(value, "name"))).collect()
}

fn is_old(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => major == 1 && minor < KUBELET,
        // The version of this kubelet is not known.
        _ => false,
    }
}

/// Returns the path of the volumes in a workload.
fn place(object: &Value) -> String {
    let of_cron = object["kind"] == "CronJob";
    let template = if of_cron { "/spec/jobTemplate/spec/template" } else { "/spec/template" };
    format!("{template}/spec/volumes")
}

fn in_volumes(object: &Value, source: &str) -> Vec<String> {
    let volumes = object.pointer(&place(object)).and_then(Value::as_array);
    let drivers = volumes.into_iter().flatten().filter_map(|volume| volume[source]["driver"].as_str());
    drivers.map(str::to_owned).collect()
}

fn drivers_in(object: &Value) -> Vec<String> {
    in_volumes(object, "flexVolume")
}

fn csi_drivers_in(object: &Value) -> Vec<String> {
    in_volumes(object, "csi")
}

/// Returns the differences of a workload: volumes one by one, and the annotation.
fn changes(before: &Value, after: &Value) -> Vec<Change> {
    let place = place(before);
    let volumes =
        |object: &Value| object.pointer(&place).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut changes = Vec::new();
    for (index, (before, after)) in volumes(before).into_iter().zip(volumes(after)).enumerate() {
        if before != after {
            changes.push(Change { path: format!("{place}/{index}"), before, after });
        }
    }
    let annotation = |object: &Value| object["metadata"]["annotations"][translate::ORIGINAL].clone();
    let path = format!("/metadata/annotations/{}", translate::ORIGINAL.replace('/', "~1"));
    changes.push(Change { path, before: annotation(before), after: annotation(after) });
    changes
}
