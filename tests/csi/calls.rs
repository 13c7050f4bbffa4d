//! Drivers whose calls the agent carries out: `"run": "agent"`.

use super::agent::{Agent, Nodes};
use super::namespace::mounts_at;
use super::node::{eventually, flexvol, message};
use super::pace::{deadline, slow_seconds};
use super::skip;
use super::wording::{wording, wording_of};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_linux::proc::clock;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const NAME: &str = "example~tool";
const SECRET: &str = "c4nary-of-a-tenant";

impl Agent {
    /// What a driver of this directory's name is answered that wants this carried out.
    fn call(&self, driver: &str, words: &[&str]) -> Value {
        let now = clock::since_boot();
        let params = json!({"driver": driver, "call": STANDARD.encode(words.join("\0"))});
        let until = now + u64::try_from(deadline(10).as_nanos()).unwrap();
        self.ask(&json!({"v": 1, "method": "call", "asked": now, "until": until, "params": params})).unwrap()
    }

    /// How many calls go on, and how many were abandoned.
    fn calls(&self) -> (usize, usize) {
        let status = self.ask(&json!({"v": 1, "method": "status"})).unwrap();
        let calls = &status["ok"]["calls"];
        (calls["running"].as_array().unwrap().len(), calls["stuck"].as_array().unwrap().len())
    }
}

/// A driver whose commands are scripts, and its agent.
struct Scene {
    nodes: Nodes,
    agent: Agent,
}

impl Scene {
    /// `None`, and SKIP is said, where there is no program with our drivers.
    fn new(test: &str, mount: &str, longest: &str) -> Option<Self> {
        let nodes = Nodes::new(test)?;
        let Some(program) = flexvol() else {
            skip(test, "flexvol is not built");
            return None;
        };
        let plugins = nodes.path("plugins");
        fs::create_dir_all(plugins.join(NAME)).unwrap();
        std::os::unix::fs::symlink(program, plugins.join(NAME).join("tool")).unwrap();
        let agent = nodes.start_with("a", &Self::words(&plugins, longest));
        let scene = Self { nodes, agent };
        scene.command("mount", mount);
        scene.command("unmount", "umount \"$1\"");
        scene.set("agent", 20);
        Some(scene)
    }

    /// Those of an agent that carries out calls.
    fn words<'a>(plugins: &'a Path, longest: &'a str) -> [&'a str; 4] {
        ["--plugin-dir", plugins.to_str().unwrap(), "--longest-call", longest]
    }

    /// What a verb runs; each of its runs is a line in `ran`.
    fn command(&self, verb: &str, script: &str) {
        let home = self.nodes.path("");
        let path = self.nodes.path(verb);
        let whole = format!("#!/bin/sh\ncd {0}\necho {verb} >>{0}/ran\n{script}\n", home.display());
        fs::write(&path, whole).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn set(&self, run: &str, seconds: u64) {
        let seconds = slow_seconds(seconds);
        let command = |verb: &str| json!([self.nodes.path(verb), "{target}"]);
        let text = json!({
            "driver": "exec",
            "agent": {"run": run, "socket": self.agent.socket()},
            "deadlines": {"mount": seconds, "unmount": seconds},
            "exec": {"commands": {"mount": command("mount"), "unmount": command("unmount")}},
        });
        fs::write(self.nodes.path("plugins").join(NAME).join(".flexvol.json"), text.to_string()).unwrap();
    }

    fn target(&self, pod: &str) -> PathBuf {
        self.nodes.path(&format!("kubelet/pods/{pod}/volumes/{NAME}/v"))
    }

    /// The message of the reply, empty for a success.
    fn call(&self, verb: &str, pod: &str) -> String {
        let target = self.target(pod);
        fs::create_dir_all(&target).unwrap();
        let mut command = Command::new(self.nodes.path("plugins").join(NAME).join("tool"));
        command.arg(verb).arg(target).stdin(Stdio::null());
        if verb == "mount" {
            let secret = "YzRuYXJ5LW9mLWEtdGVuYW50";
            command.arg(json!({"kubernetes.io/secret/password": secret}).to_string());
        }
        let output = command.output().unwrap();
        message(&output.stdout)
    }

    fn is_mounted(&self, pod: &str) -> bool {
        !mounts_at(&self.target(pod)).is_empty()
    }

    fn ran(&self, verb: &str) -> usize {
        let ran = fs::read_to_string(self.nodes.path("ran")).unwrap_or_default();
        ran.lines().filter(|line| *line == verb).count()
    }
}

fn goes_on(message: &str) -> bool {
    message.starts_with(wording_of("call-goes-on", ["mount", "example/tool"]))
}

/// In the namespace of the agent, and of no one else.
const MOUNT: &str = "tr '\\0' '\\n' </proc/$PPID/cmdline >>seen; readlink /proc/self/ns/mnt >where
    mount -t tmpfs tool \"$1\"";

