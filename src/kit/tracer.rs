//! A program and all that it starts, followed with ptrace(2): what is executed, how many system
//! calls are made, and something done exactly before one of them.
//!
//! A thread of its own traces: only the thread that traces a process can wait for it, and the
//! output of the program has to be read meanwhile. When that thread ends, the kernel releases every
//! process that is still traced, alive; so ends a trace. The program itself is never reaped here:
//! that is for the caller that started it.
//!
//! The thread waits only for stops of processes that it traces, so any number of programs can be
//! traced at the same time. No other thread of the process may wait for any child without
//! `__WNOTHREAD` meanwhile.

mod changes;

use anyhow::{Context, Result, anyhow};
use flexvol_linux::proc::process;
use flexvol_linux::raw::trace::{self, PtraceRequest};
use nix::libc::{self, c_int};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often to look for stops once the program itself has ended: then the kernel cannot be asked
/// to wait.
const TICK: Duration = Duration::from_micros(200);

/// How long to wait, when everything is over, for a process that was forked to execute something.
const LAST_EXECUTIONS: Duration = Duration::from_millis(100);

/// `PTRACE_O_*`: everything that is started is traced as well; stops at system calls are told from
/// others.
const OPTIONS: c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC;

/// How the kernel shows a stop at a system call.
const AT_SYSTEM_CALL: c_int = libc::SIGTRAP | 0x80;

/// What to follow.
#[derive(Clone, Debug)]
pub enum Trace {
    /// Every system call, and what is executed. The program takes several times as long.
    SystemCalls,
    /// What is executed, and nothing else: hardly noticeable. [`Look`] is asked each time.
    Executions(Option<Look>),
}

/// A look around while everything that the program does stands still at an execution: what it
/// finds, for people.
#[derive(Clone)]
pub struct Look(Arc<dyn Fn() -> Vec<String> + Send + Sync>);

/// What was followed.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    /// How many were begun, by all processes together, from the first of the program itself to the
    /// end of the call or the interruption.
    pub system_calls: usize,
    /// How many of them made, removed or renamed a file, mounted, unmounted, or changed a loop
    /// device.
    pub changes: usize,
    /// What was executed after the program itself, in order.
    pub executions: Vec<Execution>,
    /// What [`Look`] found, without repetitions.
    pub found: Vec<String>,
    /// The interruption, if it came.
    pub interrupted: Option<Interrupted>,
}

/// Where a program was when it was interrupted.
#[derive(Clone, Debug)]
pub struct Interrupted {
    /// When.
    pub at: Instant,
    /// The name of the process that was about to make the system call, or had made the change.
    pub name: String,
    /// The system call that was the change.
    pub change: Option<&'static str>,
}

/// A program that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// By whom.
    pub pid: i32,
    /// Its arguments, with its own name, as everybody on the machine can read them. Raw: secrets
    /// may be in them.
    pub words: Vec<OsString>,
    /// Its environment, as `NAME=value`. Raw, too.
    pub environment: Vec<OsString>,
}

/// A moment in the life of a program, and of those it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// This system call, counted from 1, is about to begin.
    Call(usize),
    /// This [change](Traced::changes), counted from 1, has just been made.
    Change(usize),
}

/// Something to be done at a point.
pub struct Interruption {
    /// When.
    pub point: Point,
    /// What. The trace ends with it.
    pub act: Box<dyn FnOnce() + Send>,
}

/// A program that is being followed.
#[derive(Debug)]
pub struct Tracer {
    thread: JoinHandle<Result<Traced>>,
    over: Sender<()>,
}

impl Look {
    /// Asks this.
    pub fn new(look: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }
}

impl fmt::Debug for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Look")
    }
}

impl fmt::Debug for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interruption({:?})", self.point)
    }
}

/// Whether this process may trace those it starts: not under every seccomp profile, nor with every
/// setting of `kernel.yama.ptrace_scope`.
pub fn is_possible() -> bool {
    // Tried once: two forks at a time would wait for each other's copies of a pipe.
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(trace::can_trace)
}

/// The command will be started for [`Tracer::follow`], by the same thread, and stands still until
/// then.
pub fn offer(command: &mut Command) {
    flexvol_linux::raw::before_exec(command, || trace::ptrace(PtraceRequest::TraceMe, 0, 0));
}

