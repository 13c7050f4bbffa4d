//! Properties that hold for every volume, whoever wrote it.

mod classes;
mod in_tree;
mod pods;
mod properties;
mod rows;
mod vendors;

use super::*;
use serde_json::json;

fn web() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "web"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "shop", "name": "data", "uid": "7"},
            "flexVolume": {
                "driver": "fstab/cifs",
                "fsType": "cifs",
                "options": {"networkPath": "//server/share", "mountOptions": "noperm"},
                "secretRef": {"name": "login"},
            },
        },
    })
}

/// Returns the volume with a value at a path.
fn with(path: &str, value: Value) -> Value {
    let mut volume = web();
    let (parent, key) = path.rsplit_once('/').unwrap();
    let fields = volume.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    fields.insert(key.replace("~1", "/"), value);
    volume
}

fn translated(volume: &Value) -> Translation {
    to_csi(volume, To::Flexvold).unwrap_or_else(|refusal| panic!("{refusal}")).unwrap()
}

fn refused(volume: &Value) -> &'static str {
    let refusal = to_csi(volume, To::Flexvold).unwrap_err();
    assert!(refusal.to_string().lines().count() == 1 && refusal.to_string().len() < 700, "{refusal}");
    refusal.reason.id()
}

fn ids(warnings: &[Warning]) -> Vec<&'static str> {
    warnings.iter().map(Warning::id).collect()
}

#[test]
fn a_volume_is_that_of_flexvold_over_the_same_driver() {
    let Translation { object, warnings } = translated(&web());
    let expected = json!({
        "driver": "cifs.fstab.flex.flexvol.dev",
        "fsType": "cifs",
        "nodePublishSecretRef": {"name": "login", "namespace": "shop"},
        "volumeAttributes": {"networkPath": "//server/share", "mountOptions": "noperm"},
        "volumeHandle": "fx1#web",
    });
    assert_eq!(object["spec"]["csi"], expected);
    assert!(warnings.is_empty() && object["spec"].get("flexVolume").is_none());
    assert_eq!(object["spec"]["claimRef"], web()["spec"]["claimRef"]);
}

#[test]
fn the_secret_keeps_its_own_namespace() {
    let volume = with("/spec/flexVolume/secretRef", json!({"name": "login", "namespace": "vault"}));
    let secret = &translated(&volume).object["spec"]["csi"]["nodePublishSecretRef"];
    assert_eq!(*secret, json!({"name": "login", "namespace": "vault"}));
    assert_eq!(refused(&with("/spec/claimRef", json!(null))), "secret-namespace");
    let nameless = with("/spec/flexVolume/secretRef", json!({"name": ""}));
    assert!(translated(&nameless).object["spec"]["csi"].get("nodePublishSecretRef").is_none());
}

