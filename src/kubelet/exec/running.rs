//! A driver that runs: watched, read, struck, and stopped if it does not end.

use super::{End, Moment, Reader, Run, Stop, Terms};
use flexvol_linux::signal;
use flexvol_linux::tracer::{self, Trace, Traced, Tracer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
};
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

/// From SIGTERM to SIGKILL, and from there to giving up on a process that sits in the kernel.
const GRACE: Duration = Duration::from_secs(2);

/// How often to look where the kernel cannot tell of the end of a process (`pidfd_open`, Linux
/// 5.3).
const BLIND_TICK: Duration = Duration::from_millis(10);

/// How long a signal that comes just before we wait for the driver goes unseen.
const SIGNAL_TICK: Duration = Duration::from_millis(100);

/// The longest wait the kernel is asked for: it takes no number that is too large.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// How much a slow reader takes at once.
const SIP: usize = 64;

pub(super) struct Running<'a> {
    terms: &'a Terms,
    child: Child,
    pid: Pid,
    start: Instant,
    /// Until it has ended.
    ended: Option<OwnedFd>,
    exited: Option<Duration>,
    /// Until it is closed.
    pipe: Option<OwnedFd>,
    closed: Option<Duration>,
    output: Vec<u8>,
    struck: Option<Duration>,
    unheard: bool,
    tracer: Option<Tracer>,
}

