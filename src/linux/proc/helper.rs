//! Helper programs: `mkfs.xfs`, `mount.nfs`, `e2fsck`.
//!
//! An [`Invocation`] describes what to run, and a [`Runner`] runs it.
//! On the host, a helper is searched in fixed directories only, and its environment and descriptors
//! are built from nothing. It ends at its deadline at the latest: [`HostRunner`] returns whatever
//! the helper and its children do. See `supervise`.

use crate::errno::Missing;
use crate::fs::root::Root;
use crate::proc::deadline::Deadline;
pub use crate::proc::invocation::Invocation;
use crate::proc::invocation::Program;
use crate::proc::orphans;
use crate::proc::supervise::{self, Bounds, Running};
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::text::one_line;
use rustix::fs::{FileType, fstat};
use rustix::pipe::{PipeFlags, pipe_with};
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Directories in which helpers are searched, and their `PATH`.
/// Those of the distribution come before those of the admin.
pub const DIRECTORIES: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

/// Limit for last words in a message, in bytes: the rest of the message has to fit, too.
const LAST_WORDS: usize = 400;

/// Runner of helper programs: this process on its own node, or a process in a container that has
/// the programs.
pub trait Runner: fmt::Debug + Sync {
    /// Fails with [`Missing`] if there is no program of this plain name.
    fn find(&self, name: &str) -> Result<()>;

    /// Runs a program to its end; any exit status is `Ok`.
    ///
    /// Fails with [`Missing`] or `ToolMissing` if there is no such program.
    /// If `deadline` passes, or this process is asked to stop, it ends the program with all that
    /// the program has started, and fails with `Timeout`.
    fn run(&self, invocation: Invocation, deadline: &Deadline) -> Result<HelperExit>;
}

/// Runner on the node itself: programs are child processes, searched in [`DIRECTORIES`].
///
/// At the deadline, a program and its process group get SIGTERM, two seconds later SIGKILL.
/// Only for the main thread or one that outlives the call: the kernel kills the program when the
/// thread that started it ends (`PR_SET_PDEATHSIG`).
#[derive(Clone, Copy, Debug)]
pub struct HostRunner;

/// Runner and deadline for the helper programs of a call.
#[derive(Clone, Copy, Debug)]
pub struct Tools<'a> {
    /// Runner of the programs.
    pub runner: &'a dyn Runner,
    /// Deadline of the programs.
    pub deadline: &'a Deadline,
}

impl<'a> Tools<'a> {
    /// Returns the tools of the node itself.
    pub fn of_host(deadline: &'a Deadline) -> Self {
        Self { runner: &HostRunner, deadline }
    }

    /// Returns the same tools with another deadline.
    pub fn until<'b>(&self, deadline: &'b Deadline) -> Tools<'b>
    where
        'a: 'b,
    {
        Tools { runner: self.runner, deadline }
    }

    /// Reports whether there is a program of this name.
    pub fn has(&self, name: &str) -> bool {
        self.runner.find(name).is_ok()
    }

    /// Runs a program as [`Runner::run`] does.
    pub fn run(&self, invocation: Invocation) -> Result<HelperExit> {
        self.runner.run(invocation, self.deadline)
    }

    /// Runs a program. Every exit status except 0 is an error with the program's last words.
    pub fn run_to_success(&self, invocation: Invocation) -> Result<HelperExit> {
        let name = invocation.name();
        let outcome = self.run(invocation)?;
        if outcome.success() {
            return Ok(outcome);
        }
        Err(outcome.to_error(&name).into())
    }
}

/// Result of a helper.
#[derive(Debug)]
pub struct HelperExit {
    /// Exit status or signal.
    pub status: ExitStatus,
    /// The last 4 KiB of standard output and standard error together, without the helper's secrets.
    /// For an [answering](Invocation::answering) helper, standard error alone.
    pub output: String,
    /// The first 64 KiB of the standard output of an [answering](Invocation::answering) helper,
    /// without secrets; empty for other helpers.
    pub answer: String,
}

impl Runner for HostRunner {
    fn find(&self, name: &str) -> Result<()> {
        Program::Named(name.to_owned()).path().map(drop)
    }

