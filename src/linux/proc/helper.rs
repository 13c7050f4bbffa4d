//! Helper programs: `mkfs.xfs`, `mount.nfs`, `e2fsck`.
//!
//! A helper is found in fixed directories only, gets an environment and a set of descriptors built
//! from nothing, and is over when its deadline is: whatever it or its children do, [`Helper::run`]
//! comes back. See `supervise`.

use crate::errno::Missing;
use crate::fs::directory::resolve;
use crate::proc::bare_root::BareRoot;
use crate::proc::deadline::Deadline;
use crate::proc::orphans;
use crate::proc::supervise::{self, Running};
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::secret::{Redactor, Secret};
use flexvol_protocol::text::one_line;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Where helpers are looked for, and their `PATH`. The distribution's own come before what an admin
/// added.
pub const DIRECTORIES: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

/// How many bytes of a last word go into a message: the rest of it has to fit, too.
const LAST_WORDS: usize = 400;

/// A program about to run.
#[derive(Debug)]
pub struct Helper {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    stdin: Option<Secret>,
    masked: Vec<Secret>,
    kept: Vec<OwnedFd>,
    root: Option<OwnedFd>,
    /// What `program` names, if it names a descriptor of ours; the helper does not inherit it.
    held: Option<OwnedFd>,
    daemon: bool,
    answering: bool,
    last: Signal,
}

/// How a helper ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status or signal.
    pub status: ExitStatus,
    /// The last 4 KiB of standard output and standard error together, without the secrets it was
    /// given. Of an [answering](Helper::answering) helper standard error alone.
    pub output: String,
    /// The first 64 KiB of the standard output of an [answering](Helper::answering) helper, without
    /// secrets; else empty.
    pub answer: String,
}

impl Helper {
    /// The program of this plain name in [`DIRECTORIES`].
    ///
    /// Fails with [`Missing`]. `name` must come from this program, never from
    /// options: a slash in it is refused all the same.
    pub fn find(name: &str) -> Result<Self> {
        let place =
            if name.contains('/') { None } else { which::which_in(name, Some(DIRECTORIES), "/").ok() };
        place.map(|program| Self::new(name, program)).ok_or_else(|| Missing(name.to_owned()).into())
    }

    /// The program at an absolute path, as an admin configures one. Fails with `ToolMissing` if
    /// there is no executable regular file.
    pub fn at(path: &Path) -> Result<Self> {
        let runs = path.is_absolute()
            && path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        if runs {
            return Ok(Self::new(&name, path.to_owned()));
        }
        let text = format!("{} is no executable file: give the absolute path of one", path.display());
        Err(Failure::new(Code::ToolMissing, text).into())
    }

    /// The program that was opened, whatever has its name now. Fails with `ToolMissing` if it is no
    /// executable regular file.
    pub fn opened(program: OwnedFd) -> Result<Self> {
        let mut helper = Self::at(Path::new(&format!("/proc/self/fd/{}", program.as_raw_fd())))?;
        helper.held = Some(program);
        Ok(helper)
    }

    fn new(name: &str, program: PathBuf) -> Self {
        let (args, env, masked, kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            name: name.to_owned(),
            program,
            args,
            env,
            stdin: None,
            masked,
            kept,
            root: None,
            held: None,
            daemon: false,
            answering: false,
            last: Signal::KILL,
        }
    }

    /// Adds arguments. Never a secret: everybody on the node can read them.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds to the environment, which otherwise is `PATH`, `LC_ALL=C`, `LANG=C`, `HOME=/` and who
    /// started it, for the call after one that is killed.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// What it reads from standard input; without this, nothing. It is masked in everything the
    /// helper says.
    #[must_use]
    pub fn stdin(mut self, secret: Secret) -> Self {
        self.stdin = Some(secret);
        self
    }

