//! This process and its fork, and facts about other processes.

use crate::errno::NotAllowed;
use crate::proc::signal;
use crate::raw;
use anyhow::{Context, Result};
use flexvol_protocol::failure::MESSAGE_LIMIT;
use flexvol_protocol::text::one_line;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::geteuid;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limit for a reply, in bytes: a reply has a few hundred, and more is not read.
const LARGEST_REPLY: usize = 64 << 10;

/// First character of the line of a worker that panicked.
/// No reply and no other output of a worker begins with it: a worker that panicked has rolled back
/// nothing, so its line must not look like a reply.
const PANICKED: char = '\0';

/// Time from SIGTERM to SIGKILL, in which a file system check writes what it has fixed.
const MOMENT: Duration = Duration::from_millis(200);

/// Limit for the wait after SIGKILL; then the process counts as stuck in the kernel.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// The same limit for a daemon, which may have much memory to free.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// Makes the process independent of its caller: new files are private by default, and no directory
/// of the caller is held or used.
pub fn detach_from_caller() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // `/` always exists, also in a chroot or if the working directory was deleted.
    let _ = rustix::process::chdir("/");
}

/// Returns the effective user id of this process.
pub fn own_user() -> u32 {
    geteuid().as_raw()
}

/// Reports whether this process has `CAP_SYS_ADMIN`, which the kernel requires for every mount.
pub fn may_mount() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Converts an error of a mount call: [`NotAllowed`] if this process may not mount at all.
pub fn refused(error: impl Into<io::Error>) -> anyhow::Error {
    let error = error.into();
    let Some(errno) = Errno::from_io_error(&error) else { return error.into() };
    if errno == Errno::PERM && !may_mount() {
        return NotAllowed(errno).into();
    }
    errno.into()
}

/// Executes a program in place of this one.
/// The first of the arguments is the program's name. Returns only on failure.
#[allow(clippy::disallowed_methods, reason = "no child of ours, but what we become")]
pub fn executing(program: &Path, arguments: &[OsString]) -> io::Error {
    let mut command = Command::new(program);
    let (name, words) =
        arguments.split_first().map_or((None, arguments), |(name, words)| (Some(name), words));
    name.into_iter().fold(&mut command, |command, name| command.arg0(name)).args(words).exec()
}

/// Runs `work` with this umask: it and the programs that it starts make files without these
/// permissions.
///
/// Only for a process with one thread.
pub fn with_umask<T>(mask: u32, work: impl FnOnce() -> T) -> T {
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
    let done = work();
    rustix::process::umask(before);
    done
}

/// Interval for checking the signal flag during the wait for a worker: a signal just before poll(2)
/// would not interrupt it.
const TICK: Duration = Duration::from_millis(100);

/// Makes a panic write one `line` with its text and place, and end the process at once, before any
/// other code of it runs.
pub fn end_on_panic(pipe: Arc<OwnedFd>, line: impl Fn(&str) -> String + Send + Sync + 'static) {
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or("unknown reason");
        let place = panic
            .location()
            .map(|place| format!(" at {}:{}", place.file(), place.line()))
            .unwrap_or_default();
        let _ = rustix::io::write(&pipe, line(&format!("{text}{place}")).as_bytes());
        raw::end()
    }));
}

/// Makes this process the parent of the processes that its children leave behind, so that
/// [`end_children`] finds them.
///
/// Only for a driver's processes: in other processes, children must not be killed.
pub fn adopt_orphans() {
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

/// Ends every process that the commands of this call have started, in any session.
/// Used when the call has failed.
///
/// Does nothing in a process that did not call [`adopt_orphans`]. Sends SIGTERM first. Half a
/// second after SIGKILL, a process that is stuck in the kernel is given up.
pub fn end_children() {
    let (start, mut told) = (Instant::now(), BTreeSet::new());
    while nix::sys::prctl::get_child_subreaper() == Ok(true) && start.elapsed() < MOMENT + LAST_WAIT {
        let children = children();
        if children.is_empty() {
            return;
        }
        let signal = if start.elapsed() < MOMENT { Signal::SIGTERM } else { Signal::SIGKILL };
        for child in children.into_iter().filter(|child| told.insert((*child, signal))) {
            let _ = kill(child, signal);
        }
        std::thread::sleep(Duration::from_millis(1));
        // The end of a process may make its children ours.
        while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(status) if status != WaitStatus::StillAlive)
        {
        }
    }
}

