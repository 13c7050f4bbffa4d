//! The same work done by ours and by upstream's, side by side: each with a driver of its own.

use super::api_server::{ApiServer, Process, patience};
use super::driver::{Can, Driver};
use super::pace::deadline;
use super::proxy::Proxy;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// What a call of the driver's may take.
pub(crate) fn timeout() -> Duration {
    deadline(2)
}

/// Whose program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Upstream,
}

/// What is done for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Attach,
    Provision,
    Resize,
    /// Of upstream's program there is none here.
    Health,
    /// Provisioning, and the scheduler is told what storage there is.
    Capacity,
    /// The same, and the driver is asked only when something has happened.
    CapacityOfLate,
    /// As `manifest csi` has it for a driver that does not attach.
    ProvisionAndResize,
    /// As `manifest csi` has it for a driver that attaches.
    All,
    /// All that there is, in one process of ours.
    Everything,
}

impl Work {
    /// How often, in seconds, the driver is asked for its capacity.
    fn asks_after(self) -> Option<u32> {
        match self {
            Self::Capacity | Self::Everything => Some(3),
            Self::CapacityOfLate => Some(3600),
            _ => None,
        }
    }

    /// Of ours, as an option; and upstream's programs.
    fn names(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Attach => ("attach", &["csi-attacher"]),
            Self::Provision | Self::Capacity | Self::CapacityOfLate => ("provision", &["csi-provisioner"]),
            Self::Resize => ("resize", &["csi-resizer"]),
            Self::Health => ("health", &[]),
            Self::ProvisionAndResize => ("provision,resize", &["csi-provisioner", "csi-resizer"]),
            Self::All => ("attach,provision,resize", &["csi-attacher", "csi-provisioner", "csi-resizer"]),
            Self::Everything => ("attach,provision,resize,health", &[]),
        }
    }
}

/// What was seen, a line each.
pub(crate) type Seen = Vec<String>;

/// What both have seen, with names that are the same.
pub(crate) fn alike(scenario: &str, subject: [&Subject; 2], seen: [Seen; 2]) {
    let named = |subject: &Subject, seen: Seen| {
        seen.into_iter().map(|line| line.replace(&subject.named(""), "")).collect::<Vec<_>>()
    };
    let [ours, upstream] = seen;
    let (ours, upstream) = (named(subject[0], ours), named(subject[1], upstream));
    assert!(!ours.is_empty(), "{scenario}");
    for (line, other) in ours.iter().zip(&upstream) {
        assert_eq!(line, other, "{scenario}: {ours:#?} {upstream:#?}");
    }
    assert_eq!(ours.len(), upstream.len(), "{scenario}: {ours:#?} {upstream:#?}");
    println!("{scenario}: {} lines are equal", ours.len());
}

/// Plays a scenario with both at the same time.
macro_rules! both {
    ($subjects:ident, $scenario:ident) => {{
        let [ours, upstream] = &$subjects;
        let seen = tokio::join!($scenario(ours), $scenario(upstream));
        $crate::subject::alike(stringify!($scenario), [ours, upstream], seen.into());
    }};
}
pub(crate) use both;

/// A driver and what works for it.
pub(crate) struct Subject {
    pub(crate) driver: Driver,
    pub(crate) proxy: Proxy,
    /// URL of the API server, or of the proxy, for the programs.
    address: String,
    kubeconfig: PathBuf,
    pub(crate) client: Client,
    /// Namespace of its claims.
    pub(crate) namespace: String,
    whose: Whose,
    work: Work,
    home: PathBuf,
    programs: PathBuf,
    processes: Vec<Process>,
}

impl Subject {
    /// The driver is served, and nothing works for it yet.
    pub(crate) async fn new(server: &ApiServer, whose: Whose, work: Work, name: &str, can: Can) -> Self {
        let home = server.home.path().join(name);
        fs::create_dir(&home).unwrap();
        let proxy = Proxy::listen(server.client()).await;
        server.mount_account(&home);
        let driver = Driver::serve(name, home.join("csi.sock"), can);
        let (client, programs) = (server.client(), server.programs.clone());
        let address = proxy.address();
        let kubeconfig = server.kubeconfig(&address);
        Self {
            driver,
            proxy,
            address,
            kubeconfig,
            client,
            namespace: "default".to_owned(),
            whose,
            work,
            home,
            programs,
            processes: Vec::new(),
        }
    }

