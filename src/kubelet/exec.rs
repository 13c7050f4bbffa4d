//! One execution of a driver: one pipe for both outputs, read until every process that holds it has
//! closed it.

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

/// `PATH` of a service under systemd, as kubelet has it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The longest wait the kernel is asked for: it takes no number that is too large.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// How long one of several is watched at a time.
const SHORT_WAIT: Duration = Duration::from_millis(2);

/// How a driver is executed.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What the program is told that it is called, in place of its path: for one that is not yet
    /// where kubelet will find it.
    pub name: Option<OsString>,
    /// All of it: kubelet hands its own on unchanged.
    pub environment: Vec<(OsString, OsString)>,
    /// How long to wait. Kubelet itself waits for ever, but gives the pod up for the moment after
    /// 123 s.
    pub patience: Duration,
    /// How many bytes to read. Kubelet reads on until its memory is full.
    pub output_limit: usize,
    /// Whether the driver is killed when this process is told to stop. Off, it is heard out.
    pub heeds_signals: bool,
    /// Where it runs; `None` is where this process is, even if that directory is gone.
    pub directory: Option<PathBuf>,
    /// How long to wait for the end of the output once the driver itself has ended; who holds it
    /// longer is left alone. `None`, as kubelet: no less than for the driver, and then the holders
    /// are ended.
    pub linger: Option<Duration>,
    /// How the output is read.
    pub reader: Reader,
    /// What the driver may use up.
    pub limits: Limits,
    /// Its umask; `None` is that of this process.
    pub umask: Option<u32>,
    /// Whether its standard input is one on which nothing ever comes, and not /dev/null: who reads
    /// it hangs.
    pub silent_input: bool,
    /// What it reads there instead, if anything: what must not be an argument.
    pub input: Option<Arc<Secret>>,
    /// Who watches.
    pub observer: Option<Arc<dyn Observer>>,
}

/// How the output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// As soon as it comes, to its end.
    All,
    /// Not at all: no one holds the reading end, as after a restart of kubelet.
    Closed,
    /// A few bytes after each pause as long as the driver runs, from a pipe that holds no more than
    /// the kernel must; then the rest.
    Slow {
        /// From one piece to the next.
        pause: Duration,
    },
}

/// Watches a driver while it is executed, and may act on it: how the conformance kit follows and
/// interrupts one. Each value watches one execution; the thread that executes the driver calls the
/// methods in the order in which they stand here.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Before the start; may change how the driver is started. An error is why it is not.
    fn prepare(&self, command: &mut Command) -> io::Result<()>;

    /// The driver runs, as the leader of a process group of its own. After an error it is killed.
    fn started(&self, driver: Pid, at: Instant) -> io::Result<()>;

    /// Called whenever something has happened, as long as the driver runs: does what is due, so
    /// long after the start. When to be called again at the latest, counted from the start.
    fn running(&self, elapsed: Duration) -> Option<Duration>;

    /// The driver has ended and is not reaped yet; or it cannot be ended, if not `exited`.
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

/// What one execution looked like from outside.
#[derive(Clone, Debug)]
pub struct Run {
    /// How the process ended.
    pub end: End,
    /// When it ended, counted from the start; `None` if it had to be stopped.
    pub exited: Option<Duration>,
    /// When the last holder of the pipe closed it; `None` if reading was given up.
    pub closed: Option<Duration>,
    /// The whole time, a stop included.
    pub took: Duration,
    /// Standard output and error as they were interleaved. Raw: a careless driver repeats secrets
    /// in it.
    pub output: Vec<u8>,
    /// Why it was stopped, if it was.
    pub stopped: Option<Stop>,
    /// Whether someone stopped listening while it ran: the output may be cut off.
    pub unheard: bool,
}

impl Run {
    /// Of a driver that was not executed.
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

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// It never started, or could not be watched: the system's reason.
    NotStarted(String),
    /// Not even by SIGKILL: it sits in the kernel, on dead storage.
    Immortal,
}

/// Why an execution was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Kubelet would still be waiting.
    Patience,
    /// The output passed the limit.
    OutputLimit,
    /// This process was told to stop.
    Told,
}

impl fmt::Display for End {
    /// In the words of Go's `os/exec`, which kubelet shows.
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

/// Executes `program` as kubelet does, but in a process group of its own, so that all of it can be
/// stopped.
pub(super) fn run(program: &Path, arguments: &[OsString], terms: &Terms) -> Run {
    let mut execution = Execution::begin(program, arguments, terms);
    loop {
        if let Some(run) = execution.advance(LONGEST_WAIT) {
            return run;
        }
    }
}

/// [`run`], of all of them at the same time: one that hangs holds up no other.
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

/// One execution that has begun, or could not.
struct Execution<'a> {
    start: Instant,
    running: io::Result<Running<'a>>,
    /// The end of its input on which nothing comes.
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

    /// Watches for so long, or until something happens; all of it once it is over.
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

    /// Written by a driver into its `$dir`: the number of a process that it started.
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
        // Half of it does not fit, and 64 bytes come out each time.
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

    /// In `ls` itself 3 is the directory that it lists. What this process was given is left out.
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
        // Another way of starting it.
        assert_eq!(open(Limits { files: Some(64), ..Limits::default() }), ["0", "1", "2", "3"]);
    }
}
