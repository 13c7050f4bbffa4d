//! `kubectl flexvol mounter upgrade` against a real API server. What a cluster has besides, the
//! test does: it evicts, makes the new pod, and answers for kubelet what a mount pod serves.

mod scene;

use super::pace::slow_seconds;
use super::plugin::Admin;
use super::with_server;
use scene::{Scene, eventually, flex};
use serde_json::{Value, json};

const MARK: &str = "flexvol.dev/mounter-upgrade";
const UID: &str = "6a0ad5c6-0000-4000-8000-000000000001";

/// In place of kubectl where a pod is asked something.
const ASKED: &str = "[ \"$1\" = exec ] || exec \"$KUBECTL\" \"$@\"\nexec sh \"$HERE/says-$3\"";

/// As `--timeout`: what comes before the wait takes a moment.
fn soon() -> String {
    slow_seconds(2).to_string()
}

/// All with one API server: each has a node and namespaces of its own.
#[test]
fn mount_pods_are_upgraded() {
    with_server("upgrade::mount_pods_are_upgraded", async |server| {
        let mut admin = Admin::new(server).await;
        admin.wrap(ASKED);
        a_mount_pod_is_replaced_while_it_serves_nothing(&admin).await;
        whoever_does_not_leave_keeps_its_volume(&admin).await;
        users_by_claims_are_users(&admin).await;
        which_mount_pod_is_meant_is_not_guessed(&admin).await;
        who_only_looks_like_a_mount_pod_is_none(&admin).await;
        without_a_daemon_set_that_makes_a_new_one_nothing_begins(&admin).await;
        two_upgrades_at_once_are_one(&admin).await;
        the_upgrade_of_one_daemon_set_is_not_that_of_another(&admin).await;
        a_taint_of_somebody_else_is_left_alone(&admin).await;
        what_a_tenant_writes_leads_nowhere(&admin).await;
        whoever_removes_the_taint_cancels_the_upgrade(&admin).await;
        once_the_old_one_ends_there_is_no_way_back(&admin).await;
        what_a_pod_says_does_not_reach_the_terminal(&admin).await;
        an_api_server_that_goes_away_is_asked_again(&mut admin).await;
    });
}

/// Test 21: each step only after what it needs, and whoever is killed between two goes on.
async fn a_mount_pod_is_replaced_while_it_serves_nothing(admin: &Admin) {
    let scene = Scene::new(admin, "a").await;
    let uid = scene.uid().await;
    let dry = admin.told(&scene.words(&["--dry-run"])).await;
    assert!(dry.contains(&format!("{MARK}={uid}:NoExecute")) && dry.contains("shop-a/web"), "{dry}");
    assert_eq!(scene.taint().await, None);
    let first = scene.starts(&[]);
    first.says("shop-a/web").await;
    assert_eq!(scene.taint().await.as_ref(), Some(&uid));
    drop(first);
    let second = scene.starts(&[]);
    second.says("shop-a/web").await;
    assert!(!scene.is_ending(&scene.old()).await, "a pod has its volume");
    scene.ends(&scene.web()).await;
    second.says("v-1").await;
    assert!(!scene.is_ending(&scene.old()).await, "it serves a volume");
    scene.serves(&[]);
    eventually("it is deleted", async || scene.is_ending(&scene.old()).await).await;
    drop(second);
    let third = scene.starts(&[]);
    third.says("tools-a/tools-a").await;
    scene.ends(&scene.old()).await;
    third.says("tools-a/tools,").await;
    assert_eq!(scene.taint().await.as_ref(), Some(&uid), "there is no new one");
    drop(third);
    let fourth = scene.starts(&["--json"]);
    let new = scene.makes_a_new_one().await;
    assert_eq!(fourth.ends().await, (0, String::new()));
    assert_eq!(scene.taint().await, None);
    // Again: there is nothing to do.
    let said = scene.told(&[]).await;
    assert_eq!((&said["pod"], &said["new"]), (&json!("tools-a/tools-b"), &json!(new)));
    assert!(!scene.is_ending("/api/v1/namespaces/tools-a/pods/tools-b").await);
}

