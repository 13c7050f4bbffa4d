//! The plan: a file that is made, read by people, and carried out as it is. Pure.

use crate::csi::name::hash;
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Of the file's form.
pub const VERSION: u32 = 1;

/// What the file says it is.
const KIND: &str = "FlexvolMigration";

/// Longer is no plan.
pub const LONGEST: usize = 256 << 20;

/// On whatever a migration has changed: which one.
pub const MARK: &str = "flexvol.dev/migration";

/// On what was stopped: the replicas before, or `false` for what was not suspended.
pub const BEFORE: &str = "flexvol.dev/migration-before";

/// Which volumes, and where they go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selection {
    /// FlexVolume drivers; empty for all, like the others.
    pub drivers: Vec<String>,
    /// Storage classes.
    pub classes: Vec<String>,
    /// Namespaces of claims, and of workloads.
    pub namespaces: Vec<String>,
    /// Volumes by name.
    pub volumes: Vec<String>,
    /// The CSI driver of others; `None` for `flexvold csi` over the same driver.
    pub to: Option<String>,
    /// From CSI to the flex volumes that they were.
    pub reverse: bool,
    /// Pods that have ended may be deleted.
    pub delete_completed: bool,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    kind: String,
    version: u32,
    /// Of all that follows: by it the plan is known in the cluster.
    pub id: String,
    /// When it was made.
    pub made: String,
    /// The uid of the cluster's namespace kube-system: no other cluster has it.
    pub cluster: String,
    /// What was asked for.
    pub selection: Selection,
    /// What is stopped and moved together, in this order.
    pub groups: Vec<Group>,
    /// Volumes that stand in workloads.
    pub inline: Vec<Inline>,
    /// What stays as it is, and why.
    pub refused: Vec<Refused>,
}

/// Volumes that share the workloads which have to stop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Group {
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// What has to stop.
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
    /// As it was read.
    pub before: Value,
    /// As it is to be made.
    pub after: Value,
    /// What its reader has to know.
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
    /// No other claim has it.
    pub uid: String,
}

/// What makes pods, and can be stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// `Deployment`, `CronJob`, …
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// No other has it.
    pub uid: String,
    /// How many replicas it has.
    pub replicas: u32,
}

/// A workload with volumes of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Inline {
    /// The workload.
    pub workload: Workload,
    /// What is changed of it: from what to what, by path.
    pub changes: Vec<Change>,
    /// What its reader has to know.
    pub warnings: Vec<String>,
}

/// One field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// As a JSON pointer.
    pub path: String,
    /// What is there; null for nothing.
    pub before: Value,
    /// What will be there; null for nothing.
    pub after: Value,
}

/// A kind of workloads that can be stopped.
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

/// An object that stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Refused {
    /// Kind and name.
    pub object: String,
    /// The reason's name for programs.
    pub reason: String,
    /// Why.
    pub message: String,
    /// What to do.
    pub fix: String,
}

impl Plan {
    /// Of what was decided; gives it its id.
    pub fn new(made: String, cluster: String, selection: Selection) -> Self {
        let (groups, inline, refused) = (Vec::new(), Vec::new(), Vec::new());
        let (kind, id) = (KIND.to_owned(), String::new());
        Self { kind, version: VERSION, id, made, cluster, selection, groups, inline, refused }
    }

    /// The id that its content gives it.
    pub fn own_id(&self) -> String {
        let all = json!([self.made, self.cluster, self.selection, self.groups, self.inline]);
        hash(all.to_string().as_bytes())[..12].to_owned()
    }

    /// A plan that was read.
    ///
    /// # Errors
    ///
    /// It is none, one of another version, or was changed since.
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

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.inline.is_empty()
    }

    /// For a file.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

impl Claim {
    /// As people say it.
    pub fn shown(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Its path in the API.
    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/persistentvolumeclaims/{}", self.namespace, self.name)
    }
}

impl Volume {
    /// Its path in the API.
    pub fn path(&self) -> String {
        format!("{VOLUMES}/{}", self.name)
    }
}

/// Where volumes are.
pub const VOLUMES: &str = "/api/v1/persistentvolumes";

impl Workload {
    /// As people say it.
    pub fn shown(&self) -> String {
        format!("{} {}/{}", self.kind.name(), self.namespace, self.name)
    }

    /// Its path in the API.
    pub fn path(&self) -> String {
        let Self { namespace, name, .. } = self;
        let (api, plural) = self.kind.place();
        format!("{api}/namespaces/{namespace}/{plural}/{name}")
    }
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Deployment,
        Self::StatefulSet,
        Self::ReplicaSet,
        Self::ReplicationController,
        Self::CronJob,
        Self::DaemonSet,
    ];

    /// As Kubernetes has it.
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

    /// Its group and version as paths have them, and what it is called there.
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

    /// The field that stops it, and with which value.
    pub fn stopped(self) -> (&'static str, Value) {
        match self {
            Self::CronJob => ("suspend", true.into()),
            _ => ("replicas", 0.into()),
        }
    }
}