/// Reports whether a process that we started, or that was left to us, is alive.
pub fn has_children() -> bool {
    children().into_iter().any(|pid| !is_zombie(pid.as_raw()))
}

/// Returns the number of our PID namespace, 0 without /proc.
/// Processes of the same namespace see each other. The names by which a daemon's group is found
/// again contain it. So a temporary error is retried: it must not produce another name.
pub fn namespace() -> u64 {
    let ask = || rustix::fs::stat("/proc/self/ns/pid").map(|stat| stat.st_ino);
    ask().or_else(|_| ask()).unwrap_or_default()
}

/// Reports whether our mount namespace is that of the machine's first process, not a container's.
pub fn is_on_host() -> bool {
    /// Number of the kernel's first PID namespace, on every machine.
    const FIRST: u64 = 0xEFFF_FFFC;
    let mounts = |of: &str| rustix::fs::stat(format!("/proc/{of}/ns/mnt")).map(|stat| stat.st_ino).ok();
    namespace() == FIRST && mounts("1").is_some_and(|first| mounts("self") == Some(first))
}

/// Returns our children, alive or not yet reaped, except the node's services.
fn children() -> Vec<Pid> {
    let us = std::process::id();
    all().filter(|pid| parent_of(*pid) == Some(us) && !is_service(*pid)).map(Pid::from_raw).collect()
}

/// Returns the PIDs of all processes; none without /proc.
pub(crate) fn all() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the process that started another or has adopted it since; `None` if the PID is unused.
pub fn parent_of(pid: i32) -> Option<u32> {
    stat_field(pid, 4)
}

/// Returns the process group of a process; `None` if the PID is unused.
pub fn group_of(pid: i32) -> Option<i32> {
    stat_field(pid, 5)
}

/// Returns the session of a process, 0 if the session began in another PID namespace; `None` if the
/// PID is unused.
pub fn session_of(pid: i32) -> Option<i32> {
    stat_field(pid, 6)
}

/// Returns the start time of a process, in ticks since boot; `None` if the PID is unused, or
/// without /proc. Two processes with the same PID never have the same start time.
pub fn started(pid: i32) -> Option<u64> {
    stat_field(pid, 22)
}

/// Returns the age of a process; `None` if the PID is unused.
pub fn age(pid: i32) -> Option<Duration> {
    let ticks = u64::try_from(nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??).ok()?;
    let up = std::fs::read_to_string("/proc/uptime").ok()?;
    let up: u64 = up.split('.').next()?.parse().ok()?;
    Some(Duration::from_secs(up.saturating_sub(started(pid)? / ticks.max(1))))
}

/// Returns the other processes in the control group of a process that have a file open.
pub fn in_group_of(pid: u32, file: &Path) -> Vec<u32> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    // The root of all groups contains every process.
    let Some(path) = path.filter(|path| !path.is_empty()) else { return Vec::new() };
    let members = std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(path).join("cgroup.procs"));
    let has_open = |other: &u32| {
        let files = std::fs::read_dir(format!("/proc/{other}/fd")).into_iter().flatten().flatten();
        files.into_iter().any(|each| std::fs::read_link(each.path()).is_ok_and(|open| open == file))
    };
    let pids = members.unwrap_or_default();
    pids.lines().filter_map(|line| line.parse().ok()).filter(|other| *other != pid).filter(has_open).collect()
}

