//! Properties of generated volumes.

use super::super::target::{Becomes, FsType};
use super::pods::workloads;
use super::rows::of;
use super::*;
use crate::csi::handle::Handle;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Map;

/// Words of people, of flags, of paths and of shells, and characters of no script.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z][a-z0-9-]{0,8}",
        1 => "[-./~#$`'\"\\\\ =,;:@{}]{1,6}",
        1 => "\\PC{0,8}",
        1 => select(vec!["-o", "--rm", "$(id)", "../..", "a\0b", "\u{202e}x", "\u{7f}", "\n", "ä", "=", "%s"]).prop_map(str::to_owned),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z0-9]{1,6}(-[a-z0-9]{1,4}){0,2}", 1 => "[a-z]{200,253}", 1 => "([a-z]{1,40}\\.){3}[a-z]{1,9}"]
}

fn or_null(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    prop_oneof![2 => Just(None), 1 => Just(Some(Value::Null)), 6 => value.prop_map(Some)]
}

fn options() -> impl Strategy<Value = Value> {
    prop::collection::btree_map(word(), word(), 0..5).prop_map(|all| json!(all))
}

fn fields(all: Vec<(&str, Option<Value>)>) -> Value {
    let given = all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    given.collect::<Map<_, _>>().into()
}

prop_compose! {
    fn flex_volume()(
        driver in "[a-z]{1,5}(\\.[a-z]{1,4}){0,2}/[A-Za-z0-9_.-]{1,9}",
        fs_type in or_null(word().prop_map(Value::from)),
        read_only in or_null(any::<bool>().prop_map(Value::from)),
        options in or_null(options()),
        secret in or_null((name(), or_null(name().prop_map(Value::from))).prop_map(|(name, namespace)| {
            fields(vec![("name", Some(name.into())), ("namespace", namespace)])
        })),
    ) -> Value {
        fields(vec![
            ("driver", Some(driver.into())), ("fsType", fs_type), ("readOnly", read_only),
            ("options", options), ("secretRef", secret),
        ])
    }
}

prop_compose! {
    fn volume()(
        name in name(),
        flex in flex_volume(),
        annotations in or_null(options()),
        provisioned in any::<bool>(),
        policy in or_null(select(vec!["Delete", "Retain", "Recycle"]).prop_map(Value::from)),
        claim in or_null(name().prop_map(|name| json!({"namespace": name, "name": "c", "uid": "1", "resourceVersion": "2"}))),
        modes in or_null(select(vec![json!(["ReadWriteOnce"]), json!(["ReadOnlyMany"]), json!([])])),
        status in or_null(Just(json!({"phase": "Bound"}))),
    ) -> Value {
        let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume"});
        let finalizers = provisioned.then(|| json!(["kubernetes.io/pv-controller", "x/y"]));
        volume["metadata"] = fields(vec![
            ("name", Some(name.into())), ("annotations", annotations), ("finalizers", finalizers), ("uid", Some("3".into())),
        ]);
        volume["spec"] = fields(vec![
            ("flexVolume", Some(flex)), ("persistentVolumeReclaimPolicy", policy), ("claimRef", claim), ("accessModes", modes),
        ]);
        if let Some(status) = status {
            volume["status"] = status;
        }
        volume
    }
}

