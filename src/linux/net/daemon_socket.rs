//! Requests to a daemon of root, and its answers: each is a length of four bytes and as much text.

use crate::proc::deadline::Deadline;
use crate::raw;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Limit for an answer, in bytes.
const LIMIT: usize = 1 << 20;

/// Pause before the next attempt if a socket accepts no connection now.
const TICK: Duration = Duration::from_millis(20);

/// Shortest timeout that a socket accepts.
const LEAST: Duration = Duration::from_millis(1);

/// Asks a daemon and returns its answer. Only root can be the daemon: only root may write to the
/// directory of the socket, and the listening process belongs to root.
pub fn ask(socket: &Path, request: &str, deadline: &Deadline) -> Result<Vec<u8>> {
    Conversation::begin(socket, deadline)?.ask(request, deadline)
}

/// A connection to such a daemon, for several requests.
#[derive(Debug)]
pub struct Conversation {
    stream: UnixStream,
}

impl Conversation {
    /// Connects, as [`ask`] does.
    pub fn begin(socket: &Path, deadline: &Deadline) -> Result<Self> {
        Ok(Self { stream: connected(socket, deadline)? })
    }

    /// Returns the PID of the listening process; `None` if it has no PID in this PID namespace.
    pub fn listener(&self) -> Option<u32> {
        let pid = raw::peer(self.stream.as_fd()).ok()?.0;
        u32::try_from(pid).ok().filter(|pid| *pid > 0)
    }

    /// Returns the daemon's answer. After a failure, no further answer is valid.
    pub fn ask(&mut self, request: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        let stream = &mut self.stream;
        let length = u32::try_from(request.len())?.to_be_bytes();
        stream.set_write_timeout(Some(deadline.remaining().max(LEAST)))?;
        stream.write_all(&[&length[..], request.as_bytes()].concat())?;
        let mut length = [0; 4];
        fill(stream, &mut length, deadline)?;
        let length = u32::from_be_bytes(length) as usize;
        ensure!(length <= LIMIT, "the answer has {length} bytes");
        let mut answer = vec![0; length];
        fill(stream, &mut answer, deadline)?;
        Ok(answer)
    }
}

fn connected(socket: &Path, deadline: &Deadline) -> Result<UnixStream> {
    let directory = socket.parent().context("it has no directory")?;
    let stat = rustix::fs::stat(directory)?;
    ensure!(
        stat.st_uid == 0 && stat.st_mode & 0o022 == 0,
        "others than root may write to {}: chown root it, and chmod go-w",
        directory.display()
    );
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(socket)?;
    while let Err(errno) = connect(&stream, &address) {
        // The kernel's queue for waiting connections is full.
        if errno != Errno::AGAIN || deadline.expired() {
            return Err(errno.into());
        }
        std::thread::sleep(TICK);
    }
    ensure!(is_root_s(stream.as_fd()), "its process is not root's: end that first");
    let stream = UnixStream::from(stream);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Reports whether the process at the other end belongs to root, also in another PID namespace.
pub fn is_root_s(socket: BorrowedFd<'_>) -> bool {
    raw::peer(socket).is_ok_and(|(_, user)| user == 0)
}

fn fill(stream: &mut UnixStream, buffer: &mut [u8], deadline: &Deadline) -> Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        deadline.check("waiting for an answer")?;
        stream.set_read_timeout(Some(deadline.remaining().max(LEAST)))?;
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => bail!("it ended the connection"),
            Ok(count) => filled += count,
            // Timeout or signal: the deadline decides.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::AGAIN | Errno::INTR)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
