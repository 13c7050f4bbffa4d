//! `flexvol validate` from outside: its exit status, its JSON, and the side files it goes by.

use crate::support::BINARY;
use crate::support::wording::{wording, wording_of};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The files that break a rule each; see `tests/pure/validate.rs`.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pure/data/validate");

fn run(arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut command = Command::new(BINARY);
    command.arg("validate").args(arguments).current_dir(FOLDER);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may have ended without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_status_tells_errors_warnings_and_failure_apart() {
    for (arguments, expected, said) in [
        (&["-f", "capacity.yaml"][..], 1, "2 errors, 0 warnings in 2 volumes of 1 file\n"),
        (&["-f", "binding.yaml"], 0, "0 errors, 3 warnings in 1 volume of 1 file\n"),
        (&["-f", "binding.yaml", "--strict"], 1, "0 errors, 3 warnings"),
        (&["-f", "capacity.yaml", "access-modes.yaml"], 1, "in 3 volumes of 2 files"),
        (&["--rules"], 0, "unknown-option"),
    ] {
        let (status, out, error) = run(arguments, "");
        assert_eq!((status, error.as_str()), (expected, ""), "{arguments:?}: {out}");
        assert!(out.contains(said), "{arguments:?}: {out}");
    }
    for (arguments, fix) in [
        (&["-f", "nowhere.yaml"][..], wording_of("no-file", ["nowhere.yaml"])),
        (&[], "--filename"),
        (&["-f", "good.yaml", "--settings", "nowhere.json"], wording_of("no-side-file", ["nowhere.json"])),
        (&["-f", "good.yaml", "--settings", "good.yaml"], "good.yaml: expected value"),
        (&["-f", "good.yaml", "--driver-dir", "/nowhere"], "/nowhere"),
        (&["-f", "good.yaml", "--profile", "a/b=c"], "name one of tmpfs, bind"),
        (&["-f", "good.yaml", "--profile", "a/b"], "write VENDOR/DRIVER=NAME"),
    ] {
        let (status, out, error) = run(arguments, "");
        assert!(status == 2 && out.is_empty() && error.contains(fix), "{arguments:?}: {status} {error}");
        let (status, out, error) = run(&[arguments, &["--json"]].concat(), "");
        assert!(status == 2 && error.is_empty() && out.starts_with(r#"{"error":"#), "{arguments:?}: {out}");
    }
}

/// One item of what `kubectl get pv,pvc,pod,secret -A -o yaml` prints, or of the same in JSON.
fn item(object: &serde_json::Value, as_json: bool) -> String {
    if as_json {
        return serde_json::to_string_pretty(object).unwrap().replace('\n', "\n    ");
    }
    // JSON is YAML in flow style; kubectl's is in block style.
    let text = flexvol_terminal::emit::document(object);
    format!("- {}", text.trim_end().replace('\n', "\n  "))
}

/// What a cluster has most of, and what belongs to the volume of this number.
fn objects(index: usize) -> Vec<serde_json::Value> {
    use serde_json::json;
    let managed = json!([{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1":
        {"f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}}}, "f:spec": "x".repeat(3000)}}]);
    let metadata = |name: String| json!({"name": name, "namespace": "shop", "managedFields": managed, "uid": format!("u-{index}")});
    let pod = |name: String, claim: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(name), "spec": {
            "containers": [{"name": "c", "image": "registry.example/shop:1", "env": [{"name": "A", "value": "b".repeat(1000)}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "token", "mountPath": "/t"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "message": "m".repeat(1500)}]}})
    };
    let claim = |name: String, volume: String| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(name), "spec": {
            "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "",
            "volumeName": volume}, "status": {"phase": "Bound"}})
    };
    let volume = |name: String, claim: String, source: serde_json::Value| {
        let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata(name), "spec": {
            "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "shop", "name": claim}}});
        volume["spec"].as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        volume
    };
    let secret = |name: String, kind: &str, size: usize| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(name), "type": kind,
            "data": {"username": "YQ==", "password": "YQ==", "x": "YWJj".repeat(size)}})
    };
    let mut all = vec![
        pod(format!("other-{index}"), &format!("csi-{index}")),
        claim(format!("csi-{index}"), format!("csi-{index}")),
        volume(
            format!("csi-{index}"),
            format!("csi-{index}"),
            json!({"csi": {"driver": "x", "volumeHandle": "h"}}),
        ),
        secret(format!("other-{index}"), "Opaque", 1000),
        pod(format!("stateless-{index}"), "none"),
    ];
    all[4]["spec"]["volumes"].as_array_mut().unwrap().remove(0);
    // Every fifth is of a FlexVolume.
    if index.is_multiple_of(5) {
        let flex = json!({"flexVolume": {"driver": "fstab/cifs", "secretRef": {"name": "login", "namespace": "shop"},
            "options": {"networkPath": format!("//nas/{index}"), "mountOptions": if index == 40 { "nocase,frob" } else { "" }}}});
        all.push(pod(format!("flex-{index}"), &format!("flex-{index}")));
        all.push(claim(format!("flex-{index}"), format!("flex-{index}")));
        all.push(volume(format!("flex-{index}"), format!("flex-{index}"), flex));
    }
    if index == 0 {
        all.push(secret("login".into(), "fstab/cifs", 1));
    }
    all
}