    /// Secrets it can get hold of otherwise: masked, too. Here and not by the caller, who sees only
    /// the end of the output, which may begin in the middle of one.
    #[must_use]
    pub fn mask<'a>(mut self, secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        self.masked.extend(secrets.into_iter().cloned());
        self
    }

    /// Lets the helper and its children inherit a copy of `fd` and returns the path to give it as
    /// an argument, `/proc/self/fd/12`: so it works on the file that was checked, whatever became
    /// of its name.
    pub fn keep(&mut self, fd: BorrowedFd<'_>) -> Result<PathBuf> {
        // Above the three standard descriptors, which the child gets anew.
        let copy = fcntl_dupfd_cloexec(fd, 3).context("copy a descriptor for a helper")?;
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        self.kept.push(copy);
        Ok(path.into())
    }

    /// Lets the helper hold a lock together with us: flock(2) ends with the last copy of its
    /// descriptor, so a helper that outlives us for a moment still keeps others out.
    pub fn holding(mut self, lock: BorrowedFd<'_>) -> Result<Self> {
        self.keep(lock)?;
        Ok(self)
    }

    /// Lets it see nothing but this root and what is in it, and no network.
    pub fn within(mut self, root: &BareRoot) -> Result<Self> {
        self.root = Some(root.open()?);
        Ok(self)
    }

    /// What it leaves running is wanted, as with a FUSE daemon: without this, everything in its
    /// process group is killed once it ended. Standard output must then be closed by the daemon;
    /// nobody reads it any more.
    #[must_use]
    pub fn daemon(mut self) -> Self {
        self.daemon = true;
        self
    }

    /// What it prints on standard output is wanted, and a warning on standard error must not get
    /// into it.
    #[must_use]
    pub fn answering(mut self) -> Self {
        self.answering = true;
        self
    }

    /// If this process is killed it is told to end, and not killed: what it leaves half done is
    /// worse than that it runs on for a moment. It should be [`holding`](Self::holding) a lock.
    #[must_use]
    pub fn ending_well(mut self) -> Self {
        self.last = Signal::TERM;
        self
    }

    /// Runs it to its end; any exit status is `Ok`.
    ///
    /// Once `deadline` is over, or this process is told to stop, it and its process group get
    /// SIGTERM, two seconds later SIGKILL, and this fails with `Timeout`. Only for the main thread
    /// or one that outlives the call: the kernel kills the helper when the thread that started it
    /// is gone (`PR_SET_PDEATHSIG`).
    pub fn run(mut self, deadline: &Deadline) -> Result<Outcome> {
        deadline.check(&format!("about to run {}", self.name))?;
        let mut running = self.start().with_context(|| format!("start {}", self.program.display()))?;
        let result = running.supervise(deadline, &self.name, self.daemon);
        let (output, answer) = (running.output(), running.answer());
        match result.with_context(|| format!("run {}", self.name))? {
            Ok(status) => Ok(Outcome { status, output, answer }),
            Err(failure) if output.trim().is_empty() => Err(failure.into()),
            Err(failure) => {
                let said = format!("{failure}, its last words: {}", last_words(&output));
                Err(Failure::new(failure.code(), said).into())
            }
        }
    }

    /// Like [`Helper::run`], but every exit status except 0 is an error with the helper's last
    /// words.
    pub fn run_to_success(self, deadline: &Deadline) -> Result<Outcome> {
        let name = self.name.clone();
        let outcome = self.run(deadline)?;
        if outcome.success() {
            return Ok(outcome);
        }
        Err(outcome.to_error(&name).into())
    }

    fn start(&mut self) -> Result<Running> {
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
        let mut command = self.command();
        command.env(orphans::CALL, orphans::own_name());
        command.process_group(0).stdin(input).stdout(stdout).stderr(writer);
        supervise::prepare(&mut command, std::mem::take(&mut self.kept), self.root.take(), self.last);
        let child = command.spawn()?;
        // Only the helper may hold the other ends of the pipes: otherwise their end would never be
        // seen.
        drop(command);
        Running::new(child, (reader, answer), feed, self.redactor())
    }

    /// The same program, started by another.
    pub(crate) fn behind(mut self, words: &[String]) -> Result<Self> {
        let (first, rest) = words.split_first().context("nothing to start a program with")?;
        let starter = Self::find(first)?;
        let own = std::mem::replace(&mut self.program, starter.program).into_os_string();
        let args = std::mem::take(&mut self.args);
        self.args = rest.iter().map(OsString::from).chain([own]).chain(args).collect();
        Ok(self)
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn given(&self) -> Option<&Secret> {
        self.stdin.as_ref()
    }

    pub(crate) fn kept_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.kept)
    }

    pub(crate) fn confinement(&mut self) -> Option<OwnedFd> {
        self.root.take()
    }

    pub(crate) fn redactor(&self) -> Redactor {
        Redactor::new(self.stdin.iter().chain(&self.masked))
    }

    #[allow(clippy::disallowed_methods, reason = "the one place that starts programs")]
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().current_dir("/");
        command.envs([("PATH", DIRECTORIES), ("LC_ALL", "C"), ("LANG", "C"), ("HOME", "/")]);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Outcome {
    /// Whether it exited with 0.
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// `mkfs.xfs failed (exit 1): its last words`.
    pub fn describe(&self, name: &str) -> String {
        self.to_error(name).to_string()
    }

    /// The error that every exit status except 0 is.
    pub fn to_error(&self, name: &str) -> Failed {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or_default()),
        };
        Failed { name: name.to_owned(), how, words: last_words(&self.output) }
    }
}

