//! What a cluster has, as far as a migration asks: of most objects a few words are kept. Pure.

use super::plan::{Kind, MARK};
use flexvol_model::translate::ORIGINAL;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What Argo CD and Flux call what they write objects from.
pub const APPLICATION: &str = "Argo CD application";
/// The same.
pub const KUSTOMIZATION: &str = "Flux Kustomization";
/// The same.
pub const RELEASE: &str = "Flux HelmRelease";

/// Who writes objects again from files, by what it leaves on them.
const GITOPS: [(&str, &str); 4] = [
    ("argocd.argoproj.io/tracking-id", APPLICATION),
    ("kustomize.toolkit.fluxcd.io/name", KUSTOMIZATION),
    ("helm.toolkit.fluxcd.io/name", RELEASE),
    ("config.k8s.io/owning-inventory", "Config Sync inventory"),
];

/// What was found, kind by kind.
#[derive(Debug, Default)]
pub struct Found {
    /// The uid of the namespace kube-system.
    pub cluster: String,
    /// `PersistentVolume`s that may be meant, whole.
    pub volumes: Vec<Value>,
    /// Of all CSI volumes, by driver and handle: their names.
    pub handles: HashMap<(String, String), Vec<String>>,
    /// By namespace and name.
    pub claims: HashMap<(String, String), Claim>,
    /// All that have volumes.
    pub pods: Vec<Pod>,
    /// By name.
    pub nodes: BTreeMap<String, Node>,
    /// `CSIDriver` objects.
    pub drivers: BTreeSet<String>,
    /// What each node has of them.
    pub served: HashMap<String, BTreeSet<String>>,
    /// By uid.
    pub workloads: HashMap<String, Workload>,
    /// Jobs by uid: their owners, and the Job's name.
    pub jobs: HashMap<String, Job>,
    /// Who writes objects again from files, and whether all of that name are paused.
    pub paused: BTreeMap<String, bool>,
    /// The keys of Secrets that volumes name, by namespace and name.
    pub secrets: HashMap<(String, String), BTreeSet<String>>,
}

/// What an object belongs to.
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
    /// No other claim has it.
    pub uid: String,
    /// The volume that it is bound to.
    pub volume: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The pod that it goes with.
    pub pod: Option<String>,
    /// Whether it is being enlarged.
    pub grows: bool,
    /// The migration that has begun with it.
    pub mark: Option<String>,
}

/// A pod.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it runs; empty before that is chosen.
    pub node: String,
    /// The claims that it uses.
    pub claims: Vec<String>,
    /// Whether all of it has ended.
    pub ended: bool,
    /// Whether it is a kubelet's own.
    pub is_static: bool,
    /// Who made it.
    pub owner: Option<Owner>,
    /// The drivers of flex volumes that stand in it.
    pub inline: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Whether it reports.
    pub ready: bool,
    /// Whether any pod may come to it.
    pub schedulable: bool,
    /// The volumes that are attached to it, or in use there, by Kubernetes' own names.
    pub volumes: BTreeSet<String>,
    /// Its kubelet's.
    pub version: String,
}

/// A Job.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Namespace and name.
    pub shown: String,
    /// What made it.
    pub owner: Option<Owner>,
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What it is.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// No other has it.
    pub uid: String,
    /// How many replicas it shall have; of a `CronJob` 0 if it is suspended, else 1.
    pub replicas: u32,
    /// What it belongs to.
    pub owner: Option<Owner>,
    /// Who writes it again.
    pub gitops: Option<String>,
    /// The claims of its template.
    pub claims: Vec<String>,
    /// Whether it deletes claims when it is scaled down.
    pub scaled_deletes: bool,
    /// The migration that has stopped it.
    pub mark: Option<String>,
    /// The whole object, if flex volumes stand in it.
    pub inline: Option<Value>,
}

impl Found {
    /// Takes a `PersistentVolume`.
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

    /// Takes a claim.
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

    /// Takes a pod, if it has volumes.
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

    /// Takes a node.
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

    /// Takes a `CSINode`.
    pub fn add_csi_node(&mut self, object: &Value) {
        let drivers = object["spec"]["drivers"].as_array().into_iter().flatten();
        let names = drivers.map(|driver| text(driver, "name")).collect();
        self.served.insert(text(&object["metadata"], "name"), names);
    }

    /// Takes a `CSIDriver`.
    pub fn add_driver(&mut self, object: &Value) {
        self.drivers.insert(text(&object["metadata"], "name"));
    }

    /// Takes a Job.
    pub fn add_job(&mut self, object: &Value) {
        let metadata = &object["metadata"];
        let shown = format!("{}/{}", text(metadata, "namespace"), text(metadata, "name"));
        self.jobs.insert(text(metadata, "uid"), Job { shown, owner: controller(metadata) });
    }

    /// Takes a workload of this kind.
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

    /// Takes what objects are written from.
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

    /// Who would write an object again, unless that is paused.
    pub fn writes_again(&self, who: Option<String>) -> Option<String> {
        who.filter(|who| !self.paused.get(who).copied().unwrap_or(false))
    }

    /// Takes a Secret: what its keys are called, and nothing of their values.
    pub fn add_secret(&mut self, object: &Value) {
        let metadata = &object["metadata"];
        let keys = object["data"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
        self.secrets.insert((text(metadata, "namespace"), text(metadata, "name")), keys);
    }
}

/// Without what nobody reads of it, and is often most of it.
fn shorten(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    // Lists leave both out, and what is made needs them.
    object["apiVersion"] = "v1".into();
    object["kind"] = "PersistentVolume".into();
}

/// Also those that Kubernetes makes for a pod's own volumes.
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

/// The drivers of flex volumes that stand there.
fn flex_of(spec: &Value) -> Vec<String> {
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["flexVolume"]["driver"].as_str()).map(str::to_owned).collect()
}

/// Who would write the object again, if anyone.
pub fn gitops(metadata: &Value) -> Option<String> {
    let named = |key: &str| {
        let of = |part: &str| metadata[part][key].as_str().filter(|text| !text.is_empty());
        of("annotations").or_else(|| of("labels"))
    };
    // `APP:GROUP/KIND:NAMESPACE/NAME` of Argo CD.
    let short = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    GITOPS.iter().find_map(|(key, who)| named(key).map(|name| format!("{who} {}", short(name))))
}

/// The first owner, of any kind.
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

/// The migration that has begun with an object.
pub fn mark(metadata: &Value) -> Option<String> {
    metadata["annotations"][MARK].as_str().map(str::to_owned)
}

/// A text of an object; empty if there is none.
pub fn text(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}
