//! What may hang: looking at a volume whose server does not answer.

use super::evidence::Stopped;
use std::sync::mpsc::sync_channel;
use std::thread::Builder;
use std::time::Duration;

/// What `work` returns, or `None` if that takes too long. Then it goes on until the sandbox ends.
pub(super) fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, Stopped> {
    let (tell, told) = sync_channel(1);
    // The reader may be gone.
    Builder::new().spawn(move || drop(tell.send(work())))?;
    Ok(told.recv_timeout(patience).ok())
}