/// A helper that ran, and did not succeed: `mkfs.xfs failed (exit 1): its last words`.
#[derive(Debug)]
pub struct Failed {
    name: String,
    how: String,
    /// The end of what it said, as one line; empty if it said nothing.
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

/// The end of what a helper said, as one line for a message.
pub fn last_words(output: &str) -> String {
    let line = one_line(output, usize::MAX);
    match line.len().checked_sub(LAST_WORDS) {
        None | Some(0) => line,
        Some(cut) => format!("…{}", supervise::text_from(&line, cut)),
    }
}

/// Whether a node can execute a file. `root` is where its file system begins.
pub fn runs(root: &Path, path: &Path) -> bool {
    let file = resolve(root, path).ok().and_then(|path| path.metadata().ok());
    file.is_some_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::to_failure;
    use crate::raw;
    use nix::sys::signal::Signal::{SIGUSR1, SIGUSR2};
    use nix::sys::signal::{SigHandler, SigSet};
    use std::io::{Seek, Write};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    fn shell(script: &str) -> Helper {
        Helper::find("sh").unwrap().args(["-c", script])
    }

    fn within(seconds: u64) -> Deadline {
        Deadline::after(Duration::from_secs(seconds))
    }

    fn timed(helper: Helper, deadline: Deadline) -> (Result<Outcome>, Duration) {
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
        let (result, took) = timed(shell("sleep 60 & echo x").answering(), within(30));
        assert_eq!(result.unwrap().answer, "x\n");
        assert!(took < Duration::from_secs(2), "{took:?}");
    }

    #[test]
    fn a_missing_tool_is_named() {
        let failure = to_failure(Helper::find("mount.glusterfs-not").unwrap_err());
        assert_eq!(failure.code(), Code::ToolMissing);
        assert_eq!(failure.message(), "mount.glusterfs-not is not on this node");
        assert!(Helper::find("../bin/sh").is_err());
    }

    #[test]
    fn an_opened_program_runs_whatever_has_its_name_now() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sh");
        // By another process: a file this one writes could be busy when it is executed.
        Helper::find("cp").unwrap().args([Path::new("/bin/sh"), &path]).run_to_success(&within(10)).unwrap();
        let program = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let helper = Helper::opened(program).unwrap().args(["-c", "echo it; ls /proc/self/fd"]);
        let outcome = helper.run(&within(10)).unwrap();
        assert!(
            outcome.output.starts_with("it\n0\n1\n2\n") && outcome.output.lines().count() <= 5,
            "{outcome:?}"
        );
        assert!(Helper::opened(std::fs::File::open(dir.path()).unwrap().into()).is_err());
    }

    #[test]
    fn a_path_must_be_an_executable_file() {
        assert!(Helper::at(Path::new("/bin/sh")).is_ok());
        for path in ["/etc/passwd", "/bin", "bin/sh", "/nowhere/at/all"] {
            let failure = to_failure(Helper::at(Path::new(path)).unwrap_err());
            assert_eq!(failure.code(), Code::ToolMissing, "{path}");
        }
    }

