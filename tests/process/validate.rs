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