/// Collects every text of an object, including its keys.
fn texts(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::String(text) => all.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, all)),
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            all.push(key.clone());
            texts(value, all);
        }),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_way_back_is_exact(volume in volume()) {
        let done = to_csi(&volume, To::Flexvold).ok().flatten();
        prop_assume!(done.is_some());
        if let Some(done) = done {
            let back = to_flex(&done.object).unwrap().unwrap();
            prop_assert_eq!(&back.object, &without_server_fields(&volume));
            prop_assert!(back.warnings.iter().all(|warning| warning.id() == "policy-restored"));
            // The result is deterministic, and the same for the volume before and after the round
            // trip.
            prop_assert_eq!(to_csi(&back.object, To::Flexvold).unwrap().unwrap(), to_csi(&volume, To::Flexvold).unwrap().unwrap());
        }
    }

    #[test]
    fn the_way_back_of_pods_is_exact(flex in flex_volume(), annotations in or_null(options())) {
        let mut flex = flex;
        if let Some(secret) = flex.get_mut("secretRef").and_then(Value::as_object_mut) {
            secret.remove("namespace");
        }
        let pod = json!({"volumes": [{"name": "a", "flexVolume": flex}, {"name": "b", "nfs": {}}]});
        for mut object in workloads(&pod) {
            if let Some(annotations) = &annotations {
                object["metadata"]["annotations"] = annotations.clone();
            }
            if let Some(done) = to_csi(&object, To::Flexvold).ok().flatten() {
                prop_assert_eq!(to_flex(&done.object).unwrap().unwrap().object, object);
            }
        }
    }

    #[test]
    fn every_option_arrives_and_the_handle_is_plain(volume in volume()) {
        let done = to_csi(&volume, To::Flexvold).ok().flatten();
        prop_assume!(done.is_some());
        let Some(Translation { object, .. }) = done else { return Ok(()) };
        let options = volume["spec"]["flexVolume"].get("options").and_then(Value::as_object).cloned();
        let attributes = object["spec"]["csi"].get("volumeAttributes").and_then(Value::as_object).cloned();
        prop_assert_eq!(attributes.unwrap_or_default(), options.unwrap_or_default());
        let handle = object["spec"]["csi"]["volumeHandle"].as_str().unwrap();
        let plain = |c: char| c.is_ascii_alphanumeric() || "._#~-".contains(c);
        prop_assert!(handle.len() <= 128 && handle.chars().all(plain), "{}", handle);
        prop_assert!(matches!(Handle::parse(handle), Some(Handle::Persistent(_))));
        prop_assert_ne!(&object["spec"].get("persistentVolumeReclaimPolicy"), &Some(&json!("Delete")));
        prop_assert!(crate::csi::name::check(object["spec"]["csi"]["driver"].as_str().unwrap()).is_ok());
    }

    /// Whatever a tenant writes, only words of its options reach another driver, and every option
    /// is used, ignored with a warning, or refused.
    #[test]
    fn every_option_of_a_row_is_used_or_said(
        row in select(TARGETS.to_vec()),
        values in prop::collection::vec(prop_oneof![2 => select(vec!["//a/b", "/e", "host", "ro,noatime", "uid=1", "tcp", "4.0", ""]).prop_map(str::to_owned), 1 => word()], 8),
        extra in prop_oneof![4 => Just(None), 1 => word().prop_map(Some)],
    ) {
        let mut options: Map<String, Value> =
            row.options.iter().zip(values).map(|((name, _), value)| ((*name).to_owned(), value.into())).collect();
        options.extend(extra.map(|key| (key, "x".into())));
        let driver = if row.from[0].ends_with('/') { format!("{}x", row.from[0]) } else { row.from[0].to_owned() };
        let mut volume = of(&driver, &options.clone().into());
        if let FsType::Only(fs_type) = row.fs_type {
            volume["spec"]["flexVolume"]["fsType"] = fs_type.into();
        }
        volume["metadata"]["annotations"]["ociVolumeID"] = "ocid1.volume.a".into();
        if let Ok(Some(done)) = to_csi(&volume, To::Driver(row.to)) {
            prop_assert_eq!(&to_flex(&done.object).unwrap().unwrap().object, &volume);
            let csi = &done.object["spec"]["csi"];
            let words = done.object["spec"].get("mountOptions").and_then(Value::as_array).cloned().unwrap_or_default();
            let flags = row.options.iter().any(|(_, becomes)| matches!(becomes, Becomes::Flags(_)));
            let bare = |word: &str| word.strip_prefix("-o ").or(word.strip_prefix("--")).filter(|_| flags).unwrap_or(word).to_owned();
            let word = |word: &Value| word.as_str().map(bare).is_some_and(|word| !word.starts_with('-') && !word.contains(['\n', '\0', ' ', '$']));
            prop_assert!(words.iter().all(word), "{:?}", words);
            let ignored = done.warnings.iter().filter(|warning| warning.id() == "ignored").count();
            let handle = usize::from(!csi["volumeHandle"].as_str().unwrap().starts_with("flexmig-"));
            let used = csi.get("volumeAttributes").and_then(Value::as_object).map_or(0, Map::len) + words.len() + handle;
            let given = options.values().filter(|value| **value != "").count();
            prop_assert!(used + ignored >= row.needs.len() && (given == 0 || used + ignored > 0));
            prop_assert!(csi["volumeHandle"].as_str().unwrap().bytes().all(|byte| byte != b'#' && byte != b'/'));
        }
    }

    #[test]
    fn two_volumes_have_two_handles(one in name(), other in name()) {
        let handle = |name: &str| translated(&with("/metadata/name", json!(name))).object["spec"]["csi"]["volumeHandle"].clone();
        prop_assert_eq!(handle(&one) == handle(&other), one == other);
    }

    /// The credential may be in any place that a tenant can write.
    #[test]
    fn no_credential_goes_further(volume in volume(), place in 0..5, key in select(vec!["password", "akSecret", "pass", "api_key"])) {
        let mut volume = volume;
        let flex = volume["spec"]["flexVolume"].as_object_mut().unwrap();
        let mut options = flex.get("options").and_then(Value::as_object).cloned().unwrap_or_default();
        let mut annotations = Map::new();
        let applied = json!({"spec": {"flexVolume": {"options": {key: "hunter2"}}}});
        match place {
            0 => drop(options.insert(key.into(), "hunter2".into())),
            1 => drop(options.insert("mountOptions".into(), format!("ro,{key}=hunter2").into())),
            2 => drop(options.insert("url".into(), "https://a:hunter2@b/".into())),
            3 => drop(annotations.insert("kubectl.kubernetes.io/last-applied-configuration".into(), applied.to_string().into())),
            _ => drop(annotations.insert(format!("a/{key}"), "hunter2".into())),
        }
        flex.insert("options".into(), options.into());
        volume["metadata"]["annotations"] = annotations.into();
        let refusal = to_csi(&volume, To::Flexvold).unwrap_err();
        prop_assert!(!refusal.to_string().contains("hunter2"), "{}", refusal);
    }

    #[test]
    fn nothing_panics_and_no_message_has_a_value(volume in volume(), path in select(vec![
        "/metadata", "/metadata/annotations", "/spec", "/spec/flexVolume", "/spec/flexVolume/options", "/spec/claimRef", "/kind",
    ]), junk in select(vec![json!(null), json!("hunter2"), json!(["hunter2"]), json!({"a": ["hunter2"]}), json!(1.5)])) {
        let mut volume = volume;
        if let Some(place) = volume.pointer_mut(path) {
            *place = junk;
        }
        match to_csi(&volume, To::Flexvold) {
            Ok(Some(Translation { object, warnings })) => {
                let mut all = Vec::new();
                texts(&object["spec"]["csi"], &mut all);
                prop_assert!(all.iter().all(|text| !text.contains("hunter2")));
                prop_assert!(warnings.iter().all(|warning| !warning.to_string().contains("hunter2")));
            }
            Ok(None) => {}
            Err(refusal) => prop_assert!(!refusal.to_string().contains("hunter2"), "{}", refusal),
        }
        let _ = to_flex(&volume);
    }
}
