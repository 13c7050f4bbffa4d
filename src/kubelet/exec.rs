//! One execution of a driver: one pipe for both outputs, read until every process that holds the
//! pipe has closed it.

mod running;
mod start;

use flexvol_linux::proc::child::Pid;
use flexvol_linux::proc::limits::Limits;
use flexvol_protocol::secret::Secret;
use running::Running;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `PATH` of a service under systemd, which is also kubelet's.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Longest wait requested from the kernel, which rejects numbers that are too large.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// Time to watch one of several executions before the next one.
const SHORT_WAIT: Duration = Duration::from_millis(2);

/// Settings for the execution of a driver.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Program name passed as `argv[0]` instead of the path: for a driver that is not yet at the
    /// place where kubelet will find it.
    pub name: Option<OsString>,
    /// Complete environment: kubelet passes its own on unchanged.
    pub environment: Vec<(OsString, OsString)>,
    /// Deadline for the driver. Kubelet itself waits for ever; after 123 s it only gives up on the
    /// pod for the moment.
    pub patience: Duration,
    /// Limit for the output, in bytes. Kubelet has none: it reads until its memory is full.
    pub output_limit: usize,
    /// True to kill the driver when this process receives a stop signal. If false, the driver may
    /// finish.
    pub heeds_signals: bool,
    /// Working directory of the driver; `None`: the one of this process, even if it was removed.
    pub directory: Option<PathBuf>,
    /// Time to wait for the end of the output after the driver itself has ended; a process that
    /// holds the output longer is left alone. `None` is kubelet's way: the deadline of the driver
    /// applies, and then the holders are ended.
    pub linger: Option<Duration>,
    /// Way in which the output is read.
    pub reader: Reader,
    /// Resource limits of the driver.
    pub limits: Limits,
    /// Umask of the driver; `None`: the one of this process.
    pub umask: Option<u32>,
    /// True for a standard input that never delivers anything, in place of /dev/null: a driver that
    /// reads it hangs.
    pub silent_input: bool,
    /// Standard input of the driver, if any: for data that must not be passed as an argument.
    pub input: Option<Arc<Secret>>,
    /// Observer of the execution.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Ways to read the output of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Reads as soon as output arrives, up to its end.
    All,
    /// Does not read: no process holds the reading end, as after a restart of kubelet.
    Closed,
    /// Reads a few bytes after each pause as long as the driver runs, from a pipe of the smallest
    /// size that the kernel allows; then reads the rest.
    Slow {
        /// Pause between two reads.
        pause: Duration,
    },
}

/// Observer of a driver while it is executed; it may act on the driver. The conformance kit uses it
/// to follow and to interrupt a driver. Each value watches one execution. The thread that executes
/// the driver calls the methods in the order in which they are declared here.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Called before the start; may change how the driver is started. An error prevents the start.
    fn prepare(&self, command: &mut Command) -> io::Result<()>;

    /// Called after the start: the driver leads its own process group. An error kills the driver.
    fn started(&self, driver: Pid, at: Instant) -> io::Result<()>;

    /// Called after every event while the driver runs: performs all actions that are due after
    /// `elapsed`. Returns the time, counted from the start, at which to call it again at the
    /// latest.
    fn running(&self, elapsed: Duration) -> Option<Duration>;

    /// Called when the driver has ended but is not reaped yet; if not `exited`, it could not be
    /// ended.
    fn ended(&self, exited: bool) -> io::Result<()>;
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            name: None,
            environment: vec![("PATH".into(), PATH.into())],
            patience: Duration::from_secs(123),
            output_limit: 4 << 20,
            heeds_signals: false,
            directory: Some("/".into()),
            linger: None,
            reader: Reader::All,
            limits: Limits::default(),
            umask: None,
            silent_input: false,
            input: None,
            observer: None,
        }
    }
}

/// One execution, as seen from outside.
#[derive(Clone, Debug)]
pub struct Run {
    /// End of the process.
    pub end: End,
    /// Time of its end, counted from the start; `None` if it had to be stopped.
    pub exited: Option<Duration>,
    /// Time at which the last holder closed the pipe; `None` if reading was given up.
    pub closed: Option<Duration>,
    /// Total duration, including a stop.
    pub took: Duration,
    /// Standard output and standard error, interleaved as written. Not masked: a careless driver
    /// prints secrets.
    pub output: Vec<u8>,
    /// Reason why it was stopped, if it was.
    pub stopped: Option<Stop>,
    /// True if the reader stopped listening while it ran: the output may be cut off.
    pub unheard: bool,
}

