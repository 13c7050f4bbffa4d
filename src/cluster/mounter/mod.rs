//! `flexvold mounter`: process 1 of a mount pod, which has the programs that a node lacks.
//!
//! ```text
//! init ─▶ place: <vendor~driver>.json and .sock in kubelet's directory, for each driver
//!   │ accept, fork
//!   └─▶ worker: one per connection; runs the requested programs while the connection lasts
//! ```
//!
//! Process 1 has one thread and does nothing that may hang: it accepts, forks, and reaps ended
//! processes. A worker that dies ends its own connection and nothing else. A program that serves a
//! volume is a child of its worker until the driver has seen the mount, then of process 1. It is
//! found again by its control group, or by the word in its environment.
//!
//! Process 1 and its workers never mount: the programs do.

pub mod drained;
pub mod exec;
pub mod main_child;
pub mod place;
pub mod worker;

use anyhow::{Context as _, Result, bail, ensure};
use flexvol_linux::mount::mount_table;
use flexvol_linux::net::daemon_socket;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{Invocation, Tools};
use flexvol_linux::proc::reaper::Reaper;
use flexvol_linux::proc::{process, signal};
use flexvol_linux::raw;
use flexvol_model::mounter::Registration;
use main_child::MainChild;
use place::Place;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between two checks of the registrations.
const LOOK: Duration = Duration::from_secs(10);

/// SIGHUP, which asks a daemon to read its configuration again.
const HUP: i32 = 1;

/// Pause after a connection that could not be accepted, and between two checks for volumes.
const PAUSE: Duration = Duration::from_millis(100);

/// Deadline for loading a kernel module.
const MODULE: Duration = Duration::from_secs(30);

/// Deadline for a mount pod to identify itself.
const ANSWER: Duration = Duration::from_secs(5);

/// Settings of a mount pod.
pub struct Setup {
    /// Kubelet's directory, at the same path as on the node.
    pub root: PathBuf,
    /// Names of the drivers, `vendor~driver`.
    pub names: Vec<String>,
    /// Registration of this pod.
    pub pod: Registration,
    /// Kernel modules that its programs need.
    pub modules: Vec<String>,
    /// Main child, if any: a program and its arguments.
    pub command: Vec<OsString>,
    /// Time for which programs that serve volumes may continue after the pod is told to end.
    pub grace: Duration,
}

/// Serves until SIGTERM, or until the main child has ended; then waits until no program serves a
/// volume any more. Returns the exit code.
pub fn run(setup: &Setup) -> Result<u8> {
    signal::install()?;
    process::detach_from_caller();
    ensure_shared(&setup.root)?;
    setup.modules.iter().try_for_each(|name| load(name))?;
    // Unlike the process of a driver, this process adopts orphans.
    process::adopt_orphans();
    let reaper = Reaper::new()?;
    let mut main = MainChild::start(&setup.command)?;
    let mut places = Vec::new();
    for name in &setup.names {
        places.push(Place::take(&setup.root, name, &setup.pod)?);
        tracing::info!(driver = name, "registered");
    }
    let served = serve(&mut places, &setup.pod, &reaper, &mut main);
    for place in &places {
        if let Err(error) = place.leave(&setup.pod) {
            tracing::warn!(reason = format!("{error:#}"), "a registration stays");
        }
    }
    drop(places);
    signal::heeded();
    wait_for_volumes(&reaper, setup.grace, &mut main)?;
    served.map(|()| main.and_then(|main| main.code()).unwrap_or_default())
}

/// Loads a kernel module of the node.
fn load(name: &str) -> Result<()> {
    let (deadline, fix) = (Deadline::after(MODULE), "mount the node's /lib/modules, or load it there");
    let loaded = Tools::of_host(&deadline).run_to_success(Invocation::of("modprobe").args(["--", name]));
    loaded.map(drop).with_context(|| format!("load the kernel module {name}: {fix}"))
}

fn reap(reaper: &Reaper, main: &mut Option<MainChild>) {
    reaper.reap_each(|pid, code| main.iter_mut().for_each(|main| main.ended(pid, code)));
}