    /// The programs ask the API server itself from their next beginning on, as often as they like:
    /// nothing is counted or cut.
    pub(crate) fn ask_directly(&mut self, server: &ApiServer) {
        self.address = server.address();
        self.kubeconfig = server.kubeconfig(&self.address);
    }

    /// Another program works for the driver from its next beginning on.
    pub(crate) fn is_now(&mut self, whose: Whose) {
        self.whose = whose;
    }

    /// Begins to work.
    pub(crate) fn begin(&mut self) {
        self.processes = self.start();
    }

    /// Begins to work beside what is at work; returns that.
    pub(crate) fn begin_another(&mut self) -> Vec<Process> {
        let another = self.start();
        std::mem::replace(&mut self.processes, another)
    }

    fn start(&self) -> Vec<Process> {
        let commands = match self.whose {
            Whose::Ours => vec![self.ours()],
            Whose::Upstream => self.work.names().1.iter().map(|program| self.upstream(program)).collect(),
        };
        let log = self.home.join("said");
        commands.into_iter().map(|mut command| Process::start(&mut command, &log)).collect()
    }

    /// Begins once more, as kubelet would have it, where it has given up: so it does when the API
    /// server is away for as long as its lease may wait.
    pub(crate) fn begin_again_if_failed(&mut self) {
        if self.processes.iter_mut().any(Process::has_failed) {
            self.begin();
        }
    }

    /// Whether its requests go through the proxy, which notes them.
    fn is_watched(&self) -> bool {
        self.address == self.proxy.address()
    }

    fn ours(&self) -> Command {
        let mut command = Command::new(flexvold());
        command.args(["csi-controller", "--lease-namespace=default"]);
        command.arg(format!("--endpoint=unix://{}", self.driver.socket.display()));
        command.arg(format!("--server={}", self.address)).arg("--account").arg(&self.home);
        command
            .arg(format!("--timeout={}", timeout().as_secs()))
            .arg(format!("--work={}", self.work.names().0));
        // What is measured does not write down each step.
        if self.is_watched() {
            command.arg("--log-level=debug");
        }
        if matches!(self.work, Work::Health | Work::Everything) {
            command.arg("--health-interval=1");
        }
        if let Some(seconds) = self.work.asks_after() {
            command.arg("--capacity").arg(format!("--capacity-interval={seconds}"));
            command.env("POD_NAME", self.named("pod"));
        }
        command
    }

    fn upstream(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg(format!("--csi-address={}", self.driver.socket.display()));
        command.arg(format!("--kubeconfig={}", self.kubeconfig.display()));
        command.arg(format!("--timeout={}s", timeout().as_secs()));
        // Else it sends five requests a second.
        if !self.is_watched() {
            command.args(["--kube-api-qps=10000", "--kube-api-burst=10000"]);
        } else if program == "csi-provisioner" {
            command.args(["--kube-api-qps=100", "--kube-api-burst=100"]);
        }
        if self.is_watched() {
            command.arg("--v=5");
        }
        if let Some(seconds) = self.work.asks_after() {
            command.args(["--enable-capacity", "--capacity-ownerref-level=2"]);
            command.arg(format!("--capacity-poll-interval={seconds}s"));
            command.env("POD_NAME", self.named("pod")).env("NAMESPACE", "default");
        }
        command
    }

    /// Kills it with SIGKILL, and deletes its lease, which would expire 15 s later.
    pub(crate) async fn kill(&mut self) {
        self.processes.iter_mut().for_each(Process::kill);
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(self.client.clone(), "default");
        let _ = leases.delete_collection(&DeleteParams::default(), &kube::api::ListParams::default()).await;
    }

    /// Its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }

    /// Returns true if flexvold is the program.
    pub(crate) fn is_ours(&self) -> bool {
        self.whose == Whose::Ours
    }

