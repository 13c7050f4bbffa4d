//! Process that can change nothing: it has a new PID namespace, and a mount table, a network and a
//! copy of the machine's files of its own.
//!
//! `/` is an overlay whose upper layer is a tmpfs, and so is every other writable file system of
//! the machine: all writes go to memory, [`Inside::changed`] finds them, and they disappear with
//! the last process of the namespace. /run is empty except for `lock`, /proc belongs to the
//! namespace, /dev is the machine's, with read-only directories unless [`Terms::makes_nodes`]. The
//! code here never removes files explicitly: a file below a mount may be the machine's.
//!
//! A sandbox protects from programs that make mistakes, not from malicious ones: root in a sandbox
//! can still write to a disk of the machine through its device, and to what the kernel shows in
//! /sys and /proc/sys.

mod changes;
mod keeper;
mod maker;
mod pieces;
mod read_only;
mod scenery;
mod trouble;
mod world;

use anyhow::{Context as _, Result};
use changes::Mark;
use flexvol_linux::block::loop_device;
use flexvol_linux::mount::mount_table;
use flexvol_linux::proc::process;
use flexvol_linux::raw;
use keeper::Ends;
use maker::World;
use mount_table::Entry;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use scenery::{NOBODYS, Neighbour};
pub use trouble::Trouble;

/// Default limit for the end of a sandbox.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Limit for the trial of [`Isolation::possible`].
const TRIAL: Duration = Duration::from_secs(30);

/// Limit for the first line of an answer, in bytes.
const HEAD: usize = 32;

/// Network that a process in a sandbox reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Loopback device of its own.
    Loopback,
    /// Network of the machine.
    Machine,
}

/// Degree of isolation; it depends on the rights of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Full isolation; requires root.
    Full,
    /// The same, as root of a user namespace: no devices can be mounted.
    User,
    /// Process group and temporary directory only. Nothing can be mounted.
    None,
}

/// Terms of a sandbox.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Degree of isolation, see [`Isolation::possible`].
    pub isolation: Isolation,
    /// Reachable network, see [`Network`].
    pub network: Network,
    /// Directories and files of the machine that are visible, read-only, although they are below
    /// /run.
    pub exposed: Vec<PathBuf>,
    /// True if nodes and links can be created and removed in the machine's /dev. These changes
    /// stay.
    pub makes_nodes: bool,
    /// Directories that are empty file systems of their own in the sandbox, with shared
    /// propagation.
    pub empty: Vec<PathBuf>,
}

/// Process in a sandbox, seen from outside. Dropping it kills all of it.
#[derive(Debug)]
pub struct Sandbox {
    keeper: Option<Pid>,
    /// Pipe to the keeper; the sandbox lives while any process holds it.
    control: Option<OwnedFd>,
    line: OwnedFd,
    heard: Vec<u8>,
}

/// End of the work.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The work returned these bytes.
    Said(Vec<u8>),
    /// The work died; the reason is meant for a message.
    Died(String),
}

/// Sandbox, seen from inside.
#[derive(Clone, Debug)]
pub struct Inside {
    isolation: Isolation,
    /// Process that all others descend from; it only reaps.
    first: u32,
    world: Arc<World>,
    /// Changes that the creation of the sandbox made.
    made: BTreeMap<PathBuf, Mark>,
    mounts: BTreeMap<u64, Entry>,
    devices: BTreeSet<String>,
}

impl Isolation {
    /// Returns the highest degree that this process may use.
    ///
    /// The process must have a single thread.
    pub fn possible() -> Self {
        let wanted = if rustix::process::geteuid().is_root() { Self::Full } else { Self::User };
        [wanted, Self::User].into_iter().find(|isolation| isolation.try_out().is_ok()).unwrap_or(Self::None)
    }

    /// Makes a sandbox of this kind and ends it. Fails with the obstacle.
    pub fn try_out(self) -> Result<()> {
        let terms = Terms {
            isolation: self,
            network: Network::Loopback,
            exposed: vec![],
            makes_nodes: false,
            empty: vec![],
        };
        let mut sandbox = Sandbox::start(&terms, |_| Vec::new())?;
        match sandbox.wait(TRIAL)? {
            Some(Ended::Said(_)) => Ok(()),
            Some(Ended::Died(how)) => anyhow::bail!(how),
            None => anyhow::bail!("is not made within {} s", TRIAL.as_secs()),
        }
    }
}

