//! Kills a call between two of its system calls, with ptrace(2): exactly there, every time.
//!
//! A call is two processes, the one kubelet starts and its worker, which makes all changes; the worker's
//! system calls are counted. Helpers such as mkfs run untraced.

use super::eventually;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Victim {
    /// The worker; its supervisor cleans up and replies.
    Worker,
    /// Both at once, as when the whole control group is killed.
    Both,
    /// The process kubelet started; the worker is left alone.
    Supervisor,
}

/// Kills before the worker's system call number `point`, counted from 1, or never if it makes fewer. How many
/// it began.
pub fn kill_at(command: &Command, point: usize, victim: Victim) -> usize {
    let mut held = Command::new("sh");
    held.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    held.env_remove("LD_LIBRARY_PATH").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = held.spawn().unwrap();
    let supervisor = Pid::from_raw(child.id().cast_signed());
    let stat = || fs::read_to_string(format!("/proc/{supervisor}/stat")).unwrap();
    assert!(eventually(|| stat().contains(") T ")));
    ptrace::seize(supervisor, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACEFORK).unwrap();
    kill(supervisor, Signal::SIGCONT).unwrap();
    let mut trace = Trace { supervisor, worker: None, entered: BTreeMap::new(), calls: 0 };
    trace.follow(point, victim);
    // Reaped by now.
    let _ = child.wait();
    trace.calls
}

struct Trace {
    supervisor: Pid,
    worker: Option<Pid>,
    /// The traced processes, and whether each is in a system call.
    entered: BTreeMap<Pid, bool>,
    calls: usize,
}

impl Trace {
    fn follow(&mut self, point: usize, victim: Victim) {
        self.entered.insert(self.supervisor, false);
        while !self.entered.is_empty() {
            match waitpid(None, Some(WaitPidFlag::__WALL)).unwrap() {
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) => drop(self.entered.remove(&pid)),
                WaitStatus::PtraceSyscall(pid) => self.system_call(pid, point, victim),
                WaitStatus::PtraceEvent(pid, _, event) => self.event(pid, event),
                WaitStatus::Stopped(pid, signal) => go_on(pid, Some(signal)),
                _ => {}
            }
        }
    }

    fn event(&mut self, pid: Pid, event: i32) {
        if event == Event::PTRACE_EVENT_STOP as i32 && !self.entered.contains_key(&pid) {
            // The first is the worker; another one cleans up after a worker that was killed.
            self.worker.get_or_insert(pid);
            self.entered.insert(pid, false);
            // Its helpers are not followed.
            ptrace::setoptions(pid, Options::PTRACE_O_TRACESYSGOOD).unwrap();
        }
        go_on(pid, None);
    }

    fn system_call(&mut self, pid: Pid, point: usize, victim: Victim) {
        let entered = self.entered.get_mut(&pid).unwrap();
        *entered = !*entered;
        if *entered && self.worker == Some(pid) {
            self.calls += 1;
            if self.calls == point {
                return self.end(pid, victim);
            }
        }
        go_on(pid, None);
    }

    fn end(&mut self, worker: Pid, victim: Victim) {
        if victim != Victim::Worker {
            kill(self.supervisor, Signal::SIGKILL).unwrap();
        }
        if victim == Victim::Supervisor {
            self.entered.remove(&worker);
            ptrace::detach(worker, None).unwrap();
        } else {
            kill(worker, Signal::SIGKILL).unwrap();
        }
    }
}

/// A process that was killed meanwhile cannot go on, and need not.
fn go_on(pid: Pid, signal: Option<Signal>) {
    let _ = ptrace::syscall(pid, signal);
}
