//! `flexvol manifest helm`: what Helm makes of the chart is what `manifest daemonset` prints. Needs
//! `helm`, in `$PATH` or named by `FLEXVOL_HELM`.

use crate::support::BINARY;
use flexvol::kubelet::platform::{self, Platform};
use flexvol::yaml;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[test]
fn no_mark_is_left() {
    let home = tempfile::tempdir().unwrap();
    let chart = home.path().join("chart");
    made("helm", platform::find("openshift").unwrap(), &["--output", chart.to_str().unwrap()], home.path());
    let template = std::fs::read_to_string(chart.join("templates/flexvol.yaml")).unwrap();
    assert!(!template.contains("flexvol-helm"), "{template}");
    assert!(!template.contains("Namespace\"") && template.contains("SecurityContextConstraints"));
    let values = std::fs::read_to_string(chart.join("values.yaml")).unwrap();
    for line in
        ["image: \"registry.example/flexvol:1\"", "- \"size=64Mi\"", "maxSize: \"1Gi\"", "takeOver: true"]
    {
        assert!(values.contains(line), "{line}: {values}");
    }
}

/// The program, unless there is none.
fn helm(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("FLEXVOL_HELM").map(PathBuf::from);
    let found = || {
        std::env::split_paths(&std::env::var_os("PATH")?).map(|it| it.join("helm")).find(|it| it.is_file())
    };
    let helm = named.or_else(found);
    if helm.is_none() {
        println!("SKIP helm::{test}: there is no helm");
    }
    helm
}

fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {said} {}", String::from_utf8_lossy(&stdout));
    String::from_utf8(stdout).unwrap()
}

/// What both kinds are asked for.
const REQUEST: &[&str] = &[
    "example/tmpfs",
    "example/scratch=tmpfs",
    "--image",
    "registry.example/flexvol:1",
    "--set",
    "size=64Mi",
    "--take-over",
];

fn made(kind: &str, platform: &Platform, more: &[&str], home: &Path) -> String {
    let policy = home.join("policy.json");
    std::fs::write(&policy, "{\"maxSize\":\"1Gi\"}\n").unwrap();
    let mut command = Command::new(BINARY);
    command.args(["manifest", kind]).args(REQUEST).args(["--platform", platform.name]).args(more);
    succeeds(command.arg("--policy").arg(policy))
}

/// A policy's object is named by its content, which each writes in its own way.
fn comparable(text: &str) -> Vec<Value> {
    let mut objects = yaml::parse(text).unwrap();
    objects.retain(|object| !object.is_null() && object["kind"] != "Namespace");
    let is_map = |object: &&Value| object["kind"] == "ConfigMap";
    let map = objects.iter().find(is_map).unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    let mut all: Vec<Value> = objects
        .iter()
        .map(|object| serde_json::from_str(&object.to_string().replace(&map, "the-policy")).unwrap())
        .collect();
    for object in &mut all {
        if let Some(policy) = object.pointer_mut("/data/policy.json") {
            *policy = serde_json::from_str(policy.as_str().unwrap()).unwrap();
        }
    }
    all.sort_by_key(|object| object["kind"].to_string());
    all
}

#[test]
fn makes_what_the_manifest_has() {
    let Some(helm) = helm("makes_what_the_manifest_has") else { return };
    for platform in platform::all().iter().filter(|platform| platform.directory().is_some()) {
        for more in [&[][..], &["--uninstall-on-exit"]] {
            let home = tempfile::tempdir().unwrap();
            let chart = home.path().join("chart");
            made("helm", platform, &[more, &["--output", chart.to_str().unwrap()]].concat(), home.path());
            succeeds(Command::new(&helm).args(["lint", "--strict"]).arg(&chart));
            let template = ["template", "drivers", chart.to_str().unwrap(), "--namespace", "storage"];
            let by_helm = succeeds(Command::new(&helm).args(template));
            let names = ["--name", "drivers", "--namespace", "storage"];
            let by_manifest = made("daemonset", platform, &[more, &names].concat(), home.path());
            assert_eq!(comparable(&by_helm), comparable(&by_manifest), "{}", platform.name);
        }
    }
}

#[test]
fn values_fill_it_and_slips_are_refused() {
    let Some(helm) = helm("values_fill_it_and_slips_are_refused") else { return };
    let home = tempfile::tempdir().unwrap();
    let chart = home.path().join("chart");
    made("helm", platform::find("default").unwrap(), &["--output", chart.to_str().unwrap()], home.path());
    let template = |values: &Value| {
        let file = home.path().join("values.json");
        std::fs::write(&file, values.to_string()).unwrap();
        let mut command = Command::new(&helm);
        command.args(["template", "drivers"]).arg(&chart).arg("--values").arg(file).output().unwrap()
    };
    let odd = json!({"drivers": ["a/b=tmpfs"], "set": [], "takeOver": false, "pluginDir": "/a \"b\"", "policy": {"a": "}}\n"}});
    let Output { status, stdout, stderr } = template(&odd);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let objects = yaml::parse(&String::from_utf8(stdout).unwrap()).unwrap();
    let set = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
    let args = set.pointer("/spec/template/spec/containers/0/args").unwrap().as_array().unwrap();
    assert_eq!(args[0], "--plugin-dir=/a \"b\"");
    assert_eq!(args[args.len() - 2..], [json!("--"), json!("a/b=tmpfs")]);
    assert!(!args.iter().any(|word| word.as_str().unwrap().starts_with("--set") || word == "--take-over"));
    for slip in
        [json!({"driver": []}), json!({"drivers": []}), json!({"takeOver": "yes"}), json!({"pluginDir": "a"})]
    {
        assert!(!template(&slip).status.success(), "{slip}");
    }
}