impl Sandbox {
    /// Starts `work` in a new sandbox; the bytes that it returns are the answer.
    ///
    /// The process must have a single thread.
    pub fn start(terms: &Terms, work: impl FnOnce(&Inside) -> Vec<u8>) -> Result<Self> {
        let (line, writer) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        let (orders, control) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        rustix::io::ioctl_fionbio(&line, true).context("make a pipe non-blocking")?;
        match raw::fork().context("start a sandbox")? {
            None => keeper::keep(terms, Ends { line: writer, orders }, work),
            keeper => Ok(Self { keeper, control: Some(control), line, heard: Vec::new() }),
        }
    }

    /// Returns a descriptor that is readable when there is something to [`read`](Self::read).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// Reads available data; `Some` once the work has ended. Does not wait for the work.
    pub fn read(&mut self) -> Result<Option<Ended>> {
        let mut buffer = [0; 16 << 10];
        loop {
            match rustix::io::read(&self.line, &mut buffer) {
                Ok(0) => return Ok(Some(said(&self.heard).unwrap_or_else(|| self.died()))),
                Ok(count) => self.heard.extend_from_slice(&buffer[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(said(&self.heard)),
                Err(errno) => return Err(errno).context("read from a sandbox"),
            }
        }
    }

    /// Reads the answer like [`read`](Self::read), but waits for it up to this time.
    pub fn wait(&mut self, patience: Duration) -> Result<Option<Ended>> {
        let end = Instant::now() + patience;
        loop {
            if let Some(ended) = self.read()? {
                return Ok(Some(ended));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec::try_from(left).context("a time out of range")?;
            match poll(&mut [PollFd::new(&self.line, PollFlags::IN)], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("wait for a sandbox"),
            }
        }
    }

    /// Kills everything in the sandbox and waits for the end, at most for this time.
    pub fn end(mut self, patience: Duration) {
        self.stop(patience);
    }

    /// Describes the end of a sandbox without an answer; no process is left that could give one.
    fn died(&mut self) -> Ended {
        Ended::Died(match self.stop(LAST_WAIT) {
            Some(WaitStatus::Exited(_, number @ 1..)) => {
                let signal = nix::sys::signal::Signal::try_from(number);
                format!("was killed by {}", signal.map_or("a signal", |signal| signal.as_str()))
            }
            Some(WaitStatus::Signaled(_, signal, _)) => format!("lost its keeper to {signal}"),
            _ => "ended without an answer".to_owned(),
        })
    }

    /// Ends the sandbox. Returns the keeper's status, `StillAlive` after the limit; `None` if it
    /// was asked for before.
    fn stop(&mut self, patience: Duration) -> Option<WaitStatus> {
        self.control = None;
        let end = Instant::now() + patience;
        let keeper = self.keeper.take()?;
        loop {
            match waitpid(keeper, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) | Err(nix::Error::EINTR) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_micros(500));
                }
                status => return status.ok(),
            }
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.stop(LAST_WAIT);
    }
}

/// Returns the answer once it is complete.
fn said(heard: &[u8]) -> Option<Ended> {
    let end = heard.iter().take(HEAD).position(|byte| *byte == b'\n')?;
    let (kind, length) = std::str::from_utf8(&heard[..end]).ok()?.split_once(' ')?;
    let words = &heard[end + 1..];
    if words.len() < length.parse().ok()? {
        return None;
    }
    let text = || String::from_utf8_lossy(words).into_owned();
    Some(match kind {
        keeper::SAID => Ended::Said(words.to_owned()),
        keeper::PANICKED => Ended::Died(format!("panicked: {}", text())),
        _ => Ended::Died(format!("could not begin: {}", text())),
    })
}

impl Inside {
    fn new(isolation: Isolation, world: World) -> Result<Self> {
        let mut inside = Self {
            isolation,
            first: std::process::id(),
            world: Arc::new(world),
            made: BTreeMap::new(),
            mounts: BTreeMap::new(),
            devices: BTreeSet::new(),
        };
        inside.made = inside.written()?;
        inside.mounts.extend(mount_table::read()?.into_iter().map(|entry| (entry.id, entry)));
        inside.devices = mapped();
        Ok(inside)
    }

