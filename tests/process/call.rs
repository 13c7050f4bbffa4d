//! `flexvol call`: what is said about a driver's answer, and with which exit status.

use crate::support::pace::{deadline, slow_seconds};
use crate::support::stand_in::{Said, Site};
use crate::support::wording::{wording, wording_of};
use crate::support::{BINARY, eventually, mark, processes_with};
use serde_json::json;
use std::time::Instant;

/// Answers of all kinds, by verb.
const ODD: &str = r#"init) ok ',"capabilities":{"attach":false}';;
mount) fail 'no server';;
unmount) ok;;
attach) printf '{"status":"Success"}'; exit 3;;
detach) echo 'warning: slow' >&2; ok;;
isattached) printf '{"status":"success"}';;
expandfs) printf '{"status":"Failure","message":"%s"}' "$2"; exit 1;;
mountdevice) ok; sleep MARK & exit 0;;
unmountdevice) exec sleep MARK;;"#;

fn call(site: &Site, words: &[&str]) -> Said {
    site.flexvol(&[&["call", "example/odd", "--plugin-dir", "plugins"], words].concat())
}

fn odd() -> Site {
    odd_sleeping(&mark())
}

fn odd_sleeping(mark: &str) -> Site {
    let site = Site::new();
    site.driver("example~odd", &ODD.replace("MARK", mark));
    site
}

#[test]
fn the_exit_status_is_kubelet_s_verdict() {
    let site = odd();
    for (words, status, said) in [
        (&["init"][..], 0, "kubelet   Success"),
        (&["unmount", "/nowhere"], 0, "kubelet   Success"),
        (&["mount", "/nowhere"], 1, "kubelet   mount command failed, status: Failure, reason: no server"),
        (&["attach", "{}", "n"], 1, "kubelet   exit status 3"),
        (&["detach", "v", "n"], 1, "kubelet   invalid character 'w' looking for beginning of value"),
        (&["isattached", "{}", "n"], 1, "status: success, reason:"),
        (&["getvolumename", "{}"], 3, "kubelet   Not supported"),
        (&["frobnicate", "x", "y"], 3, wording("no-such-verb")),
        (&["mount", "/nowhere", "{}", "-o", "a=b"], 2, wording("options-not-taken")),
        (&["mount", "/nowhere", "--nonsense"], 2, "--nonsense"),
    ] {
        let told = call(&site, words);
        assert_eq!(told.status, status, "{words:?}: {told:?}");
        assert!(told.all().contains(said), "{words:?}: {told:?}");
    }
}

#[test]
fn arguments_are_kubelet_s_and_reach_the_driver_unchanged() {
    let site = odd();
    let target = "/k/pods/some-uid/volumes/example~odd/data";
    call(&site, &["mount", target, "-o", "server=ä b", "--ro", "--fs-group", "7"]);
    call(&site, &["anything", "", "-", "a\nb"]);
    let calls = site.calls();
    assert_eq!(
        calls[0],
        [
            "mount",
            target,
            concat!(
                r#"{"kubernetes.io/fsType":"","kubernetes.io/mounterArgs.FsGroup":"7","kubernetes.io/pod.name":"pod","#,
                r#""kubernetes.io/pod.namespace":"default","kubernetes.io/pod.uid":"some-uid","#,
                r#""kubernetes.io/pvOrVolumeName":"data","kubernetes.io/readwrite":"ro","#,
                r#""kubernetes.io/serviceAccount.name":"default","server":"ä b"}"#
            )
        ]
    );
    assert_eq!(calls[1], ["anything", "", "-", "a\nb"]);
}