impl Run {
    /// Returns the record of a driver that was not executed.
    pub fn nothing() -> Self {
        Self::not_started("not executed", Duration::ZERO)
    }

    fn not_started(reason: impl fmt::Display, took: Duration) -> Self {
        Self {
            end: End::NotStarted(reason.to_string()),
            exited: None,
            closed: None,
            took,
            output: Vec::new(),
            stopped: None,
            unheard: false,
        }
    }
}

/// Ends of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Exited with this status.
    Exited(i32),
    /// Killed by this signal.
    Signaled(i32),
    /// Never started, or could not be watched: the system's reason.
    NotStarted(String),
    /// Survived even SIGKILL: it is stuck in the kernel, on dead storage.
    Immortal,
}

/// Reasons for stopping an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `patience` ran out. Kubelet would still be waiting.
    Patience,
    /// The output exceeded the limit.
    OutputLimit,
    /// This process was told to stop.
    Told,
}

impl fmt::Display for End {
    /// Uses the words of Go's `os/exec`, which kubelet shows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit status {code}"),
            Self::Signaled(signal) => write!(f, "signal: {signal}"),
            Self::NotStarted(reason) => write!(f, "not started: {reason}"),
            Self::Immortal => f.write_str("not ended by SIGKILL"),
        }
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Signaled(signal.unwrap_or_default()),
        }
    }
}

/// Executes `program` as kubelet does, but in its own process group, so that the whole group can be
/// stopped.
pub(super) fn run(program: &Path, arguments: &[OsString], terms: &Terms) -> Run {
    let mut execution = Execution::begin(program, arguments, terms);
    loop {
        if let Some(run) = execution.advance(LONGEST_WAIT) {
            return run;
        }
    }
}

/// Executes all programs at the same time like [`run`]: one that hangs does not delay the others.
pub(super) fn run_each(programs: &[PathBuf], arguments: &[OsString], terms: &Terms) -> Vec<Run> {
    let begin = |program: &PathBuf| (Execution::begin(program, arguments, terms), None);
    let mut all: Vec<_> = programs.iter().map(begin).collect();
    while all.iter().any(|(_, run)| run.is_none()) {
        for (execution, run) in all.iter_mut().filter(|(_, run)| run.is_none()) {
            *run = execution.advance(SHORT_WAIT);
        }
    }
    all.into_iter().filter_map(|(_, run)| run).collect()
}

/// One execution that has begun or failed to begin.
struct Execution<'a> {
    start: Instant,
    running: io::Result<Running<'a>>,
    /// Writing end of the silent input, held open so that its reader waits.
    _held: Option<OwnedFd>,
}

impl<'a> Execution<'a> {
    fn begin(program: &Path, arguments: &[OsString], terms: &'a Terms) -> Self {
        let start = Instant::now();
        let (input, held) = match start::input(terms) {
            Ok((input, held)) => (Ok(input), held),
            Err(error) => (Err(error), None),
        };
        let running = input
            .and_then(|input| start::spawn(program, arguments, terms, input))
            .and_then(|(child, pipe)| Running::new(child, pipe, start, terms));
        Self { start, running, _held: held }
    }

