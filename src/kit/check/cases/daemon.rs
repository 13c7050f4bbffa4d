//! Processes that serve mounts, as those of FUSE do, and go on after the call.

use crate::check::answer::{Answer, Meant};
use crate::check::case::{How, Scene};
use crate::check::evidence::{Evidence, Played, Stopped, skip};
use crate::check::footprint::at_rest;
use crate::check::in_time::Deadline;
use crate::check::staging::{is_mounted, make_directory};
use crate::check::subject::{KUBELET_ROOT, Subject};
use flexvol_kubelet::PodVolume;
use flexvol_linux::proc::process::{self, Worker};
use flexvol_protocol::Call;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deadline for a daemon to end after the unmount.
const TO_END: Duration = Duration::from_secs(1);

const TICK: Duration = Duration::from_millis(2);

/// Limit for the number of tries to get a pid, which another process may take.
const ATTEMPTS: usize = 20;

/// File with the last pid that was used in this namespace.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

pub(in crate::check) const SCENES: &[Scene] = &[
    ("daemon::descriptors", How::Played(descriptors)),
    ("daemon::own_session", How::Played(own_session)),
    ("daemon::survives_kill", How::Played(survives_kill)),
    ("daemon::fails_early", How::Played(fails_early)),
    ("daemon::is_gone", How::Played(is_gone)),
    ("daemon::spares_strangers", How::Played(spares_strangers)),
];

/// Mounted volume, and the processes that came with it.
struct Served {
    volume: PodVolume,
    daemons: Vec<(i32, String)>,
}

impl Served {
    fn bring_up(subject: &mut Subject<'_>) -> Result<Self, Stopped> {
        let volume = subject.volume()?;
        let before = subject.inside.processes()?;
        subject.bring_up(&volume)?;
        let now = settled(subject)?;
        let daemons: Vec<_> = now.into_iter().filter(|each| !before.contains(each)).collect();
        if daemons.is_empty() {
            return skip("no process serves the mount");
        }
        Ok(Self { volume, daemons })
    }

    fn is_alive(&self, subject: &Subject<'_>) -> Result<bool, Stopped> {
        let now = subject.inside.processes()?;
        Ok(self.daemons.iter().all(|(pid, _)| now.iter().any(|(other, _)| pid == other)))
    }
}

/// Returns the processes, once each has started its final program.
pub(super) fn settled(subject: &Subject<'_>) -> Result<Vec<(i32, String)>, Stopped> {
    at_rest(TICK * 2, || Ok(subject.inside.processes()?))
}

fn fails(problem: impl Into<String>) -> Stopped {
    Evidence::new(problem).into()
}

fn descriptors(subject: &mut Subject<'_>) -> Played {
    let served = Served::bring_up(subject)?;
    for (pid, line) in &served.daemons {
        for number in 0..3 {
            let Ok(file) = fs::read_link(format!("/proc/{pid}/fd/{number}")) else { continue };
            if !is_harmless(&file) {
                return Err(fails(format!("descriptor {number} of {line} is {}", file.display())));
            }
        }
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let file = fs::read_link(entry.path()).unwrap_or_default();
            if file.starts_with(Path::new(KUBELET_ROOT).join("pods")) {
                return Err(fails(format!("{line} holds {} open", file.display())));
            }
        }
        let directory = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_else(|_| PathBuf::from("/"));
        // The root of the process may differ from the node's.
        let root = fs::read_link(format!("/proc/{pid}/root")).unwrap_or_else(|_| PathBuf::from("/"));
        if directory != root {
            return Err(fails(format!("{line} is in {}, which cannot be unmounted", directory.display())));
        }
    }
    subject.take_down(&served.volume)
}

/// Reports whether a file is no pipe, which kubelet may read, and no device such as a terminal.
fn is_harmless(file: &Path) -> bool {
    let name = file.to_string_lossy();
    let is_device =
        file.starts_with("/dev") && file != Path::new("/dev/null") && !name.starts_with("/dev/shm");
    !name.starts_with("pipe:") && !is_device
}

fn own_session(subject: &mut Subject<'_>) -> Played {
    let served = Served::bring_up(subject)?;
    if let Some((_, line)) = served.daemons.iter().find(|(pid, _)| is_in_our_session(*pid)) {
        return Err(fails(format!("{line} is in the session of the driver, and so of kubelet")));
    }
    subject.take_down(&served.volume)
}

fn is_in_our_session(pid: i32) -> bool {
    process::session_of(pid) == process::session_of(std::process::id().cast_signed())
}

