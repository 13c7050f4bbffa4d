//! Four processes: the caller of a sandbox, the keeper, the first process inside, and the worker.
//!
//! The keeper stays outside. It waits until no process holds the other end of its orders any more,
//! for whatever reason. Then it kills the sandbox and removes what outlives its processes. So even
//! a killed flexvol leaves nothing behind. The first process inside reaps, as that of a machine
//! does: a driver may wait until a daemon that it has ended is gone.

use super::maker::World;
use super::world;
use super::{Inside, Isolation, Terms};
use anyhow::{Context as _, Result};
use flexvol_linux::block::loop_device::{self, LoopDevice};
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::proc::{process, signal};
use flexvol_linux::raw;
use flexvol_protocol::failure::MESSAGE_LIMIT;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::text::one_line;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::set_parent_process_death_signal;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

/// Kind of a frame with the output of the work.
pub(super) const SAID: &str = "said";
/// Kind of a frame with the message of a panic.
pub(super) const PANICKED: &str = "panicked";
/// Kind of a frame with the reason why the work could not begin.
pub(super) const FAILED: &str = "failed";

/// Pipes of a sandbox, as its processes have them.
pub(super) struct Ends {
    /// Pipe that the parent reads.
    pub(super) line: OwnedFd,
    /// Pipe that the keeper reads; its end is the order to kill the sandbox.
    pub(super) orders: OwnedFd,
}

/// Runs the keeper; in its fork, runs the sandbox.
pub(super) fn keep(terms: &Terms, ends: Ends, work: impl FnOnce(&Inside) -> Vec<u8>) -> ! {
    raw::close_all_but([ends.line.as_fd(), ends.orders.as_fd()]);
    signal::forget();
    let (first, devices) = match found(terms.isolation) {
        Ok((Some(first), devices, _)) => (first, devices),
        Ok((None, _, told)) => live(terms, ends.line, told, work),
        Err(error) => {
            say(&ends.line, FAILED, format!("{error:#}").as_bytes());
            raw::end()
        }
    };
    drop(ends.line);
    let made = Made::wait(first, devices, &ends.orders);
    let _ = File::from(ends.orders).read_to_end(&mut Vec::new());
    let _ = kill(first, Signal::SIGKILL);
    let status = wait(first);
    if terms.isolation == Isolation::None {
        process::end_children();
    }
    if let Some(made) = made {
        // Its mounts disappear with the table.
        loop_device::detach(made.devices());
    }
    raw::end_with(status)
}

/// File systems of a sandbox. As long as this exists, all mounts there stay, even after all
/// processes have ended, and the kernel does not reuse their numbers.
struct Made {
    own: BTreeSet<u64>,
    table: File,
}

impl Made {
    /// Waits until the sandbox is made; `None` if it never is, or is to be killed before.
    fn wait(first: Pid, told: OwnedFd, orders: &OwnedFd) -> Option<Self> {
        let mut both = [PollFd::new(&told, PollFlags::IN), PollFd::new(orders, PollFlags::IN)];
        while poll(&mut both, None) == Err(Errno::INTR) {}
        if both[0].revents().is_empty() {
            return None;
        }
        let mut bytes = Vec::new();
        File::from(told).read_to_end(&mut bytes).ok()?;
        let table = File::open(format!("/proc/{first}/mountinfo")).ok()?;
        Some(Self { own: numbers(&bytes), table })
    }

    /// Returns the loop devices over files of these file systems.
    fn devices(mut self) -> Vec<LoopDevice> {
        let mut theirs = Vec::new();
        let _ = self.table.read_to_end(&mut theirs);
        let mounted = || Some((mount_table::parse_all(&theirs), mount_table::read().ok()?));
        if let Some((theirs, machine)) = mounted() {
            let is_the_machine_s = |entry: &Entry| machine.iter().any(|own| own.device == entry.device);
            let theirs = theirs.iter().filter(|entry| !is_the_machine_s(entry));
            self.own.extend(theirs.map(Entry::device_number));
        }
        loop_device::hold(&self.own)
    }
}

