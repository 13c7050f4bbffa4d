//! What kubelet's watch sees: one change for each operation, none for a no-op. Recorded with real
//! inotify.

use super::node::{Node, script};
use flexvol::sys::fs::inotify::{Inotify, Interest, Notice, What};
use std::fs;
use std::path::PathBuf;

/// Everything that happened, as kubelet's watches on the plugin directory and the driver's would
/// tell.
struct Record {
    inotify: Inotify,
}

/// What happened to which name; `None` for the watched directory itself.
type Seen = (What, Option<String>);

impl Record {
    fn start(directories: &[PathBuf]) -> Self {
        let inotify = Inotify::new().unwrap();
        for directory in directories {
            inotify.watch(directory, Interest::ENTRIES).unwrap();
        }
        Self { inotify }
    }

    fn all(&mut self) -> Vec<Notice> {
        self.inotify.read().unwrap()
    }

    /// Without what kubelet ignores: names that begin with a dot, and that a watch went with its
    /// directory.
    fn visible(&mut self) -> Vec<Seen> {
        let name = |notice: &Notice| notice.name.as_ref().map(|name| name.to_str().unwrap().to_owned());
        let seen = self.all().into_iter().filter(|notice| notice.what != What::Ended);
        seen.map(|notice| (notice.what, name(&notice)))
            .filter(|(_, name)| name.as_ref().is_none_or(|name| !name.starts_with('.')))
            .collect()
    }
}

fn seen(what: What, name: &str) -> Seen {
    (what, Some(name.to_owned()))
}

#[test]
fn each_operation_is_one_visible_event_and_a_no_op_is_none() {
    let Some(node) = Node::new("events::each_operation_is_one_visible_event_and_a_no_op_is_none") else {
        return;
    };
    let (old, new) = (node.file("old", &script("")), node.file("new", &script("\"attach\":false")));
    let install = |binary: &PathBuf| node.install(&["v/d", "--binary", binary.to_str().unwrap()]);
    let (plugins, home) = (node.plugins(), node.plugins().join("v~d"));

    let mut record = Record::start(std::slice::from_ref(&plugins));
    assert_eq!(install(&old).action(), "installed");
    assert_eq!(record.visible(), [seen(What::MovedIn, "v~d")], "first install");

    let mut record = Record::start(&[plugins.clone(), home.clone()]);
    assert_eq!(install(&new).action(), "upgraded");
    assert_eq!(record.visible(), [seen(What::MovedIn, "d")], "upgrade");

    let mut record = Record::start(&[plugins.clone(), home.clone()]);
    assert_eq!(install(&new).action(), "unchanged");
    assert_eq!(record.all(), [], "no-op: not even a hidden name");

    let mut record = Record::start(&[plugins, home]);
    assert_eq!(node.uninstall(&["v/d"]).action(), "removed");
    let removes = [seen(What::Removed, "d"), seen(What::Removed, "v~d")];
    assert_eq!(record.visible(), removes, "uninstall: for kubelet both are the driver's removal");
}

#[test]
fn settings_are_an_event_only_if_kubelet_would_hear_of_them() {
    let Some(node) = Node::new("events::settings_are_an_event_only_if_kubelet_would_hear_of_them") else {
        return;
    };
    assert_eq!(
        node.install(&["v/x=exec", "--set", "exec.commands.mount=[\"/bin/true\"]"]).action(),
        "installed"
    );
    let homes = [node.plugins(), node.plugins().join("v~x")];
    let mut record = Record::start(&homes);
    assert_eq!(node.install(&["v/x", "--set", "deadlines.mount=90"]).action(), "configured");
    assert_eq!(record.visible(), []);
    assert_eq!(node.install(&["v/x", "--set", "exec.capabilities.fsGroup=true"]).action(), "configured");
    assert_eq!(record.visible(), [seen(What::MovedIn, "x")]);
    assert!(node.init("v/x").capabilities.unwrap().fs_group);
}

#[test]
fn taking_over_and_rolling_back_are_one_event_each() {
    let Some(node) = Node::new("events::taking_over_and_rolling_back_are_one_event_each") else { return };
    node.file("plugins/v~tmpfs/tmpfs", &script(""));
    node.file("plugins/v~tmpfs/jq", "helper");
    let mut record = Record::start(&[node.plugins(), node.plugins().join("v~tmpfs")]);
    for action in [&["v/tmpfs", "--take-over"][..], &["v/tmpfs", "--roll-back"]] {
        assert_eq!(node.install(action).status, 0);
        assert_eq!(record.visible(), [seen(What::MovedIn, "tmpfs")], "{action:?}");
    }
}

#[test]
fn what_a_killed_installer_left_goes_without_a_word() {
    let Some(node) = Node::new("events::what_a_killed_installer_left_goes_without_a_word") else { return };
    let binary = node.file("driver", &script(""));
    node.install(&["v/d", "--binary", binary.to_str().unwrap()]);
    fs::create_dir(node.plugins().join(".flexvol-1-1-0")).unwrap();
    node.file("plugins/.flexvol-1-1-1", "half");
    let mut record = Record::start(&[node.plugins(), node.plugins().join("v~d")]);
    assert_eq!(node.install(&["v/d", "--binary", binary.to_str().unwrap()]).action(), "unchanged");
    assert_eq!((record.visible(), node.litter()), (vec![], vec![]));
    // In the driver's directory it says that kubelet may not have heard of the last change.
    node.file("plugins/v~d/.flexvol-1-1-1", "half");
    record.all();
    assert_eq!(node.install(&["v/d", "--binary", binary.to_str().unwrap()]).action(), "repaired");
    assert_eq!((record.visible(), node.litter()), (vec![seen(What::MovedIn, "d")], vec![]));
}