#[test]
fn a_call_is_carried_out_by_the_agent_once_for_each() {
    let test = "calls::a_call_is_carried_out_by_the_agent_once_for_each";
    let Some(scene) = Scene::new(test, MOUNT, "60") else { return };
    assert_eq!((scene.call("mount", "1"), scene.is_mounted("1")), (String::new(), true));
    assert_eq!((scene.call("mount", "1"), scene.ran("mount")), (String::new(), 1));
    // T49: the agent's driver has the call on standard input.
    let seen = fs::read_to_string(scene.nodes.path("seen")).unwrap();
    assert!(
        seen.lines().any(|word| word == "-") && !seen.contains("Yzw") && !seen.contains(SECRET),
        "{seen}"
    );
    assert!(!seen.contains("mount"), "{seen}");
    assert_eq!((scene.call("unmount", "1"), scene.is_mounted("1")), (String::new(), false));
    assert_eq!(scene.ran("unmount"), 1);
    // By setting it is done here, without an agent.
    scene.set("host", 20);
    assert_eq!(scene.call("mount", "2"), "");
    assert_eq!((scene.call("unmount", "2"), scene.ran("mount")), (String::new(), 2));
}

#[test]
fn without_an_agent_nothing_is_mounted_and_everything_unmounted() {
    let test = "calls::without_an_agent_nothing_is_mounted_and_everything_unmounted";
    let Some(mut scene) = Scene::new(test, MOUNT, "60") else { return };
    assert_eq!(scene.call("mount", "1"), "");
    scene.agent.stop();
    let begun = Instant::now();
    assert_eq!((scene.call("unmount", "1"), scene.is_mounted("1")), (String::new(), false));
    let took = begun.elapsed();
    // For a mount it is waited for.
    let begun = Instant::now();
    let refused = scene.call("mount", "2");
    assert!(refused.contains(wording("agent-not-there")) && !scene.is_mounted("2"), "{refused}");
    assert!(took < begun.elapsed(), "{took:?}");
    // Nor by one that carries out none.
    scene.agent.start();
    let refused = scene.call("mount", "2");
    assert!(refused.contains("--plugin-dir") && !scene.is_mounted("2"), "{refused}");
    assert_eq!(scene.ran("mount"), 1);
}

/// It takes the call and says nothing more: half of the time is left for an unmount on the node.
#[test]
fn an_agent_that_hangs_does_not_keep_an_unmount_from_its_end() {
    let test = "calls::an_agent_that_hangs_does_not_keep_an_unmount_from_its_end";
    let Some(scene) = Scene::new(test, MOUNT, "60") else { return };
    assert_eq!(scene.call("mount", "1"), "");
    scene.set("agent", 4);
    let agent = scene.agent.child.as_ref().unwrap().id();
    kill(Pid::from_raw(agent.cast_signed()), Signal::SIGSTOP).unwrap();
    assert_eq!((scene.call("unmount", "1"), scene.is_mounted("1")), (String::new(), false));
    assert_eq!(scene.ran("unmount"), 1);
}

#[test]
fn t35_who_asks_again_joins_an_attach_that_takes_long() {
    let test = "calls::t35_who_asks_again_joins_an_attach_that_takes_long";
    let slow = "while ! [ -e go ]; do sleep 0.1; done; mount -t tmpfs tool \"$1\"";
    let Some(scene) = Scene::new(test, slow, "60") else { return };
    scene.set("agent", 2);
    for _ in 0..3 {
        let refused = scene.call("mount", "1");
        assert!(goes_on(&refused), "{refused}");
        assert_eq!(scene.ran("mount"), 1);
    }
    fs::write(scene.nodes.path("go"), "").unwrap();
    eventually("it is mounted", || scene.is_mounted("1"));
    assert_eq!((scene.call("mount", "1"), scene.ran("mount")), (String::new(), 1));
    assert_eq!(scene.call("unmount", "1"), "");
    // What no one has heard of is told to who asks next.
    fs::remove_file(scene.nodes.path("go")).unwrap();
    scene.command("mount", "while ! [ -e go ]; do sleep 0.1; done; echo no such pool >&2; touch end; exit 3");
    assert!(goes_on(&scene.call("mount", "1")));
    fs::write(scene.nodes.path("go"), "").unwrap();
    eventually("it has failed", || scene.nodes.path("end").exists() && scene.agent.calls() == (0, 0));
    let refused = scene.call("mount", "1");
    assert!(refused.contains("no such pool") && scene.ran("mount") == 2, "{refused}");
}

