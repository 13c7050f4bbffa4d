//! Kills before the system calls of a publish, of `flexvold` and of its driver, by strace.

use super::node::{Driver, Node, eventually};
use super::pace::deadline;
use super::skip;
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
fn a_kill_before_every_system_call_is_survived() {
    let test = "killed::a_kill_before_every_system_call_is_survived";
    let Some(mut node) = Node::serving(test, "flexvol/tmpfs", &Driver::Ours("{}")) else { return };
    // Between the driver's mount and its record of it there is the eighth openat(2).
    let few = |call: &str| if call == "openat" { 9 } else { 2 };
    let most = |call: &str| if std::env::var_os("FULL").is_some() { MOST } else { few(call) };
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
    println!("struck before {} calls: {struck:?}", struck.len());
    assert!(struck.len() > 10, "hardly anything was struck: {struck:?}");
}