fn survives_kill(subject: &mut Subject<'_>) -> Played {
    let served = Served::bring_up(subject)?;
    // The driver has ended, but its children are still in its process group unless they left it.
    for (pid, _) in served.daemons.iter().filter(|(pid, _)| is_in_our_session(*pid)) {
        if let Some(group) = process::group_of(*pid).and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::TERM);
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
    std::thread::sleep(TICK * 5);
    if !served.is_alive(subject)? {
        let line = &served.daemons[0].1;
        return Err(fails(format!("the process group of the driver was killed, and with it {line}")));
    }
    if let Err(error) = fs::read_dir(served.volume.target()?.as_path()) {
        return Err(fails(format!(
            "the process group of the driver was killed, and the volume is dead: {error}"
        )));
    }
    subject.take_down(&served.volume)
}

fn fails_early(subject: &mut Subject<'_>) -> Played {
    let served = Served::bring_up(subject)?;
    let program = served.daemons.iter().find_map(|(pid, _)| fs::read_link(format!("/proc/{pid}/exe")).ok());
    subject.take_down(&served.volume)?;
    let program = program.filter(|program| program.is_file() && !is_driver(program, subject));
    let Some(program) = program else {
        return skip("the driver serves its mounts itself");
    };
    let volume = subject.volume()?;
    let device = if subject.attaches() { Some(subject.attach(&volume)?) } else { None };
    make_directory(volume.target()?.as_path())?;
    subject.inside.bind(Path::new("/dev/null"), &program)?;
    let starts = subject.call(&Call::Init).is_success();
    let answer = starts.then(|| started_anyway(subject, &volume, device.as_deref()));
    subject.inside.take_off(&program)?;
    let Some(answer) = answer.transpose()? else {
        return skip("the driver itself needs the program of its daemon");
    };
    let answer = answer.refuses("the program of the daemon cannot be executed, which mount must say")?;
    if subject.layers(&volume)? > 0 || is_mounted(&volume.global()?)? {
        return Err(answer.fails("it failed for want of its daemon, and left a mount"));
    }
    make_directory(volume.target()?.as_path())?;
    subject.take_down(&volume)
}

/// Returns the first answer on the way into the pod that is no success, or the last answer.
fn started_anyway(
    subject: &mut Subject<'_>,
    volume: &PodVolume,
    device: Option<&str>,
) -> Result<Answer, Stopped> {
    if let Some(device) = device {
        make_directory(volume.global()?.as_path())?;
        let answer = subject.call_mount_device(volume, device)?;
        if !answer.is_success() && answer.meant != Meant::NotSupported {
            return Ok(answer);
        }
    }
    subject.mount(volume)
}

fn is_driver(program: &Path, subject: &Subject<'_>) -> bool {
    subject.given.driver.canonicalize().is_ok_and(|driver| driver == program)
}

fn is_gone(subject: &mut Subject<'_>) -> Played {
    let served = Served::bring_up(subject)?;
    subject.take_down(&served.volume)?;
    let mut end = Deadline::new(TO_END);
    loop {
        let now = subject.inside.processes()?;
        // The process may run another program by now.
        let lives = |daemon: &&(i32, String)| now.iter().any(|(pid, _)| *pid == daemon.0);
        let Some((_, line)) = served.daemons.iter().find(lives) else { return Ok(()) };
        if end.is_over() {
            return Err(fails(format!("the volume is unmounted, and {line} still runs")));
        }
        std::thread::sleep(TICK);
    }
}

fn spares_strangers(subject: &mut Subject<'_>) -> Played {
    let served = Served::bring_up(subject)?;
    let pids: Vec<_> = served.daemons.iter().map(|(pid, _)| *pid).collect();
    subject.kill(&pids)?;
    let mut strangers = Vec::new();
    for pid in pids {
        strangers.push(stranger(pid)?);
    }
    let answer = subject.unmount(&served.volume)?;
    let spared = strangers
        .iter()
        .all(|stranger| process::started(stranger.pid()).is_some() && !process::is_zombie(stranger.pid()));
    for stranger in strangers {
        stranger.wait(Duration::ZERO);
    }
    if !spared {
        let text =
            "a daemon had been killed, its number was given to another process, and unmount ended that";
        return Err(answer.fails(text));
    }
    subject.put_away(&served.volume, &answer.or_blocked("sequence::dead_daemon")?)
}

/// Starts a process of the kit with that pid.
fn stranger(pid: i32) -> Result<Worker, Stopped> {
    let skip = || Stopped::Skipped("process numbers cannot be chosen here".to_owned());
    for _ in 0..ATTEMPTS {
        let mut last = File::create(LAST_PID).map_err(|_| skip())?;
        write!(last, "{}", pid - 1).map_err(|_| skip())?;
        let worker = Worker::start(|| {
            std::thread::sleep(Duration::from_mins(1));
            String::new()
        })?;
        if worker.pid() == pid {
            return Ok(worker);
        }
        worker.wait(Duration::ZERO);
    }
    Err(skip())
}
