//! Input and output of a program in a container: files and pipes in a directory in memory that only
//! root sees, on both sides.

use anyhow::{Context as _, Result};
use flexvol_linux::fs::files;
use flexvol_model::paths;
use rustix::fs::{FileType, Mode, mknodat};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::PathBuf;
use tokio::net::unix::pipe::{self, Receiver};

/// Name of the directory below flexvol's directory in memory.
const EXEC: &str = "exec";

/// Prefix of the name of a directory that lasts only as long as its program.
pub(super) const SHORT: &str = "run-";

/// Limit for a program's answer, in bytes.
const ANSWER: usize = 64 << 10;

/// Limit for the other output of a program that is kept, in bytes.
const OUTPUT: usize = 4 << 10;

/// Directory that is removed with this value.
pub(super) struct Streams(pub(super) PathBuf);

/// Returns the directory of this name.
pub(super) fn place(name: &str) -> PathBuf {
    paths::run(EXEC).join(name)
}

/// Removes the leftovers of a killed agent, including its secrets.
pub(super) fn tidy() {
    for entry in std::fs::read_dir(paths::run(EXEC)).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(SHORT.as_bytes()) {
            let _ = files::remove_tree(&entry.path());
        }
    }
}

impl Streams {
    /// Creates a new directory, in place of a leftover one. `input` is the program's standard
    /// input.
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

    /// Creates the pipes for its output: one for both streams or, if standard output is an answer,
    /// two.
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

/// Output of a program: its beginning, or its end.
pub(super) struct Heard {
    pipe: Receiver,
    bytes: Vec<u8>,
    limit: usize,
    first: bool,
}

impl Heard {
    /// Reads output for as long as it is polled.
    pub(super) async fn listen(&mut self) {
        while self.pipe.readable().await.is_ok() {
            self.take();
            tokio::task::yield_now().await;
        }
        std::future::pending::<()>().await;
    }

    /// Reads the available output, but no more than a pipe holds: a process may write without end.
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

    /// Returns the output, once the program has ended.
    pub(super) fn text(mut self) -> String {
        self.take();
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