async fn whoever_does_not_leave_keeps_its_volume(admin: &Admin) {
    let scene = Scene::new(admin, "b").await;
    // Nobody evicts it: the wait has an end, and all is as it was.
    assert!(scene.refuses(&["--timeout", &soon()]).await.contains("pod shop-b/web"));
    scene.is_whole().await;
    // One that would stay: not even begun, and no reason to go on.
    let running = scene.starts(&[]);
    running.says("shop-b/web").await;
    scene.begins(scene.user("stays", &json!([{"operator": "Exists"}]), &flex())).await;
    let (status, error) = running.ends().await;
    assert!(status == 1 && error.contains("pod shop-b/stays"), "{error}");
    scene.is_whole().await;
    let error = scene.refuses(&[]).await;
    assert!(error.contains("pod shop-b/stays") && !error.contains("shop-b/web"), "{error}");
    // A run that was killed is not gone on with either.
    let (uid, owner) = (scene.uid().await, scene.owner.clone());
    let taint = json!([{"key": MARK, "value": uid, "effect": "NoExecute"}]);
    scene.set_taints(taint, Some(&format!("{uid}/tools-b/tools/{owner}"))).await;
    assert!(scene.refuses(&[]).await.contains("pod shop-b/stays"));
    scene.is_whole().await;
}

/// Of claims, also those that Kubernetes makes for a pod's own volumes, and of CSI.
async fn users_by_claims_are_users(admin: &Admin) {
    let scene = Scene::new(admin, "c").await;
    let flex = json!({"flexVolume": {"driver": "v/sshfs"}});
    let csi = json!({"csi": {"driver": "sshfs.v.flex.flexvol.dev", "volumeHandle": "h"}});
    let other = json!({"csi": {"driver": "nfs.csi.k8s.io", "volumeHandle": "h"}});
    for (claim, source) in [("data", flex.clone()), ("scratch-v", flex), ("moved", csi), ("other", other)] {
        let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("c-{claim}")},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}});
        volume["spec"].as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        admin.make(volume).await;
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "volumeName": format!("c-{claim}"), "resources": {"requests": {"storage": "1Gi"}}});
        admin
            .make(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec,
                "metadata": {"name": claim, "namespace": "shop-c"}}))
            .await;
    }
    let claim = |claim: &str| json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
    let own = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}});
    for (name, volume) in [
        ("data", claim("data")),
        ("moved", claim("moved")),
        ("other", claim("other")),
        ("none", claim("none")),
        ("scratch", own),
        ("own", json!({"name": "v", "emptyDir": {}})),
    ] {
        scene.begins(scene.user(name, &json!([]), &volume)).await;
    }
    let said = scene.told(&["--dry-run"]).await;
    let users = ["shop-c/data", "shop-c/moved", "shop-c/scratch", "shop-c/web"];
    assert_eq!((&said["evicted"], &said["evictedBesides"]), (&json!(users), &json!(3)));
}

async fn which_mount_pod_is_meant_is_not_guessed(admin: &Admin) {
    let scene = Scene::new(admin, "d").await;
    let (status, _, error) = admin.types(&["mounter", "upgrade", "--node", "../d"]).await;
    assert!(status == 1 && error.contains("../d"), "{error}");
    let (status, _, error) = admin.types(&["mounter", "upgrade", "--node", "nowhere"]).await;
    assert!(status == 1 && error.contains("nowhere"), "{error}");
    let other = scene.has_set("other", &json!([{"operator": "Exists"}])).await;
    scene.begins(scene.mount_pod("other-a", ("other", &other), "old")).await;
    let error = scene.refuses(&[]).await;
    assert!(error.contains("tools-d/other-a") && error.contains("tools-d/tools-a"), "{error}");
    let one = ["--name", "tools", "--namespace", "tools-d", "--dry-run"];
    assert_eq!(scene.told(&one).await["pod"], "tools-d/tools-a");
    for none in [["--name", "nothing"], ["--namespace", "shop-d"]] {
        scene.refuses(&none).await;
    }
    scene.is_whole().await;
}

