//! `flexvol-kit translate` from outside: its exit status, its JSON, and what it writes.

use flexvol::yaml;
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

const KIT: &str = env!("CARGO_BIN_EXE_flexvol-kit");

/// Files and what becomes of them: see `tests/pure/translate.rs`.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pure/data/translate");

fn run(arguments: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut command = Command::new(KIT);
    command.arg("translate").args(arguments).current_dir(FOLDER);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may have ended without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_file_goes_through_standard_input_and_back() {
    for name in ["shop.yaml", "cluster.yaml", "hostile.yaml", "volume.json", "workloads.yaml"] {
        let (status, there, _) = run(&["-f", name], b"");
        assert_eq!(status, 0, "{name}");
        let (status, back, error) = run(&["-f", "-", "--reverse"], there.as_bytes());
        assert_eq!(status, 0, "{name}: {error}");
        let (status, again, _) = run(&["-f", "-"], back.as_bytes());
        assert_eq!((status, yaml::parse(&again).unwrap()), (0, yaml::parse(&there).unwrap()), "{name}");
    }
}

#[test]
fn warnings_and_refusals_name_their_line() {
    let (status, out, error) = run(&["-f", "cluster.yaml"], b"");
    assert!(status == 0 && out.contains("fx1#disk"), "{out}");
    for id in [
        "cluster.yaml:3: warning: PersistentVolume disk",
        "[retained]",
        "[provisioner-removed]",
        "[read-only-now]",
    ] {
        assert!(error.contains(id), "{id}: {error}");
    }
    let (status, out, error) = run(&["-f", "shop.yaml", "refused.yaml"], b"");
    assert_eq!((status, out.as_str()), (1, ""));
    assert_eq!(error.lines().count(), 12, "{error}");
    assert!(
        error.contains("refused.yaml:6: error: PersistentVolume Bad") && !error.contains("hunter2"),
        "{error}"
    );
    for (arguments, input, expected) in [
        (&["-f", "nowhere.yaml"][..], &b""[..], 1),
        (&["-f", "-"], b"a: [", 1),
        (&["-f", "-"], b"\xff\xfe", 1),
        (&[], b"", 2),
        (&["-f", "shop.yaml", "--to", "x.example.com"], b"", 2),
        (&["-f", "shop.yaml", "--to", "smb.csi.k8s.io", "--reverse"], b"", 2),
    ] {
        let (status, out, error) = run(arguments, input);
        assert_eq!((status, out.as_str()), (expected, ""), "{arguments:?}: {error}");
    }
}

#[test]
fn programs_get_json() {
    let (status, out, error) = run(&["-f", "cluster.yaml", "--json"], b"");
    assert_eq!((status, error.as_str()), (0, ""));
    let all: Value = serde_json::from_str(&out).unwrap();
    let volume = &all["files"][0]["translated"][0];
    assert_eq!(
        (&volume["driver"], &volume["volumeHandle"], &volume["line"]),
        (&"lvm.k8s.flex.flexvol.dev".into(), &"fx1#disk".into(), &3.into())
    );
    assert_eq!(volume["warnings"][2]["warning"], "retained");
    assert!(all["files"][0]["text"].as_str().unwrap().contains("fx1#disk"));
    let (status, out, error) = run(&["-f", "refused.yaml", "--json"], b"");
    assert_eq!((status, error.as_str()), (1, ""));
    let all: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(all["files"][0]["refused"][1]["reason"], "credential-in-option");
    assert!(!all["files"][0]["refused"].to_string().contains("hunter2"));
}

#[test]
fn files_are_written_beside_and_never_over_others() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir(&from).unwrap();
    for name in ["shop.yaml", "volume.json", "workloads.yaml"] {
        fs::copy(format!("{FOLDER}/{name}"), from.join(name)).unwrap();
    }
    let arguments = ["-f", from.to_str().unwrap(), "--output", to.to_str().unwrap()];
    let (status, out, error) = run(&arguments, b"");
    assert_eq!((status, out.as_str()), (0, ""), "{error}");
    let written = |name: &str| fs::read_to_string(to.join(name)).unwrap();
    assert!(written("shop.yaml").contains("fx1#web") && written("volume.json").contains("fx1#j"));
    fs::write(to.join("shop.yaml"), "mine").unwrap();
    let (status, _, error) = run(&arguments, b"");
    assert!(status == 1 && error.contains("shop.yaml"), "{error}");
    assert_eq!(written("shop.yaml"), "mine");
}

#[test]
fn volumes_go_to_the_driver_that_is_named() {
    let (status, there, error) = run(&["-f", "shop.yaml", "volume.json", "--to", "smb.csi.k8s.io"], b"");
    assert!(status == 0 && there.contains("flexmig-web") && there.contains("k8s/nfs"), "{there}");
    assert!(error.contains("shop.yaml:8: warning") && error.contains("[left]"), "{error}");
    let (status, back, error) = run(&["-f", "-", "--reverse"], there.as_bytes());
    assert!(status == 0 && error.is_empty() && back.contains("networkPath"), "{error}");
}
