//! This process and its fork.

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

/// A reply is a few hundred bytes; more than this is not read.
const LARGEST_REPLY: usize = 64 << 10;

/// Begins the line of a worker that panicked. No reply, and nothing else a worker says, begins with
/// it: who panicked has undone nothing, so it must not look like an answer.
const PANICKED: char = '\0';

/// From SIGTERM to SIGKILL: a check of a file system writes what it has fixed.
const MOMENT: Duration = Duration::from_millis(200);

/// How long a process killed with SIGKILL is waited for before it counts as stuck in the kernel.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// The same for a daemon, which may have much memory to give back.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// Makes the process independent of whoever started it: files are private unless told otherwise,
/// and no directory of the caller's is held or relied on.
pub fn detach_from_caller() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // In a chroot or with a deleted working directory as well: `/` is always there.
    let _ = rustix::process::chdir("/");
}

/// In whose name this process works.
pub fn own_user() -> u32 {
    geteuid().as_raw()
}

/// Whether this process has `CAP_SYS_ADMIN`, without which the kernel mounts nothing.
pub fn may_mount() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// An error of a call that mounts: [`NotAllowed`] if this process may not mount at all.
pub fn refused(error: impl Into<io::Error>) -> anyhow::Error {
    let error = error.into();
    let Some(errno) = Errno::from_io_error(&error) else { return error.into() };
    if errno == Errno::PERM && !may_mount() {
        return NotAllowed(errno).into();
    }
    errno.into()
}

/// Executes a program in place of this one, with these words of which the first is its name.
/// Returns only if that fails.
#[allow(clippy::disallowed_methods, reason = "no child of ours, but what we become")]
pub fn executing(program: &Path, arguments: &[OsString]) -> io::Error {
    let mut command = Command::new(program);
    let (name, words) =
        arguments.split_first().map_or((None, arguments), |(name, words)| (Some(name), words));
    name.into_iter().fold(&mut command, |command, name| command.arg0(name)).args(words).exec()
}

/// Does something whose files, and those of the programs it starts, are made without these
/// permissions.
///
/// Only for a process with one thread.
pub fn with_umask<T>(mask: u32, work: impl FnOnce() -> T) -> T {
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
    let done = work();
    rustix::process::umask(before);
    done
}

/// The signal flag is looked at this often while a worker is waited for: a signal just before
/// poll(2) would not end it.
const TICK: Duration = Duration::from_millis(100);

/// A panic writes one `line` made of its text and place, and nothing else of the process runs any
/// more.
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

/// From now on the processes that our children leave behind become our own, so that
/// [`end_children`] finds them.
///
/// For a driver's processes only; in any other, children are not ours to end.
pub fn adopt_orphans() {
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

/// Ends every process that the commands of this call have started, in whatever session; for when
/// the call has failed.
///
/// Does nothing in a process that did not [`adopt_orphans`]. They are told to end first. What sits
/// in the kernel is given up half a second after it was killed.
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
        // The end of one may give us its children.
        while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(status) if status != WaitStatus::StillAlive)
        {
        }
    }
}

/// Whether a process that we started, or that was left to us, is alive.
pub fn has_children() -> bool {
    children().into_iter().any(|pid| !is_zombie(pid.as_raw()))
}

/// The number of our PID namespace, 0 where there is no /proc: processes of the same one see each
/// other. Names are made of it by which a daemon's group is found again: an error of a moment must
/// not make another name.
pub fn namespace() -> u64 {
    let ask = || rustix::fs::stat("/proc/self/ns/pid").map(|stat| stat.st_ino);
    ask().or_else(|_| ask()).unwrap_or_default()
}

/// Whether our mounts are those of the machine's first process, and no container's.
pub fn is_on_host() -> bool {
    /// The number of the kernel's first PID namespace, on every machine.
    const FIRST: u64 = 0xEFFF_FFFC;
    let mounts = |of: &str| rustix::fs::stat(format!("/proc/{of}/ns/mnt")).map(|stat| stat.st_ino).ok();
    namespace() == FIRST && mounts("1").is_some_and(|first| mounts("self") == Some(first))
}

/// Those alive and those not yet reaped, but for the node's services.
fn children() -> Vec<Pid> {
    let us = std::process::id();
    all().filter(|pid| parent_of(*pid) == Some(us) && !is_service(*pid)).map(Pid::from_raw).collect()
}

/// The numbers of all processes; none without /proc.
pub(crate) fn all() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Who started a process, or has taken it over since; `None` if there is none of that number.
pub fn parent_of(pid: i32) -> Option<u32> {
    stat_field(pid, 4)
}

/// The process group of a process; `None` if there is none of that number.
pub fn group_of(pid: i32) -> Option<i32> {
    stat_field(pid, 5)
}

/// The session of a process, 0 if that began in another PID namespace; `None` if there is none of
/// that number.
pub fn session_of(pid: i32) -> Option<i32> {
    stat_field(pid, 6)
}

/// When a process was started, in ticks since the boot: no two processes of one number have the
/// same. `None` if there is none of that number, or no /proc.
pub fn started(pid: i32) -> Option<u64> {
    stat_field(pid, 22)
}

/// How long a process has run; `None` if there is none of that number.
pub fn age(pid: i32) -> Option<Duration> {
    let ticks = u64::try_from(nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??).ok()?;
    let up = std::fs::read_to_string("/proc/uptime").ok()?;
    let up: u64 = up.split('.').next()?.parse().ok()?;
    Some(Duration::from_secs(up.saturating_sub(started(pid)? / ticks.max(1))))
}