#[test]
fn nothing_deletes_the_data() {
    for policy in ["Delete", "Recycle"] {
        let volume = with("/spec/persistentVolumeReclaimPolicy", json!(policy));
        let Translation { object, warnings } = translated(&volume);
        assert_eq!(object["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(ids(&warnings), ["retained"]);
        let back = to_flex(&object).unwrap().unwrap();
        assert_eq!((back.object, ids(&back.warnings)), (volume, vec!["policy-restored"]));
    }
    let theirs = "external-provisioner.volume.kubernetes.io/finalizer";
    let mut volume = with("/metadata/finalizers", json!([theirs, "kubernetes.io/pv-protection"]));
    volume["metadata"]["annotations"] =
        json!({"pv.kubernetes.io/provisioned-by": "ceph.rook.io/block", "a": "b"});
    let Translation { object, warnings } = translated(&volume);
    assert_eq!(object["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    assert!(object["metadata"]["annotations"].get("pv.kubernetes.io/provisioned-by").is_none());
    assert_eq!(ids(&warnings), ["provisioner-removed"]);
    assert_eq!(to_flex(&object).unwrap().unwrap().object, volume);
}

#[test]
fn null_empty_and_missing_stay_apart() {
    for (path, value) in [
        ("/metadata/annotations", json!(null)),
        ("/metadata/annotations", json!({})),
        ("/spec/csi", json!(null)),
        ("/spec/mountOptions", json!([])),
        ("/spec/mountOptions", json!(null)),
        ("/spec/persistentVolumeReclaimPolicy", json!(null)),
        ("/spec/flexVolume/options", json!(null)),
        ("/spec/flexVolume/options", json!({})),
        ("/spec/flexVolume/fsType", json!(null)),
        ("/spec/flexVolume/secretRef", json!(null)),
        ("/spec/flexVolume/readOnly", json!(false)),
        ("/metadata/labels", json!(null)),
    ] {
        let volume = with(path, value);
        let back = to_flex(&translated(&volume).object).unwrap().unwrap();
        assert_eq!((back.object, back.warnings), (volume, vec![]), "{path}");
    }
}

#[test]
fn what_only_the_api_server_writes_is_left_out() {
    let mut volume = web();
    volume["status"] = json!({"phase": "Bound"});
    for key in ["uid", "resourceVersion", "creationTimestamp"] {
        volume["metadata"][key] = json!("1");
    }
    volume["spec"]["claimRef"]["resourceVersion"] = json!("1");
    let object = translated(&volume).object;
    assert_eq!(to_flex(&object).unwrap().unwrap().object, web());
    assert_eq!(object["spec"]["claimRef"]["uid"], "7");
}

#[test]
fn what_cannot_be_translated_is_refused() {
    let applied = json!({"spec": {"flexVolume": {"options": {"akSecret": "hunter2"}}}}).to_string();
    for (path, value, id) in [
        ("/metadata/name", json!("../x"), "name"),
        ("/metadata/name", json!(null), "name"),
        ("/metadata/annotations", json!("x"), "field"),
        ("/metadata/annotations", json!({ORIGINAL: "{}"}), "has-original"),
        (
            "/metadata/annotations",
            json!({"kubectl.kubernetes.io/last-applied-configuration": applied}),
            "credential-in-annotation",
        ),
        ("/metadata/annotations", json!({"a": "x".repeat(1 << 20)}), "annotations-too-large"),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), "being-deleted"),
        ("/spec/csi", json!({"driver": "a.b"}), "two-sources"),
        ("/spec/volumeMode", json!("Block"), "block"),
        ("/spec/mountOptions", json!(["ro"]), "mount-options"),
        ("/spec/flexVolume", json!("x"), "field"),
        ("/spec/flexVolume/driver", json!("a/b/c"), "driver"),
        ("/spec/flexVolume/driver", json!(null), "driver"),
        ("/spec/flexVolume/drivr", json!("a/b"), "unknown-field"),
        ("/spec/flexVolume/readOnly", json!("yes"), "field"),
        ("/spec/flexVolume/fsType", json!(1), "field"),
        ("/spec/flexVolume/options", json!({"a": 1}), "field"),
        ("/spec/flexVolume/options", json!(["a"]), "field"),
        ("/spec/flexVolume/options", json!({"kubernetes.io/readwrite": "ro"}), "reserved-option"),
        ("/spec/flexVolume/options", json!({"flexvol.dev/a": "b"}), "reserved-option"),
        ("/spec/flexVolume/options", json!({"csi.storage.k8s.io/pod.name": "b"}), "reserved-option"),
        ("/spec/flexVolume/options", json!({"password": "hunter2"}), "credential-in-option"),
        (
            "/spec/flexVolume/options",
            json!({"mountOptions": "vers=3,password=hunter2"}),
            "credential-in-option",
        ),
        ("/spec/flexVolume/options", json!({"a": "x".repeat(1 << 20)}), "options-too-large"),
        ("/spec/flexVolume/options", json!({"x".repeat(1 << 20): 1}), "field"),
        ("/spec/flexVolume/secretRef", json!({"name": "../x"}), "secret-name"),
        ("/spec/flexVolume/secretRef", json!({"name": 1}), "secret-name"),
        ("/spec/flexVolume/secretRef", json!({"name": "x", "namespace": "a\nb"}), "secret-name"),
        ("/spec/flexVolume/secretRef", json!("x"), "field"),
    ] {
        let volume = with(path, value);
        assert_eq!(refused(&volume), id, "{path}");
        assert!(!to_csi(&volume, To::Flexvold).unwrap_err().to_string().contains("hunter2"), "{path}");
    }
}

#[test]
fn what_is_no_flexvolume_is_left_alone() {
    for object in [
        json!(null),
        json!([]),
        json!("PersistentVolume"),
        json!({"kind": "Pod", "spec": {"flexVolume": {}}}),
        json!({"kind": "Pod", "spec": {"volumes": [{"name": "a", "flexVolume": null}, 1]}}),
        json!({"kind": "Deployment", "spec": {"volumes": [{"name": "a", "flexVolume": {}}]}}),
        json!({"kind": "PersistentVolume"}),
        json!({"kind": "PersistentVolume", "spec": []}),
        json!({"kind": "PersistentVolume", "spec": {"flexVolume": null, "nfs": {}}}),
        translated(&web()).object,
    ] {
        assert_eq!(to_csi(&object, To::Flexvold), Ok(None), "{object}");
    }
    assert_eq!(to_flex(&web()), Ok(None));
}

/// Returns the translated volume with its annotation changed, and with a new digest.
fn forged(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = translated(&web()).object;
    let mut kept: Value =
        serde_json::from_str(object["metadata"]["annotations"][ORIGINAL].as_str().unwrap()).unwrap();
    kept.as_object_mut().unwrap().remove("sha256");
    change(&mut kept);
    kept["sha256"] = crate::csi::name::hash(kept.to_string().as_bytes()).into();
    object["metadata"]["annotations"][ORIGINAL] = kept.to_string().into();
    object
}

#[test]
fn a_note_that_is_not_of_this_volume_restores_nothing() {
    let id = |object: &Value| to_flex(object).unwrap_err().reason.id();
    let mut edited = translated(&web()).object;
    let text = edited["metadata"]["annotations"][ORIGINAL].as_str().unwrap().replace("share", "other");
    edited["metadata"]["annotations"][ORIGINAL] = text.into();
    assert_eq!(id(&edited), "original-changed");
    let mut copied = translated(&web()).object;
    copied["metadata"]["name"] = "other".into();
    assert_eq!(id(&copied), "original-foreign");
    let mut gone = translated(&web()).object;
    gone["spec"]["csi"] = json!(null);
    assert_eq!(id(&gone), "not-csi");
    assert!(to_flex(&forged(|_| {})).is_ok());
    for path in
        ["/spec/hostPath", "/metadata/name", "/metadata/ownerReferences", "/spec/csi/driver", "", "spec"]
    {
        assert_eq!(id(&forged(|kept| kept["was"][path] = json!("x"))), "original-foreign", "{path}");
    }
    assert_eq!(id(&forged(|kept| kept["was"] = json!({}))), "original-foreign");
    assert_eq!(id(&forged(|kept| kept["v"] = json!(2))), "original-changed");
    assert_eq!(id(&forged(|kept| kept["was"]["/spec/flexVolume"]["driver"] = json!("a/b/c"))), "driver");
}

#[test]
fn what_changed_since_is_said() {
    let translated = translated(&web()).object;
    let warned = |change: &dyn Fn(&mut Value)| {
        let mut object = translated.clone();
        change(&mut object);
        let back = to_flex(&object).unwrap().unwrap();
        (ids(&back.warnings), back.object)
    };
    let (warnings, object) = warned(&|object| object["spec"]["csi"]["volumeAttributes"]["a"] = "b".into());
    assert_eq!((warnings, object), (vec!["drift"], web()));
    // Kubelet mounts no FlexVolume with mountOptions.
    let (warnings, object) = warned(&|object| object["spec"]["mountOptions"] = json!(["ro"]));
    assert_eq!((warnings, object), (vec!["drift"], web()));
    // Fields that do not depend on the driver stay.
    let (warnings, object) = warned(&|object| {
        object["metadata"]["labels"] = json!({"a": "b"});
        object["metadata"]["annotations"]["a"] = "b".into();
        object["spec"]["capacity"]["storage"] = "2Gi".into();
    });
    assert!(warnings.is_empty());
    assert_eq!(
        (&object["metadata"]["annotations"], &object["spec"]["capacity"]["storage"]),
        (&json!({"a": "b"}), &json!("2Gi"))
    );
}

#[test]
fn the_api_server_s_defaults_are_no_change() {
    let mut volume = web();
    volume["spec"]["flexVolume"]["readOnly"] = json!(false);
    volume["spec"]["flexVolume"]["fsType"] = json!("");
    let mut object = translated(&volume).object;
    let csi = object["spec"]["csi"].as_object_mut().unwrap();
    assert!(csi.remove("readOnly").is_some() && csi.remove("fsType").is_some());
    object["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    object["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
    let back = to_flex(&object).unwrap().unwrap();
    assert_eq!(
        (&back.object["spec"]["flexVolume"], ids(&back.warnings)),
        (&volume["spec"]["flexVolume"], vec![])
    );
}

#[test]
fn what_will_work_otherwise_is_said() {
    let volume = with("/spec/accessModes", json!(["ReadOnlyMany", "ReadWriteMany"]));
    assert_eq!(ids(&translated(&volume).warnings), ["read-only-now"]);
    let volume = with("/spec/flexVolume/readOnly", json!(true));
    assert_eq!(ids(&translated(&volume).warnings), ["read-only-ignored"]);
    let volume = with("/spec/claimRef", json!({"namespace": "shop", "name": "data"}));
    assert_eq!(ids(&translated(&volume).warnings), ["claim-without-uid"]);
}