    /// Returns the degree of isolation.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Returns every file, directory and link that was created, changed or removed since the
    /// sandbox began, in any file system; not the content of directories that began
    /// [empty](Terms::empty).
    ///
    /// A directory is changed if its owner or mode is, a file also if its time is. Without
    /// isolation nothing is found.
    pub fn changed(&self) -> Result<Vec<PathBuf>> {
        let now = self.written()?;
        let new = now.iter().filter(|(path, mark)| self.made.get(*path) != Some(mark)).map(|(path, _)| path);
        let gone = self.made.keys().filter(|path| !now.contains_key(*path));
        Ok(new.chain(gone).cloned().collect())
    }

    fn written(&self) -> Result<BTreeMap<PathBuf, Mark>> {
        let mut written = BTreeMap::new();
        for layer in self.world.layers.iter().filter(|layer| !layer.empty) {
            written.append(&mut changes::of(layer)?);
        }
        Ok(written)
    }

    /// Returns every process of the sandbox as `(pid, command line)`, except this one, the first
    /// one, and zombies that one of these two has to reap.
    pub fn processes(&self) -> Result<Vec<(i32, String)>> {
        let names = fs::read_dir("/proc").context("list /proc")?;
        let pids = names.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut pids: Vec<i32> = pids.filter(|pid| self.is_anothers(*pid)).collect();
        pids.sort_unstable();
        Ok(pids.into_iter().filter_map(|pid| Some((pid, process::command_line(pid)?))).collect())
    }

    /// Reports whether a process is in the sandbox, lives, and belongs to a driver.
    fn is_anothers(&self, pid: i32) -> bool {
        let ours = [self.first, std::process::id()];
        let parent = |pid| process::parent_of(pid);
        let is_reaped =
            || process::is_zombie(pid) && parent(pid).is_some_and(|parent| ours.contains(&parent));
        if ours.contains(&pid.cast_unsigned()) || is_reaped() {
            return false;
        }
        let mut ancestors = std::iter::successors(Some(pid.cast_unsigned()), |pid| parent(pid.cast_signed()));
        self.isolation != Isolation::None || ancestors.any(|pid| pid == self.first)
    }

    /// Returns every mount made since the sandbox began.
    pub fn mounts(&self) -> Result<Vec<Entry>> {
        let place = |entry: &Entry| (entry.parent, entry.device, entry.target.clone());
        let is_old = |entry: &Entry| self.mounts.get(&entry.id).is_some_and(|old| place(old) == place(entry));
        Ok(mount_table::read()?.into_iter().filter(|entry| !is_old(entry)).collect())
    }

    /// Returns every loop device over a file of the sandbox or of something mounted in it, and
    /// every new device of device mapper, NBD, Ceph and iSCSI.
    pub fn devices(&self) -> Result<Vec<PathBuf>> {
        let is_old = |entry: &Entry| self.mounts.values().any(|old| old.device == entry.device);
        // File systems with a device behind them may be the machine's.
        let mounted = self.mounts()?.into_iter().filter(|entry| entry.device.0 == 0 && !is_old(entry));
        let mounted = mounted.map(|entry| entry.device_number());
        let mut found = loop_device::over(&self.world.devices.iter().copied().chain(mounted).collect())?;
        found.extend(mapped().difference(&self.devices).map(|name| Path::new("/dev").join(name)));
        Ok(found)
    }

    /// Detaches the loop devices over files of the sandbox, as a reboot does; a device in use is
    /// detached once it is free.
    pub fn detach_devices(&self) {
        loop_device::detach_all(&self.world.devices);
    }

