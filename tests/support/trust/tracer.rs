//! A call that is followed with ptrace(2), and struck exactly before one of its system calls, every
//! time.
//!
//! A call is two processes, the one that is started and its worker, which makes all changes; and
//! the programs that the worker runs. The system calls of each of the three are counted apart,
//! because they run at the same time.

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::process::{Command, Stdio};

/// Whose system calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// The process that was started.
    Supervisor,
    /// Its first child.
    Worker,
    /// What the worker starts, all together.
    Program,
    /// Who cleans up after a worker that is gone: never struck.
    Cleaner,
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Victim {
    /// The worker; its supervisor cleans up and replies.
    Worker,
    /// Both at once, as when the whole control group is killed.
    Both,
    /// The process that was started; the worker is left alone.
    Supervisor,
    /// The program that makes the system call.
    Program,
}

/// What is done at the point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Act {
    Kill(Victim),
    /// The system call is not made, and says this.
    Fail(Errno),
}

/// Before the system call number `point` of this role, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultInjection {
    pub(crate) role: Role,
    pub(crate) point: usize,
    pub(crate) act: Act,
    /// Which system call that was when they were counted. A call that looks at all processes makes
    /// more of them when there are more: the first one of this kind from the point on is struck,
    /// not what happens to be there.
    pub(crate) number: Option<i64>,
}

impl FaultInjection {
    /// Before one of the worker's own.
    pub(crate) fn killing_the_worker(point: usize) -> Self {
        Self { role: Role::Worker, point, act: Act::Kill(Victim::Worker), number: None }
    }

    /// One of the worker's own fails.
    pub(crate) fn failing(point: usize, error: Errno) -> Self {
        Self { role: Role::Worker, point, act: Act::Fail(error), number: None }
    }

    fn meets(&self, role: Role, count: usize, number: i64) -> bool {
        self.role == role && count >= self.point && self.number.is_none_or(|counted| counted == number)
    }
}

/// How it went.
#[derive(Debug, Default)]
pub(crate) struct Played {
    /// The numbers of the system calls that each role began, in order.
    pub(crate) calls: BTreeMap<Role, Vec<i64>>,
    pub(crate) struck: bool,
    /// What it said.
    pub(crate) output: String,
}

/// Runs the command to its end. In a thread of its own: when that ends, the kernel lets go of what
/// is still followed.
pub(crate) fn play(
    mut command: Command,
    strike: Option<FaultInjection>,
    programs: bool,
    both_outputs: bool,
) -> Played {
    let play = move || {
        let (mut reader, writer) = std::io::pipe().unwrap();
        // cargo's, which makes the loader search.
        command.env_remove("LD_LIBRARY_PATH");
        command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap());
        command.stderr(if both_outputs { writer.try_clone().unwrap().into() } else { Stdio::null() });
        drop(writer);
        flexvol::tracer::offer(&mut command);
        let mut child = command.spawn().unwrap();
        drop(command);
        let supervisor = Pid::from_raw(child.id().cast_signed());
        let mut trace = Trace::of(supervisor, strike, programs);
        trace.follow();
        // It is gone already.
        let _ = child.wait();
        let mut played = trace.played;
        reader.read_to_string(&mut played.output).unwrap();
        played
    };
    std::thread::spawn(play).join().unwrap()
}

struct Trace {
    supervisor: Pid,
    worker: Option<Pid>,
    strike: Option<FaultInjection>,
    /// Whether programs are followed: their system calls take several times as long.
    programs: bool,
    tracees: BTreeMap<Pid, Tracee>,
    /// Stopped at their beginning before their parents have told of them.
    early: BTreeSet<Pid>,
    played: Played,
}

struct Tracee {
    role: Role,
    in_call: bool,
    /// What the system call under way shall return.
    answer: Option<Errno>,
}

const ALL: Options = Options::PTRACE_O_TRACESYSGOOD
    .union(Options::PTRACE_O_TRACEFORK)
    .union(Options::PTRACE_O_TRACEVFORK)
    .union(Options::PTRACE_O_TRACECLONE)
    .union(Options::PTRACE_O_TRACEEXEC);

impl Trace {
    fn of(supervisor: Pid, strike: Option<FaultInjection>, programs: bool) -> Self {
        let first = Tracee { role: Role::Supervisor, in_call: false, answer: None };
        Self {
            supervisor,
            worker: None,
            strike,
            programs,
            tracees: BTreeMap::from([(supervisor, first)]),
            early: BTreeSet::new(),
            played: Played::default(),
        }
    }

