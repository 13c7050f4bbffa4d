//! What `flexvold manifest csi` allows is enough, and the least: each right is taken away once, and
//! then a step fails. All of them with FULL=1; else a few of each.

use super::api_server::{ApiServer, patience};
use super::driver::{Can, Fault};
use super::pace::deadline;
use super::proxy::{Proxy, Right};
use super::subject::{Subject, Whose, Work};
use super::with_server;
use flexvol_cluster::manifest::controller::Worker;
use flexvol_cluster::manifest::{Request, objects};
use flexvol_protocol::{Capabilities, DriverName};
use futures_util::StreamExt as _;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tonic::Code;

/// What a step may take without a right.
fn limit() -> Duration {
    deadline(8)
}

/// Trials at the same time.
const AT_ONCE: usize = 6;

/// Of so many rights one is taken away, without FULL=1.
const SAMPLE: usize = 6;

/// What is printed.
#[derive(Clone, Copy, Debug)]
struct Printed {
    whose: Whose,
    attaches: bool,
}

impl Printed {
    /// In the cluster, and in the namespace alone.
    fn rights(self) -> [Vec<Right>; 2] {
        let worker = || match self.whose {
            Whose::Ours => Some(Worker::BuiltIn),
            Whose::Upstream => Some(Worker::Upstream("image".to_owned())),
        };
        let can = Capabilities { attach: self.attaches, ..Capabilities::KUBELET_DEFAULT };
        let request = Request {
            drivers: vec![(DriverName::parse("example.com/disk").unwrap(), can)],
            plugin_dir: "/plugins".to_owned(),
            kubelet_root: "/kubelet".to_owned(),
            image: "image".to_owned(),
            namespace: "default".to_owned(),
            attacher: worker(),
            provisioner: worker(),
            resizer: worker(),
            inline: false,
        };
        let objects = objects(&request);
        let of = |kind: &str| {
            let rules = objects.iter().filter(|object| object["kind"] == kind).map(|object| &object["rules"]);
            let mut rights: Vec<_> = rules.flat_map(rights).collect();
            rights.sort();
            rights.dedup();
            rights
        };
        [of("ClusterRole"), of("Role")]
    }
}

pub(crate) fn rights(rules: &Value) -> Vec<Right> {
    let words = |rule: &Value, of: &str| -> Vec<String> { serde_json::from_value(rule[of].clone()).unwrap() };
    let mut rights = Vec::new();
    for rule in rules.as_array().unwrap() {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                rights.extend(words(rule, "verbs").into_iter().map(|verb| Right {
                    group: group.clone(),
                    resource: resource.clone(),
                    verb,
                }));
            }
        }
    }
    rights
}

/// What a controller does with some rights, on the way of a volume.
struct Trial {
    subject: Subject,
    printed: Printed,
    limit: Duration,
}

/// Whether it has been allowed to watch a lease.
pub(crate) fn watches_lease(proxy: &Proxy) -> bool {
    proxy.allowed().keys().any(|right| right.resource == "leases" && right.verb == "watch")
}

/// The step that failed.
type Failed = &'static str;

impl Trial {
    /// A controller that may do what is printed, but for one thing.
    async fn new(server: &ApiServer, printed: Printed, name: &str, without: Option<&Right>) -> Self {
        let name = format!("{name}.example.com");
        let work = if printed.attaches { Work::All } else { Work::ProvisionAndResize };
        let publish = printed.attaches;
        let can = Can { publish, provision: true, expand_on_nodes: true, ..Can::default() };
        let subject = Subject::new(server, printed.whose, work, &name, can).await;
        grant(&subject, &printed.rights(), without).await;
        let limit = if without.is_some() { limit() } else { patience() };
        Self { subject, printed, limit }
    }

