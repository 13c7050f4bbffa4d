//! Objects of a cluster that a migration needs: of most objects, only a few values are kept. Pure.

use super::plan::{Kind, MARK};
use flexvol_model::translate::ORIGINAL;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Name of the source from which Argo CD writes objects.
pub const APPLICATION: &str = "Argo CD application";
/// Name of a source from which Flux writes objects.
pub const KUSTOMIZATION: &str = "Flux Kustomization";
/// Name of another source from which Flux writes objects.
pub const RELEASE: &str = "Flux HelmRelease";

/// Tools that write objects again from files, by the annotation or label that they leave on them.
const GITOPS: [(&str, &str); 4] = [
    ("argocd.argoproj.io/tracking-id", APPLICATION),
    ("kustomize.toolkit.fluxcd.io/name", KUSTOMIZATION),
    ("helm.toolkit.fluxcd.io/name", RELEASE),
    ("config.k8s.io/owning-inventory", "Config Sync inventory"),
];

/// Objects that were found, by kind.
#[derive(Debug, Default)]
pub struct Found {
    /// The uid of the namespace kube-system.
    pub cluster: String,
    /// `PersistentVolume`s that may be selected, with all fields.
    pub volumes: Vec<Value>,
    /// Names of all CSI volumes, by driver and handle.
    pub handles: HashMap<(String, String), Vec<String>>,
    /// Claims, by namespace and name.
    pub claims: HashMap<(String, String), Claim>,
    /// All pods that have volumes.
    pub pods: Vec<Pod>,
    /// Nodes, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Names of `CSIDriver` objects.
    pub drivers: BTreeSet<String>,
    /// CSI drivers on each node.
    pub served: HashMap<String, BTreeSet<String>>,
    /// Workloads, by uid.
    pub workloads: HashMap<String, Workload>,
    /// Jobs, by uid: their owners, and the Job's name.
    pub jobs: HashMap<String, Job>,
    /// Sources from which objects are written again, and true if all of that name are paused.
    pub paused: BTreeMap<String, bool>,
    /// The keys of Secrets that volumes name, by namespace and name.
    pub secrets: HashMap<(String, String), BTreeSet<String>>,
}

/// Owner of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// A claim.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// Uid, which no other claim has.
    pub uid: String,
    /// The volume that it is bound to.
    pub volume: String,
    /// True if it is being deleted.
    pub deleting: bool,
    /// Pod whose deletion also deletes it.
    pub pod: Option<String>,
    /// True if it is being enlarged.
    pub grows: bool,
    /// Id of the migration that has begun with it.
    pub mark: Option<String>,
}

/// A pod.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Node where it runs; empty before one is chosen.
    pub node: String,
    /// The claims that it uses.
    pub claims: Vec<String>,
    /// True if the whole pod has ended.
    pub ended: bool,
    /// True if it is a static pod of a kubelet.
    pub is_static: bool,
    /// Owner that created it.
    pub owner: Option<Owner>,
    /// Drivers of the flex volumes in its specification.
    pub inline: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// True if it reports.
    pub ready: bool,
    /// True if it accepts any pod.
    pub schedulable: bool,
    /// The volumes that are attached to it, or in use there, by Kubernetes' own names.
    pub volumes: BTreeSet<String>,
    /// Version of its kubelet.
    pub version: String,
}

/// A Job.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Namespace and name.
    pub shown: String,
    /// Owner that created it.
    pub owner: Option<Owner>,
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Kind of the workload.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Uid, which no other workload has.
    pub uid: String,
    /// Desired replicas; for a `CronJob` 0 if it is suspended, else 1.
    pub replicas: u32,
    /// Owner of the workload.
    pub owner: Option<Owner>,
    /// Source from which it is written again.
    pub gitops: Option<String>,
    /// Claims of its template.
    pub claims: Vec<String>,
    /// True if it deletes claims when it is scaled down.
    pub scaled_deletes: bool,
    /// Id of the migration that has stopped it.
    pub mark: Option<String>,
    /// The whole object, if its template has flex volumes, or had them.
    pub inline: Option<Value>,
}

