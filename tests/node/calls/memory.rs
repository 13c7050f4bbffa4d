//! What is left of a Secret in a driver's own memory when it is done, and what others see of it
//! before.

use crate::report::Report;
use crate::support::{Call, Plugin, Run, namespace};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// How much of a secret counts as it.
const FRAGMENT: usize = 8;

/// Children of this thread only: other tests have theirs.
const WAITING: WaitPidFlag = WaitPidFlag::__WALL.union(WaitPidFlag::__WNOTHREAD);

/// What others may look for: nowhere else on this machine.
fn canary() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(4 * FRAGMENT).collect()
}

/// The secret and its spelling in a call, in pieces of which every longer part holds one.
fn fragments(canary: &str) -> Vec<Vec<u8>> {
    let forms = [canary.to_owned(), STANDARD.encode(canary)];
    forms.iter().flat_map(|form| form.as_bytes().chunks_exact(FRAGMENT).map(<[u8]>::to_vec)).collect()
}

fn holds(text: &[u8], fragments: &[Vec<u8>]) -> Option<usize> {
    let begins = |byte: u8| fragments.iter().any(|fragment| fragment[0] == byte);
    (0..text.len())
        .find(|at| begins(text[*at]) && fragments.iter().any(|fragment| text[*at..].starts_with(fragment)))
}

/// Where in the memory of a stopped process something of it stands.
fn remains(pid: Pid, fragments: &[Vec<u8>]) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (begin, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; usize::try_from(number(end) - number(begin)).unwrap()];
        if memory.read_exact_at(&mut bytes, number(begin)).is_ok()
            && let Some(at) = holds(&bytes, fragments)
        {
            let around = &bytes[at.saturating_sub(16)..(at + 32).min(bytes.len())];
            found.push(format!("{line} +{at:#x}: {:?}", String::from_utf8_lossy(around)));
        }
    }
    found
}

/// What a process of ours shows when it is about to end.
struct Last {
    remains: Vec<String>,
    shown: bool,
    core: String,
}

/// Runs a call, and stops it and whatever it forks for a last look just before each ends. Programs
/// it executes are none of ours.
fn last_looks(call: &Call, canary: &str) -> (Run, Vec<Last>) {
    let script = "kill -STOP $$; exec \"$@\"";
    let words = ["-c", script, "sh"].into_iter().map(Into::into);
    let own = [call.0.get_program().to_owned()].into_iter().chain(call.0.get_args().map(ToOwned::to_owned));
    let running =
        Call::new(Path::new("/bin/sh"), words.chain(own).collect::<Vec<std::ffi::OsString>>()).start();
    let first = Pid::from_raw(running.pid());
    let stopped = || fs::read_to_string(format!("/proc/{first}/stat")).unwrap().contains(") T ");
    crate::support::eventually("a stop", stopped);
    let options = Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK | Options::PTRACE_O_TRACECLONE;
    ptrace::seize(first, options | Options::PTRACE_O_TRACEEXIT).unwrap();
    kill(first, Signal::SIGCONT).unwrap();
    let (fragments, mut looks) = (fragments(canary), Vec::new());
    let binary = fs::canonicalize(crate::support::BINARY).unwrap();
    loop {
        // Whoever started it waits for the first one's end.
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT;
        match waitid(Id::All, WAITING | look).unwrap() {
            WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) if pid == first => break,
            _ => {}
        }
        match waitpid(None, Some(WAITING)).unwrap() {
            WaitStatus::PtraceEvent(pid, _, event) => {
                let ours = || fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == binary);
                if event == Event::PTRACE_EVENT_EXIT as i32 && ours() {
                    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap();
                    let limits = String::from_utf8(read("limits")).unwrap();
                    looks.push(Last {
                        remains: remains(pid, &fragments),
                        shown: holds(&read("cmdline"), &fragments).is_some(),
                        core: limits.lines().find(|line| line.contains("core file")).unwrap().to_owned(),
                    });
                }
                ptrace::cont(pid, None).unwrap();
            }
            WaitStatus::Stopped(pid, signal) => {
                let kept = !matches!(signal, Signal::SIGTRAP | Signal::SIGSTOP | Signal::SIGCONT);
                ptrace::cont(pid, kept.then_some(signal)).unwrap();
            }
            _ => {}
        }
    }
    (running.finish(), looks)
}

/// Every process of ours, at its end.
fn nothing_remains(what: &str, call: &Call, canary: &str) -> Run {
    let (run, looks) = last_looks(call, canary);
    assert!(looks.len() >= 2, "{what}: only {} of our processes were seen", looks.len());
    for Last { remains, shown, core } in looks {
        assert!(remains.is_empty(), "{what}: {}", remains.join("\n"));
        assert!(!shown, "{what}: everybody can read it in the arguments");
        let limit = core.split_whitespace().nth(4).unwrap();
        assert!(["0", "1"].contains(&limit), "{what}: {core}");
    }
    run
}

#[test]
fn nothing_of_a_secret_is_left_in_memory() {
    let name = "memory::nothing_of_a_secret_is_left_in_memory";
    if !namespace::enter(name) {
        return;
    }
    let commands = json!({"mount": ["/bin/sh", "-c", "cat \"$1\" >/dev/null; cat >/dev/null; mount -t tmpfs x \"$0\"", "{target}", "{secret.password}"], "unmount": ["/bin/umount", "{target}"]});
    let exec = json!({"driver": "exec", "exec": {"commands": commands, "secretsOnStdin": true}}).to_string();
    let mut report = Report::begin("secrets", "own-memory", "call", 2);
    for (driver, side_file) in [("secretfiles", "{}"), ("exec", exec.as_str())] {
        let plugin = Plugin::new(format!("example~{driver}"), driver, Some(side_file));
        let target = plugin.directory.path().join(format!("pods/1/volumes/example~{driver}/v"));
        fs::create_dir_all(&target).unwrap();
        let canary = canary();
        let options = json!({"kubernetes.io/secret/password": STANDARD.encode(&canary), "kubernetes.io/readwrite": "rw"});
        for (target, works) in
            [(target.as_path(), true), (target.as_path(), true), (Path::new("/nonexistent/v"), false)]
        {
            let call = plugin.call(["mount", target.to_str().unwrap(), &options.to_string()]);
            let run = nothing_remains(driver, &call, &canary);
            if works { run.success() } else { drop(run.failure()) }
        }
        // Another secret for the same volume: it fails, with both in memory.
        let other = self::canary();
        let options = json!({"kubernetes.io/secret/password": STANDARD.encode(&other), "unknown": "x"});
        let call = plugin.call(["mount", target.to_str().unwrap(), &options.to_string()]);
        nothing_remains(driver, &call, &other).failure();
        plugin.call(["unmount", target.to_str().unwrap()]).run().success();
        (0..4).for_each(|_| report.tried(None));
    }
    report.end();
}