/// A tenant's pod with the same words is not asked, not named, and hinders nobody.
async fn who_only_looks_like_a_mount_pod_is_none(admin: &Admin) {
    let scene = Scene::new(admin, "e").await;
    scene.ends(&scene.web()).await;
    let mut posing = scene.mount_pod("posing", ("tools", &scene.owner), "new");
    posing["metadata"]["namespace"] = json!("shop-e");
    let container = &mut posing["spec"]["containers"][0];
    container["securityContext"] = json!({});
    container["volumeMounts"] = json!([]);
    posing["spec"]["volumes"] = json!([]);
    scene.begins(posing).await;
    admin.put("says-shop-e", "echo asked >\"$HERE/asked\"; exit 1");
    scene.serves(&[]);
    let running = scene.starts(&[]);
    eventually("it is deleted", async || scene.is_ending(&scene.old()).await).await;
    scene.ends(&scene.old()).await;
    running.says("tools-e/tools,").await;
    scene.makes_a_new_one().await;
    assert_eq!(running.ends().await, (0, String::new()));
    assert!(!admin.home.join("asked").exists());
    scene.ends("/api/v1/namespaces/tools-e/pods/tools-b").await;
    assert!(scene.refuses(&[]).await.contains("shop-e/posing"));
}

async fn without_a_daemon_set_that_makes_a_new_one_nothing_begins(admin: &Admin) {
    let scene = Scene::new(admin, "f").await;
    let weak = scene.has_set("weak", &json!([])).await;
    for (name, uid) in [("weak", &*weak), ("gone", UID), ("tools", UID)] {
        let path = format!("/api/v1/namespaces/tools-f/pods/{name}-x");
        scene.begins(scene.mount_pod(&format!("{name}-x"), (name, uid), "old")).await;
        scene.ends(&scene.old()).await;
        let error = scene.refuses(&["--name", name]).await;
        assert!(error.contains(&format!("tools-f/{name}")), "{error}");
        scene.ends(&path).await;
        scene.begins(scene.mount_pod("tools-a", ("tools", &scene.owner), "old")).await;
    }
    scene.ends(&scene.old()).await;
    let mut orphan = scene.mount_pod("orphan", ("", ""), "old");
    orphan["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    scene.begins(orphan).await;
    assert!(scene.refuses(&[]).await.contains("tools-f/orphan"));
    assert_eq!(scene.taint().await, None);
    // It is deleted while its pod is drained.
    scene.ends("/api/v1/namespaces/tools-f/pods/orphan").await;
    scene.begins(scene.mount_pod("tools-a", ("tools", &scene.owner), "old")).await;
    let running = scene.starts(&[]);
    running.says("shop-f/web").await;
    scene.ask("DELETE", "/apis/apps/v1/namespaces/tools-f/daemonsets/tools", &Value::Null).await;
    scene.serves(&[]);
    scene.ends(&scene.web()).await;
    let (status, error) = running.ends().await;
    assert!(status == 1 && error.contains("tools-f/tools"), "{error}");
    assert_eq!((scene.taint().await, scene.is_ending(&scene.old()).await), (None, false));
}

async fn two_upgrades_at_once_are_one(admin: &Admin) {
    let scene = Scene::new(admin, "g").await;
    let runs = [(); 2].map(|()| scene.starts(&[]));
    for run in &runs {
        run.says("shop-g/web").await;
    }
    assert_eq!(scene.taint().await, Some(scene.uid().await));
    scene.serves(&[]);
    scene.ends(&scene.web()).await;
    eventually("it is deleted", async || scene.is_ending(&scene.old()).await).await;
    scene.ends(&scene.old()).await;
    scene.makes_a_new_one().await;
    for run in runs {
        assert_eq!(run.ends().await, (0, String::new()));
    }
    assert_eq!(scene.taint().await, None);
    assert!(!scene.is_ending("/api/v1/namespaces/tools-g/pods/tools-b").await);
}

async fn the_upgrade_of_one_daemon_set_is_not_that_of_another(admin: &Admin) {
    let scene = Scene::new(admin, "h").await;
    let other = scene.has_set("other", &json!([{"operator": "Exists"}])).await;
    scene.begins(scene.mount_pod("other-a", ("other", &other), "new")).await;
    let running = scene.starts(&["--name", "tools"]);
    running.says("shop-h/web").await;
    let uid = scene.uid().await;
    for words in [["--name", "other"], ["--namespace", "shop-h"]] {
        assert!(scene.refuses(&words).await.contains("tools-h"));
        assert_eq!(scene.taint().await.as_ref(), Some(&uid));
    }
    scene.serves(&[]);
    scene.ends(&scene.web()).await;
    eventually("it is deleted", async || scene.is_ending(&scene.old()).await).await;
    drop(running);
    scene.ends(&scene.old()).await;
    // The other one's is ready, and is not the one that is waited for; nobody has to say it again.
    let running = scene.starts(&[]);
    running.says("tools-h/tools,").await;
    assert_eq!(scene.taint().await.as_ref(), Some(&uid));
    scene.makes_a_new_one().await;
    assert_eq!(running.ends().await, (0, String::new()));
    // Where nothing says whose it was, nothing is guessed.
    let taint = json!([{"key": MARK, "value": UID, "effect": "NoExecute"}]);
    scene.set_taints(taint.clone(), Some("?")).await;
    assert!(scene.refuses(&[]).await.contains(UID));
    assert_eq!(scene.object().await["spec"]["taints"], taint);
}

async fn a_taint_of_somebody_else_is_left_alone(admin: &Admin) {
    let scene = Scene::new(admin, "i").await;
    let foreign = json!([{"key": MARK, "value": "true", "effect": "NoExecute"}]);
    scene.set_taints(foreign.clone(), None).await;
    for words in [&[][..], &["--dry-run"]] {
        assert!(scene.refuses(words).await.contains(&format!("{MARK}=true")));
        assert_eq!(scene.object().await["spec"]["taints"], foreign);
    }
    // One that evicts nobody is none of ours, and stays.
    let others =
        json!([{"key": MARK, "value": UID, "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]);
    scene.set_taints(others.clone(), None).await;
    assert!(scene.refuses(&["--timeout", &soon()]).await.contains("pod shop-i/web"));
    let taints = scene.object().await["spec"]["taints"].as_array().unwrap().clone();
    let kept: Vec<_> = taints.iter().map(|taint| (taint["key"].clone(), taint["effect"].clone())).collect();
    assert_eq!(kept, [(json!(MARK), json!("NoSchedule")), (json!("x"), json!("NoExecute"))]);
}

/// The API server takes any text as the name of a claim, of a volume and of an owner. No path is
/// made of it, with the rights of whoever upgrades, and it hinders nothing.
async fn what_a_tenant_writes_leads_nowhere(admin: &Admin) {
    let scene = Scene::new(admin, "n").await;
    admin
        .make(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "n-flex"},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "flexVolume": {"driver": "v/sshfs"}}}))
        .await;
    let there = "/api/v1/persistentvolumes/n-flex";
    // Each of them leads to a volume of the driver, or to what is no path at all.
    let volumes = ["a b", "%zz", "../persistentvolumes/n-flex", "n-flex?pretty=true"];
    for (number, volume) in volumes.into_iter().enumerate() {
        let (claim, spec) = (
            format!("claim-{number}"),
            json!({"accessModes": ["ReadWriteOnce"],
            "storageClassName": "", "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}),
        );
        admin
            .make(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec,
                "metadata": {"name": claim, "namespace": "shop-n"}}))
            .await;
        let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
        scene.begins(scene.user(&format!("by-volume-{number}"), &json!([]), &volume)).await;
    }
    let claims = ["c d", "#", &format!("../../../../..{there}")];
    for (number, claim) in claims.into_iter().enumerate() {
        let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
        scene.begins(scene.user(&format!("by-claim-{number}"), &json!([]), &volume)).await;
    }
    let said = scene.told(&["--dry-run"]).await;
    assert_eq!((&said["evicted"], &said["evictedBesides"]), (&json!(["shop-n/web"]), &json!(7)));
    let mut owned = scene.mount_pod("owned", ("../../../../api/v1/nodes/n", &scene.owner), "old");
    owned["metadata"]["namespace"] = json!("shop-n");
    scene.begins(owned).await;
    assert!(scene.refuses(&["--namespace", "shop-n"]).await.contains("shop-n/owned"));
}