    /// Returns the place of a file that was changed in the sandbox, even if something is mounted
    /// above it.
    pub fn beneath(&self, path: &Path) -> Option<PathBuf> {
        let layers = self.world.layers.iter().filter(|layer| path.starts_with(&layer.target));
        let layer = layers.max_by_key(|layer| layer.target.components().count())?;
        let upper = PathBuf::from(format!("/proc/self/fd/{}", layer.upper.as_raw_fd()));
        Some(upper.join(path.strip_prefix(&layer.target).ok()?))
    }
}

/// Returns the devices in use that programs add to a node: device mapper, NBD, Ceph and iSCSI.
fn mapped() -> BTreeSet<String> {
    let names = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_used = |name: &String| {
        let device = Path::new("/sys/block").join(name);
        name.starts_with("dm-")
            || name.starts_with("rbd")
            || name.starts_with("nbd") && device.join("pid").exists()
            // The path of an iSCSI device contains its session.
            || fs::read_link(device).is_ok_and(|place| place.to_string_lossy().contains("/session"))
    };
    names.filter(is_used).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording;
    use flexvol_linux::proc::process::Worker;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    const EVENT_WAIT: Duration = Duration::from_secs(20);

    /// Reports whether full isolation is possible here.
    fn possible(name: &str) -> bool {
        let tried = Isolation::Full.try_out();
        if let Err(error) = &tried {
            println!("SKIP {name}: needs root for namespaces ({error:#})");
        }
        tried.is_ok()
    }

    fn terms() -> Terms {
        Terms {
            isolation: Isolation::Full,
            network: Network::Loopback,
            exposed: vec![],
            makes_nodes: false,
            empty: vec!["/var/lib/kubelet".into()],
        }
    }

    /// Returns the answer of the work; `None` if no sandbox is possible here.
    fn play(name: &str, work: impl FnOnce(&Inside) -> String) -> Option<String> {
        possible(name).then(|| play_on(&terms(), work))
    }

    fn play_on(terms: &Terms, work: impl FnOnce(&Inside) -> String) -> String {
        let mut sandbox = Sandbox::start(terms, |inside| work(inside).into_bytes()).unwrap();
        let ended = sandbox.wait(EVENT_WAIT).unwrap();
        sandbox.end(LAST_WAIT);
        match ended {
            Some(Ended::Said(words)) => String::from_utf8(words).unwrap(),
            ended => panic!("{ended:?}"),
        }
    }

    /// Runs a shell; fails unless its changes go to a copy.
    fn sh(script: &str) -> String {
        let root = mount_table::at(Path::new("/")).unwrap().unwrap();
        let parent = rustix::process::getppid().map(rustix::process::Pid::as_raw_nonzero);
        assert_eq!((root.file_system.as_str(), parent.map(i32::from)), ("overlay", Some(1)));
        run(script)
    }

    fn run(script: &str) -> String {
        #[expect(clippy::disallowed_methods, reason = "a test starts a shell")]
        let output = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned()
    }

    /// Reports whether any process of the machine has these words in its command line.
    fn is_running(words: &str) -> bool {
        let pids =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter_map(process::command_line).any(|line| line.contains(words))
    }

    /// Returns a command line that no other process of the machine has, not even in another run of
    /// these tests.
    fn lasting(digit: u8) -> String {
        format!("sleep 71.{}{digit}", std::process::id())
    }

    fn eventually(what: &str, so: impl Fn() -> bool) {
        let start = Instant::now();
        while !so() {
            assert!(start.elapsed() < EVENT_WAIT, "never: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn shown(paths: &[PathBuf]) -> String {
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn says_what_the_work_returns_however_long() {
        let Some(said) = play("says_what_the_work_returns_however_long", |_| "x".repeat(3 << 20)) else {
            return;
        };
        assert_eq!(said.len(), 3 << 20);
    }

    #[test]
    fn a_panic_is_no_answer() {
        if !possible("a_panic_is_no_answer") {
            return;
        }
        let mut sandbox = Sandbox::start(&terms(), |_| panic!("boom")).unwrap();
        let ended = sandbox.wait(EVENT_WAIT).unwrap().unwrap();
        assert!(matches!(&ended, Ended::Died(how) if how.starts_with("panicked: boom at src/")), "{ended:?}");
        let mut sandbox = Sandbox::start(&terms(), |_| raw::end()).unwrap();
        let ended = sandbox.wait(EVENT_WAIT).unwrap().unwrap();
        assert_eq!(ended, Ended::Died(wording("child-without-answer").to_owned()));
    }

    #[test]
    fn what_cannot_be_made_is_said() {
        if !possible("what_cannot_be_made_is_said") {
            return;
        }
        let terms = Terms { exposed: vec!["/none/of/these".into()], ..terms() };
        let mut sandbox = Sandbox::start(&terms, |_| Vec::new()).unwrap();
        let ended = sandbox.wait(EVENT_WAIT).unwrap().unwrap();
        let expected = "could not begin: open /none/of/these: No such file or directory (os error 2)";
        assert_eq!(ended, Ended::Died(expected.to_owned()));
    }

    #[test]
    fn whoever_is_killed_says_nothing() {
        if !possible("whoever_is_killed_says_nothing") {
            return;
        }
        let sleep = lasting(1);
        let work = |_: &Inside| run(&sleep).into_bytes();
        let mut sandbox = Sandbox::start(&terms(), work).unwrap();
        eventually("the work begins", || is_running(&sleep));
        let keeper = sandbox.keeper.unwrap().as_raw();
        let pids =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let first =
            pids.into_iter().find(|pid| process::parent_of(*pid) == Some(keeper.cast_unsigned())).unwrap();
        nix::sys::signal::kill(Pid::from_raw(first), nix::sys::signal::Signal::SIGKILL).unwrap();
        let ended = sandbox.wait(EVENT_WAIT).unwrap().unwrap();
        assert_eq!(ended, Ended::Died("was killed by SIGKILL".to_owned()));
        assert!(!is_running(&sleep));
    }

    #[test]
    fn what_is_written_is_found_and_seen_nowhere_else() {
        let found = play("what_is_written_is_found_and_seen_nowhere_else", |inside| {
            assert_eq!(inside.changed().unwrap(), [""; 0].map(PathBuf::from));
            sh("echo x >> /etc/passwd; echo y > /etc/sandbox-test; rm /etc/group; chmod 701 /srv; touch /run/a /dev/shm/b
            mkdir -p /var/lib/kubelet/pods /opt/deep/er; : >> /etc/nsswitch.conf; rm -r /home; mkdir /home");
            shown(&inside.changed().unwrap())
        });
        let Some(found) = found else { return };
        let expected =
            "/dev/shm/b /etc/group /etc/passwd /etc/sandbox-test /home /opt/deep /opt/deep/er /run/a /srv";
        assert_eq!(found, expected);
        assert!(!Path::new("/etc/sandbox-test").exists() && Path::new("/etc/group").exists());
    }

    #[test]
    fn a_mount_is_found_and_seen_nowhere_else() {
        let said = play("a_mount_is_found_and_seen_nowhere_else", |inside| {
            assert_eq!(inside.mounts().unwrap(), []);
            sh("echo before > /var/lib/kubelet/f; mkdir /run/a /run/b
            mount -t tmpfs sandbox-test /run/a; touch /run/a/above; mount --bind /etc /mnt; umount /mnt
            mount -t tmpfs none /var/lib/kubelet");
            let mounts = inside.mounts().unwrap();
            let mounts: Vec<_> = mounts.iter().map(|entry| format!("{} ", entry.target.display())).collect();
            let beneath = inside.beneath(Path::new("/var/lib/kubelet/f")).unwrap();
            mounts.concat() + &shown(&inside.changed().unwrap()) + " " + &fs::read_to_string(beneath).unwrap()
        });
        let Some(said) = said else { return };
        assert_eq!(said, "/run/a /var/lib/kubelet /run/a /run/b /run/mount before\n");
        assert!(mount_table::read().unwrap().iter().all(|entry| entry.source != "sandbox-test"));
    }

    #[test]
    fn processes_are_found_and_end() {
        if !possible("processes_are_found_and_end") {
            return;
        }
        let sleep = lasting(2);
        let work = |inside: &Inside| {
            assert_eq!(inside.processes().unwrap(), []);
            // The first process reaps the last one, because a driver may wait for that.
            sh(&format!("setsid {sleep} <&- >&- 2>&- & (sleep 0.001 <&- >&- 2>&- & echo $! >/run/last)"));
            sh("while kill -0 $(cat /run/last); do sleep 0.001; done");
            while !inside.processes().unwrap().iter().all(|(_, line)| *line == sleep) {}
            format!("{:?}", inside.processes().unwrap()).into_bytes()
        };
        let mut sandbox = Sandbox::start(&terms(), work).unwrap();
        let Some(Ended::Said(said)) = sandbox.wait(EVENT_WAIT).unwrap() else { panic!() };
        let said = String::from_utf8(said).unwrap();
        assert!(said.ends_with(&format!(", {sleep:?})]")) && said.matches("sleep").count() == 1, "{said}");
        assert!(is_running(&sleep));
        sandbox.end(LAST_WAIT);
        assert!(!is_running(&sleep));
    }

    #[test]
    fn loop_devices_are_found_and_end() {
        let name = "loop_devices_are_found_and_end";
        if !Path::new("/dev/loop-control").exists() {
            println!("SKIP {name}: needs /dev/loop-control");
            return;
        }
        let said = play(name, |inside| {
            assert_eq!(inside.devices().unwrap(), [""; 0].map(PathBuf::from));
            // Another process may take the free device first.
            let made = sh("set -e; truncate -s 4M /image; mkdir /run/a; mount -t tmpfs none /run/a; cp /image /run/a
                attach() { for i in 1 2 3 4 5 6 7 8; do losetup -f --show \"$@\" 2>/dev/null && return; sleep 0.02; done; false; }
                attach /image; attach /run/a/image; attach -r /bin/sh
                mkfs.ext4 -q /image; mount -o loop /image /mnt; truncate -s 1M /mnt/image; attach /mnt/image");
            let found = inside.devices().unwrap();
            assert!(made.lines().all(|path| found.contains(&path.into())), "{made} {found:?}");
            assert_eq!((made.lines().count(), found.len()), (4, 4), "{made} {found:?}");
            shown(&found).replace(' ', "\n")
        });
        let Some(said) = said else { return };
        for path in said.lines() {
            let backing = format!("/sys/block/{}/loop/backing_file", &path["/dev/".len()..]);
            let backing = fs::read_to_string(backing).unwrap_or_default();
            // Another process may have taken it since.
            assert!(!backing.ends_with("image\n") && !backing.ends_with("sh\n"), "{path} {backing}");
        }
    }

    /// Starts work in a mount table of its own.
    fn elsewhere(work: impl FnOnce() -> String) -> Worker {
        Worker::start(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let flags =
                rustix::mount::MountPropagationFlags::REC | rustix::mount::MountPropagationFlags::PRIVATE;
            rustix::mount::mount_change("/", flags).unwrap();
            work() + "\n"
        })
        .unwrap()
    }

    /// Returns a shell script that mounts file systems until one has one of these numbers, attaches
    /// a loop device there, and prints it.
    fn take_one_of(numbers: &str) -> String {
        format!(
            "for i in $(seq 400); do [ $i -gt 80 ] || mount -t tmpfs none /mnt; n=$(stat -c %d /mnt)
            for o in {}; do [ $n != $o ] || {{ truncate -s 1M /mnt/another; losetup -f --show /mnt/another; exit; }}; done
            [ $i -le 80 ] || {{ umount /mnt; sleep 0.01; mount -t tmpfs none /mnt; }}; done; echo never",
            numbers.replace('\n', " ")
        )
    }

    /// The kernel reuses the numbers of file systems as soon as they are gone.
    #[test]
    fn what_another_has_by_a_number_that_was_ours_stays() {
        let name = "what_another_has_by_a_number_that_was_ours_stays";
        if !possible(name) || !Path::new("/dev/loop-control").exists() {
            println!("SKIP {name}: needs root and /dev/loop-control");
            return;
        }
        let work = |_: &Inside| {
            sh("set -e; for i in 1 2 3 4 5 6; do mkdir /run/$i; mount -t tmpfs none /run/$i; stat -c %d /run/$i; done
            truncate -s 1M /run/1/image; for i in 1 2 3 4 5 6 7 8; do losetup -f --show /run/1/image && exit; sleep 0.02; done")
            .into_bytes()
        };
        let mut sandbox = Sandbox::start(&terms(), work).unwrap();
        let Some(Ended::Said(said)) = sandbox.wait(EVENT_WAIT).unwrap() else { panic!() };
        let said = String::from_utf8(said).unwrap();
        let (numbers, device) = said.rsplit_once('\n').unwrap();
        // A device that is held open is not gone, and the sandbox waits for it.
        let held = fs::File::open(device).unwrap();
        let another = std::thread::scope(|scope| {
            scope.spawn(move || sandbox.end(EVENT_WAIT));
            elsewhere(|| run(&take_one_of(numbers))).wait(EVENT_WAIT)
        });
        let process::Ended::Replied(another) = another else { panic!("{another:?}") };
        drop(held);
        let backing = format!("/sys/block/{}/loop/backing_file", another.trim().replace("/dev/", ""));
        let left = fs::read_to_string(&backing).unwrap_or_default();
        run(&format!("losetup -d {another}"));
        assert!(left.ends_with("another\n"), "{another} {left}");
    }

    #[test]
    fn the_network_is_a_loopback_device() {
        let said = play("the_network_is_a_loopback_device", |_| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            TcpStream::connect(listener.local_addr().unwrap()).unwrap().write_all(b"hello ").unwrap();
            let mut text = String::new();
            listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
            text + &sh("tail -n +3 /proc/net/dev | cut -d: -f1; ls -A /run; stat -c %a /run/lock /dev/shm")
        });
        let Some(said) = said else { return };
        let lock = if Path::new("/run/lock").is_dir() { "lock\n1777\n" } else { "" };
        assert_eq!(said, format!("hello lo\n{lock}1777"));
    }

    #[test]
    fn exposed_is_to_be_seen_and_no_more() {
        if !possible("exposed_is_to_be_seen_and_no_more") {
            return;
        }
        let run = tempfile::tempdir_in("/run").unwrap();
        fs::create_dir(run.path().join("dir")).unwrap();
        fs::File::create(run.path().join("file")).unwrap();
        std::os::unix::fs::symlink("dir", run.path().join("link")).unwrap();
        let exposed = ["file", "link", "dir"].map(|name| run.path().join(name));
        let said = play_on(&Terms { exposed: exposed.into(), ..terms() }, |inside| {
            let text = sh(&format!("cd {} && ls && touch dir/a; echo > file", run.path().display()));
            assert!(inside.changed().unwrap().is_empty() && inside.mounts().unwrap().is_empty());
            text
        });
        assert!(said.starts_with("dir\nfile\n") && said.matches("Read-only").count() == 2, "{said}");
    }

    #[test]
    fn empty_is_a_shared_file_system() {
        let said = play("empty_is_a_shared_file_system", |_| {
            sh("ls -A /var/lib/kubelet; stat -c %a /var/lib/kubelet; mkdir /var/lib/kubelet/a
            unshare -m --propagation unchanged mount -t tmpfs none /var/lib/kubelet/a
            grep -c ' /var/lib/kubelet/a ' /proc/self/mountinfo; unshare -m --propagation unchanged mount -t tmpfs none /mnt
            grep -c ' /mnt ' /proc/self/mountinfo")
        });
        assert!(said.is_none_or(|said| said == "755\n1\n0"));
    }

    #[test]
    fn whoever_wanted_it_takes_it_along() {
        if !possible("whoever_wanted_it_takes_it_along") {
            return;
        }
        let sleep = lasting(3);
        let parent = Worker::start(|| {
            let sandbox = Sandbox::start(&terms(), |_| sh(&format!("setsid {sleep}")).into_bytes());
            std::thread::sleep(EVENT_WAIT);
            drop(sandbox);
            String::new()
        });
        eventually("the work begins", || is_running(&sleep));
        drop(parent.unwrap().wait(Duration::ZERO));
        eventually("all is gone", || !is_running(&sleep));
    }

    #[test]
    fn without_namespaces_processes_are_found_and_end() {
        let (sleep, terms) = (lasting(4), Terms { isolation: Isolation::None, ..terms() });
        let work = |inside: &Inside| {
            assert!(inside.changed().unwrap().is_empty() && inside.mounts().unwrap().is_empty());
            run(&format!("(setsid {sleep} <&- >&- 2>&- &)"));
            // Wait until the shell is gone, and setsid(1) has become the sleep.
            while !matches!(&inside.processes().unwrap()[..], [(_, line)] if *line == sleep) {}
            Vec::new()
        };
        let mut sandbox = Sandbox::start(&terms, work).unwrap();
        assert!(matches!(sandbox.wait(EVENT_WAIT).unwrap(), Some(Ended::Said(_))));
        assert!(is_running(&sleep));
        sandbox.end(LAST_WAIT);
        assert!(!is_running(&sleep));
    }

    /// Runs work as a user other than root.
    fn as_nobody(work: impl FnOnce() -> String) -> String {
        let worker = Worker::start(|| {
            nix::unistd::setgroups(&[]).unwrap();
            nix::unistd::setgid(65534.into()).unwrap();
            nix::unistd::setuid(65534.into()).unwrap();
            // Otherwise /proc/self belongs to root.
            nix::sys::prctl::set_dumpable(true).unwrap();
            work() + "\n"
        });
        match worker.unwrap().wait(EVENT_WAIT) {
            process::Ended::Replied(line) => line.trim_end().to_owned(),
            ended => panic!("{ended:?}"),
        }
    }

    #[test]
    fn without_root_there_is_a_user_namespace() {
        if !possible("without_root_there_is_a_user_namespace") {
            return;
        }
        let said = as_nobody(|| {
            let isolation = Isolation::possible();
            if isolation == Isolation::None {
                return format!("{:?}", Isolation::User.try_out());
            }
            let terms = Terms { isolation, ..terms() };
            play_on(&terms, |inside| {
                assert!(inside.changed().unwrap().is_empty(), "{:?}", inside.changed());
                run(
                    "echo y > /tmp/sandbox-test; mount -t tmpfs none /mnt; cat /etc/passwd | head -c4; id -u; touch /run/x",
                );
                assert_eq!(run("stat -c %a /tmp"), "1777");
                let mounts = inside.mounts().unwrap();
                let mounts: Vec<_> = mounts.into_iter().map(|entry| entry.target).collect();
                format!("{:?} {} {}", isolation, shown(&mounts), shown(&inside.changed().unwrap()))
            })
        });
        if said.starts_with("Err") {
            println!("SKIP without_root_there_is_a_user_namespace: {said}");
            return;
        }
        assert_eq!(said, "User /mnt /run/mount /run/x /tmp/sandbox-test");
        assert!(!Path::new("/tmp/sandbox-test").exists());
    }

    /// Such a directory has no overlay, but each of its directories has one.
    #[test]
    fn without_root_a_directory_with_mounts_below_keeps_its_mode() {
        let name = "without_root_a_directory_with_mounts_below_keeps_its_mode";
        if !possible(name) {
            return;
        }
        let busy = tempfile::tempdir_in("/var/tmp").unwrap();
        let said = elsewhere(|| {
            run(&format!("mount -t tmpfs none {}", busy.path().display()));
            as_nobody(|| match Isolation::User.try_out() {
                Ok(()) => {
                    play_on(&Terms { isolation: Isolation::User, ..terms() }, |_| run("stat -c %a /var/tmp"))
                }
                error => format!("{error:?}"),
            })
        });
        match said.wait(EVENT_WAIT) {
            process::Ended::Replied(said) if said.starts_with("Err") => println!("SKIP {name}: {said}"),
            process::Ended::Replied(said) => assert_eq!(said.trim(), "1777"),
            ended => panic!("{ended:?}"),
        }
    }

    #[test]
    fn older_kernels_are_told_mount_by_mount() {
        let said = play("older_kernels_are_told_mount_by_mount", |_| {
            sh("mount -t tmpfs -o noexec none /srv; mkdir /srv/a /srv/b; mount -t tmpfs none /srv/a; mount -t tmpfs none /srv/b
            mount -t tmpfs none /srv/b");
            read_only::make_each(Path::new("/srv")).unwrap();
            sh(
                "touch /srv/x /srv/a/x /srv/b/x; grep -c ' /srv.* ro,' /proc/self/mountinfo; grep -c ' /srv ro,noexec' /proc/self/mountinfo",
            )
        });
        let Some(said) = said else { return };
        assert!(said.starts_with("3\n1") && said.matches("Read-only file system").count() == 3, "{said}");
    }

    #[test]
    fn thirty_in_a_row_are_fast_and_leave_nothing() {
        if !possible("thirty_in_a_row_are_fast_and_leave_nothing") {
            return;
        }
        let sleep = lasting(5);
        let took = (0..30)
            .map(|_| {
                let start = Instant::now();
                assert_eq!(play_on(&terms(), |_| sh(&format!("{sleep} >&- 2>&- & echo x"))), "x");
                start.elapsed()
            })
            .min();
        // It takes 10 ms. Other programs may load this machine, but nothing here waits for a time
        // to be over.
        assert!(took < Some(Duration::from_millis(200)), "{took:?}");
        assert!(!is_running(&sleep));
        assert!(mount_table::read().unwrap().iter().all(|entry| entry.source != maker::SOURCE));
    }

    #[test]
    fn nothing_of_the_machine_is_hurt() {
        let said = play("nothing_of_the_machine_is_hurt", |_| {
            sh("rm -rf /etc /srv /run /boot; ls /etc; echo survived")
        });
        let Some(said) = said else { return };
        assert!(said.contains("cannot access '/etc'") && said.contains("survived"), "{said}");
        assert!(Path::new("/etc/passwd").exists() && Path::new("/run").exists());
        let sleep = lasting(6);
        let kill_all = |_: &Inside| sh(&format!("{sleep} & kill -9 -1; wait")).into_bytes();
        let mut sandbox = Sandbox::start(&terms(), kill_all).unwrap();
        let ended = sandbox.wait(EVENT_WAIT).unwrap().unwrap();
        assert_eq!(ended, Ended::Died("was killed by SIGKILL".to_owned()));
        assert!(!is_running(&sleep));
    }
}