impl Tracer {
    /// Follows a program that was started after an [`offer`].
    pub fn follow(program: Pid, trace: Trace, interruption: Option<Interruption>) -> Result<Self> {
        let pid = program.as_raw_pid();
        // It is stopped at the end of its execve(2), and stays so until the thread takes over.
        let handed_over = trace::wait_traced(Some(pid), libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT)
            .and_then(|_| trace::wait_traced(Some(pid), libc::WSTOPPED | libc::WNOHANG))
            .and_then(|_| trace::ptrace(PtraceRequest::Detach, pid, libc::SIGSTOP))
            .context("trace the program");
        let (over, receiver) = channel();
        let following = Following {
            program: pid,
            resume: if matches!(trace, Trace::SystemCalls) || interruption.is_some() {
                PtraceRequest::SystemCall
            } else {
                PtraceRequest::Continue
            },
            look: if let Trace::Executions(look) = trace { look } else { None },
            interruption,
            tracees: BTreeMap::new(),
            traced: Traced::default(),
            over: receiver,
        };
        let started = handed_over.and_then(|()| {
            let thread = std::thread::Builder::new().name("tracer".to_owned());
            thread.spawn(move || following.run()).context("start a thread that traces")
        });
        match started {
            Ok(thread) => Ok(Self { thread, over }),
            Err(error) => {
                let _ = kill_process(program, Signal::KILL);
                Err(error)
            }
        }
    }

    /// Releases whatever is left; what was seen. Called when the program has ended and before it
    /// is reaped.
    pub fn end(self) -> Result<Traced> {
        let _ = self.over.send(());
        self.thread.join().map_err(|_| anyhow!("the thread that traces has panicked"))?
    }
}

struct Following {
    program: i32,
    /// How to let a process go on.
    resume: PtraceRequest,
    look: Option<Look>,
    interruption: Option<Interruption>,
    tracees: BTreeMap<i32, Tracee>,
    traced: Traced,
    over: Receiver<()>,
}

#[derive(Default)]
struct Tracee {
    /// Stops at the beginning and at the end of a system call look the same, and take turns.
    in_call: bool,
    /// What the system call may change.
    change: Option<&'static str>,
    /// Whether it is what its parent was, and may yet execute something.
    forked: bool,
}

impl Following {
    fn run(mut self) -> Result<Traced> {
        let followed = self.seize().and_then(|()| self.follow());
        if followed.is_err()
            && let Some(program) = Pid::from_raw(self.program)
        {
            let _ = kill_process(program, Signal::KILL);
        }
        followed.map(|()| self.traced)
    }

    fn seize(&mut self) -> Result<()> {
        trace::ptrace(PtraceRequest::Seize, self.program, OPTIONS).context("trace the program")?;
        trace::wait_traced(Some(self.program), libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT)?;
        self.tracees.insert(self.program, Tracee::default());
        // Stopped like by the job control of a shell; now that it is known to stand, it may go.
        trace::wait_traced(Some(self.program), libc::WSTOPPED | libc::WNOHANG)?;
        if let Some(program) = Pid::from_raw(self.program) {
            let _ = kill_process(program, Signal::CONT);
        }
        self.go_on(self.program, 0);
        Ok(())
    }

    /// While the program runs, and then as long as told.
    fn follow(&mut self) -> Result<()> {
        let change = libc::WSTOPPED | libc::WEXITED;
        loop {
            // Looked at first: what has ended is gone once it was waited for.
            let Some(seen) = trace::wait_traced(None, change | libc::WNOWAIT)? else { return Ok(()) };
            if seen.pid == self.program && seen.has_ended() {
                break;
            }
            if let Some(change) = trace::wait_traced(Some(seen.pid), change | libc::WNOHANG)? {
                self.see(&change);
            }
            if self.traced.interrupted.is_some() {
                return Ok(());
            }
        }
        self.tracees.remove(&self.program);
        self.follow_rest()
    }