/// Forks the first process. Returns its id and the ends of a pipe from it; in the fork, no id.
fn found(isolation: Isolation) -> Result<(Option<Pid>, OwnedFd, OwnedFd)> {
    settle(isolation)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
    Ok((raw::fork()?, reader, writer))
}

/// Begins a session without the terminal and its output, and prepares namespaces that only a fork
/// enters.
fn settle(isolation: Isolation) -> Result<()> {
    rustix::process::setsid().context("begin a session")?;
    let null = File::options().read(true).write(true).open("/dev/null").context("open /dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    match isolation {
        Isolation::None => process::adopt_orphans(),
        Isolation::User => world::become_root_of_our_own()?,
        Isolation::Full => {}
    }
    if isolation != Isolation::None {
        unshare(CloneFlags::CLONE_NEWPID).context("make a pid namespace")?;
    }
    Ok(())
}

/// Runs the first process inside.
fn live(terms: &Terms, line: OwnedFd, told: OwnedFd, work: impl FnOnce(&Inside) -> Vec<u8>) -> ! {
    raw::close_all_but([line.as_fd(), told.as_fd()]);
    let _ = set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let line = Arc::new(line);
    process::end_on_panic(Arc::clone(&line), |text| frame_of_text(PANICKED, &one_line(text, MESSAGE_LIMIT)));
    match begin(terms, told).and_then(|inside| Ok((raw::fork()?, inside))) {
        Ok((Some(worker), _)) => raw::end_with(reap_until(worker)),
        Ok((None, inside)) => {
            let _ = set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            say(&line, SAID, &work(&inside));
        }
        Err(error) => say(&line, FAILED, format!("{error:#}").as_bytes()),
    }
    // Mounts made here are known as long as this process lives.
    loop {
        nix::unistd::pause();
    }
}

/// Reaps processes until the worker has ended. Returns the signal that ended it, or 0.
fn reap_until(worker: Pid) -> i32 {
    loop {
        match waitpid(None, None) {
            Ok(status) if status.pid() == Some(worker) => return signal_of(status),
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(_) => return 0,
        }
    }
}

fn begin(terms: &Terms, told: OwnedFd) -> Result<Inside> {
    let world = match terms.isolation {
        Isolation::None => {
            process::adopt_orphans();
            World::default()
        }
        Isolation::Full | Isolation::User => world::make(terms)?,
    };
    let devices: Vec<u8> = world.devices.iter().flat_map(|device| device.to_ne_bytes()).collect();
    // Fails if the keeper is gone already; its end would have ended this process, too.
    File::from(told).write_all(&devices).context("tell the keeper")?;
    Inside::new(terms.isolation, world)
}

/// Waits for the first process. Returns 0, or the signal that ended it or the worker.
fn wait(first: Pid) -> i32 {
    loop {
        match waitpid(first, None) {
            Err(nix::Error::EINTR) => {}
            Ok(WaitStatus::Exited(_, told)) => return told,
            status => return status.map_or(0, signal_of),
        }
    }
}

/// Returns the signal that ended a process, or 0.
fn signal_of(status: WaitStatus) -> i32 {
    match status {
        WaitStatus::Signaled(_, signal, _) => signal as i32,
        _ => 0,
    }
}

fn numbers(bytes: &[u8]) -> BTreeSet<u64> {
    filled(bytes.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)))
}

fn frame_of_text(kind: &str, text: &str) -> String {
    format!("{kind} {}\n{text}", text.len())
}

/// Writes a frame. Errors are ignored: the reader may be gone.
fn say(line: &OwnedFd, kind: &str, words: &[u8]) {
    let Ok(line) = line.try_clone() else { return };
    let mut line = File::from(line);
    let _ = line.write_all(format!("{kind} {}\n", words.len()).as_bytes());
    let _ = line.write_all(words);
}
