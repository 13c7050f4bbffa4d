//! The report names the faults of popular drivers: `flexvol check` on shell drivers that have them.

use crate::support::pace::slow_seconds;
use crate::support::wording::wording;
use crate::support::{BINARY, skip, write_executable};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// A driver, its volume, and what must be said of it.
struct Peer {
    name: &'static str,
    /// Its text, and that of the program it mounts with.
    script: &'static str,
    options: &'static str,
    /// A case that fails, and words of the evidence: in what was seen, what came back, or what
    /// kubelet does.
    faults: Vec<(&'static str, &'static str)>,
}

const HELPER: &str = include_str!("peers/mount.share");

fn peers() -> [Peer; 5] {
    [
        Peer {
            name: "fails-again",
            script: include_str!("peers/fails-again.sh"),
            options: r#"{"networkPath":"//server/share","mountOptions":"vers=3.0","kubernetes.io/secret/username":"dXNlcg==","kubernetes.io/secret/password":"cGFzc3dvcmQtb2YtYS10ZXN0"}"#,
            faults: vec![
                ("mount::twice", "is already a mount point"),
                ("unmount::not_mounted", "is not a mount point"),
                ("unmount::no_directory", "is not a mount point"),
                ("output::failure_exits_zero", "exit status 1"),
                ("verbs::unknown", "usage: "),
                ("options::read_only", wording("check-ro-written")),
            ],
        },
        Peer {
            name: "swallows",
            script: include_str!("peers/swallows.sh"),
            options: r#"{"server":"server","share":"/share","opts":"vers=3.0","kubernetes.io/secret/username":"dXNlcg==","kubernetes.io/secret/password":"cGFzc3dvcmQtb2YtYS10ZXN0"}"#,
            faults: vec![
                ("mount::tools_that_fail", wording("check-nothing-mounted")),
                ("mount::makes_directory", wording("check-nothing-mounted")),
                ("unmount::busy", wording("check-still-mounted")),
            ],
        },
        Peer {
            name: "says-two-things",
            script: include_str!("peers/says-two-things.sh"),
            options: r#"{"host":"server","folder":"share"}"#,
            faults: vec![
                ("mount::twice", wording("check-no-answer")),
                ("output::one_object", wording("check-two-objects")),
                ("output::failure_exits_zero", "exit status 1"),
            ],
        },
        Peer {
            name: "removes-all",
            script: include_str!("peers/removes-all.sh"),
            options: r#"{"source":"//server/share","mountoptions":"vers=3.0","kubernetes.io/secret/username":"dXNlcg==","kubernetes.io/secret/password":"cGFzc3dvcmQtb2YtYS10ZXN0"}"#,
            faults: vec![
                ("unmount::keeps_data", wording("check-data-gone")),
                ("unmount::mounts_inside", "was deleted"),
                ("mount::leftover_files", wording("check-files-gone")),
                ("verbs::unknown", "Invalid usage"),
                ("output::failure_exits_zero", "exit status 1"),
            ],
        },
        Peer {
            name: "forgets-capabilities",
            script: include_str!("peers/forgets-capabilities.sh"),
            options: r#"{"source":"//server/share"}"#,
            faults: vec![
                ("init::capabilities", "are null"),
                ("init::attach_is_said", wording("check-attach-unsaid")),
                ("attach::works", "Usage: "),
                ("output::one_object", wording("check-no-object")),
            ],
        },
    ]
}

/// What the command says of it.
fn report(peer: &Peer) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let helper = directory.path().join("mount.share");
    fs::write(&helper, HELPER).unwrap();
    let own = directory.path().join(format!("example~{}", peer.name));
    let driver = own.join(peer.name);
    write_executable(&driver, &peer.script.replace("@SHARE@", helper.to_str().unwrap()));
    let output = Command::new(BINARY)
        .args([
            "check",
            "--json",
            "--repeat",
            "1",
            "--timeout",
            &slow_seconds(5).to_string(),
            "--seed",
            "1",
            "--options",
            peer.options,
        ])
        .arg(&driver)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}: {}", peer.name, String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_report_names_each_fault() {
    if !rustix::process::geteuid().is_root() {
        return skip("check_peers::the_report_names_each_fault", "needs root for mounts");
    }
    let mut missing = Vec::new();
    for peer in &peers() {
        let report = report(peer);
        let cases = report["cases"].as_array().unwrap();
        for (id, words) in &peer.faults {
            let case = cases.iter().find(|case| case["id"] == *id).unwrap();
            let evidence = case["evidence"].to_string();
            if case["result"] != "failed" || !evidence.contains(words) {
                missing.push(format!("{} {id}: {} {evidence}", peer.name, case["result"]));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
