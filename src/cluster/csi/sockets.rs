//! Unix sockets that are served, and made again when another process removes them.
//!
//! A socket is complete when it appears: it is bound under a name that kubelet ignores, closed to
//! others, and renamed. A socket that is not served any more is replaced.

use anyhow::{Context as _, Result, ensure};
use flexvol_linux::fs::files;
use hyper_util::rt::TokioIo;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// Pause between two checks that a socket still exists.
const TICK: Duration = Duration::from_secs(1);

/// Deadline for requests that have begun when the process is told to end.
const DRAIN: Duration = Duration::from_secs(10);

/// Wait for a socket: a child of a killed server holds it until it executes the driver.
const HANDOVER: Duration = Duration::from_secs(2);

/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Limit for the path of a socket, in bytes (`sun_path`, with the zero at the end).
const PATH_LIMIT: usize = 107;

/// Returns the path of CSI's `unix:///path`, or of a plain path.
pub fn path_of(endpoint: &str) -> Result<PathBuf> {
    let text = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    let text = text.strip_prefix("unix:").unwrap_or(text);
    ensure!(text.starts_with('/'), "endpoint {endpoint:?} is no socket: write unix:///path/csi.sock");
    ensure!(text.len() < PATH_LIMIT, "endpoint {endpoint:?} is too long for a socket: choose a shorter path");
    Ok(text.into())
}

/// Signal to end.
pub type Stop = watch::Receiver<bool>;

/// Server that listens.
struct Server {
    inode: (u64, u64),
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Serves at `path` until told to end; `again` recreates the socket, for clients that watch it.
pub async fn keep(
    path: PathBuf,
    service: impl Fn() -> Router,
    again: Arc<Notify>,
    mut stop: Stop,
) -> Result<()> {
    let begun = Instant::now();
    while is_served(&path) {
        let text = || format!("{} is served by another process: end that first", path.display());
        ensure!(begun.elapsed() < HANDOVER, text());
        tokio::time::sleep(TICK / 20).await;
    }
    let mut server = start(&path, service())?;
    loop {
        let replaced = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            () = again.notified() => true,
            () = tokio::time::sleep(TICK) => inode(&path) != Some(server.inode),
        };
        if replaced {
            tracing::warn!(socket = %path.display(), "making the socket again");
            let next = start(&path, service())?;
            let _ = std::mem::replace(&mut server, next).end.send(());
        }
    }
    if inode(&path) == Some(server.inode) {
        let _ = std::fs::remove_file(&path);
    }
    let _ = server.end.send(());
    let _ = tokio::time::timeout(DRAIN, server.task).await;
    Ok(())
}

fn start(path: &Path, service: Router) -> Result<Server> {
    let listener = bind(path).with_context(|| format!("listen at {}", path.display()))?;
    let inode = inode(path).with_context(|| format!("{} is gone", path.display()))?;
    let (end, told) = oneshot::channel();
    let task = tokio::spawn(async move {
        let ended = async { drop(told.await) };
        let served = service.serve_with_incoming_shutdown(accepted(listener), ended).await;
        if let Err(error) = served {
            tracing::error!(reason = %error, "the server failed");
        }
    });
    Ok(Server { inode, end, task })
}

/// Returns the connections. Without a free descriptor the kernel accepts none, and would say the
/// same at once: so the next attempt comes a little later.
fn accepted(listener: UnixListener) -> impl Stream<Item = std::io::Result<UnixStream>> {
    UnixListenerStream::new(listener).then(|accepted| async {
        if accepted.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
        accepted
    })
}

fn bind(path: &Path) -> Result<UnixListener> {
    let directory = path.parent().context("no directory")?;
    DirBuilder::new().recursive(true).mode(0o750).create(directory)?;
    // The draft's name belongs to this socket alone: another process may make one beside it now.
    let draft = files::draft_of(path);
    remove_socket(&draft)?;
    let listener = UnixListener::bind(&draft)?;
    std::fs::set_permissions(&draft, Permissions::from_mode(0o600))?;
    remove_socket(path)?;
    std::fs::rename(&draft, path)?;
    Ok(listener)
}

/// Connects to a CSI server: servers refuse every authority but a plain one.
pub async fn connect(path: &Path) -> Result<Channel> {
    let path: Arc<Path> = path.into();
    let shown = path.display().to_string();
    let connector = service_fn(move |_: Uri| {
        let path = Arc::clone(&path);
        async move { UnixStream::connect(&path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connector).await.with_context(|| format!("connect to {shown}"))
}

/// Removes a socket, never anything else.
fn remove_socket(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => ensure!(found?.file_type().is_socket(), "{} is there and no socket", path.display()),
    }
    Ok(std::fs::remove_file(path)?)
}

fn is_served(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_paths() {
        for (endpoint, path) in [("unix:///a/csi.sock", "/a/csi.sock"), ("/a", "/a"), ("unix:/a", "/a")] {
            assert_eq!(path_of(endpoint).unwrap(), Path::new(path));
        }
        for endpoint in ["tcp://x:1", "a", "", "unix://a", &format!("/{}", "a".repeat(120))] {
            assert!(path_of(endpoint).is_err(), "{endpoint}");
        }
    }

    #[test]
    fn two_that_begin_in_one_directory_do_not_take_each_other_s_socket() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one.sock"), dir.path().join("other.sock"));
        // The other server has come this far.
        let draft = std::os::unix::net::UnixListener::bind(files::draft_of(&other)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let listener = bind(&one).unwrap();
        std::fs::rename(files::draft_of(&other), &other).unwrap();
        for (path, address) in [
            (&one, listener.local_addr().unwrap().as_pathname()),
            (&other, draft.local_addr().unwrap().as_pathname()),
        ] {
            assert_eq!(address.unwrap(), files::draft_of(path));
            assert!(is_served(path));
        }
    }

    #[test]
    fn nothing_but_a_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        std::fs::File::create(&path).unwrap();
        assert!(remove_socket(&path).is_err() && path.exists());
        std::fs::remove_file(&path).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(!is_served(&path));
        remove_socket(&path).unwrap();
        assert!(!path.exists());
    }
}
