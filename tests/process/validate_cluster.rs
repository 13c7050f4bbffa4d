//! `kubectl flexvol validate`: a stand-in for kubectl prints what a cluster has.

use crate::support::wording::wording;
use crate::support::{BINARY, write_executable};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says what it was asked for, and answers from files beside it.
const KUBECTL: &str = r#"#!/bin/sh
here=${0%/*}
echo "$*" >>"$here/asked"
case "$*" in
*can-i*) [ -f "$here/secrets" ] && cat "$here/yes" ;;
*"get secret"*) cat "$here/secrets" ;;
*"get pod"*) cat "$here/objects" && exit "$(cat "$here/status")" ;;
esac
"#;

/// A directory with kubectl and its plugin.
struct Admin {
    home: tempfile::TempDir,
}

impl Admin {
    fn new(objects: &Value, secrets: Option<&Value>) -> Self {
        let admin = Self { home: tempfile::tempdir().unwrap() };
        write_executable(&admin.at("kubectl"), KUBECTL);
        std::os::unix::fs::symlink(BINARY, admin.at("kubectl-flexvol")).unwrap();
        std::fs::write(admin.at("objects"), objects.to_string()).unwrap();
        std::fs::write(admin.at("status"), "0").unwrap();
        // More than a pipe holds, so that it fails if nobody reads it.
        std::fs::write(admin.at("yes"), "yes\n".repeat(20_000)).unwrap();
        if let Some(secrets) = secrets {
            std::fs::write(admin.at("secrets"), secrets.to_string()).unwrap();
        }
        admin
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> (i32, String, String) {
        let path = format!(".:{}:{}", self.home.path().display(), self.tools().display());
        let output =
            Command::new(program).arg("validate").args(arguments).env("PATH", path).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// What the stand-in needs, and no kubectl of this machine.
    fn tools(&self) -> PathBuf {
        let tools = self.at("tools");
        if !tools.exists() {
            std::fs::create_dir(&tools).unwrap();
            std::os::unix::fs::symlink("/bin/cat", tools.join("cat")).unwrap();
        }
        tools
    }

    /// As kubectl starts its plugin.
    fn plugin(&self, arguments: &[&str]) -> (i32, String, String) {
        self.run(&self.at("kubectl-flexvol"), arguments)
    }

    fn asked(&self) -> String {
        std::fs::read_to_string(self.at("asked")).unwrap()
    }
}

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": "shop"})
}

fn volume(name: &str, driver: &str, options: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "shop", "name": name},
        "flexVolume": {"driver": driver, "options": options,
            "secretRef": {"name": "login", "namespace": "shop"}}}})
}

fn claim(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(name), "spec": {
        "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "", "volumeName": name}})
}

fn pod(name: &str, claim: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(name), "spec": {
        "containers": [{"name": "c", "image": "c"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}})
}

fn login(kind: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("login"), "type": kind,
        "data": {"username": "YQ==", "password": "c2VzYW1l"}})
}

/// Two volumes, one of them with an option that the driver refuses.
fn shop() -> Value {
    let share =
        |name, words| volume(name, "fstab/cifs", &json!({"networkPath": "//nas/x", "mountOptions": words}));
    list(&[
        pod("web", "web"),
        pod("lost", "lost"),
        claim("web"),
        share("web", "nocase,frob"),
        share("old", ""),
    ])
}

#[test]
fn findings_name_the_objects_of_the_cluster() {
    let admin = Admin::new(&shop(), Some(&list(&[login("fstab/cifs")])));
    let (status, out, error) = admin.plugin(&[]);
    assert_eq!((status, error.as_str()), (1, ""), "{out}");
    let refused = out.lines().find(|line| line.starts_with("PersistentVolume web: error: ")).unwrap();
    assert!(refused.contains("frob") && refused.ends_with("[plan]"), "{out}");
    let lost = "Pod shop/lost: warning: PersistentVolumeClaim shop/lost is ";
    assert!(out.contains(lost) && out.contains("[claim-missing]"), "{out}");
    assert_eq!(out.lines().last(), Some("1 error, 1 warning in 2 volumes of the cluster"));
    assert!(!out.contains("sesame") && !out.contains(":0:"), "{out}");
    let asked: Vec<_> = admin.asked().lines().map(str::to_owned).collect();
    assert_eq!(asked.len(), 3);
    assert!(asked[2].contains("type!=helm.sh/release.v1"), "{asked:?}");
    let (_, out, _) = admin.plugin(&["--plan"]);
    assert!(
        out.contains("\nPersistentVolume old: mount of volume old by fstab/cifs, for pod shop/old\n"),
        "{out}"
    );
}

#[test]
fn the_context_is_handed_on_and_json_names_objects() {
    let admin = Admin::new(&shop(), Some(&list(&[login("Opaque")])));
    let words = ["--context", "prod", "--kubeconfig", "/k", "--json"];
    let (status, out, error) = admin.run(Path::new(BINARY), &words);
    assert_eq!((status, error.as_str()), (1, ""), "{out}");
    assert!(admin.asked().lines().all(|line| line.starts_with("--context=prod --kubeconfig /k ")));
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(said["secretsRead"], json!(true));
    let of_secret =
        said["findings"].as_array().unwrap().iter().find(|it| it["rule"] == "secret-type").unwrap();
    assert_eq!((&of_secret["file"], &of_secret["line"]), (&json!("Secret shop/login"), &json!(0)));
}

#[test]
fn secrets_that_may_not_be_read_are_not_missing() {
    let admin = Admin::new(&shop(), None);
    let (status, out, _) = admin.plugin(&[]);
    assert!(status == 1 && !out.contains("secret-missing"), "{out}");
    assert!(out.trim_end().ends_with(wording("secrets-unread")), "{out}");
    assert!(!admin.asked().contains("get secret"), "{}", admin.asked());
    let admin = Admin::new(&shop(), Some(&list(&[])));
    let (_, out, _) = admin.plugin(&[]);
    assert_eq!(out.matches("[secret-missing]").count(), 2, "{out}");
    assert!(out.contains(&format!("Secret shop/login {}", wording("not-in-cluster"))), "{out}");
}

#[test]
fn a_cluster_without_any_is_in_order() {
    let admin = Admin::new(&list(&[]), Some(&list(&[])));
    let (status, out, _) = admin.plugin(&["--strict"]);
    assert_eq!((status, out.as_str()), (0, "0 errors, 0 warnings in 0 volumes of the cluster\n"));
}

#[test]
fn what_kubectl_cannot_do_is_no_finding() {
    let admin = Admin::new(&shop(), None);
    std::fs::write(admin.at("status"), "7").unwrap();
    let (status, out, error) = admin.plugin(&[]);
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(error.contains("exit status: 7"), "{error}");
    std::fs::write(admin.at("objects"), r#"{"kind": "List", "items": [{"#).unwrap();
    let (status, out, error) = admin.plugin(&["--json"]);
    assert_eq!((status, error.as_str()), (2, ""));
    assert!(out.starts_with(r#"{"error":"#) && out.contains(wording("ends-in-the-middle")), "{out}");
    std::fs::remove_file(admin.at("kubectl")).unwrap();
    let (status, _, error) = admin.plugin(&[]);
    assert!(status == 2 && error.contains(wording("no-kubectl")), "{error}");
}

/// Of one in the working directory nobody knows who put it there.
#[test]
fn kubectl_is_not_taken_from_a_relative_path() {
    let admin = Admin::new(&shop(), None);
    let output = Command::new(BINARY)
        .args(["validate", "--cluster"])
        .env("PATH", ".::/nowhere")
        .current_dir(admin.home.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!admin.at("asked").exists());
}

/// What would be refused, what would be otherwise, and what nobody here knows.
#[test]
fn a_take_over_is_told_driver_by_driver() {
    let share = |name, words: &str| {
        volume(name, "fstab/cifs", &json!({"networkPath": "//nas/x", "mountOptions": words, "colour": "red"}))
    };
    let foreign = volume("other", "acme/disk", &json!({"a": "b"}));
    let own = volume("scratch", "acme/tmpfs", &json!({"sise": "1Mi"}));
    let items =
        [share("a", "nocase,frob"), share("b", "nocase,credentials=/etc/x"), share("c", ""), foreign, own];
    let admin = Admin::new(&list(&items), Some(&list(&[login("fstab/cifs")])));
    let (status, out, error) = admin.plugin(&["--take-over", "--json"]);
    assert_eq!((status, error.as_str()), (1, ""), "{out}");
    let said: Value = serde_json::from_str(&out).unwrap();
    let of = |driver: &str| said.as_array().unwrap().iter().find(|it| it["driver"] == driver).unwrap();
    let cifs = of("fstab/cifs");
    assert_eq!((&cifs["ours"], &cifs["profile"]), (&json!("cifs"), &json!("fstab/cifs")));
    // That nobody knows an option is no change.
    assert_eq!((&cifs["volumes"], &cifs["unchanged"]), (&json!(3), &json!(1)), "{cifs:#}");
    let changes: Vec<_> = cifs["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["what"].as_str().unwrap(), &it["volumes"][0]))
        .collect();
    assert_eq!(
        changes,
        [("refused", &json!("PersistentVolume a")), ("otherwise", &json!("PersistentVolume b"))],
        "{cifs:#}"
    );
    assert!(!cifs["always"].as_array().unwrap().is_empty());
    assert_eq!((&of("acme/disk")["ours"], &of("acme/disk")["unchanged"]), (&Value::Null, &json!(1)));
    assert_eq!(of("acme/tmpfs")["changes"][0]["what"], "refused");
    let (status, out, _) = admin.plugin(&["--take-over"]);
    assert_eq!(status, 1);
    for line in [
        "fstab/cifs: 3 volumes, taken over by cifs: 1 as before\n",
        "refused   mountOptions: \"frob\" ",
        "          PersistentVolume a\n",
        "for all   ",
        "acme/disk: 1 volume, ",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() < 80), "{out}");
}

#[test]
fn a_take_over_that_changes_nothing_succeeds() {
    let share = volume("a", "fstab/cifs", &json!({"networkPath": "//nas/x"}));
    let admin = Admin::new(&list(&[share]), None);
    let (status, out, _) = admin.plugin(&["--take-over"]);
    assert!(status == 0 && out.contains("next      flexvol install fstab/cifs --take-over\n"), "{out}");
}
