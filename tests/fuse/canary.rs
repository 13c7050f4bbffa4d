//! A secret that is nowhere else on this machine, and who can find it while a volume is mounted, unmounted, or not: in
//! answers, files, mount tables, and, a thousand times a second, in the arguments and environments of all processes.

use crate::node::{alone_for, mount_table, sh};
use crate::sshd::base64;
use crate::subjects::{ALL, Subject};
use crate::support::{BINARY, Run};
use crate::trust::{Report, is_full};
use flexvol::protocol::Outcome;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So much of a secret counts as it.
const PART: usize = 8;

/// Where programs leave things, as the shell reads it. What servers and the test itself have is below the test's own directory.
const PLACES: &str = "/run /var/log /var/lib/flexvol /var/cache/davfs2 /var/tmp /dev/shm ~root/.cache/rclone ~root/.config/rclone ~root/.davfs2";

fn canary() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(4 * PART).collect()
}

/// Pieces of which every part that is twice as long holds one, in each spelling. Of letters and digits the spelling of
/// an address is no other.
fn parts(canary: &str) -> Vec<Vec<u8>> {
    let pieces = |form: &str| form.as_bytes().chunks_exact(PART).map(<[u8]>::to_vec).collect::<Vec<_>>();
    // Also in the middle of what is encoded: three ways to begin.
    let encoded = (0..3).flat_map(|skip| pieces(&base64(&canary[skip..])[4..]));
    pieces(canary).into_iter().chain(encoded).collect()
}

fn holds(text: &[u8], parts: &[Vec<u8>]) -> bool {
    let begins = |at: &usize| parts.iter().any(|part| part[0] == text[*at] && text[*at..].starts_with(part));
    (0..text.len()).any(|at| begins(&at))
}

/// Looks at every process until it is told to stop.
struct Sampler<'a> {
    parts: &'a [Vec<u8>],
    /// Those that a test has started with the password, and the test.
    excused: Vec<u32>,
    binary: PathBuf,
    stop: AtomicBool,
}

/// What was seen.
#[derive(Default)]
struct Seen {
    samples: usize,
    /// With the arguments that they had last.
    processes: BTreeMap<i32, Vec<u8>>,
    table: String,
    found: BTreeSet<String>,
}

impl Sampler<'_> {
    fn look(&self, seen: &mut Seen) {
        let pids = fs::read_dir("/proc").unwrap().flatten();
        for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            if !self.excused.contains(&pid.cast_unsigned()) {
                self.look_at(pid, seen);
            }
        }
        let table = mount_table();
        if table != seen.table {
            if holds(table.as_bytes(), self.parts) {
                seen.found.insert("mountinfo".to_owned());
            }
            seen.table = table;
        }
        seen.samples += 1;
    }

    /// Whoever has other arguments than a moment ago is another program, with an environment of its own.
    fn look_at(&self, pid: i32, seen: &mut Seen) {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let arguments = read("cmdline");
        if seen.processes.get(&pid) == Some(&arguments) {
            return;
        }
        for (name, text) in [("cmdline", arguments.clone()), ("environ", read("environ"))] {
            // Kubelet starts the driver with it; what comes after that is the driver's own.
            if holds(&text, self.parts) && !(name == "cmdline" && self.is_ours(pid)) {
                let text = String::from_utf8_lossy(&text).replace('\0', " ");
                seen.found.insert(format!("{name} of {pid}: {text}"));
            }
        }
        seen.processes.insert(pid, arguments);
    }

    /// Ours, or just about to be: a process that is gone has no executable any more.
    fn is_ours(&self, pid: i32) -> bool {
        fs::read_link(format!("/proc/{pid}/exe")).map_or(true, |path| path == self.binary)
    }

    fn watch(&self) -> Seen {
        let mut seen = Seen::default();
        while !self.stop.load(Ordering::Relaxed) {
            let next = Instant::now() + Duration::from_millis(1);
            self.look(&mut seen);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        seen
    }
}

/// The files of the node that hold it.
fn files(parts: &[Vec<u8>]) -> Vec<PathBuf> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec grep -rlaFs --devices=skip -f /dev/stdin {PLACES}")]);
    let mut grep = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    grep.stdin.take().unwrap().write_all(&parts.join(&b'\n')).unwrap();
    let text = String::from_utf8(grep.wait_with_output().unwrap().stdout).unwrap();
    text.lines().map(PathBuf::from).collect()
}

/// What an answer, and what a file, must not hold. While a volume is mounted its program may read it again, and nobody
/// else.
fn judge(what: &str, run: &Run, parts: &[Vec<u8>], mounted: bool) {
    assert!(!holds(&run.output, parts), "{what}: the answer repeats it");
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
        assert_eq!(outcome == Outcome::Success, success, "{what}: {run:?}");
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
    let mounted = run.reply().outcome() == Outcome::Success;
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
    let sampler = Sampler {
        parts: &pieces,
        excused: excused.collect(),
        binary: fs::canonicalize(BINARY).unwrap(),
        stop: AtomicBool::new(false),
    };
    let start = Instant::now();
    let (calls, seen) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| sampler.watch());
        let calls = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let calls = play(subject, key, canary);
            refused(subject, key);
            shown_once(canary);
            calls
        }));
        sampler.stop.store(true, Ordering::Relaxed);
        (calls, watching.join().unwrap())
    });
    let calls = calls.unwrap();
    let (ours, theirs): (Vec<_>, Vec<_>) = seen.found.iter().partition(|found| found.contains(SHOWN));
    assert!(theirs.is_empty(), "{theirs:#?}");
    assert!(!ours.is_empty(), "whoever looks sees nothing at all");
    let rate = f64::from(u32::try_from(seen.samples).unwrap()) / start.elapsed().as_secs_f64();
    let (looks, processes) = (seen.samples, seen.processes.len());
    println!("NOTE canary {name}: {looks} samples, {rate:.0} a second, {processes} processes");
    let mut report = Report::begin("secrets", name, "call", looks);
    (0..calls + 2).for_each(|_| report.tried(None));
    report.end();
    assert!(looks > 20, "only {looks} samples");
    // A thousand are meant; a machine that has other things to do is slower.
    assert!(!is_full() || rate > 50.0, "only {rate:.0} samples a second");
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