#[test]
fn what_kubelet_would_log_is_shown_with_what_would_leak() {
    let site = odd();
    let file = site.file("password", "hunter2");
    let secret = format!("password=@{}", file.display());
    let words = ["mount", "/k/pods/1/volumes/example~odd/v", "--secret", secret.as_str()];
    let failed = call(&site, &[&words[..], &["--json"]].concat());
    let said = failed.json();
    assert_eq!(said["log"], json!(["mount command failed, status: Failure, reason: no server"]));
    assert_eq!(
        said["event"],
        "MountVolume.SetUp failed for volume \"v\" : mount command failed, status: Failure, reason: no server"
    );
    assert_eq!(said["leaks"], json!([]), "exit 0 keeps argv out of the log");

    // expandfs repeats its options and exits with 1.
    let options = r#"{"kubernetes.io/secret/password":"aHVudGVyMg=="}"#;
    let words = ["expandfs", options, "/dev/x", "/k/v", "2", "1"];
    let leaky = call(&site, &[&words[..], &["--json"]].concat());
    let said = leaky.json();
    assert!(
        said["leaks"].as_array().unwrap().contains(&json!({"key": "password", "place": "log"})),
        "{said}"
    );
    let log = call(&site, &[&words[..], &["--kubelet-log"]].concat());
    assert!(log.out.lines().last().unwrap().starts_with("FlexVolume: driver call failed: executable: "));
    let text = call(&site, &words);
    assert!(text.out.contains(wording_of("secret-in-log", ["secret    password"])), "{}", text.out);
    assert!(text.out.contains(wording("exit-zero")), "{}", text.out);
    for said in [failed, leaky, log, text] {
        for form in ["hunter2", "aHVudGVyMg"] {
            assert!(!said.all().contains(form), "{said:?}");
        }
    }
}

#[test]
fn who_holds_the_output_is_told_from_who_hangs_and_both_are_ended() {
    let mark = mark();
    let site = odd_sleeping(&mark);
    for (words, held, end) in [
        (&["mountdevice", "/g", "", "{}"][..], true, "exit status 0"),
        (&["unmountdevice", "/g"], false, "signal: 15"),
    ] {
        let start = Instant::now();
        let timeout = slow_seconds(2).to_string();
        let told = call(&site, &[words, &["--timeout", &timeout, "--json"]].concat());
        assert_eq!(told.status, 1, "{told:?}");
        let said = told.json();
        assert_eq!((said["held"].as_bool(), said["end"].as_str()), (Some(held), Some(end)), "{said}");
        assert_eq!(said["closedSeconds"], json!(null));
        assert_eq!(said["exitedSeconds"].is_null(), !held);
        assert!(
            said["findings"][0]["problem"].as_str().unwrap().contains(wording("holds-its-output")),
            "{said}"
        );
        assert!(start.elapsed() < deadline(30), "{:?}", start.elapsed());
    }
    eventually("the group is gone", || processes_with(&mark).is_empty());
}

#[test]
fn not_supported_is_said_to_stick() {
    let told = call(&odd(), &["waitforattach", "/dev/x", "{}"]);
    assert!(told.out.contains(wording("never-called-again")), "{told:?}");
}

#[test]
fn what_cannot_be_executed_is_named_with_the_fix() {
    let site = Site::new();
    let plain = site.file("plain", "#!/bin/sh\n");
    site.script("foreign", "#!/nowhere/sh\n");
    for (driver, fix) in [
        (plain.to_str().unwrap(), "chmod 755"),
        ("./foreign", wording("path-of-file")),
        ("./nothing", wording("path-of-file")),
        (".", "chmod 755"),
    ] {
        let told = site.flexvol(&["call", driver, "init"]);
        assert!(told.status == 1 && told.out.contains(fix), "{driver}: {told:?}");
        assert!(told.out.contains("kubelet   unexpected end of JSON input"), "{told:?}");
    }
    for (driver, fix) in [
        ("example/missing", wording_of("not-installed", ["example/missing"])),
        ("plain", wording_of("path-or-name", ["plain", "plain"])),
        ("tmpfs", wording_of("write-vendor", ["flexvol/tmpfs", "tmpfs"])),
        ("mine", wording("directory-for-name")),
        ("Foo/x", wording("no-such-driver-name")),
        ("a/b/c", wording("no-such-driver-name")),
    ] {
        let told = site.flexvol(&["call", driver, "init", "--plugin-dir", "plugins"]);
        assert!(told.complaint().contains(fix), "{driver}: {told:?}");
    }
}

