//! What the command line prints: manifests, and a try.

use super::node::{Driver, STRICT, flexvol, flexvold};
use flexvol_kit::yaml;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::process::Command;

/// As the API's type and back: a field that the API does not know would be lost.
fn is_known<T: DeserializeOwned + Serialize>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    assert_eq!(serde_json::to_value(typed).unwrap(), *object);
}

fn manifest(extra: &[&str]) -> Vec<Value> {
    let said = Command::new(flexvold())
        .args(["manifest", "csi", "--image", "r.example/f:1"])
        .args(extra)
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    printed(&said.stdout)
}

/// The objects of a manifest, which are of Kubernetes' own types; a real API server is asked about
/// policies and definitions, in tests/controllers.
fn printed(manifest: &[u8]) -> Vec<Value> {
    let objects = yaml::parse(std::str::from_utf8(manifest).unwrap()).unwrap();
    for object in &objects {
        match object["kind"].as_str().unwrap() {
            "Namespace" => is_known::<Namespace>(object),
            "ServiceAccount" => is_known::<ServiceAccount>(object),
            "CSIDriver" => is_known::<CSIDriver>(object),
            "DaemonSet" => is_known::<DaemonSet>(object),
            "Deployment" => is_known::<Deployment>(object),
            "ClusterRole" => is_known::<ClusterRole>(object),
            "ClusterRoleBinding" => is_known::<ClusterRoleBinding>(object),
            "Role" => is_known::<Role>(object),
            "RoleBinding" => is_known::<RoleBinding>(object),
            "StorageClass" => is_known::<StorageClass>(object),
            "CustomResourceDefinition" | "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => {
            }
            other => panic!("{other}"),
        }
    }
    objects
}

/// As `flexvol manifest` does.
#[test]
fn an_image_without_a_registry_is_warned_of() {
    for (image, is_warned_of) in [("f:1", true), ("r.example/f:1", false)] {
        for kind in [&["csi", "flexvol/tmpfs"][..], &["agent"], &["mounter", "--plugin", "flexvol/sshfs"]] {
            let said = Command::new(flexvold())
                .arg("manifest")
                .args(kind)
                .args(["--image", image])
                .output()
                .unwrap();
            assert!(said.status.success(), "{said:?}");
            let warned = String::from_utf8_lossy(&said.stderr);
            assert_eq!(warned.contains("--image REGISTRY/"), is_warned_of, "{kind:?} {image}: {warned}");
        }
    }
}

#[test]
fn manifests_are_kubernetes_own_types() {
    assert_eq!(manifest(&["flexvol/tmpfs", "flexvol/nfs"]).len(), 5 + 2 * 7);
    assert_eq!(manifest(&["--sidecars", "upstream", "flexvol/tmpfs", "flexvol/nfs"]).len(), 5);
    let all = manifest(&[
        "--provisioner-image",
        "p",
        "--sidecars",
        "upstream",
        "--attacher-image",
        "a",
        "flexvol/tmpfs",
    ]);
    assert!(all.iter().any(|object| object["kind"] == "StorageClass"));
    let grows = ["--sidecars", "upstream", "--resizer-image", "r", "flexvol/tmpfs", "flexvol/image"];
    assert_eq!(manifest(&grows).len(), 5 + 4);
}

#[test]
fn the_agents_manifest_is_kubernetes_own_types() {
    let said =
        Command::new(flexvold()).args(["manifest", "agent", "--image", "r.example/f:1"]).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    // The agent and the controller.
    assert_eq!(printed(&said.stdout).len(), 11 + 6);
}

/// Whose `init` is asked.
#[test]
fn the_driver_says_whether_it_attaches() {
    let body = STRICT.replace("\"attach\":false", "\"attach\":true");
    let Some(node) = super::node::Node::new("says_whether", "example.com/disk", &Driver::Script(&body))
    else {
        return;
    };
    let plugins = node.home.path().join("plugins").display().to_string();
    let objects = manifest(&["--plugin-dir", &plugins, "example.com/disk"]);
    let driver = objects.iter().find(|object| object["kind"] == "CSIDriver").unwrap();
    assert_eq!(driver["spec"]["attachRequired"], true);
    assert!(objects.iter().any(|object| object["kind"] == "Deployment"));
}

#[test]
fn a_try_leaves_nothing_behind() {
    let (Some(program), true) = (flexvol(), nix::unistd::getuid().is_root()) else {
        return super::skip("a_try", "needs flexvol, and root for mounts");
    };
    let said = Command::new(flexvold()).args(["try", "--flexvol"]).arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success() && text.contains("0 failures"), "{text}\n{said:?}");
    for step in
        ["GetPluginInfo", "NodePublishVolume, again", "NodeGetVolumeStats", "NodeUnpublishVolume, again"]
    {
        assert!(text.lines().any(|line| line.contains(step) && line.contains("ok")), "{step}: {text}");
    }
}

/// Two nodes and their agents: within five seconds, on a machine that is not busy.
#[test]
fn a_try_of_fencing() {
    let (Some(program), true) = (flexvol(), nix::unistd::getuid().is_root()) else {
        return super::skip("a_try_of_fencing", "needs flexvol, and root for mounts");
    };
    let mut command = Command::new(flexvold());
    let said = command.args(["try", "fencing", "--flexvol"]).arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success() && text.contains("0 failures"), "{text}\n{said:?}");
    let refusals = text.lines().filter(|line| line.contains("node b") && line.contains("on node a")).count();
    assert_eq!(refusals, 2, "{text}");
}