/// Returns the processes whose control group has this word in its path, for example a container id.
pub fn in_groups_of(word: &str) -> Vec<u32> {
    let groups = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let pids = all().filter_map(|pid| u32::try_from(pid).ok());
    pids.filter(|pid| !word.is_empty() && groups(*pid).contains(word)).collect()
}

/// Services of a node, one of each for all users. The first process that needs one starts it.
pub const SERVICES: &[&str] =
    &["dmeventd", "iscsid", "lvmpolld", "multipathd", "rpc.idmapd", "rpc.statd", "rpcbind", "systemd-udevd"];

/// Reports whether a process is such a service: it must not be killed, even if we started it.
pub(crate) fn is_service(pid: i32) -> bool {
    name(pid).is_some_and(|name| SERVICES.contains(&&*name))
}

/// Returns the kernel's name of a process: 15 bytes of its program's name.
pub fn name(pid: i32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Reports whether a process has ended, but its parent has not reaped it.
pub fn is_zombie(pid: i32) -> bool {
    stat_field(pid, 3) == Some('Z')
}

/// Returns the processes of our own user and PID namespace that run a program of this name and have
/// `word` in their command line. Any process can take such a name, also one of root in a container
/// that shares the namespace. Before a process is used or trusted, it must be identified by more,
/// for example its control group.
pub fn running(program: &str, word: &str) -> Vec<i32> {
    let program = program.get(..15).unwrap_or(program);
    let ours = namespace();
    let is_ours = |pid: &i32| {
        let its_namespace = rustix::fs::stat(format!("/proc/{pid}/ns/pid")).map(|stat| stat.st_ino);
        its_namespace.is_ok_and(|its| its == ours)
            && std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|its| its.uid() == geteuid().as_raw())
    };
    all()
        .filter(|pid| name(*pid).is_some_and(|name| name == program) && is_ours(pid))
        .filter(|pid| !is_zombie(*pid) && command_line(*pid).is_some_and(|line| line.contains(word)))
        .collect()
}

/// Kills processes and waits until they hold no files and locks any more, which the kernel releases
/// a moment after the signal. A process that is stuck in the kernel is given up.
pub fn end(pids: Vec<i32>) {
    let known: Vec<_> = pids.into_iter().filter_map(|pid| Some((pid, started(pid)?))).collect();
    for (pid, _) in &known {
        tell(*pid, rustix::process::Signal::KILL);
    }
    let is_there = |&(pid, since): &(i32, u64)| started(pid) == Some(since) && !is_zombie(pid);
    let start = Instant::now();
    while start.elapsed() < KILL_WAIT && known.iter().any(is_there) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to a process. A process that has ended meanwhile is no error.
pub(crate) fn tell(pid: i32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Returns the command line of a process as one line, or its name in brackets if that is empty.
/// Returns `None` if the PID is unused.
pub fn command_line(pid: i32) -> Option<String> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&words).replace('\0', " ");
    if !line.trim().is_empty() {
        return Some(line.trim_end().to_owned());
    }
    Some(format!("[{}]", name(pid)?))
}

/// Returns the arguments of a process that is about to execute another program, once they are as
/// wanted: the kernel reports an execution before the arguments change. Returns `None` if the
/// process ends first, or if they never are.
pub fn words_once(pid: i32, wanted: impl Fn(&[OsString]) -> bool) -> Option<Vec<OsString>> {
    let end = Instant::now() + Duration::from_millis(100);
    while Instant::now() < end {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = line.strip_suffix(b"\0").unwrap_or(&line);
        let words: Vec<_> =
            line.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
        if wanted(&words) {
            return Some(words);
        }
        std::thread::yield_now();
    }
    None
}

