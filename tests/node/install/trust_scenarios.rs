//! The scenarios of installing, for `tests/support/trust`: whatever happens, kubelet's view is the
//! old or the new one, and the same command again completes the work and leaves no litter.

use super::node::{Node, init, script};
use super::support::skip;
use super::trust::{Rung, Speaks, Volume, alone, crash, faults};
use std::fs;
use std::path::{Path, PathBuf};

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

/// What kubelet would find: the content of the executable, which must be loadable, and nothing that
/// would make it execute what is not there.
fn view(node: &Node) -> Option<String> {
    let strange = |name: &String| !name.starts_with('.') && name != "v~d" && !name.starts_with("v~d/");
    let listing = node.listing();
    assert!(!listing.iter().any(strange), "{listing:?}");
    let executable = node.plugins().join("v~d/d");
    let content = fs::read_to_string(&executable).ok()?;
    init(&executable);
    Some(content)
}

/// The command that does so, given the driver's file.
fn rung<'a>(node: &'a Node, verb: &'static str, words: &[&'a str]) -> Rung<'a> {
    let command = if verb == "uninstall" { verb } else { "install" };
    let words = [&["v/d"], words].concat();
    Rung::new(verb, move || node.flexvol(command, &words))
}

fn word(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Nothing is installed and nothing was, but for directories that are made once on a node.
fn emptied(node: &Node) {
    for place in [node.plugins(), node.state()] {
        let _ = fs::remove_dir_all(place);
    }
    fs::create_dir(node.plugins()).unwrap();
}

fn with_node(name: &str, body: impl FnOnce(&Node)) {
    if !cfg!(target_arch = "x86_64") {
        return skip(name, "only on x86_64 is known how to let a system call fail");
    }
    if !nix::unistd::geteuid().is_root() {
        return skip(name, "needs root");
    }
    alone(name, 200, &[], || {
        if let Some(node) = Node::new(name) {
            body(&node);
        }
    });
}

#[test]
fn a_first_install_an_upgrade_and_an_uninstall() {
    with_node("trust_scenarios::a_first_install_an_upgrade_and_an_uninstall", |node| {
        let Drivers { old, new } = Drivers::of(node);
        let up = vec![
            rung(node, "install", &["--binary", word(&old.1)]),
            rung(node, "upgrade", &["--binary", word(&new.1), "--set", "a=b"]),
        ];
        let seen = || {
            let view = view(node);
            assert!([None, Some(&old.0), Some(&new.0)].contains(&view.as_ref()), "{view:?}");
        };
        let volume = Volume {
            fresh: &|| emptied(node),
            intact: &|| assert_eq!((view(node).as_ref(), node.litter()), (Some(&new.0), vec![])),
            always: &seen,
            speaks: Speaks::Admin,
            sample: 3,
            places: vec![node.plugins()],
            ..Volume::new("install", up, vec![rung(node, "uninstall", &[])])
        };
        volume.withstands([5, 200]);
    });
}

#[test]
fn a_take_over_and_its_way_back() {
    with_node("trust_scenarios::a_take_over_and_its_way_back", |node| {
        let Drivers { old, new } = Drivers::of(node);
        let replaced = || {
            emptied(node);
            node.file("plugins/v~d/d", &old.0);
            node.file("plugins/v~d/jq", "helper");
        };
        let seen = || {
            let view = view(node);
            assert!([None, Some(&old.0), Some(&new.0)].contains(&view.as_ref()), "{view:?}");
        };
        let take_over = |verb| rung(node, verb, &["--take-over", "--binary", word(&new.1)]);
        let up = vec![
            take_over("take-over"),
            rung(node, "roll-back", &["--roll-back"]),
            take_over("take-over-again"),
        ];
        let volume = Volume {
            fresh: &replaced,
            intact: &|| assert_eq!((view(node).as_ref(), node.litter()), (Some(&new.0), vec![])),
            always: &seen,
            speaks: Speaks::Admin,
            sample: 2,
            places: vec![node.plugins()],
            ..Volume::new("install/take-over", up, Vec::new())
        };
        crash(&volume);
        faults(&volume);
    });
}

/// Killed at any instruction, and with any call that fails, the same command again puts it back as
/// it was.
#[test]
fn what_is_put_back() {
    with_node("trust_scenarios::what_is_put_back", |node| {
        let Drivers { new, .. } = Drivers::of(node);
        let (program, side_file) = (node.plugins().join("v~d/d"), node.plugins().join("v~d/.flexvol.json"));
        let damaged = &new.0[..new.0.len() / 2];
        let fresh = || {
            emptied(node);
            node.install(&["v/d", "--binary", word(&new.1), "--set", "a=b"]);
            fs::remove_file(&side_file).unwrap();
            fs::write(&program, damaged).unwrap();
        };
        let seen = || {
            let content = fs::read_to_string(&program).unwrap();
            assert!([damaged, &new.0].contains(&content.as_str()), "{content}");
        };
        let intact = || {
            assert_eq!((view(node).as_ref(), node.litter()), (Some(&new.0), vec![]));
            assert!(fs::read_to_string(&side_file).unwrap().contains("\"a\": \"b\""));
        };
        let up = vec![rung(node, "put-back", &["--binary", word(&new.1)])];
        let volume = Volume {
            fresh: &fresh,
            intact: &intact,
            always: &seen,
            speaks: Speaks::Admin,
            sample: 2,
            places: vec![node.plugins()],
            ..Volume::new("install/put-back", up, Vec::new())
        };
        crash(&volume);
        faults(&volume);
    });
}
