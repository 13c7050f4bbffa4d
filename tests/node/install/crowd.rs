//! Many at once: kubelet calling while installers upgrade, and installers against each other.

use super::node::{Node, answer, command, init, script};
use super::support::pace::deadline;
use flexvol::sys::fs::directory::Directory;
use flexvol::sys::proc::deadline::Deadline;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// How often the driver is called, at least, and how often it is upgraded meanwhile.
const CALLS: usize = 1000;
const UPGRADES: usize = 200;

#[test]
fn calls_never_meet_half_an_upgrade() {
    let Some(node) = Node::new("crowd::calls_never_meet_half_an_upgrade") else { return };
    let other = node.path("other");
    let append = "cp \"$1\" \"$2\" && printf x >> \"$2\"";
    let mut copy = Command::new("sh");
    copy.args(["-c", append, "sh"]).arg(command()).arg(&other);
    assert!(copy.status().unwrap().success());
    let install = |binary: &Path| node.install(&["v/tmpfs", "--binary", binary.to_str().unwrap()]);
    assert_eq!(install(command()).action(), "installed");
    let (executable, over) = (node.plugins().join("v~tmpfs/tmpfs"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut calls = 0;
            while calls < CALLS || !over.load(Ordering::Relaxed) {
                init(&executable);
                calls += 1;
            }
            calls
        });
        for upgrade in 0..UPGRADES {
            let binary = if upgrade % 2 == 0 { &other } else { command() };
            assert_eq!(install(binary).action(), "upgraded");
        }
        over.store(true, Ordering::Relaxed);
        println!("{} calls during {UPGRADES} upgrades", calls.join().unwrap());
    });
    assert_eq!(node.litter(), [""; 0]);
}

#[test]
fn installers_take_turns() {
    let Some(node) = Node::new("crowd::installers_take_turns") else { return };
    let binaries: Vec<_> =
        (0..8).map(|n| node.file(&format!("driver{n}"), &(script("") + &format!("# {n}\n")))).collect();
    let start = |binary: &Path| {
        let mut command = node.flexvol("install", &["v/d", "--binary", binary.to_str().unwrap()]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<_> = binaries.iter().map(|binary| start(binary)).collect();
    let mut first = 0;
    for installer in all {
        let output = installer.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        first += usize::from(text.contains("\"installed\""));
    }
    assert_eq!(first, 1);
    node.init("v/d");
    assert_eq!(
        (node.listing(), node.litter()),
        (vec!["v~d".into(), "v~d/.flexvol.json".into(), "v~d/d".into()], vec![])
    );
}

#[test]
fn who_waits_too_long_for_another_is_told() {
    let Some(node) = Node::new("crowd::who_waits_too_long_for_another_is_told") else { return };
    let held = Directory::open(&node.plugins()).unwrap().unwrap();
    held.lock(&Deadline::after(deadline(20))).unwrap();
    for command in ["install", "uninstall"] {
        let refused = answer(&mut node.flexvol(command, &["tmpfs", "--lock-timeout", "0"]));
        assert!(refused.error(10).contains("another installer holds"), "{refused:?}");
    }
    drop(held);
    assert_eq!(node.install(&["tmpfs"]).action(), "installed");
}

#[test]
fn drivers_of_one_name_in_two_directories_are_kept_whole() {
    let name = "crowd::drivers_of_one_name_in_two_directories_are_kept_whole";
    let Some(node) = Node::new(name) else { return };
    let directories = ["one", "two"];
    for round in 0..6 {
        for directory in directories {
            let binary = script("");
            node.file(&format!("{directory}-{round}/v~d/d"), &binary);
            for file in 0..200 {
                node.file_quietly(&format!("{directory}-{round}/v~d/{directory}-{file}"), directory);
            }
        }
        let start = |directory: &str| {
            let mut command = Command::new(command());
            command.args(["install", "--json", "v/d=tmpfs", "--take-over", "--plugin-dir"]);
            command.arg(node.path(&format!("{directory}-{round}"))).arg("--state-dir").arg(node.state());
            command.stdout(Stdio::piped()).spawn().unwrap()
        };
        for child in directories.map(start) {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{round}: {output:?}");
        }
        // As in each round but the first: the two copies and nothing else, each of one driver only.
        let copies = std::fs::read_dir(node.state().join("replaced/v~d")).unwrap();
        let counts: Vec<_> =
            copies.map(|copy| std::fs::read_dir(copy.unwrap().path()).unwrap().count()).collect();
        assert_eq!(counts, [201, 201], "{round}");
        std::fs::remove_dir_all(node.state()).unwrap();
    }
}