#[test]
fn t36_an_attach_that_hangs_for_ever_is_bounded_and_holds_up_no_other() {
    let test = "calls::t36_an_attach_that_hangs_for_ever_is_bounded_and_holds_up_no_other";
    let hangs = "case $1 in */1/*) trap '' TERM; sleep 6000 ;; esac; mount -t tmpfs tool \"$1\"";
    let Some(mut scene) = Scene::new(test, hangs, &slow_seconds(4).to_string()) else { return };
    scene.set("agent", 2);
    assert!(goes_on(&scene.call("mount", "1")));
    assert_eq!(scene.call("mount", "2"), "");
    eventually("it is given up", || scene.agent.calls() == (0, 0));
    let refused = scene.call("mount", "1");
    assert!(refused.contains("deadline") && scene.ran("mount") == 2, "{refused}");
    // An unmount ends what mounts, which would not end by itself.
    scene.agent.stop();
    scene.agent.start_with(&Scene::words(&scene.nodes.path("plugins"), "6000"));
    assert!(goes_on(&scene.call("mount", "1")));
    scene.set("agent", 20);
    assert_eq!(scene.call("unmount", "1"), "");
    assert_eq!((scene.agent.calls(), scene.is_mounted("1")), ((0, 0), false));
    assert_eq!(scene.call("unmount", "2"), "");
}

#[test]
fn t37_a_tool_with_ten_mebibytes_to_say_holds_nothing_up() {
    let test = "calls::t37_a_tool_with_ten_mebibytes_to_say_holds_nothing_up";
    let loud = "head -c 10485760 /dev/zero | tr '\\0' x >&2; mount -t tmpfs tool \"$1\"";
    let Some(scene) = Scene::new(test, loud, "60") else { return };
    assert_eq!(scene.call("mount", "1"), "");
    assert_eq!(scene.call("unmount", "1"), "");
    // Nor does a driver that has as much to say.
    let driver = scene.nodes.path("plugins").join(NAME).join("tool");
    let replies = driver.with_file_name("ours");
    fs::rename(&driver, &replies).unwrap();
    fs::write(&driver, "#!/bin/sh\nhead -c 10485760 /dev/zero >&2\n").unwrap();
    fs::set_permissions(&driver, fs::Permissions::from_mode(0o755)).unwrap();
    let answer = scene.agent.call(NAME, &["unmount", scene.target("1").to_str().unwrap()]);
    assert_eq!(answer["err"]["code"], "FAILED", "{answer}");
}

/// What has hold of the driver's output cannot be killed: it has left its group.
#[test]
fn t38_what_cannot_be_ended_is_abandoned_and_the_unmount_is_done_all_the_same() {
    let test = "calls::t38_what_cannot_be_ended_is_abandoned_and_the_unmount_is_done_all_the_same";
    let Some(scene) = Scene::new(test, MOUNT, "60") else { return };
    assert_eq!(scene.call("mount", "1"), "");
    scene.command("unmount", "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 6001.5\" & sleep 6000");
    scene.set("agent", 4);
    let begun = Instant::now();
    let said = scene.call("unmount", "1");
    assert!(begun.elapsed() < deadline(100), "{:?}", begun.elapsed());
    assert!(said.is_empty() && !scene.is_mounted("1"), "{said}");
    eventually("nothing goes on", || scene.agent.calls() == (0, 0));
}

/// Names that lead elsewhere, verbs that are none, words that are none.
#[test]
fn what_is_no_call_is_refused_and_nothing_of_it_repeated() {
    let test = "calls::what_is_no_call_is_refused_and_nothing_of_it_repeated";
    let Some(scene) = Scene::new(test, MOUNT, "60") else { return };
    let target = scene.target("1");
    let target = target.to_str().unwrap();
    for (driver, words) in [
        ("../example~tool", &["unmount", target][..]),
        ("example~tool/..", &["unmount", target]),
        ("/etc~tool", &["unmount", target]),
        ("..~..", &["unmount", target]),
        ("", &["unmount", target]),
        (NAME, &["init"]),
        (NAME, &["-"]),
        (NAME, &[]),
        (NAME, &["mount", target]),
        (NAME, &["mount", target, SECRET]),
        (NAME, &["mount", "relative", "{}"]),
    ] {
        let answer = scene.agent.call(driver, words);
        assert_eq!(answer["err"]["code"], "BAD_REQUEST", "{driver} {words:?}: {answer}");
        assert!(!answer.to_string().contains(SECRET), "{answer}");
    }
    assert_eq!(scene.agent.call("example~nothing", &["unmount", target])["err"]["code"], "FAILED");
    assert_eq!((scene.ran("mount"), scene.ran("unmount")), (0, 0));
    // Who has only a driver's word for it: nothing is on standard input.
    let driver = scene.nodes.path("plugins").join(NAME).join("tool");
    let said = Command::new(driver).arg("-").stdin(Stdio::null()).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).contains("\"status\":\"Failure\""), "{said:?}");
    assert!(Path::new("/run/flexvol").exists());
}