async fn whoever_removes_the_taint_cancels_the_upgrade(admin: &Admin) {
    let scene = Scene::new(admin, "j").await;
    let running = scene.starts(&[]);
    running.says("shop-j/web").await;
    scene.set_taints(json!([]), None).await;
    let (status, error) = running.ends().await;
    assert!(status == 1 && error.contains("node j"), "{error}");
    scene.is_whole().await;
}

async fn once_the_old_one_ends_there_is_no_way_back(admin: &Admin) {
    let scene = Scene::new(admin, "k").await;
    let running = scene.starts(&[]);
    running.says("shop-k/web").await;
    let uid = scene.uid().await;
    drop(running);
    // Somebody deletes it, though a pod uses it: what is asked for is a new one.
    scene.ask("DELETE", &scene.old(), &Value::Null).await;
    scene.says("echo asked >\"$HERE/asked-k\"");
    let error = scene.refuses(&["--timeout", &soon()]).await;
    assert!(error.contains("tools-k/tools-a") && error.contains(MARK), "{error}");
    assert!(!admin.home.join("asked-k").exists(), "it is not drained again");
    assert_eq!(scene.taint().await, Some(uid));
    let running = scene.starts(&[]);
    scene.ends(&scene.old()).await;
    scene.makes_a_new_one().await;
    assert_eq!(running.ends().await, (0, String::new()));
    assert_eq!(scene.taint().await, None);
    // Nobody would make one: that is not waited for.
    let (uid, owner) =
        (scene.begins(scene.mount_pod("tools-c", ("tools", &scene.owner), "old")).await, &scene.owner);
    for pod in ["tools-b", "tools-c"] {
        scene.ends(&format!("/api/v1/namespaces/tools-k/pods/{pod}")).await;
    }
    let taint = json!([{"key": MARK, "value": uid, "effect": "NoExecute"}]);
    scene.set_taints(taint, Some(&format!("{uid}/tools-k/tools/{owner}"))).await;
    scene.ask("DELETE", "/apis/apps/v1/namespaces/tools-k/daemonsets/tools", &Value::Null).await;
    let long = slow_seconds(33).to_string();
    let error = scene.refuses(&["--timeout", &long]).await;
    assert!(error.contains("tools-k/tools") && error.contains(MARK) && !error.contains(&long), "{error}");
    assert_eq!(scene.taint().await, Some(uid));
}

