//! Interrupts or follows a driver while it runs: a signal at a chosen moment, and the records of
//! the [`tracer`]. It implements kubelet's [`Observer`], so that the caller itself does not depend
//! on it.

use crate::tracer::{self, Interruption, Point, Trace, Traced, Tracer};
use flexvol_kubelet::Observer;
use rustix::process::{Pid, kill_process, kill_process_group};
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Signal to a driver that has done nothing to cause it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultInjection {
    /// Moment of the signal; it is never sent if the driver has ended before.
    pub at: Moment,
    /// Kind of the signal.
    pub signal: Signal,
    /// Receiver of the signal.
    pub target: Target,
}

/// Moment at which a driver is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// This long after its start.
    After(Duration),
    /// At a certain system call of any process of the call. The driver is traced up to there.
    At(Point),
}

/// Signal that interrupts a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGTERM.
    Terminate,
}

/// Receiver of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Process that kubelet started.
    Driver,
    /// This process and every other one of its group, at once: kubelet's control group ends.
    Group,
}

/// Fault and trace for one execution of a driver, and their results.
#[derive(Debug)]
pub struct Injector {
    fault: Option<FaultInjection>,
    trace: Option<Trace>,
    running: Mutex<Running>,
}

/// Results of one execution.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Time of the fault, counted from the start; `None` if the driver ended before, or no fault
    /// was requested.
    pub injected: Option<Duration>,
    /// Result of the trace, if one was requested.
    pub traced: Option<Traced>,
}

/// State of the driver as long as it runs.
#[derive(Debug, Default)]
struct Running {
    driver: Option<(Pid, Instant)>,
    tracer: Option<Tracer>,
    observed: Observed,
}

impl FaultInjection {
    /// Sends the signal to a driver that is not reaped yet: no other process can have its number.
    fn hit(self, driver: Pid) {
        let signal = match self.signal {
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Terminate => rustix::process::Signal::TERM,
        };
        // Ignore the error: it means that no process is left.
        let _ = match self.target {
            Target::Driver => kill_process(driver, signal),
            Target::Group => kill_process_group(driver, signal),
        };
    }
}

impl Injector {
    /// Creates an injector for one execution.
    pub fn new(fault: Option<FaultInjection>, trace: Option<Trace>) -> Arc<Self> {
        Arc::new(Self { fault, trace, running: Mutex::default() })
    }

    /// Returns the results, once the execution is over.
    pub fn observed(&self) -> Observed {
        self.state(|running| running.observed.clone())
    }

