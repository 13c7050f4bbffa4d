//! Everything of a call is killed at once, its daemon too: the next call does what that one was to
//! do.

use super::{DRIVER, daemons, options, stage, staged, with_driver};
use crate::support::{Node, processes, sh};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How a volume is mounted, and where and how it is unmounted.
struct Way<'a> {
    mount: &'a dyn Fn() -> Command,
    unmount: (&'static str, PathBuf),
}

/// The call, what it has started, and the daemon.
fn kill(mut call: Command, after: Duration) {
    let before = processes();
    let mut call = call.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sleep(after);
    // Some of them start others meanwhile.
    for _ in 0..3 {
        for (pid, _) in processes().into_iter().filter(|process| !before.contains(process)) {
            sh(&format!("kill -9 {pid} 2>/dev/null || :"));
        }
    }
    call.wait().unwrap();
}

fn killed_anywhere(node: &Node, way: &Way<'_>, begin: &str) {
    let points = if std::env::var_os("FULL").is_some() { 200 } else { 25 };
    let (verb, target) = &way.unmount;
    let unmount = || node.call(&mut node.command(DRIVER, verb, target, None)).success();
    sh(begin);
    let start = Instant::now();
    node.call(&mut (way.mount)()).success();
    let whole = start.elapsed();
    unmount();
    for point in 0..points {
        sh(begin);
        kill((way.mount)(), whole * point / points);
        let answer = node.call(&mut (way.mount)());
        assert_eq!(answer.status, "Success", "{point} of {points}, {whole:?}: {answer:?}");
        assert_eq!(daemons().len(), 1);
        unmount();
        node.assert_clean();
    }
}

const MAKE_ANEW: &str = "rm -f /run/img/a.qcow2";

fn by_staging(node: &Node, begin: &str) {
    let way = Way { mount: &|| stage(node, &options()), unmount: ("unmountdevice", staged(node)) };
    killed_anywhere(node, &way, begin);
}

#[test]
fn is_staged_by_the_next_call() {
    with_driver("qcow2::killed::is_staged_by_the_next_call", |node| by_staging(node, ":"));
}

#[test]
fn is_made_by_the_next_call() {
    with_driver("qcow2::killed::is_made_by_the_next_call", |node| by_staging(node, MAKE_ANEW));
}

#[test]
fn is_mounted_by_the_next_call() {
    with_driver("qcow2::killed::is_mounted_by_the_next_call", |node| {
        node.install(DRIVER, json!({}));
        let target = node.volume(DRIVER, "p");
        let mount = || node.command(DRIVER, "mount", &target, Some(&options()));
        killed_anywhere(node, &Way { mount: &mount, unmount: ("unmount", target.clone()) }, MAKE_ANEW);
    });
}
