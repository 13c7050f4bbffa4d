//! A secret that is nowhere else on this machine, and who can find it while a volume is mounted,
//! unmounted, or not: in answers, files, mount tables, and, a thousand times a second, in the
//! arguments and environments of all processes.

use crate::node::{alone_for, sh};
use crate::sshd::base64;
use crate::subjects::{ALL, Subject};
use crate::support::{Run, program};
use crate::trust::Report;
use crate::watch::{PART, Parts, Watch};
use flexvol::protocol::StatusKind;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Where programs leave things, as the shell reads it. What servers and the test itself have is
/// below the test's own directory.
const PLACES: &str = "/run /var/log /var/lib/flexvol /var/cache/davfs2 /var/tmp /dev/shm ~root/.cache/rclone ~root/.config/rclone ~root/.davfs2";

fn canary() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(4 * PART).collect()
}

/// Also in the middle of what is encoded: three ways to begin. Of letters and digits the spelling
/// of an address is no other.
fn parts(canary: &str) -> Parts {
    Parts::of((0..3).map(|skip| base64(&canary[skip..])).chain([canary.to_owned()]))
}

/// The files of the node that hold it.
fn files(parts: &Parts) -> Vec<PathBuf> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec grep -rlaFs --devices=skip -f /dev/stdin {PLACES}")]);
    let mut grep = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    grep.stdin.take().unwrap().write_all(&parts.lines()).unwrap();
    let text = String::from_utf8(grep.wait_with_output().unwrap().stdout).unwrap();
    text.lines().map(PathBuf::from).collect()
}

/// What an answer, and what a file, must not hold. While a volume is mounted its program may read
/// it again, and nobody else.
fn judge(what: &str, run: &Run, parts: &Parts, mounted: bool) {
    assert!(!parts.are_in(&run.output), "{what}: the answer repeats it");
    for path in files(parts) {
        let private = path.starts_with("/run/flexvol/daemons") && mounted;
        assert!(private, "{what}: it is left in {}", path.display());
        let open = sh(&format!("find {} -perm /077", path.display()));
        assert!(open.is_empty(), "{what}: others can read {open}");
    }
}

/// All verbs, those that fail too.
fn play(subject: &Subject, key: &str, canary: &str) -> usize {
    let Subject { node, options, .. } = subject;
    let (target, parts) = (node.pod("1"), parts(canary));
    let mut calls = 0;
    let mut see = |what: &str, run: Run, mounted: bool, success: bool| {
        calls += 1;
        let outcome = run.reply().outcome();
        assert_eq!(outcome == StatusKind::Success, success, "{what}: {run:?}");
        judge(what, &run, &parts, mounted);
    };
    see("mount", node.mount(&target, options), true, true);
    see("mount again", node.mount(&target, options), true, true);
    let mut other = options.clone();
    other["noSuchOption"] = "x".into();
    see("mount otherwise", node.mount(&target, &other), true, false);
    see("unmount", node.unmount(&target), false, true);
    see("mount with a wrong option", node.mount(&target, &other), false, false);
    see("mount nowhere", node.mount(Path::new("/nonexistent/v"), options), false, false);
    let mut broken = options.clone();
    broken[format!("kubernetes.io/secret/{key}")] = format!("{}!", base64(canary)).into();
    see("mount with broken base64", node.mount(&target, &broken), false, false);
    see("unmount again", node.unmount(&target), false, true);
    calls
}

/// A server that does not know the password, with that in its log and in what the program says.
fn refused(subject: &Subject, key: &str) {
    let (wrong, target) = (canary(), subject.node.pod("1"));
    let mut options = subject.options.clone();
    options[format!("kubernetes.io/secret/{key}")] = base64(&wrong).into();
    let run = subject.node.mount(&target, &options);
    let mounted = run.reply().outcome() == StatusKind::Success;
    judge("mount with another password", &run, &parts(&wrong), mounted);
    judge("unmount after that", &subject.node.unmount(&target), &parts(&wrong), false);
}

/// In the environment of the one program that shows the secret.
const SHOWN: &str = "SHOWN_BY_THE_TEST";

/// A program that does what no driver does: whoever looks must see it.
fn shown_once(canary: &str) {
    let mut command = Command::new("sleep");
    assert!(command.arg("0.5").env(SHOWN, canary).status().unwrap().success());
}

fn nobody_finds(name: &str) {
    let (_, programs, make) = ALL.iter().find(|kind| kind.0 == name).unwrap();
    alone_for(&format!("canary::{}", name.replace('-', "_")), 240, programs, || {
        let canary = canary();
        if let Some(subject) = make(&canary) {
            nobody_finds_in(name, &subject, &canary);
        }
    });
}

/// Plays a subject that has this secret, and looks for it everywhere.
pub(crate) fn nobody_finds_in(name: &str, subject: &Subject, canary: &str) {
    let (key, pieces) = (subject.key.unwrap(), parts(canary));
    let excused = subject.servers.iter().map(|server| server.0.id()).chain([std::process::id()]);
    let binary = fs::canonicalize(program()).unwrap();
    let watch = Watch { parts: &pieces, excused: excused.collect(), drivers: binary };
    let (start, stop) = (Instant::now(), AtomicBool::new(false));
    let (calls, seen) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch.until(|| stop.load(Ordering::Relaxed)));
        let calls = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let calls = play(subject, key, canary);
            refused(subject, key);
            shown_once(canary);
            calls
        }));
        stop.store(true, Ordering::Relaxed);
        (calls, watching.join().unwrap())
    });
    let calls = calls.unwrap();
    let (ours, theirs): (Vec<_>, Vec<_>) = seen.found.iter().partition(|found| found.contains(SHOWN));
    assert!(theirs.is_empty(), "{theirs:#?}");
    assert!(!ours.is_empty(), "whoever looks sees nothing at all");
    let rate = f64::from(u32::try_from(seen.looks).unwrap()) / start.elapsed().as_secs_f64();
    let (looks, processes) = (seen.looks, seen.processes.len());
    println!("NOTE canary {name}: {looks} samples, {rate:.0} a second, {processes} processes");
    let mut report = Report::begin("secrets", name, "call", looks);
    (0..calls + 2).for_each(|_| report.tried(None));
    report.end();
    assert!(looks > 20, "only {looks} samples");
    subject.node.is_clean(&[]);
}

#[test]
fn secretfiles() {
    nobody_finds("secretfiles");
}

#[test]
fn exec() {
    nobody_finds("exec");
}

#[test]
fn git_web() {
    nobody_finds("git-web");
}

#[test]
fn sshfs_password() {
    nobody_finds("sshfs-password");
}

#[test]
fn rclone() {
    nobody_finds("rclone");
}

#[test]
fn webdav() {
    nobody_finds("webdav");
}

#[test]
fn s3() {
    nobody_finds("s3");
}