/// Reads one field of /proc/PID/stat, counted as in proc(5).
/// The second one is the name, which may contain any character.
fn stat_field<T: std::str::FromStr>(pid: i32, number: usize) -> Option<T> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit(|byte| *byte == b')').next()?;
    let field = after_name.split(|byte| *byte == b' ').nth(number - 2)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Makes this process get SIGTERM when its parent ends; ends it at once if the parent is gone.
pub(crate) fn end_with(parent: rustix::process::Pid) {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    if rustix::process::getppid() != Some(parent) {
        raw::end();
    }
}

/// Returns the PID of the process that waits for this worker.
pub fn supervisor() -> i32 {
    rustix::process::getppid().map_or(0, rustix::process::Pid::as_raw_pid)
}

/// A fork of this process that does the work and writes one line.
#[derive(Debug)]
pub struct Worker {
    pid: Pid,
    line: OwnedFd,
}

/// Result of a worker.
#[derive(Debug)]
pub enum Ended {
    /// It wrote its line and ended.
    Replied(String),
    /// It panicked; the message. Its work up to then is not rolled back.
    Panicked(String),
    /// It ended without a line; the reason, for a message.
    Died(String),
    /// It did not end in time and was killed; its PID if SIGKILL did not end it either.
    Stuck(Option<u32>),
}

