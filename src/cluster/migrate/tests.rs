use super::decide::{Conflict, Goal, Move, Next};
use super::found::Found;
use super::make::make;
use super::plan::{Kind, MARK, Plan, Selection};
use serde_json::{Value, json};

const DRIVER: &str = "cifs.fstab.flex.flexvol.dev";

/// A bound volume with its claim, a Deployment whose pod uses it, and a node with the CSI driver.
struct Scene {
    volume: Value,
    claim: Value,
    pod: Value,
    workload: (Kind, Value),
    replicas: Value,
    node: Value,
    job: Value,
    has_driver: bool,
    is_served: bool,
    secrets: Vec<Value>,
    more: Vec<Value>,
    selection: Selection,
}

impl Default for Scene {
    fn default() -> Self {
        let owner =
            |kind: &str, uid: &str| json!([{"kind": kind, "name": kind, "uid": uid, "controller": true}]);
        Self {
            volume: json!({"apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": "web", "uid": "pv", "resourceVersion": "7",
                    "finalizers": ["kubernetes.io/pv-protection"]},
                "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
                    "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "slow",
                    "flexVolume": {"driver": "fstab/cifs", "options": {"networkPath": "//cellar/web"}},
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop",
                        "name": "data", "uid": "pvc"}},
                "status": {"phase": "Bound"}}),
            claim: json!({"metadata": {"namespace": "shop", "name": "data", "uid": "pvc", "resourceVersion": "3"},
                "spec": {"volumeName": "web"}, "status": {"phase": "Bound"}}),
            pod: json!({"metadata": {"namespace": "shop", "name": "web-1", "ownerReferences": owner("ReplicaSet", "rs")},
                "spec": {"nodeName": "a", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
                "status": {"phase": "Running"}}),
            workload: (
                Kind::Deployment,
                json!({"metadata": {"namespace": "shop", "name": "web", "uid": "deploy"},
                "spec": {"replicas": 3, "template": {"spec": {}}}}),
            ),
            replicas: json!({"metadata": {"namespace": "shop", "name": "web-5", "uid": "rs",
                "ownerReferences": owner("Deployment", "deploy")}, "spec": {"replicas": 3}}),
            node: json!({"metadata": {"name": "a"}, "spec": {}, "status": {
                "conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.33.1"}}}),
            job: json!({"metadata": {"namespace": "shop", "name": "once", "uid": "job"}}),
            has_driver: true,
            is_served: true,
            secrets: Vec::new(),
            more: Vec::new(),
            selection: Selection::default(),
        }
    }
}

impl Scene {
    fn found(&self) -> Found {
        let mut found = Found { cluster: "c".to_owned(), ..Found::default() };
        found.add_volume(self.volume.clone());
        self.more.iter().for_each(|volume| found.add_volume(volume.clone()));
        found.add_claim(&self.claim);
        found.add_pod(&self.pod);
        found.add_node(&self.node);
        found.add_job(&self.job);
        found.add_workload(self.workload.0, self.workload.1.clone());
        found.add_workload(Kind::ReplicaSet, self.replicas.clone());
        if self.has_driver {
            found.add_driver(&json!({"metadata": {"name": DRIVER}}));
        }
        let drivers = if self.is_served { json!([{"name": DRIVER}]) } else { json!([]) };
        found.add_csi_node(&json!({"metadata": {"name": "a"}, "spec": {"drivers": drivers}}));
        self.secrets.iter().for_each(|secret| found.add_secret(secret));
        found
    }

    fn plan(&self) -> Plan {
        make(&self.found(), &self.selection, "2026-11-26T18:00:00.000Z".to_owned())
    }
}

/// Applies a change to an object, as the API server does.
fn merge(base: &mut Value, change: &Value) {
    match change {
        Value::Object(fields) => {
            if !base.is_object() {
                *base = json!({});
            }
            for (key, change) in fields {
                merge(&mut base[key.as_str()], change);
                if base[key.as_str()].is_null() {
                    base.as_object_mut().unwrap().remove(key);
                }
            }
        }
        other => *base = other.clone(),
    }
}

fn reason(change: impl FnOnce(&mut Scene)) -> String {
    let mut scene = Scene::default();
    change(&mut scene);
    let plan = scene.plan();
    assert!(plan.groups.is_empty(), "{plan:?}");
    let [refused] = &plan.refused[..] else { panic!("{plan:?}") };
    assert!(!refused.message.is_empty() && !refused.fix.is_empty());
    refused.reason.clone()
}