    /// Name of the program in tables.
    pub(crate) fn program(&self) -> &'static str {
        match self.whose {
            Whose::Ours => "flexvold",
            Whose::Upstream => "sidecars",
        }
    }

    /// Output of its programs.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.home.join("said")).unwrap_or_default()
    }

    /// The name of an object of a scenario's.
    pub(crate) fn named(&self, name: &str) -> String {
        format!("{}-{name}", self.driver.name)
    }

    fn api<K: Kind>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Makes an object.
    pub(crate) async fn make<K: Kind>(&self, object: Value) {
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap();
    }

    /// Changes an object.
    pub(crate) async fn change<K: Kind>(&self, name: &str, change: Value) {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    /// Deletes an object, and waits for nothing.
    pub(crate) async fn delete<K: Kind>(&self, name: &str) {
        let _ = self.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// An object, without what differs from one to the next; null if there is none.
    pub(crate) async fn see<K: Kind>(&self, name: &str) -> Value {
        let Some(object) = self.api::<K>().get_opt(name).await.unwrap() else { return Value::Null };
        let mut object = serde_json::to_value(object).unwrap();
        let keep = ["finalizers", "annotations", "deletionTimestamp"];
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.retain(|key, _| keep.contains(&key.as_str()));
        if let Some(deleted) = metadata.get_mut("deletionTimestamp") {
            *deleted = json!("then");
        }
        if let Some(changed) = object["status"].get_mut("lastPhaseTransitionTime") {
            *changed = json!("then");
        }
        for error in ["attachError", "detachError"] {
            if let Some(error) = object["status"].get_mut(error) {
                error["time"] = json!("then");
            }
        }
        let sanitized = self.driver.name.replace('.', "-");
        let text = object.to_string().replace(&self.driver.name, "DRIVER").replace(&sanitized, "DRIVER");
        serde_json::from_str(&text).unwrap()
    }

    /// The object as soon as it is as it should be.
    pub(crate) async fn becomes<K: Kind>(&self, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let object = self.see::<K>(name).await;
            if holds(&object) {
                return object;
            }
            assert!(start.elapsed() < patience(), "{:?}: {name} is {object}: {}", self.whose, self.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// As soon as it holds.
    pub(crate) async fn soon(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let start = Instant::now();
        while !holds().await {
            assert!(start.elapsed() < patience(), "{:?}: {what}: {}", self.whose, self.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A volume of the driver's.
    pub(crate) async fn volume(&self, name: &str, change: Value) {
        let csi = json!({"driver": self.driver.name, "volumeHandle": name, "volumeAttributes": {"a": "b"}});
        let spec = json!({"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "csi": csi});
        let mut object = json!({"metadata": {"name": name}, "spec": spec});
        merge(&mut object, change);
        self.make::<PersistentVolume>(object).await;
    }

    /// What the driver's pod on a node has told kubelet.
    pub(crate) async fn node(&self, name: &str) {
        let drivers = json!([{"name": self.driver.name, "nodeID": "id"}]);
        self.make::<CSINode>(json!({"metadata": {"name": name}, "spec": {"drivers": drivers}})).await;
    }

    /// Wants a volume on a node.
    pub(crate) async fn attach(&self, name: &str, change: Value) {
        let source = json!({"persistentVolumeName": name});
        let spec = json!({"attacher": self.driver.name, "nodeName": self.driver.name, "source": source});
        let mut object = json!({"metadata": {"name": name}, "spec": spec});
        merge(&mut object, change);
        self.make::<VolumeAttachment>(object).await;
    }
}

/// A kind of objects.
pub(crate) trait Kind:
    Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned + Serialize
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
{
}

/// Changes some fields; null takes one out.
pub(crate) fn merge(base: &mut Value, change: Value) {
    match change {
        Value::Object(changes) => changes.into_iter().for_each(|(key, change)| {
            merge(&mut base[key.as_str()], change);
        }),
        other => *base = other,
    }
}

/// The program under test: a release where there is one.
pub(crate) fn flexvold() -> PathBuf {
    let release =
        std::env::var_os("FLEXVOL_RELEASE").map(|path| PathBuf::from(path).with_file_name("flexvold"));
    release.filter(|path| path.exists()).unwrap_or_else(|| env!("CARGO_BIN_EXE_flexvold").into())
}