/// The processes in the control group of a process, without itself, that have a file open.
pub fn in_group_of(pid: u32, file: &Path) -> Vec<u32> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    // In the root of all groups everybody is.
    let Some(path) = path.filter(|path| !path.is_empty()) else { return Vec::new() };
    let members = std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(path).join("cgroup.procs"));
    let has_open = |other: &u32| {
        let files = std::fs::read_dir(format!("/proc/{other}/fd")).into_iter().flatten().flatten();
        files.into_iter().any(|each| std::fs::read_link(each.path()).is_ok_and(|open| open == file))
    };
    let pids = members.unwrap_or_default();
    pids.lines().filter_map(|line| line.parse().ok()).filter(|other| *other != pid).filter(has_open).collect()
}

/// The processes in control groups whose path has this word in it: the id of a container, say.
pub fn in_groups_of(word: &str) -> Vec<u32> {
    let groups = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let pids = all().filter_map(|pid| u32::try_from(pid).ok());
    pids.filter(|pid| !word.is_empty() && groups(*pid).contains(word)).collect()
}

/// What a node has one of, for all who need it, started by whoever is the first to.
pub const SERVICES: &[&str] =
    &["dmeventd", "iscsid", "lvmpolld", "multipathd", "rpc.idmapd", "rpc.statd", "rpcbind", "systemd-udevd"];

/// Whether it is one of these: not ours to end, whoever has started it.
pub(crate) fn is_service(pid: i32) -> bool {
    name(pid).is_some_and(|name| SERVICES.contains(&&*name))
}

/// What the kernel calls it: 15 bytes of its program's name.
pub fn name(pid: i32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Whether it has ended and its parent has not asked for it.
pub fn is_zombie(pid: i32) -> bool {
    stat_field(pid, 3) == Some('Z')
}

/// Those of our own user and PID namespace that run a program of this name and have this among
/// their words. Anybody may call itself so, also who is root in a container that shares the
/// namespace: whoever is asked for something, or believed, has to be known by more, such as its
/// control group.
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

/// Ends them, whatever they do, and waits until they hold nothing any more: files and their locks
/// go with the process, a moment after the signal. What sits in the kernel is given up.
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

/// Sends it a signal; gone meanwhile is as good.
pub(crate) fn tell(pid: i32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Its words as one line; of one without any its name in brackets. `None` if there is none of that
/// number.
pub fn command_line(pid: i32) -> Option<String> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&words).replace('\0', " ");
    if !line.trim().is_empty() {
        return Some(line.trim_end().to_owned());
    }
    Some(format!("[{}]", name(pid)?))
}

/// The words of a process that is just about to execute something else, once they are as wanted:
/// the kernel tells of an execution before it shows. `None` if it ends before, or they never are.
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

/// One field of /proc/PID/stat, counted as proc(5) does; the name, which may hold anything, comes
/// second.
fn stat_field<T: std::str::FromStr>(pid: i32, number: usize) -> Option<T> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit(|byte| *byte == b')').next()?;
    let field = after_name.split(|byte| *byte == b' ').nth(number - 2)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// SIGTERM when the parent ends, however it does; at once if it has ended already.
pub(crate) fn end_with(parent: rustix::process::Pid) {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    if rustix::process::getppid() != Some(parent) {
        raw::end();
    }
}

/// Who waits for this worker.
pub fn supervisor() -> i32 {
    rustix::process::getppid().map_or(0, rustix::process::Pid::as_raw_pid)
}

/// A fork of this process that does the work and writes one line.
#[derive(Debug)]
pub struct Worker {
    pid: Pid,
    line: OwnedFd,
}

/// How a worker ended.
#[derive(Debug)]
pub enum Ended {
    /// It wrote its line and ended.
    Replied(String),
    /// It panicked; its words. Whatever it did up to then is not undone.
    Panicked(String),
    /// It ended without one; how, for a message.
    Died(String),
    /// It did not end in time and was killed; its number, if not even that ended it.
    Stuck(Option<u32>),
}

impl Worker {
    /// Forks. The fork runs `work`, writes what it returns and exits; it gets SIGTERM when this
    /// process ends.
    ///
    /// Only for a process with one thread: the fork has only the calling one.
    pub fn start(work: impl FnOnce() -> String) -> Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        let parent = rustix::process::getpid();
        if let Some(pid) = raw::fork().context("start a worker")? {
            return Ok(Self { pid, line: reader });
        }
        // Above all the reply pipe: a worker stuck in the kernel must not keep kubelet waiting for
        // its end.
        raw::close_all_but([writer.as_fd()]);
        end_with(parent);
        adopt_orphans();
        let writer = Arc::new(writer);
        end_on_panic(Arc::clone(&writer), |text| format!("{PANICKED}{}\n", one_line(text, MESSAGE_LIMIT)));
        let line = work();
        let _ = rustix::io::write(&writer, line.as_bytes());
        raw::end()
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Until it has replied or `allowed` is over. A signal to this process is passed on, and the
    /// worker then has its own time to undo and reply.
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
                // Not before it was asked: who waits for many has no time left for the last of
                // them.
                Err(_) if left.is_zero() => return self.give_up(),
                Err(Errno::INTR | Errno::AGAIN) => {}
                // No memory to wait with: the worker goes on all the same.
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
                Ok(1..) if line.len() < LARGEST_REPLY => {}
                _ => return self.end(&line),
            }
        }
    }

    /// Waits for bytes, at most for `left`; how many, 0 at the end.
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

/// Ends a child of ours; whether it has ended soon.
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
        // In any other process, such as this one, they are left alone.
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