#[test]
fn a_volume_is_planned_with_what_has_to_stop() {
    let plan = Scene::default().plan();
    assert_eq!(plan.refused, []);
    let [group] = &plan.groups[..] else { panic!("{plan:?}") };
    let volume = &group.volumes[0];
    assert_eq!((&*volume.from, &*volume.to), ("fstab/cifs", DRIVER));
    assert_eq!(volume.after["spec"]["claimRef"]["uid"], "pvc");
    assert_eq!(group.workloads[0].shown(), "Deployment shop/web");
    assert_eq!(group.workloads[0].replicas, 3);
    let again = Plan::parse(plan.text().unwrap().as_bytes()).unwrap();
    assert_eq!(again, plan);
    let edited = plan.text().unwrap().replace("//cellar/web", "//cellar/other");
    assert!(Plan::parse(edited.as_bytes()).is_err());
    assert!(Plan::parse(b"{}").is_err());
}

#[test]
fn each_reason_refuses() {
    let set = |path: &'static str, value: Value| {
        move |scene: &mut Scene| {
            let (object, path) = path.split_once(' ').unwrap();
            let mut change = value;
            for key in path.rsplit('/') {
                change = json!({ key: change });
            }
            let object = match object {
                "volume" => &mut scene.volume,
                "claim" => &mut scene.claim,
                "pod" => &mut scene.pod,
                "workload" => &mut scene.workload.1,
                "node" => &mut scene.node,
                _ => panic!("{object}"),
            };
            merge(object, &change);
        }
    };
    let owned = |kind: &str, uid: &str| json!([{"kind": kind, "name": "x", "uid": uid, "controller": true}]);
    for (expected, change) in [
        ("migrating", set("volume metadata/annotations", json!({ MARK: "other" }))),
        ("migrating", set("claim metadata/annotations", json!({ MARK: "other" }))),
        ("migrating", set("workload metadata/annotations", json!({ MARK: "other" }))),
        ("finalizer", set("volume metadata/finalizers", json!(["example.com/backup"]))),
        ("owned", set("volume metadata/ownerReferences", owned("Backup", "b"))),
        ("gitops", set("volume metadata/annotations", json!({"argocd.argoproj.io/tracking-id": "shop"}))),
        ("gitops", set("volume metadata/labels", json!({"kustomize.toolkit.fluxcd.io/name": "shop"}))),
        ("phase", set("volume status/phase", json!("Failed"))),
        ("being-deleted", set("volume metadata/deletionTimestamp", json!("2026-11-26T18:00:00Z"))),
        ("claim-missing", set("volume spec/claimRef/name", json!("other"))),
        ("claim-other", set("volume spec/claimRef/uid", json!("other"))),
        ("claim-other", set("claim spec/volumeName", json!("other"))),
        ("claim-deleting", set("claim metadata/deletionTimestamp", json!("2026-11-26T18:00:00Z"))),
        ("claim-of-pod", set("claim metadata/ownerReferences", owned("Pod", "p"))),
        (
            "claim-grows",
            set("claim status/allocatedResourceStatuses", json!({"storage": "NodeResizePending"})),
        ),
        ("claim-grows", set("claim status/conditions", json!([{"type": "Resizing", "status": "True"}]))),
        ("old-kubelet", set("node status/nodeInfo/kubeletVersion", json!("v1.24.9"))),
        ("node-silent", set("node status/conditions", json!([{"type": "Ready", "status": "Unknown"}]))),
        ("bare-pod", set("pod metadata/ownerReferences", json!(null))),
        ("static-pod", set("pod metadata/annotations", json!({"kubernetes.io/config.mirror": "x"}))),
        ("completed-pod", set("pod status/phase", json!("Succeeded"))),
        ("job-runs", set("pod metadata/ownerReferences", owned("Job", "job"))),
        ("unknown-owner", set("pod metadata/ownerReferences", owned("VirtualMachine", "vm"))),
        ("workload-owned", set("workload metadata/ownerReferences", owned("Shop", "operator"))),
        ("workload-gitops", set("workload metadata/labels", json!({"helm.toolkit.fluxcd.io/name": "shop"}))),
        (
            "scaled-deletes",
            set("workload spec/persistentVolumeClaimRetentionPolicy/whenScaled", json!("Delete")),
        ),
        ("secret-missing", set("volume spec/flexVolume/secretRef", json!({"name": "login"}))),
        ("mount-options", set("volume spec/mountOptions", json!(["noatime"]))),
        ("credential-in-option", set("volume spec/flexVolume/options/password", json!("x"))),
    ] {
        assert_eq!(reason(change), expected);
    }
}

