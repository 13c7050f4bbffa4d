//! An installation that ends between two renames, and an uninstall that cannot look at something:
//! strace lets the system call fail, or kills at it.

use super::node::{Answer, Node, answer, script};
use super::support::skip;
use crate::support::wording::{wording, wording_of};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// A node, where there is strace.
fn node(name: &str) -> Option<Node> {
    if Command::new("strace").arg("-V").output().is_err() {
        skip(name, "needs strace");
        return None;
    }
    Node::new(name)
}

/// The command, with something done to one of its system calls.
fn struck(node: &Node, command: &str, words: &[&str], strike: &str) -> Command {
    let call = node.flexvol(command, words);
    let mut struck = Command::new("strace");
    struck.args(["-qq", "-o", "/dev/null", "-e", &format!("inject={strike}")]);
    struck.arg(call.get_program()).args(call.get_args());
    struck
}

/// An upgrade whose second rename, that of the side file, does not happen.
fn half_upgraded(node: &Node, strike: &str) {
    let [old, new] =
        [("old", ""), ("new", "\"attach\":false")].map(|(name, text)| node.file(name, &script(text)));
    node.install(&["v/d", "--binary", old.to_str().unwrap()]);
    let words = ["v/d", "--binary", new.to_str().unwrap(), "--set", "a=b"];
    let done = struck(node, "install", &words, &format!("renameat:{strike}:when=2")).output().unwrap();
    assert!(!done.status.success(), "{done:?}");
    assert_eq!(fs::read(node.plugins().join("v~d/d")).unwrap(), fs::read(new).unwrap());
}

#[test]
fn a_half_upgraded_driver_is_still_ours() {
    let Some(node) = node("halfway::a_half_upgraded_driver_is_still_ours") else { return };
    for strike in ["error=EIO", "signal=KILL"] {
        half_upgraded(&node, strike);
        assert_eq!(node.uninstall(&["v/d"]).action(), "removed", "{strike}");
        assert_eq!(node.listing(), [""; 0], "{strike}");
        half_upgraded(&node, strike);
        let new = node.path("new");
        let words = ["v/d", "--binary", new.to_str().unwrap(), "--set", "a=b"];
        assert_eq!(node.install(&words).action(), "upgraded", "{strike}");
        assert_eq!(node.litter(), [""; 0], "{strike}");
        assert_eq!(node.uninstall(&["v/d"]).action(), "removed", "{strike}");
    }
}

/// What was put in place of the executable by hand is not what the half upgrade brought.
#[test]
fn a_stranger_in_a_half_upgraded_driver_stays() {
    let Some(node) = node("halfway::a_stranger_in_a_half_upgraded_driver_stays") else { return };
    half_upgraded(&node, "signal=KILL");
    node.file("plugins/v~d/d", &script("\"fsGroup\":false"));
    assert!(node.uninstall(&["v/d"]).error(4).contains(wording_of("foreign-entry", ["v~d", "d"])));
    assert!(node.plugins().join("v~d/d").exists());
}

/// A symlink whose take-over has failed at the executable.
fn half_taken_over(node: &Node) {
    let new = node.file("new", &script(""));
    node.file("away/d", &script("\"attach\":false"));
    fs::create_dir(node.plugins().join("v~d")).unwrap();
    symlink(node.path("away/d"), node.plugins().join("v~d/d")).unwrap();
    let words = ["v/d", "--take-over", "--binary", new.to_str().unwrap()];
    let answer = answer(&mut struck(node, "install", &words, "renameat:error=EIO:when=2"));
    let error = answer.error(1);
    // What stands between is the C library's.
    assert!(error.contains("v~d/d: ") && error.ends_with("(os error 5)"), "{error}");
    assert!(node.plugins().join("v~d/.flexvol.json").exists());
}

#[test]
fn a_half_taken_over_symlink_can_go_both_ways() {
    let Some(node) = node("halfway::a_half_taken_over_symlink_can_go_both_ways") else { return };
    half_taken_over(&node);
    assert_eq!(node.uninstall(&["v/d"]).action(), "removed");
    assert_eq!(node.listing(), [""; 0]);
    half_taken_over(&node);
    node.install(&["v/d", "--roll-back"]);
    assert_eq!(node.listing(), ["v~d", "v~d/d"]);
    assert_eq!(fs::read_link(node.plugins().join("v~d/d")).unwrap(), node.path("away/d"));
}