/// Reports whether to end. Passes each signal on to the main child; SIGHUP is only for that child.
fn is_over(main: Option<&MainChild>) -> bool {
    let signal = signal::which();
    if let (Some(main), true) = (main, signal != 0) {
        main.tell(signal);
        if signal == HUP {
            signal::heeded();
        }
    }
    signal::interrupted() || main.is_some_and(|main| main.code().is_some())
}

fn serve(
    places: &mut [Place],
    pod: &Registration,
    reaper: &Reaper,
    main: &mut Option<MainChild>,
) -> Result<()> {
    let mut looked = Instant::now();
    loop {
        let fds: Vec<BorrowedFd<'_>> = places.iter().map(Place::as_fd).chain([reaper.as_fd()]).collect();
        signal::wait_each_readable(&fds, Some(LOOK.saturating_sub(looked.elapsed())))?;
        reap(reaper, main);
        if is_over(main.as_ref()) {
            tracing::info!("ending");
            return Ok(());
        }
        for place in &*places {
            match place.accept() {
                Ok(Some(stream)) => hand_over(stream, pod),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(reason = %error, "a connection could not be accepted");
                    std::thread::sleep(PAUSE);
                }
            }
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            for place in &mut *places {
                if let Err(error) = place.look(pod) {
                    tracing::warn!(reason = format!("{error:#}"), "a registration could not be put right");
                }
            }
        }
    }
}

/// Passes a connection to a worker, if the other side is root.
fn hand_over(stream: UnixStream, pod: &Registration) {
    // The mode of the socket ensures the same, but a mode can be changed by mistake.
    if !daemon_socket::is_root_s(stream.as_fd()) {
        return tracing::warn!("a process that is not root has connected");
    }
    match raw::fork() {
        Ok(Some(_)) => {}
        Ok(None) => {
            raw::close_all_but([stream.as_fd()]);
            process::adopt_orphans();
            worker::converse(pod, stream);
            raw::end()
        }
        Err(error) => tracing::warn!(reason = %error, "no process for a connection"),
    }
}

fn wait_for_volumes(reaper: &Reaper, grace: Duration, main: &mut Option<MainChild>) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < grace && !signal::interrupted() {
        reap(reaper, main);
        if !process::has_children() {
            return Ok(());
        }
        signal::wait_each_readable(&[reaper.as_fd()], Some(PAUSE))?;
    }
    Ok(())
}

/// Fails unless mounts below kubelet's directory in this container appear on the node.
pub fn ensure_shared(root: &Path) -> Result<()> {
    let fix = format!("give {} to the container with mountPropagation: Bidirectional", root.display());
    match mount_table::is_shared(root)? {
        Some(true) => Ok(()),
        _ => bail!("what is mounted below {} stays in this container: {fix}", root.display()),
    }
}

/// Fails unless drivers find this pod, and it answers.
pub fn check(setup: &Setup) -> Result<()> {
    ensure_shared(&setup.root)?;
    for name in &setup.names {
        let (directory, found) = place::registered(&setup.root, name)?;
        let found = found.with_context(|| format!("{name} is not registered"))?;
        ensure!(
            found == setup.pod,
            "{name} is registered for pod {}/{}: one mount pod a node for each driver",
            found.pod_namespace,
            found.pod_name
        );
        let uid = answering(&directory.inside(&place::socket(name)))
            .with_context(|| format!("ask process 1 for {name}"))?;
        ensure!(uid == setup.pod.pod_uid, "pod {uid} answers for {name}");
    }
    Ok(())
}

/// Returns the uid of the pod that listens at a socket.
pub(crate) fn answering(socket: &Path) -> Result<String> {
    let request = json!({"v": worker::PROTOCOL, "method": "hello"}).to_string();
    let answer = daemon_socket::ask(socket, &request, &Deadline::after(ANSWER))?;
    let answer: Value = serde_json::from_slice(&answer)?;
    Ok(answer["ok"]["pod"].as_str().context("its answer makes no sense")?.to_owned())
}
