//! What goes into a program in a container and comes out of it: files and pipes in a directory in
//! memory that both sides see, and only root.

use anyhow::{Context as _, Result};
use flexvol_linux::fs::files;
use flexvol_model::paths;
use rustix::fs::{FileType, Mode, mknodat};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::PathBuf;
use tokio::net::unix::pipe::{self, Receiver};

/// Below flexvol's directory in memory.
const EXEC: &str = "exec";

/// How the name of one begins that lasts as long as its program.
pub(super) const SHORT: &str = "run-";

/// As much as a program's answer may have.
const ANSWER: usize = 64 << 10;

/// As much as is kept of what a program says besides.
const OUTPUT: usize = 4 << 10;

/// A directory that is gone when this is.
pub(super) struct Streams(pub(super) PathBuf);

/// The directory of this name.
pub(super) fn place(name: &str) -> PathBuf {
    paths::run(EXEC).join(name)
}

/// Removes what an agent that was killed has left, with its secrets.
pub(super) fn tidy() {
    for entry in std::fs::read_dir(paths::run(EXEC)).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(SHORT.as_bytes()) {
            let _ = files::remove_tree(&entry.path());
        }
    }
}

impl Streams {
    /// A new one, in place of any that was left. `input` is what the program reads.
    pub(super) fn make(name: &str, input: &[u8]) -> Result<Self> {
        let path = place(name);
        files::make_private(&paths::run(EXEC))?;
        let _ = files::remove_tree(&path);
        files::make_private(&path)?;
        let made = Self(path);
        if !input.is_empty() {
            let mut file = OpenOptions::new();
            let file = file.create_new(true).write(true).mode(0o600).open(made.0.join("in"));
            file.and_then(|mut file| file.write_all(input)).context("write what a program reads")?;
        }
        Ok(made)
    }

    /// Pipes for what it says: its standard output, and, apart if that is an answer, its errors.
    pub(super) fn listen(&self, answering: bool) -> Result<[Option<Heard>; 2]> {
        let pipe = |name: &str, limit, first| {
            let path = self.0.join(name);
            mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            let pipe = pipe::OpenOptions::new().read_write(true).open_receiver(&path)?;
            Ok::<_, anyhow::Error>(Some(Heard { pipe, bytes: Vec::new(), limit, first }))
        };
        if answering {
            return Ok([pipe("out", ANSWER, true)?, pipe("err", OUTPUT, false)?]);
        }
        symlink("out", self.0.join("err"))?;
        Ok([pipe("out", OUTPUT, false)?, None])
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let _ = files::remove_tree(&self.0);
    }
}

/// What a program says: its beginning, or its end.
pub(super) struct Heard {
    pipe: Receiver,
    bytes: Vec<u8>,
    limit: usize,
    first: bool,
}

impl Heard {
    /// Reads for as long as it is polled.
    pub(super) async fn listen(&mut self) {
        while self.pipe.readable().await.is_ok() {
            self.take();
            tokio::task::yield_now().await;
        }
        std::future::pending::<()>().await;
    }

    /// Reads what is there, but no more than a pipe holds: another one may write without end.
    fn take(&mut self) {
        let mut bytes = [0; 16 << 10];
        for _ in 0..8 {
            match self.pipe.try_read(&mut bytes) {
                Ok(count) if count > 0 => self.keep(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let over = self.bytes.len().saturating_sub(self.limit);
        if self.first {
            self.bytes.truncate(self.limit);
        } else {
            self.bytes.drain(..over);
        }
    }

    /// All of it, once the program has ended.
    pub(super) fn text(mut self) -> String {
        self.take();
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
