//! Follows a program and all processes that it starts, with ptrace(2): records executions, counts
//! system calls, and acts exactly before one of them.
//!
//! Tracing has a thread of its own: only the thread that traces a process can wait for it, and the
//! output of the program has to be read meanwhile. When that thread ends, the kernel releases every
//! process that is still traced, alive; this is how a trace ends. The program itself is never
//! reaped here: the caller that started it does that.
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

/// Pause between two checks for stops once the program itself has ended: then the kernel cannot be
/// asked to wait.
const TICK: Duration = Duration::from_micros(200);

/// Limit for the last wait for a process that was forked to execute something.
const LAST_EXECUTIONS: Duration = Duration::from_millis(100);

/// `PTRACE_O_*`: trace all started processes as well; distinguish stops at system calls from
/// others.
const OPTIONS: c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC;

/// Status with which the kernel reports a stop at a system call.
const AT_SYSTEM_CALL: c_int = libc::SIGTRAP | 0x80;

/// Events to follow.
#[derive(Clone, Debug)]
pub enum Trace {
    /// System calls and executions. The program takes several times as long.
    SystemCalls,
    /// Executions only, at a hardly noticeable cost. [`Look`] is called at each of them.
    Executions(Option<Look>),
}

/// Function that looks around while everything that the program does stands still at an execution.
/// Its result is for people.
#[derive(Clone)]
pub struct Look(Arc<dyn Fn() -> Vec<String> + Send + Sync>);

/// Result of a trace.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    /// Number of system calls that began in all processes together, from the first one of the
    /// program itself to the end of the call or the interruption.
    pub system_calls: usize,
    /// Number of them that created, removed or renamed a file, mounted, unmounted, or changed a
    /// loop device.
    pub changes: usize,
    /// Executions after that of the program itself, in order.
    pub executions: Vec<Execution>,
    /// Results of [`Look`], without repetitions.
    pub found: Vec<String>,
    /// Interruption, if it happened.
    pub interrupted: Option<Interrupted>,
}

/// Moment at which a program was interrupted.
#[derive(Clone, Debug)]
pub struct Interrupted {
    /// Time of the interruption.
    pub at: Instant,
    /// Name of the process that was about to make the system call, or had made the change.
    pub name: String,
    /// System call that made the change.
    pub change: Option<&'static str>,
}

/// Execution of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Process that executed it.
    pub pid: i32,
    /// Arguments, with the program's own name, as every user of the machine can read them. Raw:
    /// secrets may be in them.
    pub words: Vec<OsString>,
    /// Environment, as `NAME=value`. Raw, too.
    pub environment: Vec<OsString>,
}

/// Moment in the life of a program and of the processes that it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// This system call, counted from 1, is about to begin.
    Call(usize),
    /// This [change](Traced::changes), counted from 1, has just been made.
    Change(usize),
}

/// Action at a point.
pub struct Interruption {
    /// Point of the action.
    pub point: Point,
    /// Action. The trace ends with it.
    pub act: Box<dyn FnOnce() + Send>,
}

/// Program that is being followed.
#[derive(Debug)]
pub struct Tracer {
    thread: JoinHandle<Result<Traced>>,
    over: Sender<()>,
}

impl Look {
    /// Creates a look from a function.
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

/// Reports whether this process may trace the processes that it starts. Some seccomp profiles and
/// some settings of `kernel.yama.ptrace_scope` forbid it.
pub fn is_possible() -> bool {
    // Try only once: two forks at a time would wait for each other's copies of a pipe.
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(trace::can_trace)
}

/// Prepares a command for [`Tracer::follow`]. The same thread must start it; it stands still until
/// it is followed.
pub fn offer(command: &mut Command) {
    flexvol_linux::raw::before_exec(command, || trace::ptrace(PtraceRequest::TraceMe, 0, 0));
}

impl Tracer {
    /// Follows a program that was started after an [`offer`].
    pub fn follow(program: Pid, trace: Trace, interruption: Option<Interruption>) -> Result<Self> {
        let pid = program.as_raw_pid();
        // It is stopped at the end of its execve(2), and stays stopped until the thread takes over.
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

    /// Releases the remaining processes and returns the result. Must be called when the program has
    /// ended and before it is reaped.
    pub fn end(self) -> Result<Traced> {
        let _ = self.over.send(());
        self.thread.join().map_err(|_| anyhow!("the thread that traces has panicked"))?
    }
}

struct Following {
    program: i32,
    /// Request that resumes a process.
    resume: PtraceRequest,
    look: Option<Look>,
    interruption: Option<Interruption>,
    tracees: BTreeMap<i32, Tracee>,
    traced: Traced,
    over: Receiver<()>,
}

#[derive(Default)]
struct Tracee {
    /// True within a system call. The stops at its beginning and end look the same, and alternate.
    in_call: bool,
    /// Change that the system call may make.
    change: Option<&'static str>,
    /// True if it still runs the program of its parent, and may yet execute something.
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
        // It was stopped as if by a shell's job control. The stop is confirmed: let it continue.
        trace::wait_traced(Some(self.program), libc::WSTOPPED | libc::WNOHANG)?;
        if let Some(program) = Pid::from_raw(self.program) {
            let _ = kill_process(program, Signal::CONT);
        }
        self.go_on(self.program, 0);
        Ok(())
    }

    /// Follows the program until its end, then the other processes until the trace is ended.
    fn follow(&mut self) -> Result<()> {
        let change = libc::WSTOPPED | libc::WEXITED;
        loop {
            // Peek first: a process that has ended is gone after the wait.
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

    /// Follows the remaining processes. The program waits to be reaped, so the kernel would report
    /// nothing else: each process is asked in turn.
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

    /// Asks every traced process. Reports whether there was anything new.
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
            // Deliver the signal to the process.
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

    /// Resumes a process. If it was killed meanwhile, the error does not matter.
    fn go_on(&self, pid: i32, signal: c_int) {
        let _ = trace::ptrace(self.resume, pid, signal);
    }

    fn at_system_call(&mut self, pid: i32) {
        let tracee = self.tracees.entry(pid).or_default();
        tracee.in_call = !tracee.in_call;
        let reached = if tracee.in_call {
            // The changes do not matter on the way to a certain call.
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
            // The process stands still until this thread has ended.
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