impl Worker {
    /// Forks. The fork runs `work`, writes the line that this returns, and exits.
    /// It gets SIGTERM when this process ends.
    ///
    /// Only for a process with one thread: the fork has only the calling one.
    pub fn start(work: impl FnOnce() -> String) -> Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        let parent = rustix::process::getpid();
        if let Some(pid) = raw::fork().context("start a worker")? {
            return Ok(Self { pid, line: reader });
        }
        // Above all, this closes the reply pipe: kubelet waits for its end, and the worker may get
        // stuck in the kernel.
        raw::close_all_but([writer.as_fd()]);
        end_with(parent);
        adopt_orphans();
        let writer = Arc::new(writer);
        end_on_panic(Arc::clone(&writer), |text| format!("{PANICKED}{}\n", one_line(text, MESSAGE_LIMIT)));
        let line = work();
        let _ = rustix::io::write(&writer, line.as_bytes());
        raw::end()
    }

    /// Returns its PID.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Waits until the worker has replied or `allowed` is over. A signal to this process is passed
    /// on, and the worker then has its own time to roll back and reply.
    pub fn wait(self, allowed: Duration) -> Ended {
        let end = Instant::now().checked_add(allowed);
        let mut line = Vec::new();
        let mut told = false;
        loop {
            if signal::interrupted() && !told {
                told = kill(self.pid, Signal::SIGTERM).is_ok();
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            match self.read(&mut line, left.min(TICK)) {
                // Checked only after the read: a caller that waits for many workers may have no
                // time left for the last ones.
                Err(_) if left.is_zero() => return self.give_up(),
                Err(Errno::INTR | Errno::AGAIN) => {}
                // No memory for the wait: the worker runs on nevertheless.
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
                Ok(1..) if line.len() < LARGEST_REPLY => {}
                _ => return self.end(&line),
            }
        }
    }

    /// Waits for bytes, at most for `left`. Returns their number, 0 at the end.
    fn read(&self, line: &mut Vec<u8>, left: Duration) -> rustix::io::Result<usize> {
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() };
        if poll(&mut [PollFd::new(&self.line, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(Errno::AGAIN);
        }
        let mut buffer = [0; 4096];
        let count = read(&self.line, &mut buffer)?;
        line.extend_from_slice(&buffer[..count]);
        Ok(count)
    }

    fn end(&self, line: &[u8]) -> Ended {
        let status = loop {
            match waitpid(self.pid, None) {
                Err(nix::Error::EINTR) => {}
                status => break status,
            }
        };
        let text = String::from_utf8_lossy(line);
        match status {
            _ if text.ends_with('\n') => match text.strip_prefix(PANICKED) {
                Some(text) => Ended::Panicked(text.trim_end().to_owned()),
                None => Ended::Replied(text.into_owned()),
            },
            Ok(WaitStatus::Signaled(_, signal, _)) => Ended::Died(format!("was killed by {signal}")),
            _ => Ended::Died("ended without a reply".into()),
        }
    }

    fn give_up(&self) -> Ended {
        Ended::Stuck((!kill_and_reap(self.pid)).then_some(self.pid.as_raw().cast_unsigned()))
    }
}

/// Kills a child of ours and reaps it. Returns false if it does not end soon.
pub(crate) fn kill_and_reap(pid: Pid) -> bool {
    let _ = kill(pid, Signal::SIGKILL);
    let end = Instant::now() + LAST_WAIT;
    while Instant::now() < end {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(nix::Error::EINTR) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::deadline;
    use crate::wording::wording;

    fn run(work: impl FnOnce() -> String) -> Ended {
        Worker::start(work).unwrap().wait(deadline(20))
    }

    #[test]
    fn brings_back_the_line() {
        assert!(matches!(run(|| "done\n".into()), Ended::Replied(line) if line == "done\n"));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test starts a process")]
    fn what_was_ended_holds_nothing_any_more() {
        for _ in 0..20 {
            let mut daemon = Command::new("sleep").arg("60").spawn().unwrap();
            let pid = daemon.id().cast_signed();
            end(vec![pid]);
            assert!(is_zombie(pid));
            daemon.wait().unwrap();
            end(vec![pid]);
        }
    }

    #[test]
    fn orphans_are_found_and_ended() {
        let script = "(setsid sleep 61.25 & sleep 61.25) & sleep 0.1; exit 0";
        let worker = Worker::start(|| {
            let _ = crate::proc::helper::Invocation::of("sh")
                .args(["-c", script])
                .daemon()
                .run(&crate::proc::deadline::Deadline::after(deadline(20)));
            let before = children().len();
            end_children();
            format!("{before} {}\n", children().len())
        });
        let ended = worker.unwrap().wait(deadline(60));
        assert!(matches!(&ended, Ended::Replied(line) if line == "1 0\n"), "{ended:?}");
        // Other processes, such as this one, leave orphans alone.
        assert_eq!(nix::sys::prctl::get_child_subreaper(), Ok(false));
    }

    #[test]
    fn says_how_a_worker_died() {
        let suicide = || {
            let _ = kill(Pid::this(), Signal::SIGKILL);
            String::new()
        };
        assert!(matches!(run(suicide), Ended::Died(how) if how == "was killed by SIGKILL"));
        assert!(matches!(run(|| "half".into()), Ended::Died(how) if how == wording("child-without-reply")));
    }

    #[test]
    fn does_not_wait_for_ever() {
        let start = Instant::now();
        let sleep = || {
            std::thread::sleep(Duration::from_mins(10));
            "late\n".into()
        };
        let ended = Worker::start(sleep).unwrap().wait(Duration::from_millis(300));
        assert!(matches!(ended, Ended::Stuck(None)));
        assert!(start.elapsed() < deadline(20));
    }

    #[test]
    fn who_has_replied_is_heard_without_any_time_left() {
        let worker = Worker::start(|| "done\n".into()).unwrap();
        std::thread::sleep(deadline(1));
        assert!(matches!(worker.wait(Duration::ZERO), Ended::Replied(line) if line == "done\n"));
    }

    #[test]
    fn a_panic_is_no_reply() {
        let ended = run(|| panic!("boom\nwith \"quotes\" {}", "x".repeat(100_000)));
        let Ended::Panicked(text) = ended else { panic!("{ended:?}") };
        assert!(text.starts_with("boom; with \"quotes\" xxx") && text.len() <= MESSAGE_LIMIT, "{text}");
        let short = run(|| panic!("boom"));
        assert!(matches!(&short, Ended::Panicked(text) if text.starts_with("boom at src/")), "{short:?}");
    }
}