    fn run(&self, mut invocation: Invocation, deadline: &Deadline) -> Result<HelperExit> {
        let name = invocation.name();
        let program = invocation.program.path()?;
        deadline.check(&format!("about to run {name}"))?;
        let started = invocation.start(&program);
        let mut running = started.with_context(|| format!("start {}", program.display()))?;
        let result = running.supervise(deadline, &name, invocation.daemon);
        let (output, answer) = (running.output(), running.answer());
        match result.with_context(|| format!("run {name}"))? {
            Ok(status) => Ok(HelperExit { status, output, answer }),
            Err(failure) if output.trim().is_empty() => Err(failure.into()),
            Err(failure) => {
                let said = format!("{failure}, its last words: {}", last_words(&output));
                Err(Failure::new(failure.code(), said).into())
            }
        }
    }
}

impl Program {
    /// Returns its path on this node. Fails with [`Missing`], or with `ToolMissing` if a path does
    /// not name an executable regular file.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let path = match self {
            Self::Named(name) => {
                let place = if name.contains('/') {
                    None
                } else {
                    which::which_in(name, Some(DIRECTORIES), "/").ok()
                };
                return place.ok_or_else(|| Missing(name.clone()).into());
            }
            Self::At(path) => path.clone(),
            Self::Opened(program) => format!("/proc/self/fd/{}", program.as_raw_fd()).into(),
        };
        let runs = path.is_absolute()
            && path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        if runs {
            return Ok(path);
        }
        let text = format!("{} is no executable file: give the absolute path of one", path.display());
        Err(Failure::new(Code::ToolMissing, text).into())
    }
}

impl Invocation {
    fn start(&mut self, program: &Path) -> Result<Running> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let (input, feed) = match &self.stdin {
            None => (Stdio::null(), None),
            Some(secret) => {
                let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
                (theirs.into(), Some((ours, secret.clone())))
            }
        };
        let (stdout, answer) = if self.answering {
            let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
            (theirs, Some(ours))
        } else {
            (writer.try_clone()?, None)
        };
        let mut command = self.command(program);
        command.env(orphans::CALL, orphans::own_name());
        command.process_group(0).stdin(input).stdout(stdout).stderr(writer);
        let bounds = self.bounds(program)?;
        supervise::prepare(&mut command, std::mem::take(&mut self.kept), bounds, self.last);
        let child = command.spawn()?;
        // Only the helper may hold the other ends of the pipes: otherwise their end is never
        // reached.
        drop(command);
        Running::new(child, (reader, answer), feed, self.redactor())
    }

    /// Returns the same program, started through another command.
    pub(crate) fn behind(mut self, words: &[String]) -> Result<Self> {
        let (first, rest) = words.split_first().context("nothing to start a program with")?;
        let own = self.program.path()?.into_os_string();
        self.program = Program::Named(first.clone());
        let args = std::mem::take(&mut self.args);
        self.args = rest.iter().map(OsString::from).chain([own]).chain(args).collect();
        Ok(self)
    }

    /// Takes the restrictions of the program. Only for one call.
    pub(crate) fn bounds(&mut self, program: &Path) -> Result<Bounds> {
        let rules = self.reach.take().map(|reach| reach.program(program).rules()).transpose()?.flatten();
        Ok(Bounds { root: self.root.take(), rules })
    }

    #[allow(clippy::disallowed_methods, reason = "the one place that starts programs")]
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(&self.args).env_clear().current_dir("/");
        command.envs([("PATH", DIRECTORIES), ("LC_ALL", "C"), ("LANG", "C"), ("HOME", "/")]);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

#[cfg(test)]
impl Invocation {
    /// Runs it on the host, for tests.
    pub(crate) fn run(self, deadline: &Deadline) -> Result<HelperExit> {
        Tools::of_host(deadline).run(self)
    }

    /// Runs it on the host, for tests; fails unless it exits with 0.
    pub(crate) fn run_to_success(self, deadline: &Deadline) -> Result<HelperExit> {
        Tools::of_host(deadline).run_to_success(self)
    }
}

impl HelperExit {
    /// Reports whether it exited with 0.
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// Describes the result: `mkfs.xfs failed (exit 1): its last words`.
    pub fn describe(&self, name: &str) -> String {
        self.to_error(name).to_string()
    }