    fn state<T>(&self, change: impl FnOnce(&mut Running) -> T) -> T {
        change(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn traces(&self) -> bool {
        self.trace.is_some() || self.fault.is_some_and(|fault| matches!(fault.at, Moment::At(_)))
    }

    fn interruption(&self, driver: Pid) -> Option<Interruption> {
        let fault = self.fault?;
        match fault.at {
            Moment::At(point) => Some(Interruption { point, act: Box::new(move || fault.hit(driver)) }),
            Moment::After(_) => None,
        }
    }
}

impl Observer for Injector {
    fn prepare(&self, command: &mut Command) -> io::Result<()> {
        if self.traces() {
            if !tracer::is_possible() {
                return Err(io::Error::other("ptrace(2) is not permitted here"));
            }
            tracer::offer(command);
        }
        Ok(())
    }

    fn started(&self, driver: Pid, at: Instant) -> io::Result<()> {
        let tracer = if self.traces() {
            let trace = self.trace.clone().unwrap_or(Trace::SystemCalls);
            Some(Tracer::follow(driver, trace, self.interruption(driver)).map_err(io::Error::other)?)
        } else {
            None
        };
        self.state(|running| (running.driver, running.tracer) = (Some((driver, at)), tracer));
        Ok(())
    }

    fn running(&self, elapsed: Duration) -> Option<Duration> {
        let fault = self.fault?;
        let Moment::After(due) = fault.at else { return None };
        self.state(|running| match running.driver {
            _ if running.observed.injected.is_some() => None,
            Some((driver, _)) if due <= elapsed => {
                fault.hit(driver);
                running.observed.injected = Some(elapsed);
                None
            }
            _ => Some(due),
        })
    }

    /// Ends the trace of a driver that exited. For one that hangs in the kernel, the tracer could
    /// wait for ever.
    fn ended(&self, exited: bool) -> io::Result<()> {
        let (tracer, start) = self.state(|running| (running.tracer.take(), running.driver.take()));
        let Some(tracer) = tracer.filter(|_| exited) else { return Ok(()) };
        let seen = tracer.end().map_err(io::Error::other)?;
        self.state(|running| {
            if let (Some(interrupted), Some((_, start))) = (&seen.interrupted, start) {
                running.observed.injected = Some(interrupted.at.saturating_duration_since(start));
            }
            running.observed.traced = Some(seen);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracer::Look;
    use flexvol_kubelet::{Caller, End, Run, Stop};
    use std::fs::{self, Permissions};
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use tempfile::TempDir;

    const SUCCESS: &str = "echo '{\"status\":\"Success\"}'";

    /// Driver for one test.
    struct Script {
        dir: TempDir,
        caller: Caller,
    }

    fn script(body: &str) -> Script {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("driver");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(format!("#!/bin/sh\n[ $# -gt 0 ] || exit 0\n{body}\n").as_bytes()).unwrap();
        drop(file);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let mut caller = Caller::new(path);
        // A child of another test may still hold the file open for writing, between fork and exec.
        while caller.execute(&[]).hint().is_some_and(|hint| hint.contains("busy")) {}
        caller.terms.patience = Duration::from_secs(20);
        caller.terms.environment.push(("dir".into(), dir.path().into()));
        Script { dir, caller }
    }

    /// Result of one execution.
    #[derive(Debug)]
    struct Seen {
        end: End,
        stopped: Option<Stop>,
        exited: Option<Duration>,
        output: Vec<u8>,
        injected: Option<Duration>,
        traced: Option<Traced>,
    }

    impl Seen {
        /// Returns the time for which the driver ran on after the fault.
        fn outlived(&self) -> Duration {
            self.exited.unwrap().checked_sub(self.injected.unwrap()).unwrap()
        }
    }

    fn played(caller: &Caller, fault: Option<FaultInjection>, trace: Option<Trace>) -> Seen {
        let injector = Injector::new(fault, trace);
        let mut caller = caller.clone();
        caller.terms.observer = Some(injector.clone());
        let Run { end, stopped, exited, output, .. } = caller.execute(&["init".into()]).run.unwrap();
        let Observed { injected, traced } = injector.observed();
        Seen { end, stopped, exited, output, injected, traced }
    }

    fn traced(script: &Script, trace: Trace) -> Seen {
        played(&script.caller, None, Some(trace))
    }

    fn child_of(script: &Script) -> i32 {
        fs::read_to_string(script.dir.path().join("child")).unwrap().trim().parse().unwrap()
    }

    fn is_alive(pid: i32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    fn ends_soon(pid: i32) -> bool {
        let start = Instant::now();
        while is_alive(pid) && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        !is_alive(pid)
    }

    fn end(pid: i32) {
        kill_process(Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    }

    fn told_late(body: &str, signal: Signal, target: Target) -> (Script, Seen) {
        let script = script(body);
        let at = Moment::After(Duration::from_millis(100));
        let run = played(&script.caller, Some(FaultInjection { at, signal, target }), None);
        (script, run)
    }

    #[test]
    fn a_signal_hits_the_driver_or_all_of_its_group() {
        let body = "sleep 60 >/dev/null 2>&1 & echo $! > $dir/child; wait";
        let (script, run) = told_late(body, Signal::Kill, Target::Driver);
        assert_eq!((run.end, run.stopped), (End::Signaled(9), None));
        assert!(is_alive(child_of(&script)));
        end(child_of(&script));
        let (script, run) = told_late(body, Signal::Kill, Target::Group);
        assert_eq!((&run.end, run.injected.is_some()), (&End::Signaled(9), true));
        assert!(run.outlived() < Duration::from_secs(5), "{run:?}");
        assert!(ends_soon(child_of(&script)));
    }

    #[test]
    fn a_driver_that_is_told_to_end_may_still_answer() {
        let body = "trap 'sleep 0.1; echo late; exit 4' TERM; while :; do sleep 0.01; done";
        let (_, run) = told_late(body, Signal::Terminate, Target::Driver);
        assert_eq!((run.stopped, &run.output[..]), (None, &b"late\n"[..]));
        assert_eq!(run.end, End::Exited(4));
        assert!(run.outlived() >= Duration::from_millis(100), "{run:?}");
    }

    #[test]
    fn nothing_is_injected_into_a_driver_that_has_ended() {
        let (_, run) = told_late(SUCCESS, Signal::Kill, Target::Group);
        assert_eq!((run.end, run.injected, run.output.len()), (End::Exited(0), None, 21));
    }

    /// Reports whether tracing is permitted; prints a note if it is not.
    fn possible(test: &str) -> bool {
        if !tracer::is_possible() {
            println!("SKIP {test}: ptrace(2) is not permitted");
        }
        tracer::is_possible()
    }

    fn counted(script: &Script) -> (Seen, usize) {
        let run = traced(script, Trace::SystemCalls);
        let calls = run.traced.as_ref().unwrap().system_calls;
        (run, calls)
    }

    fn hit(script: &Script, call: usize, signal: Signal, target: Target) -> Seen {
        hit_at(script, Point::Call(call), signal, target)
    }

    fn hit_at(script: &Script, point: Point, signal: Signal, target: Target) -> Seen {
        played(&script.caller, Some(FaultInjection { at: Moment::At(point), signal, target }), None)
    }

    /// Returns a script that makes files named 1 to 9, one after the other.
    fn nine_files() -> Script {
        script("cd $dir; for i in 1 2 3 4 5 6 7 8 9; do : > $i; done; echo done")
    }

    /// Returns the numbers of the existing files, and removes these files.
    fn files(script: &Script) -> Vec<usize> {
        let there = |i: &usize| fs::remove_file(script.dir.path().join(i.to_string())).is_ok();
        (1..=9).filter(there).collect()
    }

    #[test]
    fn system_calls_are_counted_over_all_processes() {
        if !possible("system_calls_are_counted_over_all_processes") {
            return;
        }
        let alone = script(SUCCESS);
        let (run, calls) = counted(&alone);
        assert_eq!((&run.end, run.output.len(), run.injected), (&End::Exited(0), 21, None));
        assert!(calls > 10, "{calls}");
        let again = counted(&alone).1;
        assert!(again.abs_diff(calls) <= 3, "{calls}, then {again}");
        let (_, more) = counted(&script(&format!("for i in 1 2 3 4 5; do /bin/true; done; {SUCCESS}")));
        assert!(more > calls + 5 * 10, "{calls} alone, {more} with five others");
    }

    #[test]
    fn a_fault_comes_before_that_system_call() {
        if !possible("a_fault_comes_before_that_system_call") {
            return;
        }
        let script = nine_files();
        let (run, calls) = counted(&script);
        assert_eq!((run.output, files(&script).len()), (b"done\n".to_vec(), 9));
        let mut most = 0;
        for call in 1..=calls {
            let run = hit(&script, call, Signal::Kill, Target::Driver);
            let there = files(&script);
            assert_eq!((&run.end, run.stopped), (&End::Signaled(9), None), "at {call} of {calls}");
            assert!(run.injected.is_some() && run.traced.unwrap().system_calls == call);
            // The files before this call exist, later ones do not.
            assert!(there.iter().copied().eq(1..=there.len()), "at {call} of {calls}: {there:?}");
            assert!(there.len() >= most, "at {call} of {calls}: {there:?} after {most}");
            most = there.len();
        }
        assert_eq!(most, 9);
        let run = hit(&script, calls + 100, Signal::Kill, Target::Driver);
        assert_eq!((run.end, run.injected, run.output), (End::Exited(0), None, b"done\n".to_vec()));
    }

    #[test]
    fn a_fault_comes_right_after_a_change() {
        if !possible("a_fault_comes_right_after_a_change") {
            return;
        }
        let script = nine_files();
        let (run, _) = counted(&script);
        files(&script);
        assert_eq!(run.traced.unwrap().changes, 9);
        for change in 1..=9 {
            let run = hit_at(&script, Point::Change(change), Signal::Kill, Target::Group);
            let interrupted = run.traced.unwrap().interrupted.unwrap();
            assert_eq!(
                (files(&script).len(), interrupted.change, &*interrupted.name),
                (change, Some("open"), "driver")
            );
        }
        let other = self::script(
            "cd $dir; mkdir a; mv a b; mv b/none c; rmdir b; cat /dev/zero 2>/dev/null >&-; rm -f none",
        );
        let (run, _) = counted(&other);
        let changes = run.traced.unwrap().changes;
        assert_eq!(changes, 3);
        let names = (1..=changes).map(|change| {
            let run = hit_at(&other, Point::Change(change), Signal::Kill, Target::Group);
            let _ = ["a", "b"].map(|name| fs::remove_dir(other.dir.path().join(name)));
            let interrupted = run.traced.unwrap().interrupted.unwrap();
            format!("{} {}", interrupted.change.unwrap(), interrupted.name)
        });
        assert!(names.eq(["mkdir mkdir", "rename mv", "rmdir rmdir"]));
    }

    /// The last system calls are of a child that waits for the driver's end.
    #[test]
    fn a_fault_at_a_child_hits_the_driver_or_all() {
        if !possible("a_fault_at_a_child_hits_the_driver_or_all") {
            return;
        }
        let body = "(sh -c 'echo $$ > $dir/child; while [ ! -e $dir/go ]; do sleep 0.01; done; exec sleep 60') \
                    >/dev/null 2>&1; echo never";
        let interrupt = |target| {
            let script = script(body);
            let path = script.dir.path().join("child");
            // Many calls after the first of the child.
            let run = hit(&script, 1000, Signal::Kill, target);
            assert!(path.exists() && run.end == End::Signaled(9) && run.output.is_empty(), "{run:?}");
            fs::File::create(script.dir.path().join("go")).unwrap();
            (child_of(&script), script)
        };
        let (child, _script) = interrupt(Target::Driver);
        let status = || fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap();
        // The child lives, and goes on.
        while !status().starts_with("sleep\x0060") {
            assert!(is_alive(child));
            std::thread::sleep(Duration::from_millis(1));
        }
        end(child);
        assert!(ends_soon(interrupt(Target::Group).0));
    }

    #[test]
    fn a_driver_that_is_told_to_end_goes_on_without_a_tracer() {
        if !possible("a_driver_that_is_told_to_end_goes_on_without_a_tracer") {
            return;
        }
        let body = "trap 'grep TracerPid: /proc/$$/status; exit 5' TERM; while :; do sleep 0.01; done";
        let run = hit(&script(body), 500, Signal::Terminate, Target::Driver);
        assert_eq!(run.end, End::Exited(5));
        assert_eq!(String::from_utf8_lossy(&run.output), "TracerPid:\t0\n");
    }

    #[test]
    fn whatever_is_executed_is_seen() {
        if !possible("whatever_is_executed_is_seen") {
            return;
        }
        let script = script(&format!(
            "TOKEN=in-the-environment /bin/true in-an-argument; (exec /bin/true deep)
             /bin/true behind >/dev/null 2>&1 & {SUCCESS}"
        ));
        for trace in [Trace::Executions(None), Trace::SystemCalls] {
            let run = traced(&script, trace);
            assert_eq!((&run.end, run.output.len()), (&End::Exited(0), 21));
            let executions = run.traced.unwrap().executions;
            let all: Vec<_> = executions.iter().map(|it| it.words.join("+".as_ref())).collect();
            for words in ["/bin/true+in-an-argument", "/bin/true+deep", "/bin/true+behind"] {
                assert!(all.iter().any(|all| all == words), "{words}: {all:?}");
            }
            let tells =
                |it: &tracer::Execution| it.environment.iter().any(|it| it == "TOKEN=in-the-environment");
            assert_eq!(executions.iter().filter(|it| tells(it)).count(), 1, "{executions:?}");
        }
    }

    #[test]
    fn what_is_there_at_an_execution_is_found() {
        if !possible("what_is_there_at_an_execution_is_found") {
            return;
        }
        let script = script("echo hush > $dir/secret; /bin/true; /bin/true; rm $dir/secret; /bin/true");
        let path = script.dir.path().join("secret");
        let look = Look::new(move || fs::read_to_string(&path).into_iter().collect());
        let run = traced(&script, Trace::Executions(Some(look)));
        assert_eq!(run.traced.unwrap().found, ["hush\n"]);
    }

    #[test]
    fn a_daemon_is_let_go() {
        if !possible("a_daemon_is_let_go") {
            return;
        }
        for trace in [Trace::SystemCalls, Trace::Executions(None)] {
            let script = script(&format!(
                "setsid sh -c 'echo $$ > $dir/child; while :; do sleep 0.01; done' </dev/null >/dev/null 2>&1 &
                 while [ ! -s $dir/child ]; do sleep 0.01; done; {SUCCESS}"
            ));
            let run = traced(&script, trace);
            assert_eq!((&run.end, run.output.len()), (&End::Exited(0), 21));
            let child = child_of(&script);
            let untraced =
                || fs::read_to_string(format!("/proc/{child}/status")).unwrap().contains("TracerPid:\t0");
            while !untraced() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(is_alive(child));
            end(child);
        }
    }

    /// Each thread waits only for its own processes.
    #[test]
    fn several_are_traced_at_once() {
        if !possible("several_are_traced_at_once") {
            return;
        }
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let script = nine_files();
                    let (run, calls) = counted(&script);
                    assert_eq!((run.end, files(&script).len()), (End::Exited(0), 9));
                    let run = hit(&script, calls / 2, Signal::Kill, Target::Group);
                    assert_eq!(run.end, End::Signaled(9));
                });
            }
        });
    }

    #[test]
    fn a_traced_driver_that_hangs_is_stopped() {
        if !possible("a_traced_driver_that_hangs_is_stopped") {
            return;
        }
        for body in ["sleep 60", "kill -STOP $$"] {
            let mut script = script(body);
            script.caller.terms.patience = Duration::from_millis(300);
            let run = traced(&script, Trace::SystemCalls);
            assert_eq!((run.stopped, run.exited), (Some(Stop::Patience), None), "{body}");
            assert!(matches!(run.end, End::Signaled(9 | 15)), "{body}: {run:?}");
        }
    }

    #[test]
    fn one_that_cannot_be_executed_says_why_as_ever() {
        let run = played(&Caller::new("/nowhere"), None, Some(Trace::SystemCalls));
        let End::NotStarted(why) = run.end else { panic!("{run:?}") };
        assert!(why.contains("o such file"), "{why}");
    }
}
