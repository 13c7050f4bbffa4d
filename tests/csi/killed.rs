//! Kills before the system calls of a publish, of `flexvold` and of its driver, by strace: before
//! the first few of each name, and with `FULL=1` before all of them.

use super::node::{Driver, Node, eventually};
use super::pace::deadline;
use super::skip;
use super::trust_lines::append;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// What changes anything, and what starts, hears and ends a process; of the mount as well.
pub(crate) const CALLS: [&str; 24] = [
    "openat",
    "openat2",
    "mkdirat",
    "write",
    "rename",
    "unlink",
    "unlinkat",
    "statx",
    "read",
    "close",
    "clone3",
    "vfork",
    "clone",
    "execve",
    "waitid",
    "wait4",
    "poll",
    "pidfd_open",
    "fsopen",
    "fsconfig",
    "fsmount",
    "move_mount",
    "flock",
    "exit_group",
];

/// More than any of them is made.
const MOST: usize = 60;

/// Reports whether every point is tried, not a sample.
pub(crate) fn is_full() -> bool {
    std::env::var_os("FULL").is_some()
}

/// Demands that many points were tried. If it was every point, docs/trust.md gets a line.
pub(crate) fn tried(volume: &str, call: &str, points: usize) {
    let line =
        format!("TRUST crash {volume} {call} points={points} tried={points} failures=0 seed=- form=soak\n");
    print!("{line}");
    assert!(points > 10, "hardly anything was struck: {line}");
    if is_full() {
        append(&line);
    }
}

/// Follows the server and what it starts, and kills the process that makes its `nth` call of this
/// name. `None` where that is not allowed.
pub(crate) fn strike(node: &Node, call: &str, nth: usize) -> Option<Child> {
    follow(node.server().id(), call, nth)
}

/// The same of a process by its id.
pub(crate) fn follow(pid: u32, call: &str, nth: usize) -> Option<Child> {
    let mut strace = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-p", &pid.to_string(), "-e"])
        .arg(format!("trace=?{call}"))
        .arg("-e")
        .arg(format!("inject=?{call}:signal=KILL:when={nth}"))
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut lines = BufReader::new(strace.stderr.take()?).lines();
    let attached = lines.by_ref().map_while(Result::ok).any(|line| line.contains("attached"));
    // It says more, and must not wait for a reader.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    attached.then_some(strace)
}

/// Whether the publish was struck.
fn survives(node: &mut Node, mut strace: Child, at: &str) -> bool {
    let published = node.try_publish("1", deadline(10));
    let _ = strace.kill();
    let _ = strace.wait();
    node.restart();
    eventually(&format!("published after {at}"), || node.publish("1", |_| ()).is_ok());
    assert!(node.is_mounted("1") && node.stats("1").is_ok());
    eventually("it is unpublished", || node.unpublish("1").is_ok());
    node.is_clean();
    published.is_err()
}

#[test]
fn kills_before_system_calls_are_survived() {
    let test = "killed::kills_before_system_calls_are_survived";
    let Some(mut node) = Node::serving(test, "flexvol/tmpfs", &Driver::Ours("{}")) else { return };
    // Between the driver's mount and its record of it there is the eighth openat(2).
    let few = |call: &str| if call == "openat" { 9 } else { 2 };
    let most = |call: &str| if is_full() { MOST } else { few(call) };
    let mut struck = Vec::new();
    for call in CALLS {
        for nth in 1..=most(call) {
            let Some(strace) = strike(&node, call, nth) else {
                return skip(test, "needs strace, and the right to use it");
            };
            if !survives(&mut node, strace, &format!("{call} {nth}")) {
                break;
            }
            struck.push((call, nth));
        }
    }
    println!("struck before {struck:?}");
    tried("flexvold/csi", "publish", struck.len());
}