impl Found {
    /// Adds a `PersistentVolume`.
    pub fn add_volume(&mut self, mut object: Value) {
        let csi = &object["spec"]["csi"];
        if csi.is_object() {
            let key = (text(csi, "driver"), text(csi, "volumeHandle"));
            self.handles.entry(key).or_default().push(text(&object["metadata"], "name"));
        }
        let was_flex = !object["metadata"]["annotations"][ORIGINAL].is_null();
        if object["spec"]["flexVolume"].is_object() || was_flex {
            shorten(&mut object);
            self.volumes.push(object);
        }
    }

    /// Adds a claim.
    pub fn add_claim(&mut self, object: &Value) {
        let (metadata, status) = (&object["metadata"], &object["status"]);
        let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let resizes = |condition: &Value| {
            let kind = condition["type"].as_str().unwrap_or_default();
            kind.contains("Resiz") && condition["status"] == "True"
        };
        let pod = owners(metadata).find(|owner| owner.kind == "Pod");
        let claim = Claim {
            uid: text(metadata, "uid"),
            volume: text(&object["spec"], "volumeName"),
            deleting: !metadata["deletionTimestamp"].is_null(),
            pod: pod.map(|pod| pod.name),
            grows: conditions.iter().any(resizes) || status["allocatedResourceStatuses"].is_object(),
            mark: mark(metadata),
        };
        self.claims.insert((text(metadata, "namespace"), text(metadata, "name")), claim);
    }

    /// Adds a pod, if it has volumes.
    pub fn add_pod(&mut self, object: &Value) {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let name = text(metadata, "name");
        let (claims, inline) = (claims_of(spec, &name), flex_of(spec));
        if claims.is_empty() && inline.is_empty() {
            return;
        }
        let annotations = &metadata["annotations"];
        self.pods.push(Pod {
            namespace: text(metadata, "namespace"),
            node: text(spec, "nodeName"),
            claims,
            inline,
            ended: matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed")),
            is_static: !annotations["kubernetes.io/config.mirror"].is_null(),
            owner: controller(metadata),
            name,
        });
    }

