//! What an admin is told besides: of the kubelets that read the directory, and of programs the node
//! lacks.
//!
//! Other tests start kubelets, too: advice is about those of the directory at hand only.

use super::node::{Answer, Node, script};
use super::support::eventually;
use super::support::pace::deadline;
use crate::support::wording::{wording, wording_of};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Prints TEXT when asked for its version under a bare environment, and else waits for the end of
/// its input.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char c;
    if (argc == 2 && !strcmp(argv[1], "--version") && !getenv("LEAK")) {
        if (!strcmp(TEXT, "hang")) for (;;) pause();
        puts(TEXT);
        return 0;
    }
    while (read(0, &c, 1) > 0);
    return 1;
}
"#;

/// A running program under the name of kubelet that says it is of a release, until dropped.
struct Kubelet(Child);

impl Kubelet {
    fn start(node: &Node, says: &str, arguments: &[&str]) -> Self {
        Self::of(Command::new(compiled(node, says)).args(arguments))
    }

    fn reading(node: &Node, says: &str, plugins: &Path) -> Self {
        Self::start(node, says, &[&format!("--volume-plugin-dir={}", plugins.display())])
    }

    fn of(command: &mut Command) -> Self {
        let kubelet = Self(command.arg0("kubelet").stdin(Stdio::piped()).spawn().unwrap());
        let line = format!("/proc/{}/cmdline", kubelet.0.id());
        eventually("it has its name", || fs::read(&line).is_ok_and(|line| line.starts_with(b"kubelet\0")));
        kubelet
    }

    fn pid(&self) -> String {
        format!("kubelet (pid {})", self.0.id())
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compiled(node: &Node, says: &str) -> PathBuf {
    let (source, program) = (node.file("kubelet.c", PROGRAM), node.path("kubelet"));
    // A running one of the same name keeps its own file.
    let _ = fs::remove_file(&program);
    let text = format!("-DTEXT=\"{says}\"");
    let status = Command::new("cc").args(["-o".as_ref(), program.as_path(), text.as_ref(), &source]).status();
    assert!(status.unwrap().success());
    program
}

fn warnings(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 0, "{answer:?}");
    answer.json["warnings"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Installs a driver again; what is said about it.
fn advice(node: &Node) -> Vec<String> {
    let driver = node.file("driver", &script("\"attach\":false"));
    let _ = fs::remove_dir_all(node.plugins().join("v~d"));
    warnings(&answer_of(node, driver.to_str().unwrap()))
}

fn answer_of(node: &Node, binary: &str) -> Answer {
    super::node::answer(node.flexvol("install", &["v/d", "--binary", binary]).env("LEAK", "1"))
}

#[test]
fn a_kubelet_that_never_looks_again_is_to_be_restarted() {
    let Some(node) = Node::new("advice::a_kubelet_that_never_looks_again_is_to_be_restarted") else { return };
    let old = Kubelet::reading(&node, "Kubernetes v1.7.16", &node.plugins());
    let told = advice(&node);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with(&format!("{} is of Kubernetes 1.7", old.pid())), "{told:?}");
    assert!(told[0].ends_with(wording_of("restart-kubelet", ["…", "…", "v/d"])), "{told:?}");
    let _ = fs::remove_dir_all(node.plugins().join("v~d"));
    let driver = node.path("driver");
    let dry = node.install(&["v/d", "--dry-run", "--binary", driver.to_str().unwrap()]);
    assert_eq!(warnings(&dry), told);
    let mut text = Command::new(super::node::command());
    text.args(["install", "v/d", "--plugin-dir"]).arg(node.plugins()).arg("--binary").arg(&driver);
    let output = text.arg("--state-dir").arg(node.state()).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains(&format!("warning: {}", told[0])));
}

#[test]
fn a_kubelet_that_is_fit_says_nothing() {
    let Some(node) = Node::new("advice::a_kubelet_that_is_fit_says_nothing") else { return };
    node.file("plugins/w~e/e", "#!/bin/sh\nexit 1\n");
    for says in ["Kubernetes v1.36.2", "k3s version v1.28.4+k3s1 (6ba6c1b6)", "Kubernetes v1.99.0", "nothing"]
    {
        let kubelet = Kubelet::reading(&node, says, &node.plugins());
        assert_eq!(advice(&node), [""; 0], "{says}");
        drop(kubelet);
    }
    fs::create_dir(node.path("other")).unwrap();
    let _elsewhere = Kubelet::reading(&node, "Kubernetes v1.7.16", &node.path("other"));
    assert_eq!(advice(&node), [""; 0]);
}

#[test]
fn an_old_kubelet_loses_drivers_only_to_one_that_fails() {
    let Some(node) = Node::new("advice::an_old_kubelet_loses_drivers_only_to_one_that_fails") else { return };
    let kubelet = Kubelet::reading(&node, "Kubernetes v1.22.6", &node.plugins());
    node.file("plugins/a~good/good", &script(""));
    fs::create_dir(node.path("plugins/.hidden")).unwrap();
    assert_eq!(advice(&node), [""; 0]);
    node.file("plugins/w~bad/bad", "#!/bin/sh\nexit 1\n");
    let told = advice(&node);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with(wording_of("other-driver-fails", ["w~bad"])) && told[0].contains(&kubelet.pid())
    );
    assert!(told[0].ends_with(wording_of("other-driver-fails", ["…", "…", "…", "1.22", "v/d", "w~bad"])));
    node.init("v/d");
}

