//! Resource limits of kubelet's, and things in the place of our files, hold up no call and end none
//! without a word.

use crate::support::pace::{deadline, slow_seconds};
use crate::support::{Node, has, isolated, sh, skip};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// What a call under a limit prints, and whether it ended with 0.
fn limited(node: &Node, before: &str, verb: &str, target: &Path) -> (String, bool) {
    let options = if verb == "mount" { json!({}).to_string() } else { String::new() };
    // Where no descriptor is left, the linker of a program that is not static needs one of these.
    let script = format!("exec 0<&-; {before}; exec \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash"]).arg(node.program("tmpfs")).arg(verb);
    if verb != "init" {
        command.arg(target);
    }
    if !options.is_empty() {
        command.arg(options);
    }
    let output = command.output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

#[test]
fn a_low_limit_is_lifted() {
    isolated("limits::a_low_limit_is_lifted", |node| {
        let target = node.volume("tmpfs", "p");
        for limit in ["-f 0", "-n 1", "-n 2", "-n 3", "-n 4", "-s 256"] {
            // The hard one stays what it is: to raise that takes CAP_SYS_RESOURCE.
            let before = format!("ulimit -S {limit}");
            for verb in ["init", "mount", "mount", "unmount", "unmount"] {
                let (said, ended_well) = limited(node, &before, verb, &target);
                let is_fine = said.contains("\"Success\"") && ended_well;
                assert!(is_fine, "{before} {verb}: {ended_well} {said:?}");
            }
            node.assert_clean();
        }
    });
}

/// Without `CAP_SYS_RESOURCE`.
#[test]
fn a_limit_that_stays_is_answered() {
    isolated("limits::a_limit_that_stays_is_answered", |node| {
        if !has("setpriv") {
            return skip("limits::a_limit_that_stays_is_answered", "no setpriv");
        }
        let target = node.volume("tmpfs", "p");
        for limit in ["-f 0", "-n 1", "-n 2", "-n 3", "-n 4", "-n 5", "-n 8"] {
            let before = format!(
                "ulimit {limit}; set -- setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource \"$@\""
            );
            for verb in ["init", "mount", "unmount"] {
                let (said, ended_well) = limited(node, &before, verb, &target);
                let answered = said.contains("\"Success\"") || said.contains("\"Failure\"");
                assert!(answered || !ended_well, "{limit} {verb}: {ended_well} {said:?}");
                if limit == "-f 0" && said.contains("Failure") {
                    assert!(said.contains("File too large"), "{said}");
                }
            }
            node.unmount("tmpfs", &target).success();
            node.assert_clean();
        }
    });
}

#[test]
fn a_fifo_in_place_of_a_record_holds_up_nothing() {
    isolated("limits::a_fifo_in_place_of_a_record_holds_up_nothing", |node| {
        let target = node.volume("tmpfs", "p");
        node.mount("tmpfs", &target, &json!({})).success();
        sh(
            "cd /run/flexvol/volumes && for f in *; do rm \"$f\" && mkfifo \"$f\"; done; mkfifo /run/flexvol/volumes/other",
        );
        let start = Instant::now();
        node.mount("tmpfs", &target, &json!({})).success();
        node.unmount("tmpfs", &target).success();
        node.mount("tmpfs", &target, &json!({})).success();
        sh(&format!("timeout {} {} status >/dev/null", slow_seconds(40), env!("CARGO_BIN_EXE_flexvol")));
        node.unmount("tmpfs", &target).success();
        assert!(start.elapsed() < deadline(60), "{:?}", start.elapsed());
        sh("rm /run/flexvol/volumes/other");
        node.assert_clean();
    });
}