    /// Watches for `wait` or until something happens; returns the [`Run`] once it is over.
    fn advance(&mut self, wait: Duration) -> Option<Run> {
        let advanced = match &mut self.running {
            Ok(running) => running.advance(wait),
            Err(error) => return Some(Run::not_started(error, self.start.elapsed())),
        };
        advanced.unwrap_or_else(|error| Some(Run::not_started(error, self.start.elapsed())))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::caller::tests::{Script, script};
    use super::*;
    use std::fs;

    #[test]
    fn who_reads_a_silent_input_hangs() {
        let reads = script(&format!("read -r line; {SUCCESS}"));
        assert_eq!(run_with(&reads, |_| ()).stopped, None);
        let run = run_with(&reads, |terms| {
            terms.silent_input = true;
            terms.patience = Duration::from_millis(200);
        });
        assert_eq!((run.stopped, run.exited), (Some(Stop::Patience), None));
        assert_eq!(run_with(&script(SUCCESS), |terms| terms.silent_input = true).stopped, None);
    }

    pub(super) const SUCCESS: &str = "echo '{\"status\":\"Success\"}'";

    pub(super) fn run_with(script: &Script, change: impl FnOnce(&mut Terms)) -> Run {
        let mut caller = script.caller.clone();
        caller.terms.environment.push(("dir".into(), script.dir.path().into()));
        change(&mut caller.terms);
        caller.execute(&["init".into()]).run.unwrap()
    }

    fn said(body: &str, change: impl FnOnce(&mut Terms)) -> String {
        String::from_utf8(run_with(&script(body), change).output).unwrap()
    }

    /// Returns the number of a process that the driver started and wrote into its `$dir`.
    pub(super) fn child_of(script: &Script) -> i32 {
        fs::read_to_string(script.dir.path().join("child")).unwrap().trim().parse().unwrap()
    }

    pub(super) fn is_alive(pid: i32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    pub(super) fn end(pid: i32) {
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn it_runs_where_told() {
        assert_eq!(said("pwd", |_| {}), "/\n");
        assert_eq!(said("pwd", |terms| terms.directory = Some("/proc".into())), "/proc\n");
        let here = format!("{}\n", std::env::current_dir().unwrap().display());
        assert_eq!(said("pwd", |terms| terms.directory = None), here);
    }

    #[test]
    fn who_holds_the_output_is_left_alone_after_a_while() {
        let script = script(&format!("sleep 600 & echo $! > $dir/child; {SUCCESS}"));
        let run = run_with(&script, |terms| terms.linger = Some(Duration::from_millis(200)));
        let child = child_of(&script);
        assert!(is_alive(child));
        end(child);
        assert_eq!((run.stopped, run.closed, &run.end), (Some(Stop::Patience), None, &End::Exited(0)));
        let took = run.took.saturating_sub(run.exited.unwrap());
        assert!(took >= Duration::from_millis(200) && took < crate::pace::deadline(20), "{run:?}");
    }

    #[test]
    fn nobody_reads() {
        let script = script("trap '' PIPE; echo x 2>/dev/null || echo broken > $dir/pipe");
        let run = run_with(&script, |terms| terms.reader = Reader::Closed);
        assert!(script.dir.path().join("pipe").exists());
        assert!(run.output.is_empty() && run.unheard, "{run:?}");
        assert_eq!((run.end, run.stopped, run.closed), (End::Exited(0), None, None));
    }

    #[test]
    fn a_slow_reader_reads_all() {
        let run = run_with(&script("for i in 1 2 3 4 5 6 7 8; do printf %1024d $i; done"), |terms| {
            terms.reader = Reader::Slow { pause: Duration::from_millis(1) };
        });
        assert_eq!(run.output.len(), 8192);
        // Half of the output does not fit into the pipe, and each read takes 64 bytes.
        assert!(run.exited.unwrap() >= Duration::from_millis(60) && !run.unheard, "{run:?}");
    }

    #[test]
    fn limits_are_the_drivers_only() {
        let limits =
            Limits { files: Some(17), processes: Some(1234), file_size: Some(1 << 20), alone: false };
        let body = "ulimit -n; ulimit -p; ulimit -f; umask; ulimit -Hn";
        let free = said(body, |_| {});
        let bound = said(body, |terms| (terms.limits, terms.umask) = (limits, Some(0o27)));
        let bound: Vec<_> = bound.lines().collect();
        assert_eq!(bound[..4], ["17", "1234", "2048", "0027"]);
        assert_eq!(bound[4], free.lines().next_back().unwrap());
        assert_eq!(said(body, |_| {}), free);
    }

    /// Descriptor 3 of `ls` itself is the directory that it lists. Descriptors that this process
    /// inherited are left out.
    #[test]
    fn nothing_else_is_open() {
        let mut caller = super::super::Caller::new("/bin/ls");
        caller.terms.environment.clear();
        let _open = fs::File::open("/proc/self/stat").unwrap();
        let open = |limits| {
            let mut caller = caller.clone();
            caller.terms.limits = limits;
            let output = caller.execute(&["/proc/self/fd".into()]).run.unwrap().output;
            let inherited = |fd: &str| {
                let flags = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
                let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("02000000");
                i64::from_str_radix(flags.trim(), 8).unwrap() & 0o2_000_000 == 0
            };
            let text = String::from_utf8(output).unwrap();
            let ours = text.lines().filter(|fd| fd.len() == 1 && *fd <= "3" || !inherited(fd));
            ours.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(open(Limits::default()), ["0", "1", "2", "3"]);
        // Limits start the driver in another way.
        assert_eq!(open(Limits { files: Some(64), ..Limits::default() }), ["0", "1", "2", "3"]);
    }
}