impl<'a> Running<'a> {
    pub(super) fn new(
        mut child: Child,
        pipe: Option<OwnedFd>,
        start: Instant,
        terms: &'a Terms,
    ) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::Other)?;
        if let Some(pipe) = &pipe {
            fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
        }
        let ended = pidfd_open(pid, PidfdFlags::empty()).ok();
        let tracer = follow(pid, terms).map_err(|error| {
            // It was killed.
            let _ = child.wait();
            io::Error::other(error)
        })?;
        Ok(Self {
            terms,
            child,
            pid,
            start,
            ended,
            exited: None,
            unheard: pipe.is_none(),
            pipe,
            closed: None,
            output: Vec::new(),
            struck: None,
            tracer,
        })
    }

    /// To the end of the process and of its output, or to the end of our patience.
    pub(super) fn watch(mut self) -> io::Result<Run> {
        let terms = self.terms;
        let stopped = loop {
            let over = self.is_over()?;
            self.intervene();
            let left = self.left();
            match () {
                () if over => break None,
                () if self.output.len() > terms.output_limit => break Some(Stop::OutputLimit),
                () if left.is_zero() => break Some(Stop::Patience),
                () if terms.heeds_signals && signal::interrupted() => break Some(Stop::Told),
                () if terms.heeds_signals => self.turn(left.min(SIGNAL_TICK))?,
                () => self.turn(left)?,
            }
        };
        let (exited, closed) = (self.exited, self.closed);
        match stopped {
            None => {}
            // Whoever holds the output is no part of the call any more.
            Some(Stop::Patience) if exited.is_some() && terms.linger.is_some() => {}
            Some(Stop::Told) => self.stop(&[Signal::KILL])?,
            Some(_) => self.stop(&[Signal::TERM, Signal::KILL])?,
        }
        let traced = self.traced()?;
        let end = if self.exited.is_some() { self.child.wait()?.into() } else { End::Immortal };
        let took = self.start.elapsed();
        let Self { struck, unheard, output, .. } = self;
        Ok(Run { end, exited, closed, took, output, stopped, struck, unheard, traced })
    }

    /// What the tracer has seen. Of a process that sits in the kernel it may wait for ever to see
    /// more.
    fn traced(&mut self) -> io::Result<Option<Traced>> {
        let Some(tracer) = self.tracer.take().filter(|_| self.exited.is_some()) else { return Ok(None) };
        let seen = tracer.end().map_err(io::Error::other)?;
        if let Some(struck) = &seen.struck {
            self.struck = Some(struck.at.saturating_duration_since(self.start));
        }
        Ok(Some(seen))
    }

    /// How long to wait yet.
    fn left(&self) -> Duration {
        let limit = match (self.exited, self.terms.linger) {
            (Some(exited), Some(linger)) => self.terms.patience.min(exited + linger),
            _ => self.terms.patience,
        };
        limit.saturating_sub(self.start.elapsed())
    }

    /// Strikes when it is time to.
    fn intervene(&mut self) {
        let now = self.start.elapsed();
        if let Some(strike) = self.terms.strike.filter(|_| self.strike_due().is_some_and(|due| due <= now)) {
            strike.hit(self.pid);
            self.struck = Some(now);
        }
    }

    fn strike_due(&self) -> Option<Duration> {
        let waits = self.struck.is_none() && self.exited.is_none();
        match self.terms.strike.filter(|_| waits)?.when {
            Moment::After(due) => Some(due),
            Moment::At(_) => None,
        }
    }

    /// Notes the end of the process, without reaping it: until then its group's number is nobody
    /// else's.
    fn is_over(&mut self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        // Of one that is traced, stops are told as well.
        let ended = |status: WaitIdStatus| status.exited() || status.killed() || status.dumped();
        if self.exited.is_none() && waitid(WaitId::Pid(self.pid), options)?.is_some_and(ended) {
            self.exited = Some(self.start.elapsed());
            self.ended = None;
        }
        Ok(self.exited.is_some() && self.pipe.is_none())
    }

    /// Waits for something to happen, then reads what is there.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        let wait = self.until_next(wait);
        let pipe = self.pipe.iter().filter(|_| self.pause().is_none());
        let mut fds: Vec<_> =
            self.ended.iter().chain(pipe).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(wait).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => self.read(),
            Err(errno) => Err(errno.into()),
        }
    }

    /// No longer than to the next thing to do.
    fn until_next(&self, wait: Duration) -> Duration {
        let now = self.start.elapsed();
        let due = self.strike_due().map(|due| due.saturating_sub(now)).into_iter().chain(self.pause());
        let blind = (self.exited.is_none() && self.ended.is_none()).then_some(BLIND_TICK);
        // Whoever is more patient waits again.
        due.chain(blind).chain([wait, LONGEST_WAIT]).min().unwrap_or(wait)
    }

    /// Of a slow reader.
    fn pause(&self) -> Option<Duration> {
        match self.terms.reader {
            Reader::Slow { pause } if self.exited.is_none() => Some(pause),
            _ => None,
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 1 << 13];
        let length = if self.pause().is_some() { SIP } else { buffer.len() };
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match rustix::io::read(pipe, &mut buffer[..length]) {
            Ok(0) => {
                self.pipe = None;
                self.closed = Some(self.start.elapsed());
            }
            Ok(length) => self.output.extend_from_slice(&buffer[..length]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// Ends the whole group: mostly a request, then force. What left the group is out of reach, but
    /// no longer waited for.
    fn stop(&mut self, signals: &[Signal]) -> io::Result<()> {
        let limit = self.output.len();
        for signal in signals {
            // Nobody left to get it is as good.
            let _ = kill_process_group(self.pid, *signal);
            let since = Instant::now();
            while !self.is_over()? && since.elapsed() < GRACE {
                self.turn(GRACE.saturating_sub(since.elapsed()))?;
                self.output.truncate(limit);
            }
        }
        Ok(())
    }
}

fn follow(driver: Pid, terms: &Terms) -> anyhow::Result<Option<Tracer>> {
    let strike = terms.strike.and_then(|strike| match strike.when {
        Moment::At(point) => Some(tracer::Strike { point, act: Box::new(move || strike.hit(driver)) }),
        Moment::After(_) => None,
    });
    if !terms.are_traced() {
        return Ok(None);
    }
    let trace = terms.trace.clone().unwrap_or(Trace::SystemCalls);
    Tracer::follow(driver, trace, strike).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::super::caller::tests::{Script, script};
    use super::super::tests::{SUCCESS, child_of, end, ends_soon, is_alive, run_with};
    use super::super::{Blow, Strike, Whom};
    use super::*;
    use flexvol_linux::tracer::{Look, Point};
    use std::fs;

    /// Says so where tracing is not permitted.
    fn possible(test: &str) -> bool {
        if !tracer::is_possible() {
            println!("SKIP {test}: ptrace(2) is not permitted");
        }
        tracer::is_possible()
    }

    fn counted(script: &Script) -> (Run, usize) {
        let run = run_with(script, |terms| terms.trace = Some(Trace::SystemCalls));
        let calls = run.traced.as_ref().unwrap().system_calls;
        (run, calls)
    }

    fn struck(script: &Script, call: usize, signal: Blow, whom: Whom) -> Run {
        struck_at(script, Point::Call(call), signal, whom)
    }

    fn struck_at(script: &Script, point: Point, signal: Blow, whom: Whom) -> Run {
        let strike = Strike { when: Moment::At(point), signal, whom };
        run_with(script, |terms| terms.strike = Some(strike))
    }

    /// Makes files named 1 to 9, one after the other.
    fn nine_files() -> Script {
        script("cd $dir; for i in 1 2 3 4 5 6 7 8 9; do : > $i; done; echo done")
    }

    /// Which of them there are; clears up.
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
        assert_eq!((&run.end, run.output.len(), run.disturbed()), (&End::Exited(0), 21, false));
        assert!(calls > 10, "{calls}");
        let again = counted(&alone).1;
        assert!(again.abs_diff(calls) <= 3, "{calls}, then {again}");
        let (_, more) = counted(&script(&format!("for i in 1 2 3 4 5; do /bin/true; done; {SUCCESS}")));
        assert!(more > calls + 5 * 10, "{calls} alone, {more} with five others");
    }

    #[test]
    fn a_strike_comes_before_that_system_call() {
        if !possible("a_strike_comes_before_that_system_call") {
            return;
        }
        let script = nine_files();
        let (run, calls) = counted(&script);
        assert_eq!((run.output, files(&script).len()), (b"done\n".to_vec(), 9));
        let mut most = 0;
        for call in 1..=calls {
            let run = struck(&script, call, Blow::Kill, Whom::Driver);
            let there = files(&script);
            assert_eq!((&run.end, run.stopped), (&End::Signaled(9), None), "at {call} of {calls}");
            assert!(run.struck.is_some() && run.traced.unwrap().system_calls == call);
            // Those before it, and none after.
            assert!(there.iter().copied().eq(1..=there.len()), "at {call} of {calls}: {there:?}");
            assert!(there.len() >= most, "at {call} of {calls}: {there:?} after {most}");
            most = there.len();
        }
        assert_eq!(most, 9);
        let run = struck(&script, calls + 100, Blow::Kill, Whom::Driver);
        assert_eq!((run.end, run.struck, run.output), (End::Exited(0), None, b"done\n".to_vec()));
    }

    #[test]
    fn a_strike_comes_right_after_a_change() {
        if !possible("a_strike_comes_right_after_a_change") {
            return;
        }
        let script = nine_files();
        let (run, _) = counted(&script);
        files(&script);
        assert_eq!(run.traced.unwrap().changes, 9);
        for change in 1..=9 {
            let run = struck_at(&script, Point::Change(change), Blow::Kill, Whom::Group);
            let struck = run.traced.unwrap().struck.unwrap();
            assert_eq!(
                (files(&script).len(), struck.change, &*struck.name),
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
            let run = struck_at(&other, Point::Change(change), Blow::Kill, Whom::Group);
            let _ = ["a", "b"].map(|name| fs::remove_dir(other.dir.path().join(name)));
            let struck = run.traced.unwrap().struck.unwrap();
            format!("{} {}", struck.change.unwrap(), struck.name)
        });
        assert!(names.eq(["mkdir mkdir", "rename mv", "rmdir rmdir"]));
    }

    /// The last system calls are of a child that waits for the driver's end.
    #[test]
    fn a_strike_at_a_child_hits_the_driver_or_all() {
        if !possible("a_strike_at_a_child_hits_the_driver_or_all") {
            return;
        }
        let body = "(sh -c 'echo $$ > $dir/child; while [ ! -e $dir/go ]; do sleep 0.01; done; exec sleep 60') \
                    >/dev/null 2>&1; echo never";
        let strike = |whom| {
            let script = script(body);
            let path = script.dir.path().join("child");
            // Many calls after the first of the child.
            let run = struck(&script, 1000, Blow::Kill, whom);
            assert!(path.exists() && run.end == End::Signaled(9) && run.output.is_empty(), "{run:?}");
            fs::File::create(script.dir.path().join("go")).unwrap();
            (child_of(&script), script)
        };
        let (child, _script) = strike(Whom::Driver);
        let status = || fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap();
        // It lives, and goes on.
        while !status().starts_with("sleep\x0060") {
            assert!(is_alive(child));
            std::thread::sleep(Duration::from_millis(1));
        }
        end(child);
        assert!(ends_soon(strike(Whom::Group).0));
    }

    #[test]
    fn who_is_asked_to_end_goes_on_without_a_tracer() {
        if !possible("who_is_asked_to_end_goes_on_without_a_tracer") {
            return;
        }
        let body = "trap 'grep TracerPid: /proc/$$/status; exit 5' TERM; while :; do sleep 0.01; done";
        let run = struck(&script(body), 500, Blow::Terminate, Whom::Driver);
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
            let run = run_with(&script, |terms| terms.trace = Some(trace));
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
        let run = run_with(&script, |terms| terms.trace = Some(Trace::Executions(Some(look))));
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
            let run = run_with(&script, |terms| terms.trace = Some(trace));
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

    /// Each thread waits for its own only.
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
                    let run = struck(&script, calls / 2, Blow::Kill, Whom::Group);
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
            let run = run_with(&script(body), |terms| {
                terms.trace = Some(Trace::SystemCalls);
                terms.patience = Duration::from_millis(300);
            });
            assert_eq!((run.stopped, run.exited), (Some(Stop::Patience), None), "{body}");
            assert!(matches!(run.end, End::Signaled(9 | 15)), "{body}: {run:?}");
        }
    }

    #[test]
    fn one_that_cannot_be_executed_says_why_as_ever() {
        let mut caller = super::super::super::Caller::new("/nowhere");
        caller.terms.trace = Some(Trace::SystemCalls);
        let run = caller.execute(&["init".into()]).run.unwrap();
        let End::NotStarted(why) = run.end else { panic!("{run:?}") };
        assert!(why.contains("o such file"), "{why}");
    }
}