    /// Returns the error for an exit status other than 0.
    pub fn to_error(&self, name: &str) -> Failed {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or_default()),
        };
        Failed { name: name.to_owned(), how, words: last_words(&self.output) }
    }
}

/// Error of a helper that ran but did not succeed: `mkfs.xfs failed (exit 1): its last words`.
#[derive(Debug)]
pub struct Failed {
    name: String,
    how: String,
    /// End of its output, as one line; empty without output.
    pub words: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, how, words } = self;
        match words.as_str() {
            "" => write!(f, "{name} failed ({how}) without a word"),
            words => write!(f, "{name} failed ({how}): {words}"),
        }
    }
}

impl Error for Failed {}

/// Returns the end of a helper's output, as one line for a message.
pub fn last_words(output: &str) -> String {
    let line = one_line(output, usize::MAX);
    match line.len().checked_sub(LAST_WORDS) {
        None | Some(0) => line,
        Some(cut) => format!("…{}", supervise::text_from(&line, cut)),
    }
}

/// Reports whether a node can execute a file. `root` is the root of its file system.
pub fn runs(root: &Path, path: &Path) -> bool {
    let reached = Root::open(root).and_then(|root| root.reach(path)).ok();
    let there = reached.filter(|reached| reached.missing.as_os_str().is_empty());
    let mode = there.and_then(|reached| fstat(&reached.fd).ok()).map(|file| file.st_mode);
    mode.is_some_and(|mode| FileType::from_raw_mode(mode) == FileType::RegularFile && mode & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::to_failure;
    use crate::pace::{deadline, slow_seconds};
    use crate::raw;
    use crate::wording::wording_of;
    use flexvol_protocol::secret::Secret;
    use nix::sys::signal::Signal::{SIGUSR1, SIGUSR2};
    use nix::sys::signal::{SigHandler, SigSet};
    use std::io::{Seek, Write};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    fn shell(script: &str) -> Invocation {
        Invocation::of("sh").args(["-c", script])
    }

    fn within(seconds: u64) -> Deadline {
        Deadline::after(deadline(seconds))
    }

    fn timed(helper: Invocation, deadline: Deadline) -> (Result<HelperExit>, Duration) {
        let start = Instant::now();
        (helper.run(&deadline), start.elapsed())
    }

    #[test]
    fn tells_status_and_output() {
        let outcome = shell("echo out; echo err >&2; exit 3").run(&within(10)).unwrap();
        assert_eq!((outcome.status.code(), outcome.output.as_str()), (Some(3), "out\nerr\n"));
        assert_eq!(outcome.describe("sh"), "sh failed (exit 3): out; err");
        let error = shell("kill -9 $$").run_to_success(&within(10)).unwrap_err();
        assert_eq!(error.to_string(), "sh failed (signal 9) without a word");
    }

    #[test]
    fn an_answer_is_standard_output_alone() {
        let script = "echo warning >&2; echo /dev/x; echo more >&2";
        let outcome = shell(script).answering().run(&within(10)).unwrap();
        assert_eq!((outcome.answer.as_str(), outcome.output.as_str()), ("/dev/x\n", "warning\nmore\n"));
        assert_eq!(shell(script).run(&within(10)).unwrap().answer, "");
        let long = shell("head -c 3000000 /dev/zero; echo end >&2").answering().run(&within(30)).unwrap();
        assert_eq!((long.answer.len(), long.output.as_str()), (64 << 10, "end\n"));
        let secret = Secret::new(b"hunter2secret".to_vec());
        assert_eq!(shell("cat").stdin(secret).answering().run(&within(10)).unwrap().answer, "***");
        let (result, took) = timed(shell("sleep 600 & echo x").answering(), within(30));
        assert_eq!(result.unwrap().answer, "x\n");
        assert!(took < deadline(15), "{took:?}");
    }

    #[test]
    fn a_missing_tool_is_named() {
        let failure = to_failure(HostRunner.find("mount.glusterfs-not").unwrap_err());
        assert_eq!(failure.code(), Code::ToolMissing);
        assert_eq!(failure.message(), wording_of("not-on-this-node", ["mount.glusterfs-not"]));
        assert!(HostRunner.find("../bin/sh").is_err());
    }

    #[test]
    fn an_opened_program_runs_whatever_has_its_name_now() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sh");
        // Copied by another process: a file that this one writes could be busy when executed.
        Invocation::of("cp").args([Path::new("/bin/sh"), &path]).run_to_success(&within(10)).unwrap();
        let program = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let helper = Invocation::opened(program).args(["-c", "echo it; ls /proc/self/fd"]);
        let outcome = helper.run(&within(10)).unwrap();
        assert!(
            outcome.output.starts_with("it\n0\n1\n2\n") && outcome.output.lines().count() <= 5,
            "{outcome:?}"
        );
        assert!(
            Invocation::opened(std::fs::File::open(dir.path()).unwrap().into()).run(&within(10)).is_err()
        );
    }

    #[test]
    fn a_path_must_be_an_executable_file() {
        assert!(Invocation::at(Path::new("/bin/sh")).args(["-c", ""]).run(&within(10)).is_ok());
        for path in ["/etc/passwd", "/bin", "bin/sh", "/nowhere/at/all"] {
            let failure = to_failure(Invocation::at(Path::new(path)).run(&within(10)).unwrap_err());
            assert_eq!(failure.code(), Code::ToolMissing, "{path}");
        }
    }

    #[test]
    fn environment_is_built_from_nothing() {
        let outcome = Invocation::of("env").env("EXTRA", "1").run(&within(10)).unwrap();
        let mut lines: Vec<_> = outcome.output.lines().collect();
        lines.sort_unstable();
        let call = format!("{}={}", orphans::CALL, orphans::own_name());
        let path = format!("PATH={DIRECTORIES}");
        assert_eq!(lines, ["EXTRA=1", &call, "HOME=/", "LANG=C", "LC_ALL=C", &path]);
        assert_eq!(shell("pwd").run(&within(10)).unwrap().output, "/\n");
    }

    #[test]
    fn only_kept_descriptors_are_inherited() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        file.rewind().unwrap();
        // A descriptor that was left open for all programs by mistake.
        let careless = tempfile::tempfile().unwrap();
        rustix::io::fcntl_setfd(&careless, rustix::io::FdFlags::empty()).unwrap();
        let mut helper = Invocation::of("sh");
        let path = helper.keep(file.as_fd()).unwrap();
        let script = format!("ls /proc/$$/fd; echo :; cat {}", path.display());
        let outcome = helper.args(["-c", &script]).run(&within(10)).unwrap();
        let (numbers, content) = outcome.output.split_once(":\n").unwrap();
        let kept = path.file_name().unwrap().to_str().unwrap();
        let mut numbers: Vec<_> = numbers.lines().collect();
        numbers.sort_unstable();
        let mut expected = ["0", "1", "2", kept];
        expected.sort_unstable();
        assert_eq!((numbers.as_slice(), content), (expected.as_slice(), "content"));
    }

    #[test]
    fn a_helper_holds_our_lock_until_it_ends() {
        use rustix::fs::{FlockOperation, flock};
        let named = tempfile::NamedTempFile::new().unwrap();
        let (ours, other) = (named.reopen().unwrap(), named.reopen().unwrap());
        let take = |file: &std::fs::File| flock(file, FlockOperation::NonBlockingLockExclusive);
        take(&ours).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        shell(&format!("until [ -e {} ]; do sleep 0.05; done >/dev/null 2>&1 &", go.display()))
            .daemon()
            .holding(ours.as_fd())
            .unwrap()
            .run(&within(10))
            .unwrap();
        drop(ours);
        assert!(take(&other).is_err());
        std::fs::File::create(&go).unwrap();
        let start = Instant::now();
        while take(&other).is_err() {
            assert!(start.elapsed() < deadline(20), "never released");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn signals_are_as_in_a_fresh_process() {
        // Both are inherited across exec unless they are reset.
        raw::set_disposition(SIGUSR2, SigHandler::SigIgn).unwrap();
        SigSet::from(SIGUSR1).thread_block().unwrap();
        let status = shell("grep -E '^Sig(Blk|Ign)' /proc/self/status").run(&within(10)).unwrap().output;
        for line in status.lines() {
            let mask = u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap();
            // Above 31 are the signals of the C library and the real-time ones: never changed.
            assert_eq!(mask & 0x7fff_ffff, 0, "{line}");
        }
        let group = shell("cut -d' ' -f1,5 /proc/$$/stat").run(&within(10)).unwrap().output;
        let (pid, pgrp) = group.trim().split_once(' ').unwrap();
        assert_eq!(pid, pgrp);
    }

    #[test]
    fn large_input_and_output_do_not_block() {
        let secret = Secret::new(vec![b'x'; 1 << 20]);
        let outcome = shell("head -c 3000000 /dev/zero; wc -c").stdin(secret).run(&within(30)).unwrap();
        assert!(outcome.output.trim_end().ends_with("1048576"));
        assert!(outcome.output.len() <= 4096);
        let unread = Secret::new(vec![b'x'; 1 << 20]);
        assert!(shell("exit 0").stdin(unread).run(&within(10)).unwrap().success());
        assert_eq!(shell("wc -c").run(&within(10)).unwrap().output.trim(), "0");
    }

    #[test]
    fn the_input_is_masked_in_the_output() {
        let secret = Secret::new(b"hunter2secret".to_vec());
        let outcome = shell("cat").stdin(secret).run(&within(10)).unwrap();
        assert_eq!(outcome.output, "***");
    }

    #[test]
    fn stops_at_the_deadline() {
        let (result, took) = timed(shell("echo hanging; sleep 600"), within(1));
        let failure = to_failure(result.unwrap_err());
        assert_eq!(failure.code(), Code::Timeout);
        let passed = format!("deadline of {} s passed", slow_seconds(1));
        assert_eq!(failure.message(), format!("{passed} while running sh, its last words: hanging"));
        assert!(took < deadline(15), "{took:?}");
    }

    #[test]
    fn kills_what_ignores_the_request() {
        let (result, took) = timed(shell("trap '' TERM; while :; do sleep 1; done"), within(1));
        assert_eq!(to_failure(result.unwrap_err()).code(), Code::Timeout);
        assert!(took > deadline(1) + Duration::from_secs(2) && took < deadline(20), "{took:?}");
    }

    #[test]
    fn a_descendant_with_the_pipe_does_not_hang_us() {
        let (result, took) = timed(shell("sleep 600 & echo $!"), within(30));
        let pid = result.unwrap().output.trim().to_owned();
        assert!(took < deadline(15), "{took:?}");
        assert!(ends(&pid), "sleep {pid} survived");
        let (result, took) = timed(shell("sleep 600 & echo $!").daemon(), within(30));
        let pid = result.unwrap().output.trim().to_owned();
        assert!(took < deadline(15), "{took:?}");
        assert!(alive(&pid), "daemon {pid} was killed");
        assert!(shell(&format!("kill -9 {pid}")).run(&within(10)).unwrap().success());
    }

    #[test]
    fn a_daemon_that_comes_too_late_is_not_wanted() {
        let script =
            "(trap '' TERM; sleep 60; sleep 60) & echo $!; trap 'exit 0' TERM; while :; do sleep 0.1; done";
        let (result, _) = timed(shell(script).daemon(), within(1));
        let message = to_failure(result.unwrap_err()).message();
        let passed = format!("deadline of {} s passed", slow_seconds(1));
        let words = message.strip_prefix(&format!("{passed} while running sh, its last words: ")).unwrap();
        let pid = words.split(';').next().unwrap();
        assert!(pid.parse::<u32>().is_ok() && ends(pid), "{message}");
    }

    fn alive(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    }

    fn ends(pid: &str) -> bool {
        let start = Instant::now();
        while alive(pid) && start.elapsed() < deadline(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        !alive(pid)
    }

    #[test]
    fn what_cannot_start_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broken");
        {
            let mut file = std::fs::File::create(&path).unwrap();
            file.write_all(b"#!/no/such/interpreter\n").unwrap();
            file.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let error = Invocation::at(&path).run(&within(10)).unwrap_err();
        assert!(format!("{error:#}").starts_with(&format!("start {}: ", path.display())), "{error:#}");
    }

    #[test]
    fn last_words_are_the_end() {
        let words = last_words(&format!("{}\nthe end", "ä".repeat(500)));
        assert!(words.starts_with('…') && words.ends_with("; the end") && words.len() <= LAST_WORDS + 3);
    }
}