/// `kubectl get pv,pvc,pod,secret -A` of a cluster with hundreds of `FlexVolumes` and many more
/// other objects goes through in 60 MiB of private memory, which the kernel holds it to. With
/// `FLEXVOL_RELEASE` 200 MB, else 20.
#[test]
fn a_whole_cluster_takes_little_memory() {
    let (binary, size) = match crate::support::release() {
        Some(release) => (release, 200_000_000),
        None => (BINARY.into(), 20_000_000),
    };
    for as_json in [false, true] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -d 61440; exec \"$0\" validate -f - --json"]).arg(&binary);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = std::io::BufWriter::new(child.stdin.take().unwrap());
        let (start, between, end) = if as_json {
            let start = "{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n    ";
            (start, ",\n    ", "\n    ],\n    \"kind\": \"List\"\n}\n")
        } else {
            ("apiVersion: v1\nitems:\n", "\n", "\nkind: List\nmetadata:\n  resourceVersion: \"\"\n")
        };
        let (mut written, mut volumes, mut index, mut first) = (0, 0, 0, start);
        while written < size {
            for object in objects(index) {
                let text = item(&object, as_json);
                input.write_all(first.as_bytes()).unwrap();
                input.write_all(text.as_bytes()).unwrap_or_else(|why| panic!("after {written} bytes: {why}"));
                written += text.len() + first.len();
                first = between;
            }
            volumes += usize::from(index.is_multiple_of(5));
            index += 1;
        }
        input.write_all(end.as_bytes()).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|why| panic!("{why} {error} {:?}", output.status));
        assert_eq!((&said["volumes"], output.status.code()), (&volumes.into(), Some(1)), "{error}");
        let found: Vec<_> =
            said["findings"].as_array().unwrap().iter().map(|found| found["rule"].as_str()).collect();
        assert_eq!(found, [Some("plan")], "{}", said["findings"]);
        println!("{written} bytes, {volumes} volumes of {} objects", index * 5);
    }
}

#[test]
fn standard_input_and_json_are_for_programs() {
    let (status, out, error) = run(
        &["-f", "-", "--json", "--plan"],
        "kind: Pod\nmetadata: {name: a}\nspec:\n  volumes:\n  - name: a\n    flexVolume: {driver: e/tmpfs, options: {sise: 1Mi}}\n  - name: b\n    flexVolume: {driver: e/tmpfs}\n",
    );
    assert_eq!((status, error.as_str()), (1, ""), "{out}");
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&said["errors"], &said["warnings"], &said["volumes"]), (&1.into(), &0.into(), &2.into()));
    let finding = &said["findings"][0];
    assert_eq!((&finding["file"], &finding["line"]), (&"standard input".into(), &6.into()));
    assert_eq!((&finding["rule"], &finding["severity"]), (&"unknown-option".into(), &"error".into()));
    assert_eq!(
        (&said["plans"][0]["volume"], &said["plans"][0]["steps"][0]["verb"]),
        (&"b".into(), &"mount".into())
    );
}

/// Side files of a node count, and with them the policy.
#[test]
fn side_files_are_those_of_the_node() {
    let home = tempfile::tempdir().unwrap();
    let driver = home.path().join("node~bind");
    std::fs::create_dir_all(&driver).unwrap();
    std::fs::create_dir_all(home.path().join("scratch~files")).unwrap();
    let side = driver.join(".flexvol.json");
    std::fs::write(&side, r#"{"policy":{"bindRoots":["/srv"]}}"#).unwrap();
    let text = "kind: Pod\nmetadata: {name: a}\nspec:\n  volumes:\n  - name: a\n    flexVolume: {driver: node/bind, options: {source: /srv/a}}\n";
    let directory = home.path().to_str().unwrap();
    let (status, out, _) = run(&["-f", "-", "--driver-dir", directory, "--strict", "--plan"], text);
    assert!(
        status == 0
            && out.contains("bind /srv/a to /var/lib/kubelet/pods/")
            && out.contains("policy: allowed"),
        "{out}"
    );
    let (status, out, _) = run(&["-f", "-", "--driver-dir", directory], &text.replace("/srv/a", "/etc"));
    assert!(status == 1 && out.contains("standard input:6: error: ") && out.contains("[policy]"), "{out}");
    for settings in [side.to_str().unwrap().to_owned(), format!("node/bind={}", side.display())] {
        assert_eq!(run(&["-f", "-", "--settings", &settings, "--strict"], text).0, 0);
    }
    let (status, out, _) = run(&["-f", "-", "--strict"], text);
    assert!(status == 1 && out.contains("warning: ") && out.contains(wording("no-side-file-given")), "{out}");
    let scratch = text.replace("node/bind, options: {source: /srv/a}", "scratch/files");
    let (status, out, _) =
        run(&["-f", "-", "--driver-dir", directory, "--profile", "scratch/files=tmpfs", "--plan"], &scratch);
    assert!(status == 0 && out.contains("by scratch/files (tmpfs)"), "{out}");
    std::fs::write(&side, "{").unwrap();
    let (status, _, error) = run(&["-f", "-", "--driver-dir", directory], text);
    assert!(status == 2 && error.contains(".flexvol.json: "), "{error}");
}
