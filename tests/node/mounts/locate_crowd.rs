//! `flexvol locate` where many say that they are kubelet. Here, and not with the other tests of
//! `locate`, because nobody here looks for a kubelet outside of its own node: those would lose
//! theirs in the crowd.

use crate::support::skip;
use serde_json::Value;
use std::process::Command;

#[test]
fn a_kubelet_is_found_in_a_crowd_that_calls_itself_so() {
    if !nix::unistd::geteuid().is_root() {
        return skip(
            "locate_crowd::a_kubelet_is_found_in_a_crowd_that_calls_itself_so",
            "needs root to be another user",
        );
    }
    let output = Command::new("unshare")
        .args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--",
            "bash",
            "-ec",
            CROWD,
            "bash",
            env!("CARGO_BIN_EXE_flexvol"),
        ])
        .output()
        .unwrap();
    let located: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let found =
        located["candidates"].as_array().unwrap().iter().find(|each| each["verdict"] == "chosen").unwrap();
    assert_eq!(found["directory"], "/found-in-a-crowd", "{found}");
}

/// 70 of another user's processes and one of root's, all called kubelet. Few descriptors: each
/// process that is looked at takes one.
const CROWD: &str = r#"
for _ in {1..70}; do
    setpriv --reuid 1234 --clear-groups bash -c 'exec -a kubelet sleep 60' &
done
bash -c 'exec -a kubelet bash -c "sleep 60; :" --volume-plugin-dir=/found-in-a-crowd' &
until [ "$(grep -l ^kubelet /proc/[0-9]*/cmdline 2>/dev/null | wc -l)" -eq 71 ]; do sleep 0.05; done
ulimit -n 96
exec "$1" --json locate
"#;