/// Our own drivers leave nothing to be fixed.
#[test]
fn our_own_drivers_are_faultless() {
    let site = Site::new();
    site.own("example~tmpfs", "{}");
    for (words, status) in [
        (&["init"][..], 0),
        (&["unmount", "/nonexistent/pods/1/volumes/example~tmpfs/v"], 0),
        (&["mount", "/nonexistent/pods/1/volumes/example~tmpfs/v", "-o", "size=all"], 1),
        (&["attach", "{}", "n"], 3),
    ] {
        let line = [&["call", "example~tmpfs", "--plugin-dir", "plugins", "--json"], words].concat();
        let told = site.flexvol(&line);
        let said = told.json();
        assert_eq!(
            (told.status, &said["findings"], &said["leaks"]),
            (status, &json!([]), &json!([])),
            "{said}"
        );
        assert_eq!(said["end"], "exit status 0");
    }
}

#[test]
fn the_longest_patience_is_no_reason_not_to_start() {
    let place = tempfile::tempdir().unwrap();
    let driver = place.path().join("d");
    std::fs::write(&driver, "#!/bin/sh\necho '{\"status\":\"Success\"}'\n").unwrap();
    let call = "chmod 755 \"$2\" && exec \"$1\" call \"$2\" init --timeout 18446744073709551615";
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", call, "sh", BINARY]).arg(&driver).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_kubelet_asked_for_is_recorded_without_secrets_and_made_again() {
    let site = Site::new();
    // Slow enough to be looked at.
    site.driver(
        "example~share",
        "init) ok ',\"capabilities\":{\"attach\":false}';; mount|unmount) sleep 0.2; ok;;",
    );
    let file = site.path("calls.jsonl");
    let mut recorded = std::process::Command::new(BINARY)
        .args(["record", "--plugin-dir"])
        .arg(site.path("plugins"))
        .stdout(std::fs::File::create(&file).unwrap())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let text = || std::fs::read_to_string(&file).unwrap();
    let target = site.path("kubelet/pods/7/volumes/example~share/v");
    let password = site.file("password", "hunter2");
    let secret = format!("password=@{}", password.display());
    let target = target.to_str().unwrap();
    let call = || {
        site.flexvol(&[
            "call",
            "./plugins/example~share/share",
            "mount",
            target,
            "-o",
            "server=nas",
            "--secret",
            &secret,
        ])
    };
    let start = Instant::now();
    while text().is_empty() && start.elapsed() < deadline(60) {
        if recorded.try_wait().unwrap().is_some() {
            return println!(
                "SKIP call::what_kubelet_asked_for_is_recorded_without_secrets_and_made_again: needs CAP_SYS_ADMIN"
            );
        }
        assert_eq!(call().status, 0);
    }
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(recorded.id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    assert!(recorded.wait().unwrap().success());
    let line: serde_json::Value = serde_json::from_str(text().lines().next().unwrap()).unwrap();
    assert_eq!((&line["driver"], &line["arguments"][0]), (&"example~share".into(), &"mount".into()));
    assert!(text().contains("nas") && !text().contains("hunter2") && !text().contains("aHVu"), "{}", text());
    site.calls();
    let said = site
        .flexvol(&["call", "./plugins/example~share/share", "--replay", "calls.jsonl", "--root", "again"])
        .good();
    assert!(said.out.contains("Success"), "{said:?}");
    let calls = site.calls();
    assert_eq!(calls.len(), text().lines().count());
    assert!(calls[0][1].ends_with("again/pods/7/volumes/example~share/v"), "{calls:?}");
    assert!(site.path("again/pods/7/volumes/example~share/v").is_dir());
}

#[test]
fn what_is_no_recording_is_not_replayed() {
    let site = Site::new();
    site.driver("example~share", "mount) ok;;");
    site.file("calls.txt", "hunter2");
    let line = ["call", "./plugins/example~share/share", "--replay", "calls.txt", "--root", "again"];
    let complaint = site.flexvol(&line).complaint().to_owned();
    assert!(
        complaint.contains("line 1 of calls.txt is no call") && !complaint.contains("hunter2"),
        "{complaint}"
    );
    assert_eq!(site.verbs(), [""; 0]);
}