    /// Adds a node.
    pub fn add_node(&mut self, object: &Value) {
        let (spec, status) = (&object["spec"], &object["status"]);
        let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let reports = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        let taints = spec["taints"].as_array().map_or(&[][..], Vec::as_slice);
        let repels = |taint: &Value| matches!(taint["effect"].as_str(), Some("NoSchedule" | "NoExecute"));
        let attached = status["volumesAttached"].as_array().into_iter().flatten();
        let attached = attached.filter_map(|volume| volume["name"].as_str());
        let used = status["volumesInUse"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let node = Node {
            ready: conditions.iter().any(reports),
            schedulable: spec["unschedulable"] != true && !taints.iter().any(repels),
            volumes: attached.chain(used).map(str::to_owned).collect(),
            version: text(&status["nodeInfo"], "kubeletVersion"),
        };
        self.nodes.insert(text(&object["metadata"], "name"), node);
    }

    /// Adds a `CSINode`.
    pub fn add_csi_node(&mut self, object: &Value) {
        let drivers = object["spec"]["drivers"].as_array().into_iter().flatten();
        let names = drivers.map(|driver| text(driver, "name")).collect();
        self.served.insert(text(&object["metadata"], "name"), names);
    }

    /// Adds a `CSIDriver`.
    pub fn add_driver(&mut self, object: &Value) {
        self.drivers.insert(text(&object["metadata"], "name"));
    }

    /// Adds a Job.
    pub fn add_job(&mut self, object: &Value) {
        let metadata = &object["metadata"];
        let shown = format!("{}/{}", text(metadata, "namespace"), text(metadata, "name"));
        self.jobs.insert(text(metadata, "uid"), Job { shown, owner: controller(metadata) });
    }

    /// Adds a workload of this kind.
    pub fn add_workload(&mut self, kind: Kind, mut object: Value) {
        object["kind"] = kind.name().into();
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let template = match kind {
            Kind::CronJob => &spec["jobTemplate"]["spec"]["template"]["spec"],
            _ => &spec["template"]["spec"],
        };
        let was_flex = !metadata["annotations"][ORIGINAL].is_null();
        let replicas = match kind {
            Kind::CronJob => u32::from(spec["suspend"] != true),
            Kind::DaemonSet => 1,
            _ => spec["replicas"].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(1),
        };
        let workload = Workload {
            kind,
            namespace: text(metadata, "namespace"),
            name: text(metadata, "name"),
            uid: text(metadata, "uid"),
            replicas,
            owner: controller(metadata),
            gitops: gitops(metadata),
            claims: claims_of(template, ""),
            scaled_deletes: spec["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Delete",
            mark: mark(metadata),
            inline: (was_flex || !flex_of(template).is_empty()).then(|| object.clone()),
        };
        self.workloads.insert(workload.uid.clone(), workload);
    }

    /// Adds a source from which objects are written.
    pub fn add_gitops(&mut self, kind: &str, object: &Value) {
        let spec = &object["spec"];
        let is_paused = if kind == APPLICATION {
            spec["syncPolicy"]["automated"].is_null()
        } else {
            spec["suspend"] == true
        };
        let name = format!("{kind} {}", text(&object["metadata"], "name"));
        let all = self.paused.entry(name).or_insert(true);
        *all &= is_paused;
    }

    /// Returns the source that would write an object again, unless the source is paused.
    pub fn writes_again(&self, who: Option<String>) -> Option<String> {
        who.filter(|who| !self.paused.get(who).copied().unwrap_or(false))
    }

    /// Adds a Secret: the names of its keys, and nothing of their values.
    pub fn add_secret(&mut self, object: &Value) {
        let metadata = &object["metadata"];
        let keys = object["data"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
        self.secrets.insert((text(metadata, "namespace"), text(metadata, "name")), keys);
    }
}

/// Removes fields that are not used, and are often most of the object.
fn shorten(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    // Lists omit these two fields, but the objects that are created need them.
    object["apiVersion"] = "v1".into();
    object["kind"] = "PersistentVolume".into();
}

/// Returns the claims of a pod, including those that Kubernetes creates for its ephemeral volumes.
fn claims_of(spec: &Value, pod: &str) -> Vec<String> {
    let mut claims = Vec::new();
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
            claims.push(claim.to_owned());
        } else if volume["ephemeral"].is_object() && !pod.is_empty() {
            claims.push(format!("{pod}-{}", text(volume, "name")));
        }
    }
    claims
}

/// Returns the drivers of the flex volumes in a specification.
fn flex_of(spec: &Value) -> Vec<String> {
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["flexVolume"]["driver"].as_str()).map(str::to_owned).collect()
}

/// Returns the source that would write the object again, if there is one.
pub fn gitops(metadata: &Value) -> Option<String> {
    let named = |key: &str| {
        let of = |part: &str| metadata[part][key].as_str().filter(|text| !text.is_empty());
        of("annotations").or_else(|| of("labels"))
    };
    // `APP:GROUP/KIND:NAMESPACE/NAME` of Argo CD.
    let short = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    GITOPS.iter().find_map(|(key, who)| named(key).map(|name| format!("{who} {}", short(name))))
}

/// Returns the first owner, of any kind.
pub fn owner(metadata: &Value) -> Option<Owner> {
    owners(metadata).next()
}

fn controller(metadata: &Value) -> Option<Owner> {
    let references = metadata["ownerReferences"].as_array()?;
    references.iter().find(|reference| reference["controller"] == true).map(read_owner)
}

fn owners(metadata: &Value) -> impl Iterator<Item = Owner> {
    metadata["ownerReferences"].as_array().into_iter().flatten().map(read_owner)
}

fn read_owner(reference: &Value) -> Owner {
    Owner { kind: text(reference, "kind"), name: text(reference, "name"), uid: text(reference, "uid") }
}

/// Returns the id of the migration that has begun with an object.
pub fn mark(metadata: &Value) -> Option<String> {
    metadata["annotations"][MARK].as_str().map(str::to_owned)
}

/// Returns a text field of an object; empty if it is missing.
pub fn text(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}
