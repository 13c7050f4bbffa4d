//! `flexvold mounter`: process 1 of a mount pod, which has the programs that a node lacks.
//!
//! ```text
//! init ─▶ place: <vendor~driver>.json and .sock in kubelet's directory, for each driver
//!   │ accept, fork
//!   └─▶ worker: one for each connection; runs what it is asked to, for as long as that lasts
//! ```
//!
//! Process 1 has one thread and does nothing that may hang: it accepts, forks, and takes away
//! whatever has ended. A worker that dies takes its connection with it and nothing else. What
//! serves a volume is a child of its worker until the driver has seen the mount, then of process 1;
//! it is found again by its control group, or by the word in its environment.
//!
//! Nothing here mounts: the programs do.

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

/// How often it is looked whether the registrations are still there.
const LOOK: Duration = Duration::from_secs(10);

/// SIGHUP, which asks a daemon to read its configuration again.
const HUP: i32 = 1;

/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a kernel module may take to be loaded.
const MODULE: Duration = Duration::from_secs(30);

/// How long a mount pod may take to say who it is.
const ANSWER: Duration = Duration::from_secs(5);

/// What a mount pod is started with.
pub struct Setup {
    /// Kubelet's directory, the same path as on the node.
    pub root: PathBuf,
    /// The drivers, `vendor~driver`.
    pub names: Vec<String>,
    /// Who it is.
    pub pod: Registration,
    /// Kernel modules that its programs need.
    pub modules: Vec<String>,
    /// What is run beside it, if anything: a program and its arguments.
    pub command: Vec<OsString>,
    /// How long what serves volumes may go on when the pod is told to end.
    pub grace: Duration,
}

/// Serves until SIGTERM, or until the main child has ended, and then until nothing serves a volume
/// any more. Says what to exit with.
pub fn run(setup: &Setup) -> Result<u8> {
    signal::install()?;
    process::detach_from_caller();
    ensure_shared(&setup.root)?;
    setup.modules.iter().try_for_each(|name| load(name))?;
    // Unlike that of a driver this process keeps what others leave.
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

/// Loads a kernel module of the node's.
fn load(name: &str) -> Result<()> {
    let (deadline, fix) = (Deadline::after(MODULE), "mount the node's /lib/modules, or load it there");
    let loaded = Tools::of_host(&deadline).run_to_success(Invocation::of("modprobe").args(["--", name]));
    loaded.map(drop).with_context(|| format!("load the kernel module {name}: {fix}"))
}

fn reap(reaper: &Reaper, main: &mut Option<MainChild>) {
    reaper.reap_each(|pid, code| main.iter_mut().for_each(|main| main.ended(pid, code)));
}

/// Whether it is to end: a signal is the main child's as well, and SIGHUP is for that alone.
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

/// To a worker, if it is root's.
fn hand_over(stream: UnixStream, pod: &Registration) {
    // The mode of the socket says the same; a mode can be changed by mistake.
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

/// What is mounted below kubelet's directory in this container has to appear on the node.
pub fn ensure_shared(root: &Path) -> Result<()> {
    let fix = format!("give {} to the container with mountPropagation: Bidirectional", root.display());
    match mount_table::is_shared(root)? {
        Some(true) => Ok(()),
        _ => bail!("what is mounted below {} stays in this container: {fix}", root.display()),
    }
}

/// Whether this pod is the one that drivers find, and answers.
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

/// The pod that listens at a socket.
pub(crate) fn answering(socket: &Path) -> Result<String> {
    let request = json!({"v": worker::PROTOCOL, "method": "hello"}).to_string();
    let answer = daemon_socket::ask(socket, &request, &Deadline::after(ANSWER))?;
    let answer: Value = serde_json::from_slice(&answer)?;
    Ok(answer["ok"]["pod"].as_str().context("its answer makes no sense")?.to_owned())
}
