//! Plan: a file that is made, read by people, and carried out unchanged. Pure.

use crate::csi::name::hash;
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Version of the file's format.
pub const VERSION: u32 = 1;

/// Kind of the file.
const KIND: &str = "FlexvolMigration";

/// Limit for a plan, in bytes.
pub const LONGEST: usize = 256 << 20;

/// Mark on each object that a migration has changed: the id of the migration.
pub const MARK: &str = "flexvol.dev/migration";

/// Annotation of a stopped workload: the former replicas, or `false` if it was not suspended.
pub const BEFORE: &str = "flexvol.dev/migration-before";

/// Selected volumes, and their destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selection {
    /// FlexVolume drivers; an empty list selects all, as in the next fields.
    pub drivers: Vec<String>,
    /// Storage classes.
    pub classes: Vec<String>,
    /// Namespaces of claims, and of workloads.
    pub namespaces: Vec<String>,
    /// Volumes by name.
    pub volumes: Vec<String>,
    /// CSI driver of another vendor; `None` for `flexvold csi` over the same driver.
    pub to: Option<String>,
    /// True for the way from CSI back to the former flex volumes.
    pub reverse: bool,
    /// True if pods that have ended may be deleted.
    pub delete_completed: bool,
}

/// The whole plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    kind: String,
    version: u32,
    /// Hash of the plan's content: it identifies the plan in the cluster.
    pub id: String,
    /// Time when it was made.
    pub made: String,
    /// The uid of the cluster's namespace kube-system: no other cluster has it.
    pub cluster: String,
    /// Selection that was requested.
    pub selection: Selection,
    /// Groups that are stopped and moved together, in this order.
    pub groups: Vec<Group>,
    /// Workloads with volumes in their templates.
    pub inline: Vec<Inline>,
    /// Objects that stay as they are, with the reasons.
    pub refused: Vec<Refused>,
}

/// Volumes that share the workloads which have to stop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Group {
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// Workloads that have to stop.
    pub workloads: Vec<Workload>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Volume {
    /// Its name, before and after.
    pub name: String,
    /// The driver before.
    pub from: String,
    /// The driver after.
    pub to: String,
    /// The claim that is bound to it.
    pub claim: Option<Claim>,
    /// Nodes to which it is attached.
    pub nodes: Vec<String>,
    /// The object as it was read.
    pub before: Value,
    /// The object as it will be created.
    pub after: Value,
    /// Warnings for the reader of the plan.
    pub warnings: Vec<String>,
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Uid, which no other claim has.
    pub uid: String,
}

/// Object that creates pods, and can be stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// `Deployment`, `CronJob`, …
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Uid, which no other workload has.
    pub uid: String,
    /// Number of replicas.
    pub replicas: u32,
}

/// A workload with volumes of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Inline {
    /// The workload.
    pub workload: Workload,
    /// Changes of the workload, by path.
    pub changes: Vec<Change>,
    /// Warnings for the reader of the plan.
    pub warnings: Vec<String>,
}

/// Change of one field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// JSON pointer of the field.
    pub path: String,
    /// Present value; null for a missing one.
    pub before: Value,
    /// Future value; null for a missing one.
    pub after: Value,
}

/// Kind of a workload, and the way to stop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Scaled to 0.
    Deployment,
    /// Scaled to 0.
    StatefulSet,
    /// Scaled to 0.
    ReplicaSet,
    /// Scaled to 0.
    ReplicationController,
    /// Suspended.
    CronJob,
    /// Not stopped.
    DaemonSet,
}

/// Object that stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Refused {
    /// Kind and name.
    pub object: String,
    /// Name of the reason, for programs.
    pub reason: String,
    /// Reason.
    pub message: String,
    /// Fix.
    pub fix: String,
}

impl Plan {
    /// Creates a plan without content and without an id.
    pub fn new(made: String, cluster: String, selection: Selection) -> Self {
        let (groups, inline, refused) = (Vec::new(), Vec::new(), Vec::new());
        let (kind, id) = (KIND.to_owned(), String::new());
        Self { kind, version: VERSION, id, made, cluster, selection, groups, inline, refused }
    }

    /// Returns the id that is derived from its content.
    pub fn own_id(&self) -> String {
        let all = json!([self.made, self.cluster, self.selection, self.groups, self.inline]);
        hash(all.to_string().as_bytes())[..12].to_owned()
    }

    /// Parses a plan.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a plan, has another version, or was changed since it was made.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(text).context("the file is no plan")?;
        ensure!(value["kind"] == KIND, "the file is no plan of kubectl flexvol migrate plan");
        ensure!(
            value["version"] == VERSION,
            "the plan has version {}, and this program knows {VERSION}: make a new one",
            value["version"]
        );
        let plan: Self = serde_json::from_value(value).context("the file is no plan")?;
        ensure!(plan.id == plan.own_id(), "the plan was changed since it was made: make a new one");
        Ok(plan)
    }

    /// Reports whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.inline.is_empty()
    }

    /// Returns the text for a file.
    ///
    /// # Errors
    ///
    /// No error is expected.
    pub fn text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

impl Claim {
    /// Returns the form for people.
    pub fn shown(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns its path in the API.
    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/persistentvolumeclaims/{}", self.namespace, self.name)
    }
}

impl Volume {
    /// Returns its path in the API.
    pub fn path(&self) -> String {
        format!("{VOLUMES}/{}", self.name)
    }
}

/// Path of volumes in the API.
pub const VOLUMES: &str = "/api/v1/persistentvolumes";

impl Workload {
    /// Returns the form for people.
    pub fn shown(&self) -> String {
        format!("{} {}/{}", self.kind.name(), self.namespace, self.name)
    }

    /// Returns its path in the API.
    pub fn path(&self) -> String {
        let Self { namespace, name, .. } = self;
        let (api, plural) = self.kind.place();
        format!("{api}/namespaces/{namespace}/{plural}/{name}")
    }
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Deployment,
        Self::StatefulSet,
        Self::ReplicaSet,
        Self::ReplicationController,
        Self::CronJob,
        Self::DaemonSet,
    ];

    /// Returns the name in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::ReplicaSet => "ReplicaSet",
            Self::ReplicationController => "ReplicationController",
            Self::CronJob => "CronJob",
            Self::DaemonSet => "DaemonSet",
        }
    }

    /// Returns the path of its group and version, and its plural name in paths.
    pub fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::Deployment => ("/apis/apps/v1", "deployments"),
            Self::StatefulSet => ("/apis/apps/v1", "statefulsets"),
            Self::ReplicaSet => ("/apis/apps/v1", "replicasets"),
            Self::ReplicationController => ("/api/v1", "replicationcontrollers"),
            Self::CronJob => ("/apis/batch/v1", "cronjobs"),
            Self::DaemonSet => ("/apis/apps/v1", "daemonsets"),
        }
    }

    /// Returns the field that stops it, and the value for this.
    pub fn stopped(self) -> (&'static str, Value) {
        match self {
            Self::CronJob => ("suspend", true.into()),
            _ => ("replicas", 0.into()),
        }
    }
}
