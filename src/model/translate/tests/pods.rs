//! Volumes in pods and in pod templates.

use super::*;

pub(super) fn pod() -> Value {
    let flex = json!({"driver": "fstab/cifs", "readOnly": true, "options": {"networkPath": "//a/b"}, "secretRef": {"name": "login"}});
    json!({"volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "web", "flexVolume": flex}]})
}

/// Returns the pod in every kind that has a pod template, and as a Pod.
pub(super) fn workloads(pod: &Value) -> Vec<Value> {
    let of = |kind: &str, spec: Value| json!({"kind": kind, "metadata": {"name": "shop"}, "spec": spec});
    vec![
        of("Pod", pod.clone()),
        of("Deployment", json!({"replicas": 2, "template": {"spec": pod}})),
        of("CronJob", json!({"jobTemplate": {"spec": {"template": {"spec": pod}}}})),
        json!({"kind": "PodTemplate", "metadata": {"name": "shop", "annotations": null}, "template": {"spec": pod}}),
    ]
}

pub(super) fn volume_in<'a>(object: &'a Value, name: &str) -> &'a Value {
    let all = ["/spec", "/spec/template/spec", "/spec/jobTemplate/spec/template/spec", "/template/spec"];
    let all = all.iter().find_map(|place| object.pointer(place)?.get("volumes")).unwrap().as_array().unwrap();
    all.iter().find(|volume| volume["name"] == name).unwrap()
}

#[test]
fn volumes_of_pods_and_templates_are_translated_in_place() {
    for object in workloads(&pod()) {
        let done = translated(&object);
        let expected = json!({"name": "web", "csi": {
            "driver": "cifs.fstab.flex.flexvol.dev",
            "nodePublishSecretRef": {"name": "login"},
            "readOnly": true,
            "volumeAttributes": {"networkPath": "//a/b"},
        }});
        assert_eq!((volume_in(&done.object, "web"), done.warnings.len()), (&expected, 0));
        assert_eq!(volume_in(&done.object, "tmp"), volume_in(&object, "tmp"));
        let back = to_flex(&done.object).unwrap().unwrap();
        assert_eq!((back.object, back.warnings), (object, vec![]));
    }
}

#[test]
fn the_way_back_goes_by_the_names_of_volumes() {
    for object in workloads(&pod()) {
        let mut moved = translated(&object).object;
        for place in
            ["/spec", "/spec/template/spec", "/spec/jobTemplate/spec/template/spec", "/template/spec"]
        {
            if let Some(all) = moved.pointer_mut(&format!("{place}/volumes")).and_then(Value::as_array_mut) {
                all.reverse();
                all.push(json!({"name": "new", "csi": {"driver": "a.b"}}));
            }
        }
        let back = to_flex(&moved).unwrap().unwrap();
        assert_eq!(volume_in(&back.object, "web"), volume_in(&object, "web"));
        assert_eq!((volume_in(&back.object, "new"), back.warnings), (volume_in(&moved, "new"), vec![]));
        let mut drifted = translated(&object).object;
        let text = drifted.to_string().replace("//a/b\"}},", "//a/c\"}},");
        drifted = serde_json::from_str(&text).unwrap();
        if drifted != translated(&object).object {
            assert_eq!(ids(&to_flex(&drifted).unwrap().unwrap().warnings), ["drift"]);
        }
    }
}

#[test]
fn what_no_pod_can_have_is_refused() {
    let volume = |volume: Value| {
        let mut pod = pod();
        pod["volumes"][1] = volume;
        workloads(&pod)
    };
    let flex = |flex: Value| json!({"name": "web", "flexVolume": flex});
    for (volumes, id) in [
        (volume(flex(json!({"driver": "kvaps/loop"}))), "attached-inline"),
        (volume(flex(json!({"driver": "x/y", "options": {"password": "hunter2"}}))), "credential-in-option"),
        (volume(flex(json!({"driver": "x/y", "secretRef": {"name": "a", "namespace": "b"}}))), "secret-name"),
        (volume(flex(json!({"driver": "x/y", "secretRef": {"name": "../a"}}))), "secret-name"),
        (volume(flex(json!("x"))), "field"),
        (volume(json!({"flexVolume": {"driver": "x/y"}})), "volume-name"),
        (volume(json!({"name": "a/b", "flexVolume": {"driver": "x/y"}})), "volume-name"),
        (volume(json!({"name": "tmp", "flexVolume": {"driver": "x/y"}})), "volume-name"),
        (volume(json!({"name": "web", "flexVolume": {"driver": "x/y"}, "csi": {}})), "two-sources"),
    ] {
        for object in volumes {
            assert_eq!(refused(&object), id, "{object}");
            assert!(!to_csi(&object, To::Flexvold).unwrap_err().to_string().contains("hunter2"));
        }
    }
    let mut object = workloads(&pod()).remove(1);
    object["metadata"]["annotations"] = json!({ORIGINAL: "{}"});
    assert_eq!(refused(&object), "has-original");
    let applied =
        json!({"spec": {"volumes": [{"flexVolume": {"options": {"pass": "hunter2"}}}]}}).to_string();
    object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": applied});
    assert_eq!(refused(&object), "credential-in-annotation");
}

#[test]
fn an_unknown_driver_may_attach() {
    let mut pod = pod();
    for (driver, expected) in [
        ("x/y", &["may-attach"][..]),
        ("flexvol/tmpfs", &[]),
        ("k8s/nfs", &[]),
        ("flexvol/x", &["may-attach"]),
    ] {
        pod["volumes"][1]["flexVolume"]["driver"] = driver.into();
        assert_eq!(ids(&translated(&workloads(&pod)[0]).warnings), expected, "{driver}");
    }
}

#[test]
fn a_forged_note_changes_no_other_field_of_a_pod() {
    let mut object = translated(&workloads(&pod())[1]).object;
    for path in [
        "/spec/template/spec/volumes/tmp/emptyDir",
        "/spec/template/spec/volumes/tmp/csi",
        "/spec/replicas",
        "/spec/template/spec/containers",
    ] {
        let mut kept: Value =
            serde_json::from_str(object["metadata"]["annotations"][ORIGINAL].as_str().unwrap()).unwrap();
        kept.as_object_mut().unwrap().remove("sha256");
        kept["was"][path] = json!({"hostPath": {"path": "/"}});
        kept["sha256"] = crate::csi::name::hash(kept.to_string().as_bytes()).into();
        let mut forged = object.clone();
        forged["metadata"]["annotations"][ORIGINAL] = kept.to_string().into();
        assert_eq!(to_flex(&forged).unwrap_err().reason.id(), "original-foreign", "{path}");
    }
    object["spec"]["template"]["spec"]["volumes"] = json!([]);
    assert_eq!(to_flex(&object).unwrap_err().reason.id(), "original-foreign");
}