#[test]
fn a_take_over_that_was_killed_keeps_the_driver_as_it_was() {
    let Some(node) = node("halfway::a_take_over_that_was_killed_keeps_the_driver_as_it_was") else { return };
    let new = node.file("new", &script(""));
    node.file("away/d", &script("\"attach\":false"));
    let (home, words) =
        (node.plugins().join("v~d"), ["v/d", "--take-over", "--binary", new.to_str().unwrap()]);
    for side_file in [None, Some("{\"driver\":\"tmpfs\"}")] {
        fs::create_dir(&home).unwrap();
        symlink(node.path("away/d"), home.join("d")).unwrap();
        if let Some(text) = side_file {
            node.file_quietly("plugins/v~d/.flexvol.json", text);
        }
        let done = struck(&node, "install", &words, "renameat:signal=KILL:when=2").output().unwrap();
        assert!(!done.status.success() && home.join("d").is_symlink(), "{done:?}");
        assert!(fs::read_to_string(home.join(".flexvol.json")).unwrap().contains("\"hash\""));
        assert_eq!(node.install(&words).action(), "taken over");
        assert_eq!(fs::read_dir(node.state().join("replaced/v~d")).unwrap().count(), 1);
        node.install(&["v/d", "--roll-back"]);
        assert_eq!(fs::read_link(home.join("d")).unwrap(), node.path("away/d"));
        assert_eq!(fs::read_to_string(home.join(".flexvol.json")).ok().as_deref(), side_file);
        assert_eq!(node.install(&["v/d", "--roll-back"]).action(), "unchanged");
        assert!(node.uninstall(&["v/d"]).error(4).contains(wording("foreign-entry")));
        fs::remove_dir_all(&home).unwrap();
        fs::remove_dir_all(node.state()).unwrap();
    }
}

/// The system call that a plain uninstall makes about a path, with the words before it.
fn nth(node: &Node, call: &str, words: &str) -> usize {
    let trace = node.path("trace");
    let plain = node.flexvol("uninstall", &["v/d"]);
    let mut traced = Command::new("strace");
    traced.args(["-qq", "-e", "signal=none", "-o"]).arg(&trace).args(["-e", &format!("trace={call}")]);
    assert!(traced.arg(plain.get_program()).args(plain.get_args()).output().unwrap().status.success());
    let trace = fs::read_to_string(trace).unwrap();
    1 + trace.lines().position(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words:?}: {trace}"))
}

fn told(node: &Node, call: &str, words: &str, path: &Path) {
    let old = node.file("old", &script(""));
    let install = || node.install(&["v/d", "--binary", old.to_str().unwrap()]);
    install();
    let count = nth(node, call, words);
    for errno in ["EIO", "EPERM"] {
        install();
        let strike = format!("{call}:error={errno}:when={count}");
        let answer: Answer = answer(&mut struck(node, "uninstall", &["v/d"], &strike));
        let message = answer.error(1);
        assert!(message.contains(path.to_str().unwrap()), "{strike}: {message}");
        assert_eq!(node.uninstall(&["v/d"]).action(), "removed");
    }
}

#[test]
fn what_an_uninstall_cannot_look_at_is_named() {
    let Some(node) = node("halfway::what_an_uninstall_cannot_look_at_is_named") else { return };
    let (plugins, home) = (node.plugins(), node.plugins().join("v~d"));
    told(&node, "readlink", "\"/tmp\"", &home);
    told(&node, "openat", "\"v~d\"", &home);
    told(&node, "openat", "\".flexvol.json\"", &home.join(".flexvol.json"));
    told(&node, "flock", "LOCK_EX", &plugins);
    told(&node, "unlinkat", "\"d\"", &home.join("d"));
}

/// Whichever of the two programs is there when its side file is lost, too: the receipt has both.
#[test]
fn what_is_lost_in_a_half_upgraded_driver_comes_back() {
    let Some(node) = node("halfway::what_is_lost_in_a_half_upgraded_driver_comes_back") else { return };
    for when in [1, 2] {
        let [old, new] =
            [("old", ""), ("new", "\"attach\":false")].map(|(name, text)| node.file(name, &script(text)));
        node.install(&["v/d", "--binary", old.to_str().unwrap(), "--set", "c=d"]);
        let words = ["v/d", "--binary", new.to_str().unwrap(), "--set", "a=b"];
        let strike = format!("renameat:signal=KILL:when={when}");
        assert!(!struck(&node, "install", &words, &strike).output().unwrap().status.success());
        let home = node.plugins().join("v~d");
        let there = if when == 1 { &old } else { &new };
        assert_eq!(fs::read(home.join("d")).unwrap(), fs::read(there).unwrap());
        fs::remove_file(home.join(".flexvol.json")).unwrap();
        let done = node.install(&["v/d", "--binary", new.to_str().unwrap()]);
        assert!(["upgraded", "repaired"].contains(&done.action()), "{done:?}");
        let said = fs::read_to_string(home.join(".flexvol.json")).unwrap();
        assert!(said.contains("\"c\"") && said.contains("\"a\""), "{said}");
        assert_eq!(node.litter(), [""; 0]);
        assert_eq!(node.uninstall(&["v/d"]).action(), "removed");
    }
}
