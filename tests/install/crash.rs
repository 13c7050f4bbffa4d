//! Killed at any system call that changes the file system: kubelet's view is the old or the new one, and the
//! same command again completes the work and leaves no litter.

use super::node::{Answer, Node, answer, init, script};
use super::support::skip;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Every call by which an installer changes anything.
const CALLS: &[&str] = &[
    "openat",
    "mkdirat",
    "mkdir",
    "renameat",
    "renameat2",
    "unlinkat",
    "symlinkat",
    "fchmod",
    "chmod",
    "write",
    "copy_file_range",
    "sendfile",
    "ftruncate",
    "fchown",
    "fsetxattr",
    "utimensat",
];

/// A scenario: what is there, what is done, and what may then be seen.
struct Scenario<'a> {
    node: &'a Node,
    /// Makes the plugin directory as it is before.
    before: &'a dyn Fn(),
    command: &'a str,
    words: &'a [&'a str],
    /// What kubelet may find as the executable at any moment; `None`: no driver's directory at all.
    views: &'a [Option<&'a str>],
    /// What must be there in the end.
    after: Option<&'a str>,
}

impl Scenario<'_> {
    /// Kills before each call, in turn; how often.
    fn run(&self) -> usize {
        let points = self.points();
        for (call, count) in &points {
            self.reset();
            let place = format!("{} killed at {call} {count}", self.words.join(" "));
            assert!(self.kill_at(call, *count), "{place}: not killed");
            let view = self.view();
            assert!(self.views.contains(&view.as_deref()), "{place}: {view:?}");
            let again = self.again();
            assert_eq!(again.status, 0, "{place}: {again:?}");
            assert_eq!((self.view().as_deref(), self.node.litter()), (self.after, vec![]), "{place}");
        }
        points.len()
    }

    /// Every call that changes the file system, by its name and how many of that name came before.
    fn points(&self) -> Vec<(String, usize)> {
        // What is made once on a node is there from now on.
        self.reset();
        assert_eq!(self.again().status, 0);
        self.reset();
        let (line, log) = (self.node.flexvol(self.command, self.words), self.node.path("strace"));
        let mut strace = Command::new("strace");
        strace.args(["-qq", "-s0", "-e", &format!("trace={}", available()), "-o"]).arg(&log);
        strace.arg(line.get_program()).args(line.get_args()).stdin(Stdio::null());
        assert!(strace.output().unwrap().status.success());
        let (text, mut counts) = (fs::read_to_string(&log).unwrap(), BTreeMap::new());
        let changes = text.lines().filter_map(|line| {
            let call = line.split_once('(')?.0.to_owned();
            let count = counts.entry(call.clone()).and_modify(|count| *count += 1).or_insert(1);
            let reads = call == "openat" && !line.contains("O_CREAT");
            let prints = line.starts_with("write(1,") || line.starts_with("write(2,");
            (!reads && !prints && !line.contains(" = -1 ")).then_some((call, *count))
        });
        changes.collect()
    }

    fn reset(&self) {
        for place in [self.node.plugins(), self.node.state()] {
            let _ = fs::remove_dir_all(place);
        }
        fs::create_dir(self.node.plugins()).unwrap();
        (self.before)();
    }

    fn again(&self) -> Answer {
        answer(&mut self.node.flexvol(self.command, self.words))
    }

    /// Whether it was killed; else it made fewer such calls, and has done its work.
    fn kill_at(&self, call: &str, count: usize) -> bool {
        let line = self.node.flexvol(self.command, self.words);
        let mut strace = Command::new("strace");
        strace.args(["-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
        strace.args(["-e", &format!("inject={call}:signal=KILL:when={count}")]);
        strace.arg(line.get_program()).args(line.get_args()).stdin(Stdio::null());
        let output = strace.output().unwrap();
        // strace ends as its child does.
        let killed = output.status.signal() == Some(9) || output.status.code() == Some(137);
        assert!(killed || output.status.success(), "{call} {count}: {output:?}");
        killed
    }

    /// What kubelet would find: the content of the executable, which must be loadable, and nothing that
    /// would make it execute what is not there.
    fn view(&self) -> Option<String> {
        let strange = |name: &String| !name.starts_with('.') && name != "v~d" && !name.starts_with("v~d/");
        let listing = self.node.listing();
        assert!(!listing.iter().any(strange), "{listing:?}");
        let executable = self.node.plugins().join("v~d/d");
        let content = fs::read_to_string(&executable).ok()?;
        init(&executable);
        Some(content)
    }
}

/// The calls that this machine's kernel has.
fn available() -> String {
    let known = |call: &&&str| {
        let mut strace = Command::new("strace");
        strace.args(["-o", "/dev/null", "-e", &format!("trace={call}"), "true"]);
        strace.output().unwrap().status.success()
    };
    CALLS.iter().filter(known).copied().collect::<Vec<_>>().join(",")
}

fn needs(name: &str) -> Option<Node> {
    if !Path::new("/usr/bin/strace").exists() {
        skip(name, "needs strace");
        return None;
    }
    Node::new(name)
}

/// Three drivers that answer differently.
struct Drivers {
    old: (String, PathBuf),
    new: (String, PathBuf),
}

impl Drivers {
    fn of(node: &Node) -> Self {
        let driver = |name: &str, capabilities: &str| {
            let text = script(capabilities);
            (text.clone(), node.file(name, &text))
        };
        Self { old: driver("old", ""), new: driver("new", "\"attach\":false") }
    }
}

fn word(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_killed_first_install_shows_nothing_or_all() {
    let Some(node) = needs("crash::a_killed_first_install_shows_nothing_or_all") else { return };
    let Drivers { new: (text, binary), .. } = Drivers::of(&node);
    let words = ["v/d", "--binary", word(&binary), "--set", "a=b"];
    let views = [None, Some(text.as_str())];
    let scenario = Scenario {
        node: &node,
        before: &|| {},
        command: "install",
        words: &words,
        views: &views,
        after: Some(&text),
    };
    let killed = scenario.run();
    assert!(killed > 15, "{killed}");
    println!("killed at {killed} calls");
}

#[test]
fn a_killed_upgrade_shows_old_or_new() {
    let Some(node) = needs("crash::a_killed_upgrade_shows_old_or_new") else { return };
    let Drivers { old, new } = Drivers::of(&node);
    let before = || drop(node.install(&["v/d", "--binary", word(&old.1)]));
    let words = ["v/d", "--binary", word(&new.1), "--set", "a=b"];
    let views = [Some(old.0.as_str()), Some(new.0.as_str())];
    let scenario = Scenario {
        node: &node,
        before: &before,
        command: "install",
        words: &words,
        views: &views,
        after: Some(&new.0),
    };
    let killed = scenario.run();
    assert!(killed > 15, "{killed}");
    println!("killed at {killed} calls");
}

#[test]
fn a_killed_take_over_shows_old_or_new_and_can_be_rolled_back() {
    let Some(node) = needs("crash::a_killed_take_over_shows_old_or_new_and_can_be_rolled_back") else {
        return;
    };
    let Drivers { old, new } = Drivers::of(&node);
    let before = || {
        node.file("plugins/v~d/d", &old.0);
        node.file("plugins/v~d/jq", "helper");
    };
    let take_over = ["v/d", "--take-over", "--binary", word(&new.1)];
    let views = [Some(old.0.as_str()), Some(new.0.as_str())];
    let scenario = Scenario {
        node: &node,
        before: &before,
        command: "install",
        words: &take_over,
        views: &views,
        after: Some(&new.0),
    };
    let killed = scenario.run();
    assert!(killed > 15, "{killed}");
    let replaced = || {
        before();
        assert_eq!(node.install(&take_over).action(), "taken over");
    };
    let words = ["v/d", "--roll-back"];
    let scenario = Scenario { before: &replaced, words: &words, after: Some(&old.0), ..scenario };
    let rolled_back = scenario.run();
    assert!(rolled_back > 3, "{rolled_back}");
    println!("killed at {killed} and {rolled_back} calls");
}

#[test]
fn a_killed_uninstall_shows_the_driver_or_its_end() {
    let Some(node) = needs("crash::a_killed_uninstall_shows_the_driver_or_its_end") else { return };
    let Drivers { old: (text, binary), .. } = Drivers::of(&node);
    let before = || drop(node.install(&["v/d", "--binary", word(&binary)]));
    let views = [None, Some(text.as_str())];
    let scenario = Scenario {
        node: &node,
        before: &before,
        command: "uninstall",
        words: &["v/d"],
        views: &views,
        after: None,
    };
    let killed = scenario.run();
    assert!(killed >= 3, "{killed}");
    assert_eq!(node.listing(), [""; 0]);
    println!("killed at {killed} calls");
}

#[test]
fn a_release_is_installed_whole_or_not_at_all() {
    let Some(node) = needs("crash::a_release_is_installed_whole_or_not_at_all") else { return };
    // Of the many writes a sample.
    for count in (1..).step_by(17) {
        let install = node.flexvol("install", &["tmpfs"]);
        let mut strace = Command::new("strace");
        strace.args(["-qq", "-o", "/dev/null", "-e", &format!("inject=write:signal=KILL:when={count}")]);
        strace.arg(install.get_program()).args(install.get_args()).stdin(Stdio::null());
        if strace.output().unwrap().status.success() {
            break;
        }
        if node.plugins().join("flexvol~tmpfs").exists() {
            node.init("flexvol/tmpfs");
        }
    }
    node.init("flexvol/tmpfs");
    assert_eq!((node.install(&["tmpfs"]).action(), node.litter()), ("unchanged", vec![]));
}
