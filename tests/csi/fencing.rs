//! Drivers that ask `flexvold agent`: two nodes at one image, an agent that is missing, a driver
//! that is killed.

use super::agent::{Agent, Nodes};
use super::killed::{CALLS, is_full, tried};
use super::namespace::mounts_at;
use super::node::{eventually, flexvol, message};
use super::skip;
use super::wording::wording;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The driver of one node, beside its agent.
struct Driver<'a> {
    nodes: &'a Nodes,
    agent: &'a Agent,
    executable: PathBuf,
}

impl<'a> Driver<'a> {
    /// `None`, and SKIP is said, where there is no program with our drivers.
    fn install(test: &str, nodes: &'a Nodes, agent: &'a Agent, fence: &str) -> Option<Self> {
        let Some(program) = flexvol() else {
            skip(test, "flexvol is not built");
            return None;
        };
        let directory = nodes.path(&format!("plugins-{}/example~image", agent.name()));
        fs::create_dir_all(&directory).unwrap();
        let executable = directory.join("image");
        std::os::unix::fs::symlink(program, &executable).unwrap();
        let driver = Self { nodes, agent, executable };
        driver.set(fence);
        Some(driver)
    }

    /// Writes the side file.
    fn set(&self, fence: &str) {
        let socket = self.agent.socket();
        let images = self.nodes.path("images");
        fs::create_dir_all(&images).unwrap();
        let agent = match fence {
            "" => String::new(),
            fence => format!(r#""agent": {{"fence": "{fence}", "socket": "{}"}},"#, socket.display()),
        };
        let text = format!(
            r#"{{{agent} "policy": {{"imageRoots": ["{}"]}}, "options": {{"size": "16Mi", "file": "db.img"}}}}"#,
            images.display()
        );
        fs::write(self.executable.with_file_name(".flexvol.json"), text).unwrap();
    }

    fn target(&self, pod: &str) -> PathBuf {
        self.nodes.path(&format!("kubelet-{}/pods/{pod}/volumes/example~image/v", self.agent.name()))
    }

    fn command(&self, verb: &str, pod: &str) -> Command {
        let mut command = Command::new(&self.executable);
        command.args(self.arguments(verb, pod)).stdin(Stdio::null());
        command
    }

    fn arguments(&self, verb: &str, pod: &str) -> Vec<String> {
        let target = self.target(pod);
        fs::create_dir_all(&target).unwrap();
        let mut arguments = vec![verb.to_owned(), target.to_str().unwrap().to_owned()];
        if verb == "mount" {
            arguments.push(format!(
                r#"{{"kubernetes.io/pod.name":"db","kubernetes.io/pod.namespace":"default","kubernetes.io/pod.uid":"{pod}"}}"#
            ));
        }
        arguments
    }

    /// The message of the reply, empty for a success.
    fn call(&self, verb: &str, pod: &str) -> String {
        let output = self.command(verb, pod).output().unwrap();
        message(&output.stdout)
    }

    fn is_mounted(&self, pod: &str) -> bool {
        !mounts_at(&self.target(pod)).is_empty()
    }
}

/// Notes of holds, and of releases that no agent has heard of. Drafts are the agent's to remove.
fn notes() -> usize {
    let notes =
        fs::read_dir("/run/flexvol/holds").into_iter().flatten().map(|note| note.unwrap().file_name());
    notes.filter(|name| !name.as_encoded_bytes().starts_with(b".")).count()
}

#[test]
fn an_image_is_mounted_by_one_node_at_a_time() {
    let test = "fencing::an_image_is_mounted_by_one_node_at_a_time";
    let Some(nodes) = Nodes::new(test) else { return };
    let (a, b) = (nodes.start("a"), nodes.start("b"));
    let Some(one) = Driver::install(test, &nodes, &a, "pod") else { return };
    let Some(other) = Driver::install(test, &nodes, &b, "pod") else { return };
    assert_eq!(one.call("mount", "1"), "");
    fs::write(one.target("1").join("hello"), "world").unwrap();
    let refused = other.call("mount", "2");
    assert!(refused.contains("default/db on node a"), "{refused}");
    assert!(!other.is_mounted("2") && one.is_mounted("1"));
    // Nor by another pod of the same node; and again by the same one.
    assert!(one.call("mount", "3").contains("node a"));
    assert_eq!(one.call("mount", "1"), "");
    assert_eq!((one.call("unmount", "1"), a.holds(), nodes.records(), notes()), (String::new(), 0, 0, 0));
    assert_eq!(other.call("mount", "2"), "");
    assert_eq!(fs::read_to_string(other.target("2").join("hello")).unwrap(), "world");
    assert!(one.call("mount", "1").contains("node b"));
    assert_eq!(other.call("unmount", "2"), "");
    assert_eq!((nodes.records(), notes()), (0, 0));
}

#[test]
fn the_pods_of_a_node_share_an_image_where_the_fence_is_the_node() {
    let test = "fencing::the_pods_of_a_node_share_an_image_where_the_fence_is_the_node";
    let Some(nodes) = Nodes::new(test) else { return };
    let (a, b) = (nodes.start("a"), nodes.start("b"));
    let Some(one) = Driver::install(test, &nodes, &a, "node") else { return };
    let Some(other) = Driver::install(test, &nodes, &b, "node") else { return };
    assert_eq!((one.call("mount", "1"), one.call("mount", "2")), (String::new(), String::new()));
    assert!(other.call("mount", "3").contains("node a"));
    assert_eq!(one.call("unmount", "1"), "");
    assert!(other.call("mount", "3").contains("node a"));
    assert_eq!((one.call("unmount", "2"), other.call("mount", "3")), (String::new(), String::new()));
    assert_eq!((other.call("unmount", "3"), nodes.records()), (String::new(), 0));
}

#[test]
fn an_unmount_needs_no_agent_and_is_told_later() {
    let test = "fencing::an_unmount_needs_no_agent_and_is_told_later";
    let Some(nodes) = Nodes::new(test) else { return };
    let (mut a, b) = (nodes.start("a"), nodes.start("b"));
    let Some(other) = Driver::install(test, &nodes, &b, "pod") else { return };
    {
        let Some(one) = Driver::install(test, &nodes, &a, "pod") else { return };
        assert_eq!(one.call("mount", "1"), "");
    }
    a.stop();
    {
        let one =
            Driver { nodes: &nodes, agent: &a, executable: nodes.path("plugins-a/example~image/image") };
        let begun = Instant::now();
        assert_eq!((one.call("unmount", "1"), one.is_mounted("1")), (String::new(), false));
        let took = begun.elapsed();
        assert_eq!((notes(), nodes.records()), (1, 1));
        assert!(other.call("mount", "2").contains("node a"));
        // A mount needs it: it is waited for, and nothing is left.
        let begun = Instant::now();
        let refused = one.call("mount", "1");
        assert!(refused.contains(wording("agent-not-there")), "{refused}");
        assert!(!one.is_mounted("1") && took < begun.elapsed(), "{took:?}");
    }
    a.start();
    eventually("it is released", || nodes.records() == 0 && notes() == 0);
    assert_eq!((other.call("mount", "2"), other.call("unmount", "2")), (String::new(), String::new()));
}

/// What was held is released, whatever the side file says by then.
#[test]
fn a_fence_that_is_turned_off_holds_nothing_more() {
    let test = "fencing::a_fence_that_is_turned_off_holds_nothing_more";
    let Some(nodes) = Nodes::new(test) else { return };
    let a = nodes.start("a");
    let Some(one) = Driver::install(test, &nodes, &a, "pod") else { return };
    assert_eq!((one.call("mount", "1"), nodes.records()), (String::new(), 1));
    one.set("off");
    assert_eq!((one.call("unmount", "1"), nodes.records(), notes()), (String::new(), 0, 0));
    assert_eq!((one.call("mount", "1"), nodes.records(), notes()), (String::new(), 0, 0));
    assert_eq!(one.call("unmount", "1"), "");
    // Without the setting the agent is not even looked for.
    one.set("");
    fs::remove_dir_all("/run/flexvol/holds").unwrap();
    assert_eq!(
        (one.call("mount", "1"), one.call("unmount", "1"), nodes.records()),
        (String::new(), String::new(), 0)
    );
    assert!(!Path::new("/run/flexvol/holds").exists());
}

/// The driver is killed before the nth call of a name, with all its processes; kubelet then
/// unmounts.
#[test]
fn a_driver_killed_before_system_calls_leaves_no_hold() {
    let test = "fencing::a_driver_killed_before_system_calls_leaves_no_hold";
    let Some(nodes) = Nodes::new(test) else { return };
    let a = nodes.start("a");
    let Some(one) = Driver::install(test, &nodes, &a, "pod") else { return };
    let most = if is_full() { 40 } else { 2 };
    let mut struck = 0;
    for (call, verb) in CALLS.iter().flat_map(|call| ["mount", "unmount"].map(|verb| (*call, verb))) {
        for nth in 1..=most {
            if verb == "unmount" {
                assert_eq!(one.call("mount", "1"), "");
            }
            let killed = Command::new("strace")
                .args(["-f", "-o", "/dev/null", "-e", &format!("trace=?{call}"), "-e"])
                .arg(format!("inject=?{call}:signal=KILL:when={nth}"))
                .arg(&one.executable)
                .args(one.arguments(verb, "1"))
                .output();
            let Ok(killed) = killed else { return skip(test, "needs strace") };
            let whole =
                serde_json::from_slice::<Value>(&killed.stdout).is_ok_and(|it| it["status"] == "Success");
            struck += usize::from(!whole);
            eventually(&format!("unmounted after {verb} {call} {nth}"), || {
                one.call("unmount", "1").is_empty()
            });
            assert!(!one.is_mounted("1"), "{verb} {call} {nth}");
            eventually("it is released", || nodes.records() == 0);
            assert_eq!((a.holds(), notes()), (0, 0), "{verb} {call} {nth}");
        }
    }
    tried("image/fenced", "mount+unmount", struck);
}
