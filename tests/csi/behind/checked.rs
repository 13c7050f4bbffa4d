//! The conformance kit over the whole loop: kubelet → driver `csi` → agent → `flexvold csi` →
//! driver `tmpfs`. What does not hold stands in docs/drivers/csi.md, with the reason.
//!
//! The kit plays each case in a sandbox, with an empty /run and processes of its own: so a script
//! in the driver's place starts there what a node has beside the driver, where it does not run.

use crate::killed::is_full;
use crate::node::{flexvol, flexvold};
use crate::skip;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// In each sandbox: what is in a directory of this name is no file that a driver leaves.
const HOME: &str = "/var/log/loop";

/// Started under the name of a service of the node: the kit looks for processes of drivers.
const NODE: &str = r#"#!/bin/bash
umask 022
runs() { [ -s HOME/$1.pid ] && kill -0 "$(cat HOME/$1.pid)" 2>/dev/null; }
runs agent && runs server && [ -S HOME/run/agent.sock ] && exit
mkdir -p HOME/kubelet/plugins_registry HOME/run
exec 9>HOME/lock
flock 9
begin() {
    runs "$1" && return
    setsid bash -c 'exec -a rpcbind "$@"' service FLEXVOLD "${@:2}" >HOME/$1 2>&1 9>&- </dev/null &
    echo $! >HOME/$1.pid
}
runs server || rm -f HOME/csi.sock
begin server csi --driver flexvol/tmpfs --node-id node-1 --plugin-dir PLUGINS --state HOME/state \
    --kubelet-root HOME/kubelet --endpoint unix://HOME/csi.sock --register
begin agent agent --node node-1 --store file:HOME/locks --state HOME/agent-state \
    --socket HOME/run/agent.sock --kubelet-root HOME/kubelet
for try in {1..500}; do
    [ -S HOME/run/agent.sock ] && [ -S HOME/csi.sock ] && compgen -G 'HOME/kubelet/plugins_registry/*sock' && exit
    sleep 0.02
done >/dev/null
"#;

const DRIVER: &str = r#"#!/bin/sh
[ "$1" = init ] || NODE >/dev/null 2>&1 </dev/null
exec OUTER "$@"
"#;

/// All but what is about the executable itself, which is no script on a node. Those of the first
/// line are played each time, the others with `FULL=1`.
const QUICK: [&str; 6] = [
    "mount::works",
    "mount::leftover_files",
    "mount::other_source",
    "mount::outside",
    "unmount::stacked",
    "expand::*",
];
const FULL: [&str; 15] = [
    "output::*",
    "verbs::*",
    "options::*",
    "mount::*",
    "crash::*",
    "unmount::*",
    "metrics::*",
    "labels::*",
    "secrets::*",
    "log::*",
    "expand::*",
    "storm::*",
    "daemon::*",
    "sequence::*",
    "left::*",
];

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The cases of the table, each the first word of its row.
fn excused() -> BTreeSet<String> {
    let page = include_str!("../../../docs/drivers/csi.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    rows.filter(|word| word.contains("::")).map(str::to_owned).collect()
}

#[test]
fn the_kit_holds_over_the_loop() {
    let test = "behind::checked::the_kit_holds_over_the_loop";
    let Some(program) = flexvol() else { return skip(test, "flexvol is not built") };
    let kit = program.with_file_name("flexvol-kit");
    if !kit.exists() {
        return skip(test, "flexvol-kit is not built");
    }
    let home = tempfile::tempdir().unwrap();
    let at = |below: &str| home.path().join(below);
    for directory in ["plugins/flexvol~tmpfs", "outer/example~csi", "called/example~csi"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    symlink(&program, at("plugins/flexvol~tmpfs/tmpfs")).unwrap();
    symlink(&program, at("outer/example~csi/csi")).unwrap();
    let settings = json!({"driver": "csi", "policy": {"csiDrivers": "*"},
        "agent": {"socket": format!("{HOME}/run/agent.sock")}});
    for directory in ["outer", "called"] {
        fs::write(at(directory).join("example~csi/.flexvol.json"), settings.to_string()).unwrap();
    }
    let word = |path: &str| at(path).display().to_string();
    let node = NODE.replace("PLUGINS", &word("plugins")).replace("FLEXVOLD", flexvold().to_str().unwrap());
    write(&at("node"), &node.replace("HOME", HOME));
    let driver = DRIVER.replace("NODE", &word("node")).replace("OUTER", &word("outer/example~csi/csi"));
    write(&at("called/example~csi/csi"), &driver);
    let options = json!({"driver": "tmpfs.flexvol.flex.flexvol.dev", "volumeHandle": "fx1#pv-1",
        "accessMode": "ReadWriteMany", "attr.size": "4Mi", "attr.mode": "0777",
        "kubernetes.io/secret/key": super::ENCODED});
    let full = is_full();
    let patterns = if full { &FULL[..] } else { &QUICK };
    let mut command = Command::new(kit);
    command.arg("check").arg(at("called/example~csi/csi")).args(["--options", &options.to_string()]);
    command.args(["--ephemeral-ok", "--seed", "1", "--format", "json"]);
    command.args(patterns.iter().flat_map(|pattern| ["-t", pattern])).stdin(Stdio::null());
    let done = command.output().unwrap();
    let report: Value = serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&done.stderr)));
    let cases = report["cases"].as_array().unwrap();
    let of = |result: &[&str]| -> BTreeSet<String> {
        let of = cases.iter().filter(|case| result.contains(&case["result"].as_str().unwrap()));
        of.map(|case| case["id"].as_str().unwrap().to_owned()).collect()
    };
    let (held, failed) = (of(&["passed"]), of(&["failed", "blocked", "broken"]));
    let excused = excused();
    let bad: Vec<_> = cases
        .iter()
        .filter(|case| failed.contains(case["id"].as_str().unwrap()))
        .filter(|case| !excused.contains(case["id"].as_str().unwrap()))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(held.len() >= if full { 130 } else { QUICK.len() }, "{held:?}");
    // A row that says more than is so is wrong as well; whether a process is stopped while it has
    // the volume is chance.
    let claimed: Vec<_> = excused.intersection(&held).filter(|id| *id != "storm::hung_neighbour").collect();
    assert!(claimed.is_empty(), "{claimed:?}");
    println!("{} hold, {failed:?} do not", held.len());
}
