//! The drivers' log as real calls write it.

use crate::support::wording::wording;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::namespace::enter;
use crate::support::scripts::{MOUNT, Node};
use crate::support::stand_in::Site;
use crate::support::{BINARY, Plugin, eventually};
use std::process::Command;

const LOG: &str = "/run/flexvol/log/drivers.jsonl";

/// The log, once it has so many lines: the last of them is written after the reply.
fn lines(count: usize) -> Vec<Value> {
    eventually("the line", || fs::read_to_string(LOG).is_ok_and(|text| text.lines().count() >= count));
    let text = fs::read_to_string(LOG).unwrap();
    let lines: Vec<_> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), count, "{text}");
    lines
}

#[test]
fn every_call_that_was_carried_out_is_one_line() {
    let unmount = "umount \"$1\"";
    let Some(node) =
        Node::new("driver_log::every_call_that_was_carried_out_is_one_line", MOUNT, Some(unmount))
    else {
        return;
    };
    let running = node.start(r#"{"kubernetes.io/secret/password":"aHVudGVyMi1odW50ZXIy"}"#);
    let pid = running.pid();
    running.finish().success();
    node.unmount().finish().success();
    let lines = lines(2);
    let target = node.target.to_str().unwrap();
    for (line, verb) in lines.iter().zip(["mount", "unmount"]) {
        assert_eq!(line["driver"], "example~share");
        assert_eq!((&line["verb"], &line["target"]), (&verb.into(), &target.into()));
        assert_eq!((&line["outcome"], &line["message"]), (&"Success".into(), &Value::Null));
    }
    assert_eq!(lines[0]["pid"], pid);
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(LOG), mode("/run/flexvol/log"), mode("/run/flexvol")), (0o600, 0o700, 0o700));
    assert!(!fs::read_to_string(LOG).unwrap().contains("hunter2"));
}

#[test]
fn a_failure_is_logged_without_the_secret_that_its_command_printed() {
    let name = "driver_log::a_failure_is_logged_without_the_secret_that_its_command_printed";
    let Some(node) = Node::new(name, "echo no access with \"$3\" >&2; exit 1", None) else { return };
    let run = node.start(r#"{"kubernetes.io/secret/password":"aHVudGVyMi1odW50ZXIy"}"#).finish();
    let message = run.failure();
    let line = &lines(1)[0];
    assert_eq!((&line["outcome"], &line["message"]), (&"Failure".into(), &message.clone().into()));
    assert!(message.contains("no access") && !message.contains("hunter2"), "{message}");
}

#[test]
fn init_and_calls_that_mean_nothing_are_not_logged() {
    if !enter("driver_log::init_and_calls_that_mean_nothing_are_not_logged") {
        return;
    }
    let plugin = Plugin::new("example~tmpfs", "tmpfs", None);
    let calls: [&[&str]; 6] =
        [&["init"], &["attach", "{}", "n"], &["fly"], &["mount", "/x"], &["mount", "/x", "{"], &[]];
    for call in calls {
        plugin.call(call).run().reply();
    }
    assert!(!Path::new("/run/flexvol").exists());
}

#[test]
fn a_log_that_cannot_be_written_spoils_no_reply() {
    let name = "driver_log::a_log_that_cannot_be_written_spoils_no_reply";
    let Some(node) = Node::new(name, MOUNT, Some("umount \"$1\"")) else { return };
    for obstacle in ["log", "log/drivers.jsonl/x"] {
        let path = Path::new("/run/flexvol").join(obstacle);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match obstacle {
            "log" => fs::write(&path, "").unwrap(),
            _ => fs::create_dir(&path).unwrap(),
        }
        node.start("{}").finish().success();
        node.unmount().finish().success();
        node.is_clean();
        let _ = fs::remove_file(path);
    }
}

#[test]
fn the_log_is_shown_by_pod_volume_driver_and_id() {
    let fails = "if test -e \"$2/broken\"; then echo mount error\\(13\\): denied >&2; exit 32; fi; mount -t tmpfs -o size=1M share \"$1\"";
    let Some(node) =
        Node::new("driver_log::the_log_is_shown_by_pod_volume_driver_and_id", fails, Some("umount \"$1\""))
    else {
        return;
    };
    let site = Site::new();
    let shown = |words: &[&str]| site.flexvol(&[&["logs"], words].concat()).good().out;
    assert!(shown(&[]).starts_with(wording("no-such-call-logged")));
    fs::write(node.file("broken"), "").unwrap();
    let options = r#"{"kubernetes.io/pod.name":"web","kubernetes.io/pod.namespace":"shop","kubernetes.io/pvOrVolumeName":"pv1"}"#;
    node.start(options).finish().failure();
    fs::remove_file(node.file("broken")).unwrap();
    node.start(options).finish().success();
    node.unmount().finish().success();
    let id = lines(3)[0]["id"].as_str().unwrap().to_owned();
    let text = shown(&["--failed"]);
    assert!(text.contains("FAIL   mount") && text.contains("shop/web pv1"), "{text}");
    assert!(text.contains(wording("server-refuses-user")), "{text}");
    for (words, count) in [
        (&[][..], 3),
        (&["--pod", "shop/web"], 3),
        (&["--pod", "shop/other"], 0),
        (&["--volume", "pv1"], 2),
        (&["--driver", "example/share"], 3),
        (&["--driver", "nfs"], 0),
        (&["--id", &id], 3),
        (&["--failed"], 1),
        (&["--last", "2"], 2),
    ] {
        let out = shown(&[words, &["--json"]].concat());
        assert_eq!(out.lines().count(), count, "{words:?}: {out}");
        assert!(out.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    }
    node.is_clean();
}

#[test]
fn new_calls_are_followed() {
    let Some(node) = Node::new("driver_log::new_calls_are_followed", MOUNT, Some("umount \"$1\"")) else {
        return;
    };
    node.start("{}").finish().success();
    let log = node.file("followed");
    let mut followed = Command::new(BINARY)
        .args(["logs", "--follow", "--json"])
        .stdout(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let count = |n: usize| fs::read_to_string(&log).unwrap().lines().count() == n;
    eventually("what was there", || count(1));
    node.unmount().finish().success();
    eventually("what is new", || count(2));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(followed.id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    assert_eq!(followed.wait().unwrap().code(), Some(0));
}