async fn what_a_pod_says_does_not_reach_the_terminal(admin: &Admin) {
    let scene = Scene::new(admin, "l").await;
    scene.ends(&scene.web()).await;
    for script in [
        "printf '\\033]0;evil\\007' >&2; exit 1",
        "printf '{\"volumes\":[\"\\033]0;evil\"]}'",
        "printf '\\033[2J'",
        "head -c 2000000 /dev/zero",
    ] {
        scene.says(script);
        let (status, out, error) = admin.types(&scene.words(&["--timeout", &soon()])).await;
        assert!(status == 1 && error.contains("tools-l/tools-a"), "{error}");
        assert!((out + &error).chars().all(|c| c == '\n' || !c.is_control()), "{error:?}");
        assert_eq!((scene.taint().await, scene.is_ending(&scene.old()).await), (None, false));
    }
    // Who does not ask it needs no answer.
    let running = scene.starts(&["--trust-api"]);
    eventually("it is deleted", async || scene.is_ending(&scene.old()).await).await;
    drop(running);
}

async fn an_api_server_that_goes_away_is_asked_again(admin: &mut Admin) {
    let scene = Scene::new(admin, "m").await;
    let running = scene.starts(&[]);
    running.says("shop-m/web").await;
    let owner = scene.owner.clone();
    admin.server.again().await;
    let scene = Scene { admin, node: "m".to_owned(), owner };
    scene.serves(&[]);
    scene.ends(&scene.web()).await;
    eventually("it is deleted", async || scene.is_ending(&scene.old()).await).await;
    scene.ends(&scene.old()).await;
    scene.makes_a_new_one().await;
    // What kubectl says of it meanwhile is kubectl's.
    assert_eq!(running.ends().await.0, 0);
    assert_eq!(scene.taint().await, None);
}