#[test]
fn a_kubelet_that_hangs_or_is_not_roots_costs_little() {
    let Some(node) = Node::new("advice::a_kubelet_that_hangs_or_is_not_roots_costs_little") else { return };
    let hanging = Kubelet::reading(&node, "hang", &node.plugins());
    let start = Instant::now();
    assert_eq!(advice(&node), [""; 0]);
    assert!(start.elapsed() < deadline(60), "{:?}", start.elapsed());
    drop(hanging);
    // What such a process executes is anybody's program.
    fs::set_permissions(node.path(""), Permissions::from_mode(0o755)).unwrap();
    let program = compiled(&node, "Kubernetes v1.7.16");
    let flag = format!("--volume-plugin-dir={}", node.plugins().display());
    let _tenant = Kubelet::of(Command::new(program).arg(flag).uid(65534).gid(65534));
    assert_eq!(advice(&node), [""; 0]);
}

#[test]
fn who_attaches_is_read_from_kubelet() {
    let Some(node) = Node::new("advice::who_attaches_is_read_from_kubelet") else { return };
    let settings = r#"{"driver": "exec", "exec": {"commands": {"mount": ["/bin/true"], "attach": ["/bin/true"], "mountdevice": ["/bin/true"]},
                       "capabilities": {"attach": true}}}"#;
    let settings = node.file("settings", settings);
    let configuration = node.file("configuration", "enableControllerAttachDetach: false\n");
    let directory = format!("--volume-plugin-dir={}", node.plugins().display());
    let configured = format!("--config={}", configuration.display());
    for (flag, own) in [
        ("--v=2", false),
        ("--enable-controller-attach-detach=false", true),
        ("--enable-controller-attach-detach=true", false),
        (&configured, true),
    ] {
        let kubelet = Kubelet::start(&node, "Kubernetes v1.36.2", &[&directory, flag]);
        let install = ["v/d=exec", "--settings", settings.to_str().unwrap()];
        let dry = node.install(&[&install[..], &["--dry-run"]].concat());
        let told = warnings(&node.install(&install));
        assert_eq!((told.len(), &warnings(&dry)), (1, &told), "{flag}");
        let by_kubelet = told[0].contains(&kubelet.pid()) && told[0].contains(wording("kubelet-attaches"));
        let by_manager = told[0].contains("kube-controller-manager needs it");
        assert_eq!((by_kubelet, by_manager), (own, !own), "{flag} {told:?}");
        fs::remove_dir_all(node.plugins().join("v~d")).unwrap();
    }
}

#[test]
fn programs_are_looked_for_on_the_node_itself() {
    let Some(node) = Node::new("advice::programs_are_looked_for_on_the_node_itself") else { return };
    let root = node.path("root");
    fs::create_dir(&root).unwrap();
    let install = |words: &[&str]| {
        let _ = fs::remove_dir_all(root.join(node.plugins().strip_prefix("/").unwrap()));
        let mut command = node.flexvol("install", words);
        warnings(&super::node::answer(command.arg("--root").arg(&root)))
    };
    let told = install(&["v/image"]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with(wording_of("programs-lacking", ["v/image"])), "{told:?}");
    assert!(
        told[0].contains("mkfs.ext4 (install e2fsprogs), e2fsck (install e2fsprogs), resize2fs"),
        "{told:?}"
    );
    for tool in ["mkfs.ext4", "e2fsck", "resize2fs", "mkfs.btrfs", "btrfs", "xfs_growfs"] {
        node.file(&format!("root/usr/sbin/{tool}"), "#!/bin/sh\n");
    }
    assert!(install(&["v/image"])[0].ends_with("lacks: mkfs.xfs (install xfsprogs)"));
    node.file("root/usr/local/bin/mkfs.xfs", "#!/bin/sh\n");
    assert_eq!(install(&["v/image"]), [""; 0]);
    assert_eq!(install(&["v/tmpfs"]), [""; 0]);
    let settings =
        r#"{"driver": "exec", "exec": {"commands": {"mount": ["/opt/mount"], "unmount": ["/opt/un"]}}}"#;
    let settings = node.file("settings", settings);
    node.file("root/opt/un", "#!/bin/sh\n");
    let exec = ["v/d=exec", "--settings", settings.to_str().unwrap()];
    let told = install(&exec);
    assert!(told[0].ends_with("lacks: /opt/mount (put it there)"), "{told:?}");
}