#[test]
fn what_the_cluster_lacks_refuses() {
    assert_eq!(reason(|scene| scene.has_driver = false), "no-driver");
    assert_eq!(reason(|scene| scene.is_served = false), "not-served");
    assert_eq!(reason(|scene| scene.workload.0 = Kind::DaemonSet), "daemon-set");
    let other_way = |scene: &mut Scene| scene.selection.to = Some("nfs.csi.k8s.io".to_owned());
    assert_eq!(reason(other_way), "no-way");
    let same =
        json!({"metadata": {"name": "b"}, "spec": {"csi": {"driver": DRIVER, "volumeHandle": "fx1#web"}}});
    assert_eq!(reason(|scene| scene.more.push(same)), "handle-taken");
}

#[test]
fn volumes_that_are_one_to_the_driver_are_refused_both() {
    let mut scene = Scene::default();
    let image = |name: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"flexVolume": {"driver": "alicloud/disk", "options": {"volumeId": "d-1"}}},
            "status": {"phase": "Available"}})
    };
    scene.volume = image("a");
    scene.more.push(image("b"));
    scene.selection.to = Some("diskplugin.csi.alibabacloud.com".to_owned());
    let mut found = scene.found();
    found.add_driver(&json!({"metadata": {"name": "diskplugin.csi.alibabacloud.com"}}));
    found.nodes.clear();
    let plan = make(&found, &scene.selection, String::new());
    let reasons: Vec<_> = plan.refused.iter().map(|refused| &*refused.reason).collect();
    assert_eq!((reasons, plan.groups.len()), (vec!["handle-taken"; 2], 0), "{plan:?}");
}