    fn follow(&mut self) {
        // It stands behind its execve(2).
        assert!(matches!(waitpid(self.supervisor, None), Ok(WaitStatus::Stopped(_, Signal::SIGTRAP))));
        ptrace::setoptions(self.supervisor, ALL).unwrap();
        go_on(self.supervisor, None);
        while self.tracees.values().any(|tracee| tracee.role != Role::Program) {
            match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)).unwrap() {
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) => drop(self.tracees.remove(&pid)),
                WaitStatus::PtraceSyscall(pid) => self.system_call(pid),
                WaitStatus::PtraceEvent(pid, _, event) => self.event(pid, event),
                WaitStatus::Stopped(pid, Signal::SIGSTOP) if !self.tracees.contains_key(&pid) => {
                    self.early.insert(pid);
                }
                WaitStatus::Stopped(pid, signal) => {
                    // How a new one begins.
                    go_on(pid, Some(signal).filter(|signal| *signal != Signal::SIGSTOP));
                }
                _ => {}
            }
        }
    }

    fn event(&mut self, pid: Pid, event: i32) {
        let born = [libc::PTRACE_EVENT_FORK, libc::PTRACE_EVENT_VFORK, libc::PTRACE_EVENT_CLONE];
        if born.contains(&event)
            && let Ok(child) = ptrace::getevent(pid)
        {
            self.born(pid, Pid::from_raw(i32::try_from(child).unwrap()));
        }
        go_on(pid, None);
    }

    fn born(&mut self, parent: Pid, child: Pid) {
        let role = match self.tracees.get(&parent).map(|parent| parent.role) {
            Some(Role::Supervisor) if self.worker.is_none() => {
                self.worker = Some(child);
                Role::Worker
            }
            Some(Role::Supervisor | Role::Cleaner) => Role::Cleaner,
            _ => Role::Program,
        };
        let early = self.early.remove(&child);
        if !early {
            let stopped = waitpid(child, Some(WaitPidFlag::__WALL));
            if !matches!(stopped, Ok(WaitStatus::Stopped(..))) {
                return;
            }
        }
        if role == Role::Program && !self.programs {
            let _ = ptrace::detach(child, None);
        } else {
            self.tracees.insert(child, Tracee { role, in_call: false, answer: None });
            go_on(child, None);
        }
    }

    fn system_call(&mut self, pid: Pid) {
        let Some(tracee) = self.tracees.get_mut(&pid) else { return go_on(pid, None) };
        tracee.in_call = !tracee.in_call;
        if !tracee.in_call {
            if let Some(error) = tracee.answer.take() {
                registers::answer(pid, error);
            }
            return go_on(pid, None);
        }
        let (role, number) = (tracee.role, registers::number(pid));
        let calls = self.played.calls.entry(role).or_default();
        calls.push(number);
        let count = calls.len();
        match self.strike {
            Some(strike) if !self.played.struck && strike.meets(role, count, number) => {
                self.played.struck = true;
                match strike.act {
                    Act::Kill(victim) => self.kill(pid, victim),
                    Act::Fail(error) => self.fail(pid, error),
                }
            }
            _ => go_on(pid, None),
        }
    }

    fn fail(&mut self, pid: Pid, error: Errno) {
        registers::forget_call(pid);
        if let Some(tracee) = self.tracees.get_mut(&pid) {
            tracee.answer = Some(error);
        }
        go_on(pid, None);
    }

    /// Whoever is not killed goes on.
    fn kill(&mut self, at: Pid, victim: Victim) {
        let end = |pid: Pid| {
            let _ = kill(pid, Signal::SIGKILL);
        };
        match victim {
            Victim::Worker => self.worker.into_iter().for_each(end),
            Victim::Both => [Some(self.supervisor), self.worker].into_iter().flatten().for_each(end),
            Victim::Supervisor => end(self.supervisor),
            Victim::Program => end(at),
        }
        go_on(at, None);
    }
}

/// A process that was killed meanwhile cannot go on, and need not.
fn go_on(pid: Pid, signal: Option<Signal>) {
    let _ = ptrace::syscall(pid, signal);
}

/// Where a processor keeps the number of a system call, and its answer.
#[cfg(target_arch = "x86_64")]
mod registers {
    use super::{Errno, Pid, ptrace};

    pub(super) const KNOWN: bool = true;

    pub(super) fn number(pid: Pid) -> i64 {
        ptrace::getregs(pid).map_or(-1, |registers| registers.orig_rax.cast_signed())
    }

    pub(super) fn forget_call(pid: Pid) {
        if let Ok(mut registers) = ptrace::getregs(pid) {
            registers.orig_rax = u64::MAX;
            let _ = ptrace::setregs(pid, registers);
        }
    }

    pub(super) fn answer(pid: Pid, error: Errno) {
        if let Ok(mut registers) = ptrace::getregs(pid) {
            registers.rax = i64::from(-(error as i32)).cast_unsigned();
            let _ = ptrace::setregs(pid, registers);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod registers {
    use super::{Errno, Pid};

    pub(super) const KNOWN: bool = false;

    pub(super) fn number(_: Pid) -> i64 {
        -1
    }

    pub(super) fn forget_call(_: Pid) {}

    pub(super) fn answer(_: Pid, _: Errno) {}
}

/// Whether a system call can be made to fail here.
pub(crate) const CAN_FAIL: bool = registers::KNOWN;