    /// As soon as it holds.
    async fn step(&self, name: Failed, holds: impl AsyncFn() -> bool) -> Result<(), Failed> {
        let start = Instant::now();
        while !holds().await {
            if start.elapsed() > self.limit {
                return Err(name);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn see<K: super::subject::Kind>(&self, name: &str, holds: impl Fn(&Value) -> bool) -> bool {
        holds(&self.subject.see::<K>(name).await)
    }

    /// The way of a volume; all that is asked for is allowed.
    async fn play(&mut self) -> Result<(), Failed> {
        let subject = &self.subject;
        let (early, class) = (subject.named("early"), subject.named("class"));
        subject.class(&class, json!({"allowVolumeExpansion": true})).await;
        let first = subject.claim(&early, &class, json!({})).await;
        if self.printed.attaches {
            subject.node(&subject.driver.name).await;
        }
        if self.printed.whose == Whose::Ours {
            self.is_anothers().await;
        }
        self.subject.begin();
        self.leads().await?;
        self.step("a claim that was there has a volume", async || {
            self.see::<PersistentVolume>(&first, |volume| !volume.is_null()).await
        })
        .await?;
        let second = self.provisioned(&class).await?;
        self.told().await?;
        self.grown(&second).await?;
        if self.printed.attaches {
            self.attached(&second).await?;
        }
        self.deleted(&second).await?;
        self.renewed().await?;
        self.step("all that it asks for is allowed", async || self.subject.proxy.refused().is_empty()).await
    }

    async fn lease(&self) -> Option<Lease> {
        let leases: Api<Lease> = Api::namespaced(self.subject.client.clone(), "default");
        leases.get_opt(&self.subject.driver.name.replace('.', "-")).await.unwrap()
    }

    /// Another program has the lease, for long.
    async fn is_anothers(&self) {
        let name = self.subject.driver.name.replace('.', "-");
        let spec = json!({"holderIdentity": "another", "leaseDurationSeconds": 3600});
        make_in::<Lease>(&self.subject, json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    /// It watches the lease, and takes it when it is given back.
    async fn leads(&self) -> Result<(), Failed> {
        if self.printed.whose == Whose::Upstream {
            // Its Deployment has one replica, and no lease.
            return Ok(());
        }
        self.step("it watches the lease", async || watches_lease(&self.subject.proxy)).await?;
        let leases: Api<Lease> = Api::namespaced(self.subject.client.clone(), "default");
        let free = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
        let name = self.subject.driver.name.replace('.', "-");
        leases.patch(&name, &PatchParams::default(), &free).await.unwrap();
        self.step("it has the lease", async || {
            let spec = self.lease().await.and_then(|lease| lease.spec);
            spec.and_then(|spec| spec.holder_identity).is_some_and(|holder| !holder.is_empty())
        })
        .await
    }

    async fn renewed(&self) -> Result<(), Failed> {
        let Some(before) = self.lease().await else { return Ok(()) };
        self.step("it renews the lease", async || self.lease().await.as_ref() != Some(&before)).await
    }

    /// Of a class that comes after it, and after its claim.
    async fn provisioned(&self, class: &str) -> Result<String, Failed> {
        let late = self.subject.named("late");
        let volume = self.subject.claim(&late, class, json!({})).await;
        self.step("a claim has a volume", async || {
            self.see::<PersistentVolume>(&volume, |volume| !volume.is_null()).await
        })
        .await?;
        let waits = self.subject.named("waits");
        let second = self.subject.claim(&waits, &waits, json!({})).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.subject.class(&waits, json!({})).await;
        self.step("a claim has a volume when its class is there", async || {
            self.see::<PersistentVolume>(&second, |volume| !volume.is_null()).await
        })
        .await?;
        Ok(volume)
    }

    /// Events, and that one is counted.
    async fn told(&self) -> Result<(), Failed> {
        let (late, fails) = (self.subject.named("late"), self.subject.named("fails"));
        let is_told = async |name: &str, reason: &str, count: i32| {
            self.subject.events(name).await.iter().any(|(is, said)| is == reason && *said >= count)
        };
        self.step("the claim has an Event", async || is_told(&late, "ProvisioningSucceeded", 1).await)
            .await?;
        self.subject.class(&fails, json!({"parameters": {"fails": "twice"}})).await;
        let faults: [(_, &[Fault]); 1] = [("create", &[Fault::Refused(Code::Internal); 3])];
        self.subject.claim_that_fails(&fails, &fails, json!({}), &faults).await;
        self.step("an Event that comes again is counted", async || {
            is_told(&fails, "ProvisioningFailed", 2).await || is_told(&fails, "Provisioning", 2).await
        })
        .await
    }

    /// A claim grows that is bound to its volume.
    async fn grown(&self, volume: &str) -> Result<(), Failed> {
        let late = self.subject.named("late");
        self.subject.bind(&late, volume).await;
        self.step("a claim grows", async || {
            let claim = self.subject.claims().get(&late).await.unwrap();
            let statuses = claim.status.and_then(|status| status.allocated_resource_statuses);
            statuses.is_some_and(|all| all.values().any(|status| status == "NodeResizePending"))
        })
        .await
    }

    /// Attached and detached, while others change the objects.
    async fn attached(&self, volume: &str) -> Result<(), Failed> {
        let (subject, missing) = (&self.subject, self.subject.named("missing"));
        subject.attach(&missing, json!({})).await;
        self.step("what is not there is missing", async || {
            let error = |object: &Value| object["status"]["attachError"]["message"].clone();
            let words = error(&subject.see::<VolumeAttachment>(&missing).await);
            words.as_str().is_some_and(|words| words.contains("not found"))
        })
        .await?;
        subject.delete::<VolumeAttachment>(&missing).await;
        subject.proxy.hold("PATCH", &format!("/volumeattachments/{volume}/status"));
        subject.attach(volume, json!({})).await;
        let is_here = tokio::time::timeout(self.limit, subject.proxy.reached()).await.is_ok();
        subject.change::<VolumeAttachment>(volume, json!({"metadata": {"labels": {"changed": "now"}}})).await;
        subject.proxy.resume();
        if !is_here {
            return Err("a volume is attached at the driver");
        }
        self.step("a volume is attached", async || {
            self.see::<VolumeAttachment>(volume, |object| object["status"]["attached"] == true).await
        })
        .await?;
        subject.delete::<VolumeAttachment>(volume).await;
        self.step("a volume is detached", async || self.see::<VolumeAttachment>(volume, Value::is_null).await)
            .await
    }

    /// When no VolumeAttachment is there any more, while others change the object.
    async fn deleted(&self, volume: &str) -> Result<(), Failed> {
        let subject = &self.subject;
        subject.phase(volume, "Bound").await;
        let other = json!({"spec": {"attacher": "other"}, "metadata": {"finalizers": null}});
        subject.attach(volume, other).await;
        subject.unclaim(&subject.named("late")).await;
        subject.phase(volume, "Released").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let volumes: Api<PersistentVolume> = Api::all(subject.client.clone());
        let finalizers = async || {
            let found = volumes.get_opt(volume).await.unwrap();
            found.and_then(|found| found.metadata.finalizers).unwrap_or_default()
        };
        let are = async |finalizers: &[String]| {
            subject.change::<PersistentVolume>(volume, json!({"metadata": {"finalizers": finalizers}})).await;
        };
        let (ours, others) = (finalizers().await, "example.com/keeps".to_owned());
        are(&[&ours[..], std::slice::from_ref(&others)].concat()).await;
        subject.proxy.hold("PATCH", &format!("/persistentvolumes/{volume}"));
        subject.delete::<VolumeAttachment>(volume).await;
        if tokio::time::timeout(self.limit, subject.proxy.reached()).await.is_ok() {
            are(&[std::slice::from_ref(&others), &ours[..]].concat()).await;
        }
        subject.proxy.resume();
        self.step("the volume is deleted", async || finalizers().await == [others.clone()]).await?;
        are(&[]).await;
        self.step("nothing is left", async || self.see::<PersistentVolume>(volume, Value::is_null).await)
            .await?;
        assert!(!subject.driver.volumes().contains(&volume.to_owned()));
        Ok(())
    }
}

/// A controller may do this from now on, in the cluster and in its namespace, but for one thing.
pub(crate) async fn grant(subject: &Subject, rights: &[Vec<Right>; 2], without: Option<&Right>) {
    let (name, [cluster, namespace]) = (&subject.driver.name, rights);
    let rules = |rights: &[Right]| {
        let rights = rights.iter().filter(|right| Some(*right) != without);
        let rule = |right: &Right| json!({"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]});
        rights.map(rule).collect::<Vec<_>>()
    };
    let metadata = json!({"name": name, "namespace": "default"});
    let of_cluster = json!({"name": name});
    let user = json!([{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}]);
    let role = |kind: &str| json!({"kind": kind, "name": name, "apiGroup": "rbac.authorization.k8s.io"});
    subject.make::<ClusterRole>(json!({"metadata": of_cluster, "rules": rules(cluster)})).await;
    subject
        .make::<ClusterRoleBinding>(
            json!({"metadata": of_cluster, "roleRef": role("ClusterRole"), "subjects": user}),
        )
        .await;
    make_in::<Role>(subject, json!({"metadata": metadata, "rules": rules(namespace)})).await;
    make_in::<RoleBinding>(subject, json!({"metadata": metadata, "roleRef": role("Role"), "subjects": user}))
        .await;
    for right in cluster.iter().chain(namespace) {
        allows(subject, right, Some(right) != without).await;
    }
    subject.proxy.acts_as(name);
}

/// What is printed for a provisioner of ours.
pub(crate) fn of_a_provisioner() -> [Vec<Right>; 2] {
    Printed { whose: Whose::Ours, attaches: false }.rights()
}

async fn make_in<K>(subject: &Subject, object: Value)
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let api: Api<K> = Api::namespaced(subject.client.clone(), "default");
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// Until the API server knows whether it is allowed.
async fn allows(subject: &Subject, right: &Right, allowed: bool) {
    let reviews: Api<SubjectAccessReview> = Api::all(subject.client.clone());
    let (resource, below) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    let attributes = json!({"group": right.group, "resource": resource, "subresource": below,
        "verb": right.verb, "namespace": "default"});
    let review =
        json!({"metadata": {}, "spec": {"user": subject.driver.name, "resourceAttributes": attributes}});
    let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
    let start = Instant::now();
    loop {
        let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
        if answer.status.is_some_and(|status| status.allowed == allowed) {
            return;
        }
        assert!(start.elapsed() < patience(), "{right:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Enough, and the least.
async fn least(server: &ApiServer, printed: Printed, label: &str) {
    let mut all = Trial::new(server, printed, &format!("{label}-all"), None).await;
    all.play().await.unwrap_or_else(|step| panic!("{step}: {}", all.subject.said()));
    let [cluster, namespace] = printed.rights();
    let rights: Vec<_> = cluster.into_iter().chain(namespace).collect();
    let allowed = all.subject.proxy.allowed();
    let idle: Vec<_> = rights.iter().filter(|right| !allowed.contains_key(right)).collect();
    println!("{label}: {} rights; not used: {idle:?}", rights.len());
    drop(all);
    let full = std::env::var_os("FULL").is_some();
    let taken = rights.iter().enumerate().filter(|(number, _)| full || number % SAMPLE == 0);
    let trials = taken.map(|(number, right)| async move {
        let mut trial = Trial::new(server, printed, &format!("{label}-{number}"), Some(right)).await;
        let failed = trial.play().await;
        (right, failed, trial.subject.proxy.refused())
    });
    let trials: Vec<_> = futures_util::stream::iter(trials).buffer_unordered(AT_ONCE).collect().await;
    let mut needless = Vec::new();
    for (right, failed, refused) in trials {
        let Right { group, resource, verb } = right;
        match failed {
            Err(step) if refused.contains(right) => {
                println!("{label}: without {verb} {resource} {group}: not {step:?}");
            }
            failed => needless.push((right, failed)),
        }
    }
    assert!(idle.is_empty() && needless.is_empty(), "not used: {idle:#?}, needless: {needless:#?}");
}

#[test]
fn of_ours_are_the_least() {
    with_server("rights::of_ours_are_the_least", async |server| {
        server.has_namespaces().await;
        for (attaches, label) in [(true, "ours"), (false, "ours-without")] {
            least(&server, Printed { whose: Whose::Ours, attaches }, label).await;
        }
    });
}

#[test]
fn of_sidecars_are_the_least() {
    with_server("rights::of_sidecars_are_the_least", async |server| {
        server.has_namespaces().await;
        for (attaches, label) in [(true, "theirs"), (false, "theirs-without")] {
            least(&server, Printed { whose: Whose::Upstream, attaches }, label).await;
        }
    });
}