    /// The program waits to be reaped, so that the kernel would have nothing else to tell:
    /// everybody is asked in turn.
    fn follow_rest(&mut self) -> Result<()> {
        let mut until = None;
        while !self.tracees.is_empty() && self.traced.interrupted.is_none() {
            let moved = self.ask_everybody()?;
            let forked = self.tracees.values().any(|tracee| tracee.forked);
            match until {
                Some(until) if !forked || Instant::now() >= until => break,
                Some(_) if moved => {}
                Some(_) => std::thread::sleep(TICK),
                None => {
                    let wait = if moved { Duration::ZERO } else { TICK };
                    if !matches!(self.over.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
                        until = Some(Instant::now() + LAST_EXECUTIONS);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether there was anything new.
    fn ask_everybody(&mut self) -> Result<bool> {
        let mut moved = false;
        for pid in self.tracees.keys().copied().collect::<Vec<_>>() {
            let change = trace::wait_traced(Some(pid), libc::WSTOPPED | libc::WEXITED | libc::WNOHANG);
            match change {
                Ok(Some(change)) => {
                    self.see(&change);
                    moved = true;
                }
                Ok(None) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => drop(self.tracees.remove(&pid)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(moved)
    }

    fn see(&mut self, change: &trace::Change) {
        let (pid, signal, event) = (change.pid, change.status & 0xff, change.status >> 8);
        if change.has_ended() {
            self.tracees.remove(&pid);
            return;
        }
        match event {
            0 if signal == AT_SYSTEM_CALL => return self.at_system_call(pid),
            // On its way to the process.
            0 => return self.go_on(pid, signal),
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                if let Ok(child) = trace::ptrace_message(pid) {
                    self.tracees.entry(child).or_default().forked = event != libc::PTRACE_EVENT_CLONE;
                }
            }
            libc::PTRACE_EVENT_EXEC => self.executed(pid),
            libc::PTRACE_EVENT_STOP => {
                self.tracees.entry(pid).or_default();
                if signal != libc::SIGTRAP {
                    // Stopped by job control: it stays so until SIGCONT.
                    let _ = trace::ptrace(PtraceRequest::Listen, pid, 0);
                    return;
                }
            }
            _ => {}
        }
        self.go_on(pid, 0);
    }

    /// A process that was killed meanwhile cannot go on, and need not.
    fn go_on(&self, pid: i32, signal: c_int) {
        let _ = trace::ptrace(self.resume, pid, signal);
    }

    fn at_system_call(&mut self, pid: i32) {
        let tracee = self.tracees.entry(pid).or_default();
        tracee.in_call = !tracee.in_call;
        let reached = if tracee.in_call {
            // Of no interest on the way to a certain call.
            let counts_calls = self
                .interruption
                .as_ref()
                .is_some_and(|interruption| matches!(interruption.point, Point::Call(_)));
            tracee.change = if counts_calls { None } else { changes::at_beginning(pid) };
            self.traced.system_calls += 1;
            (Point::Call(self.traced.system_calls), None)
        } else {
            let change = tracee.change.take().filter(|change| changes::is_made(pid, change));
            self.traced.changes += usize::from(change.is_some());
            (Point::Change(self.traced.changes), change)
        };
        if let Some(interruption) = self.interruption.take_if(|interruption| interruption.point == reached.0)
        {
            let name = process::name(pid).unwrap_or_default();
            self.traced.interrupted = Some(Interrupted { at: Instant::now(), name, change: reached.1 });
            // It stands still until this thread has ended.
            return (interruption.act)();
        }
        self.go_on(pid, 0);
    }

    fn executed(&mut self, pid: i32) {
        // A thread that executes becomes the first of its process.
        if let Some(thread) = trace::ptrace_message(pid).ok().filter(|thread| *thread != pid) {
            self.tracees.remove(&thread);
        }
        self.tracees
            .insert(pid, Tracee { in_call: self.resume == PtraceRequest::SystemCall, ..Tracee::default() });
        let words = |name: &str| {
            let text = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let words = text.strip_suffix(b"\0").unwrap_or(&text).split(|byte| *byte == 0);
            words.map(|word| OsString::from_vec(word.to_vec())).collect()
        };
        let execution = Execution { pid, words: words("cmdline"), environment: words("environ") };
        self.traced.executions.push(execution);
        for found in self.look.iter().flat_map(|look| look.0()) {
            if !self.traced.found.contains(&found) {
                self.traced.found.push(found);
            }
        }
    }
}