    #[test]
    fn environment_is_built_from_nothing() {
        let outcome = Helper::find("env").unwrap().env("EXTRA", "1").run(&within(10)).unwrap();
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
        // One that was carelessly left open for everybody.
        let careless = tempfile::tempfile().unwrap();
        rustix::io::fcntl_setfd(&careless, rustix::io::FdFlags::empty()).unwrap();
        let mut helper = Helper::find("sh").unwrap();
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
        shell("sleep 0.4 >/dev/null 2>&1 &")
            .daemon()
            .holding(ours.as_fd())
            .unwrap()
            .run(&within(10))
            .unwrap();
        drop(ours);
        assert!(take(&other).is_err());
        let start = Instant::now();
        while take(&other).is_err() {
            assert!(start.elapsed() < Duration::from_secs(5), "never let go");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn signals_are_as_in_a_fresh_process() {
        // Both are inherited across exec, unless somebody cares.
        raw::set_disposition(SIGUSR2, SigHandler::SigIgn).unwrap();
        SigSet::from(SIGUSR1).thread_block().unwrap();
        let status = shell("grep -E '^Sig(Blk|Ign)' /proc/self/status").run(&within(10)).unwrap().output;
        for line in status.lines() {
            let mask = u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap();
            // Above 31 are the C library's own and the real-time ones, which nobody here touches.
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
        let (result, took) =
            timed(shell("echo hanging; sleep 60"), Deadline::after(Duration::from_millis(200)));
        let failure = to_failure(result.unwrap_err());
        assert_eq!(failure.code(), Code::Timeout);
        assert_eq!(failure.message(), "deadline of 200 ms passed while running sh, its last words: hanging");
        assert!(took < Duration::from_secs(2), "{took:?}");
    }

    #[test]
    fn kills_what_ignores_the_request() {
        let (result, took) = timed(
            shell("trap '' TERM; while :; do sleep 1; done"),
            Deadline::after(Duration::from_millis(200)),
        );
        assert_eq!(to_failure(result.unwrap_err()).code(), Code::Timeout);
        assert!(took > Duration::from_secs(2) && took < Duration::from_secs(4), "{took:?}");
    }

    #[test]
    fn a_descendant_with_the_pipe_does_not_hang_us() {
        let (result, took) = timed(shell("sleep 60 & echo $!"), within(30));
        let pid = result.unwrap().output.trim().to_owned();
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(ends(&pid), "sleep {pid} survived");
        let (result, took) = timed(shell("sleep 5 & echo $!").daemon(), within(30));
        let pid = result.unwrap().output.trim().to_owned();
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(alive(&pid), "daemon {pid} was killed");
    }

    #[test]
    fn a_daemon_that_comes_too_late_is_not_wanted() {
        let script =
            "(trap '' TERM; sleep 60; sleep 60) & echo $!; trap 'exit 0' TERM; while :; do sleep 0.1; done";
        let (result, _) = timed(shell(script).daemon(), Deadline::after(Duration::from_millis(300)));
        let message = to_failure(result.unwrap_err()).message();
        let words =
            message.strip_prefix("deadline of 300 ms passed while running sh, its last words: ").unwrap();
        let pid = words.split(';').next().unwrap();
        assert!(pid.parse::<u32>().is_ok() && ends(pid), "{message}");
    }

    fn alive(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    }

    fn ends(pid: &str) -> bool {
        let start = Instant::now();
        while alive(pid) && start.elapsed() < Duration::from_secs(2) {
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
        let error = Helper::at(&path).unwrap().run(&within(10)).unwrap_err();
        assert!(format!("{error:#}").starts_with(&format!("start {}: ", path.display())), "{error:#}");
    }

    #[test]
    fn last_words_are_the_end() {
        let words = last_words(&format!("{}\nthe end", "ä".repeat(500)));
        assert!(words.starts_with('…') && words.ends_with("; the end") && words.len() <= LAST_WORDS + 3);
    }
}