/// A state that does not concern the volume does not prevent its migration.
#[test]
fn what_does_not_matter_does_not_refuse() {
    let change = |change: fn(&mut Scene)| {
        let mut scene = Scene::default();
        change(&mut scene);
        let plan = scene.plan();
        assert_eq!((&plan.refused[..], plan.groups.len()), (&[][..], 1), "{plan:?}");
        plan
    };
    change(|scene| {
        scene.is_served = false;
        scene.node["spec"]["unschedulable"] = json!(true);
    });
    change(|scene| scene.secrets.push(json!({"metadata": {"namespace": "shop", "name": "login"}})));
    let plan = change(|scene| {
        scene.pod["status"]["phase"] = json!("Succeeded");
        scene.pod["metadata"]["ownerReferences"] = json!(null);
        scene.selection.delete_completed = true;
    });
    assert_eq!(plan.groups[0].workloads, []);
    let plan = change(|scene| {
        scene.volume["status"]["phase"] = json!("Released");
        scene.claim = json!({"metadata": {"namespace": "shop", "name": "data", "uid": "later"}});
    });
    assert_eq!((&plan.groups[0].volumes[0].claim, plan.groups[0].workloads.len()), (&None, 0));
    let plan = change(|scene| {
        scene.workload = (
            Kind::CronJob,
            json!({"metadata": {"namespace": "shop", "name": "night", "uid": "cron"},
            "spec": {"jobTemplate": {"spec": {"template": {"spec": {"volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}}}}}}),
        );
        scene.pod["spec"]["volumes"] = json!([]);
    });
    assert_eq!(plan.groups[0].workloads[0].shown(), "CronJob shop/night");
}

/// Argo CD and Flux write nothing again while they are paused.
#[test]
fn who_is_paused_does_not_refuse() {
    let mut scene = Scene::default();
    scene.volume["metadata"]["annotations"] =
        json!({"argocd.argoproj.io/tracking-id": "shop:/PersistentVolume:/web"});
    scene.workload.1["metadata"]["labels"] = json!({"kustomize.toolkit.fluxcd.io/name": "apps"});
    let groups = |automated: Value, suspend: bool| {
        let mut found = scene.found();
        let application =
            json!({"metadata": {"name": "shop"}, "spec": {"syncPolicy": {"automated": automated}}});
        found.add_gitops(super::found::APPLICATION, &application);
        let kustomization = json!({"metadata": {"name": "apps"}, "spec": {"suspend": suspend}});
        found.add_gitops(super::found::KUSTOMIZATION, &kustomization);
        make(&found, &scene.selection, String::new()).groups.len()
    };
    assert_eq!(groups(json!(null), true), 1);
    assert_eq!(groups(json!({}), true), 0);
    assert_eq!(groups(json!(null), false), 0);
}

#[test]
fn a_selection_selects() {
    let count = |selection: Selection| {
        let plan = Scene { selection, ..Scene::default() }.plan();
        assert_eq!(plan.refused, []);
        plan.groups.len()
    };
    let one = |name: &str| vec![name.to_owned()];
    assert_eq!(count(Selection { drivers: one("fstab/cifs"), ..Selection::default() }), 1);
    assert_eq!(count(Selection { drivers: one("k8s/nfs"), ..Selection::default() }), 0);
    assert_eq!(count(Selection { classes: one("slow"), ..Selection::default() }), 1);
    assert_eq!(count(Selection { classes: one("fast"), ..Selection::default() }), 0);
    assert_eq!(count(Selection { namespaces: one("shop"), ..Selection::default() }), 1);
    assert_eq!(count(Selection { namespaces: one("other"), ..Selection::default() }), 0);
    assert_eq!(count(Selection { volumes: one("web"), ..Selection::default() }), 1);
    assert_eq!(count(Selection { volumes: one("data"), ..Selection::default() }), 0);
    assert_eq!(count(Selection { reverse: true, ..Selection::default() }), 0);
}

/// The volumes in a workload's template are changed one by one.
#[test]
fn volumes_that_stand_in_workloads_are_changed_where_they_stand() {
    let template = json!({"spec": {"volumes": [{"name": "c", "configMap": {"name": "c"}},
        {"name": "v", "flexVolume": {"driver": "fstab/cifs", "options": {"networkPath": "//cellar/web"}}}]}});
    let mut scene = Scene::default();
    scene.workload.1["spec"]["template"] = template.clone();
    scene.replicas["spec"]["template"] = template.clone();
    let plan = scene.plan();
    assert_eq!(plan.refused, []);
    let [inline] = &plan.inline[..] else { panic!("{plan:?}") };
    let paths: Vec<_> = inline.changes.iter().map(|change| &*change.path).collect();
    assert_eq!(paths, ["/spec/template/spec/volumes/1", "/metadata/annotations/flexvol.dev~1flex-source"]);
    assert_eq!(inline.changes[0].after["csi"]["driver"], DRIVER);
    scene.selection.drivers = vec!["k8s/nfs".to_owned()];
    assert_eq!(scene.plan().inline.len(), 0);
    scene.selection = Selection::default();
    scene.workload.1["spec"]["template"]["spec"]["volumes"][0] =
        json!({"name": "n", "flexVolume": {"driver": "k8s/nfs", "options": {}}});
    scene.selection.drivers = vec!["fstab/cifs".to_owned()];
    let reasons: Vec<_> = scene.plan().refused.into_iter().map(|refused| refused.reason).collect();
    assert_eq!(reasons, ["other-driver"]);
}

/// API server that does as it is told, and a controller that binds.
struct World {
    volume: Option<Value>,
    claim: Value,
    version: u32,
}

impl World {
    fn changed(&mut self, object: &mut Value, change: &Value) {
        for key in ["uid", "resourceVersion"] {
            assert_eq!(change["metadata"][key], object["metadata"][key], "a precondition: {change}");
        }
        merge(object, change);
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    /// Carries out a step. Returns true if there is more to do.
    fn does(&mut self, next: &Next) -> bool {
        let mut claim = self.claim.clone();
        match next {
            Next::Done => return false,
            Next::Wait => self.binds(),
            Next::Prepare(change) | Next::Finish(change) | Next::Release(change) => {
                let mut volume = self.volume.take().unwrap();
                self.changed(&mut volume, change);
                let goes = !volume["metadata"]["deletionTimestamp"].is_null()
                    && volume["metadata"]["finalizers"].is_null();
                self.volume = (!goes).then_some(volume);
            }
            Next::Delete(options) => {
                let volume = self.volume.as_mut().unwrap();
                assert_eq!(options["preconditions"]["uid"], volume["metadata"]["uid"]);
                assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
                volume["metadata"]["deletionTimestamp"] = json!("now");
            }
            Next::Create(object) => {
                assert!(self.volume.is_none());
                assert_eq!(object["spec"]["persistentVolumeReclaimPolicy"], "Retain");
                let mut object = object.clone();
                self.version += 1;
                object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
                object["metadata"]["resourceVersion"] = json!(self.version.to_string());
                object["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
                object["status"] = json!({"phase": "Pending"});
                self.claim["status"]["phase"] = json!("Lost");
                self.volume = Some(object);
            }
            Next::MarkClaim(change) | Next::UnmarkClaim(change) => {
                self.changed(&mut claim, change);
                self.claim = claim;
            }
        }
        true
    }

    fn binds(&mut self) {
        self.claim["status"]["phase"] = json!("Bound");
        self.volume.as_mut().unwrap()["status"]["phase"] = json!("Bound");
    }

    /// Plays until it is done, or up to `at_most` writes. Returns the number of writes.
    fn plays(&mut self, plan: &Plan, goal: Goal, at_most: usize) -> usize {
        for count in 0..at_most {
            let it = Move { volume: &plan.groups[0].volumes[0], run: &plan.id, goal, begun: false };
            let next = it.next(self.volume.as_ref(), Some(&self.claim)).unwrap();
            if !self.does(&next) {
                return count;
            }
            assert!(count < 20, "{next:?}");
        }
        at_most
    }
}

/// A run that ends after any write can continue or roll back, and the final state is the same.
#[test]
fn from_everywhere_there_is_a_way_on_and_a_way_back() {
    let scene = Scene::default();
    let plan = scene.plan();
    let world = || World { volume: Some(scene.volume.clone()), claim: scene.claim.clone(), version: 10 };
    let mut whole = world();
    let writes = whole.plays(&plan, Goal::Forward, 99);
    assert_eq!(writes, 7, "prepare, mark, delete, release, create, unmark, wait");
    assert_eq!(whole.volume.as_ref().unwrap()["spec"]["csi"]["driver"], DRIVER);
    for cut in 0..=writes {
        let mut on = world();
        on.plays(&plan, Goal::Forward, cut);
        on.plays(&plan, Goal::Forward, 99);
        let spec = |world: &World| world.volume.as_ref().unwrap()["spec"].clone();
        assert_eq!(spec(&on), spec(&whole), "{cut}");
        let mut back = world();
        back.plays(&plan, Goal::Forward, cut);
        let until = back.plays(&plan, Goal::Back, 99);
        for cut_again in 0..=until {
            let mut again = world();
            again.plays(&plan, Goal::Forward, cut);
            again.plays(&plan, Goal::Back, cut_again);
            again.plays(&plan, Goal::Back, 99);
            let volume = again.volume.as_ref().unwrap();
            assert_eq!(volume["spec"], scene.volume["spec"], "{cut} {cut_again}");
            assert_eq!(volume["metadata"]["annotations"].get(MARK), None);
            assert_eq!(again.claim["metadata"]["annotations"].get(MARK), None, "{cut} {cut_again}");
            assert_eq!(again.claim["status"]["phase"], "Bound");
        }
    }
}

/// A change by others, made first, takes precedence.
#[test]
fn what_others_did_is_left_alone() {
    let scene = Scene::default();
    let plan = scene.plan();
    let next = |goal: Goal, change: &dyn Fn(&mut World)| -> Result<Next, Conflict> {
        let mut world = World { volume: Some(scene.volume.clone()), claim: scene.claim.clone(), version: 10 };
        change(&mut world);
        let it = Move { volume: &plan.groups[0].volumes[0], run: &plan.id, goal, begun: false };
        it.next(world.volume.as_ref(), Some(&world.claim))
    };
    let volume = |path: &'static str, value: Value| {
        move |world: &mut World| *world.volume.as_mut().unwrap().pointer_mut(path).unwrap() = value.clone()
    };
    assert!(next(Goal::Forward, &|_| ()).is_ok());
    for change in [
        volume("/metadata/resourceVersion", json!("8")),
        volume("/metadata/uid", json!("other")),
        volume("/spec/flexVolume/options/networkPath", json!("//other/share")),
    ] {
        assert!(next(Goal::Forward, &change).is_err());
    }
    assert!(next(Goal::Forward, &|world| world.volume = None).is_err());
    assert!(next(Goal::Back, &|world| world.volume = None).is_err());
    for change in [
        json!({"metadata": {"uid": "other"}}),
        json!({"spec": {"volumeName": "other"}}),
        json!({"metadata": {"deletionTimestamp": "now"}}),
        json!({"metadata": {"annotations": { MARK: "another" }}}),
    ] {
        assert!(next(Goal::Forward, &|world| merge(&mut world.claim, &change)).is_err(), "{change}");
    }
    // It is being deleted, and not certainly by this migration.
    let going = json!({"metadata": {"deletionTimestamp": "now"}});
    assert!(next(Goal::Forward, &|world| merge(world.volume.as_mut().unwrap(), &going)).is_err());
    let ours = json!({"metadata": {"deletionTimestamp": "now", "annotations": { MARK: plan.id }}});
    assert!(
        next(Goal::Forward, &|world| merge(world.volume.as_mut().unwrap(), &ours)).is_err(),
        "its policy is Delete"
    );
    let kept = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let retained = |world: &mut World| {
        merge(world.volume.as_mut().unwrap(), &ours);
        merge(world.volume.as_mut().unwrap(), &kept);
    };
    assert!(matches!(next(Goal::Forward, &retained), Ok(Next::Release(_))));
    assert_eq!(next(Goal::Back, &|_| ()), Ok(Next::Done), "nothing had begun");
}
