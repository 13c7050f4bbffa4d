//! Socket of the agent. Only root on this node may use it.
//!
//! The socket appears atomically: it is bound under a name with a leading dot, closed to others,
//! and renamed over the older one. So every driver finds a socket while one agent replaces another.

use super::Agent;
use super::wire::converse;
use anyhow::{Context as _, Result, ensure};
use flexvol_linux::fs::files;
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// Limit for connections that are served at the same time; further connections wait.
const CONNECTIONS: u32 = 64;

/// Limit for running calls after the agent was told to end.
const DRAIN: Duration = Duration::from_secs(10);

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Pause between two sweeps, once everything is settled.
const SWEEP: Duration = Duration::from_mins(10);

/// Pause between two searches for removed directories of CSI drivers' volumes.
const CSI_SWEEP: Duration = Duration::from_mins(1);

/// Limit for one sweep, and for the pause before a retry.
const LOOK: Duration = Duration::from_secs(30);

/// Pause before the next sweep while the store does not answer, or while a cleanup is pending that
/// is not possible yet; doubled each time.
const RETRY: Duration = Duration::from_secs(1);

/// Mode bits that let users other than the owner write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Serves until SIGTERM or SIGINT.
pub async fn run(agent: Arc<Agent>, socket: PathBuf) -> Result<()> {
    let (tell, stop) = watch::channel(false);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let serving = tokio::spawn(serve(agent, socket, stop));
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return served?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("ending");
    tell.send_replace(true);
    serving.await?
}

/// Serves until told to end, then finishes running requests and leaves the socket to the next
/// agent.
pub async fn serve(agent: Arc<Agent>, socket: PathBuf, mut stop: watch::Receiver<bool>) -> Result<()> {
    let looking = tokio::spawn(look_again(Arc::clone(&agent)));
    let sweeping = tokio::spawn(sweep_csi(Arc::clone(&agent)));
    let listener = bind(&socket).with_context(|| format!("listen at {}", socket.display()))?;
    tracing::info!(node = agent.node().name, socket = %socket.display(), "serving");
    let room = Arc::new(Semaphore::new(CONNECTIONS as usize));
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = accept(&listener, &room) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => spawn(&agent, stream, permit),
            Err(error) => {
                tracing::warn!(reason = %error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    looking.abort();
    sweeping.abort();
    let closing = Arc::clone(&agent);
    let _ = tokio::task::spawn_blocking(move || closing.calls.close(DRAIN)).await;
    let _ = tokio::time::timeout(DRAIN, room.acquire_many(CONNECTIONS)).await;
    Ok(())
}

async fn accept(
    listener: &UnixListener,
    room: &Arc<Semaphore>,
) -> Result<(UnixStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await?;
    Ok((listener.accept().await?.0, permit))
}

fn spawn(agent: &Arc<Agent>, stream: UnixStream, permit: OwnedSemaphorePermit) {
    // The mode of the socket ensures the same, but a mode can be changed by mistake.
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == 0) {
        return tracing::warn!("a process that is not root has connected");
    }
    let agent = Arc::clone(agent);
    tokio::task::spawn_blocking(move || {
        let talked = stream.into_std().and_then(|stream| {
            stream.set_nonblocking(false)?;
            converse(&agent, stream)
        });
        if let Err(error) = talked {
            tracing::debug!(reason = %error, "a connection ended");
        }
        drop(permit);
    });
}

/// Sweeps until everything is settled, then whenever a cleanup is pending, and from time to time.
async fn look_again(agent: Arc<Agent>) {
    let mut retry = RETRY;
    let came = Arc::new(Notify::new());
    let waker = Arc::clone(&came);
    agent.be_told_of_tasks(move || waker.notify_one());
    loop {
        let looking = Arc::clone(&agent);
        let looked = tokio::task::spawn_blocking(move || looking.sweep(Instant::now() + LOOK)).await;
        let settled = matches!(looked, Ok(Ok(())));
        if let Ok(Err(fault)) = looked {
            tracing::warn!(reason = fault.message, "not settled yet");
        }
        let again = !settled || agent.has_tasks();
        retry = if again { (retry * 2).min(LOOK) } else { RETRY };
        tokio::select! {
            () = tokio::time::sleep(if again { retry } else { SWEEP }) => (),
            () = came.notified() => {
                // The pause keeps tasks from causing more sweeps than retries do.
                tokio::time::sleep(RETRY).await;
                retry = RETRY;
            }
        }
    }
}

/// Cleans up volumes of CSI drivers that kubelet no longer uses, now and from time to time: kubelet
/// does not announce that it has removed a directory.
async fn sweep_csi(agent: Arc<Agent>) {
    loop {
        let looking = Arc::clone(&agent);
        let _ = tokio::task::spawn_blocking(move || looking.csi.sweep()).await;
        tokio::time::sleep(CSI_SWEEP).await;
    }
}

fn bind(path: &Path) -> Result<UnixListener> {
    let directory = path.parent().context("no directory")?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let stat = directory.symlink_metadata()?;
    let fix = format!("chown root {0} && chmod go-w {0}", directory.display());
    let closed = stat.is_dir() && stat.uid() == 0 && stat.mode() & WRITABLE_BY_OTHERS == 0;
    ensure!(closed, "{} is not a directory that only root writes: {fix}", directory.display());
    if let Ok(found) = path.symlink_metadata() {
        ensure!(found.file_type().is_socket(), "{} is there and no socket: remove it", path.display());
    }
    let draft = files::draft_of(path);
    files::forget(&draft)?;
    let listener = UnixListener::bind(&draft)?;
    std::fs::set_permissions(&draft, Permissions::from_mode(0o600))?;
    std::fs::rename(&draft, path)?;
    Ok(listener)
}

/// Locks a journal against a second agent, as long as the returned file is open.
pub fn lock(state: &Path) -> Result<File> {
    files::make_private(state)?;
    let path = state.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    let begun = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let text =
            || format!("another agent works in {}: end it, or choose another --state", state.display());
        ensure!(begun.elapsed() < Duration::from_secs(2), text());
        std::thread::sleep(PAUSE / 2);
    }
    Ok(file)
}
