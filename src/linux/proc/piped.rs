//! A program of the user's own whose output is read while it runs, such as kubectl.
//!
//! A helper is found in fixed directories and is over at its deadline. This one is found where the
//! user's shell finds it, has the user's environment and terminal (it may ask for a password), and
//! takes as long as it takes. Nothing that kubelet executes starts one.

use crate::raw;
use nix::sys::signal::{SigHandler, Signal};
use rustix::io::Errno;
use rustix::process::{getpid, getppid, set_parent_process_death_signal};
use std::ffi::OsStr;
use std::io::{self, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

/// The program of this name in the user's `$PATH`. Entries of it that are not absolute are passed
/// over: what lies in the working directory is anybody's.
pub fn of_the_user(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let is_program =
        |file: &PathBuf| file.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).filter(|it| it.is_absolute()).map(|it| it.join(name)).find(is_program)
}

/// A program that runs. It is killed with what holds it, unless it has ended.
#[derive(Debug)]
pub struct Piped(Child);

impl Piped {
    /// Starts it; its standard error is ours.
    #[expect(clippy::disallowed_methods, reason = "a program of the user's own, with the user's environment")]
    pub fn start<'a>(program: &Path, words: impl IntoIterator<Item = &'a OsStr>) -> io::Result<Self> {
        Ok(Self(Command::new(program).args(words).stdout(Stdio::piped()).spawn()?))
    }

    /// The same for one that passes on what somebody else says: its standard error is kept from the
    /// terminal, too, and it reads nothing.
    #[expect(clippy::disallowed_methods, reason = "a program of the user's own, with the user's environment")]
    pub fn apart<'a>(program: &Path, words: impl IntoIterator<Item = &'a OsStr>) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    /// The same for one that serves us until we end, however that is: it is ended with this
    /// process, and a terminal's Ctrl-C does not end it before.
    ///
    /// Only for the main thread, or one that outlives it: the kernel ends the program when the
    /// thread that started it is gone.
    #[expect(clippy::disallowed_methods, reason = "a program of the user's own, with the user's environment")]
    pub fn serve<'a>(program: &Path, words: impl IntoIterator<Item = &'a OsStr>) -> io::Result<Self> {
        let parent = getpid();
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        raw::before_exec(&mut command, move || {
            raw::set_disposition(Signal::SIGINT, SigHandler::SigIgn)?;
            set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
            // If the parent died before that call, the signal never comes.
            if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
        });
        Ok(Self(command.spawn()?))
    }

    /// The same, and it reads this from its standard input.
    #[expect(clippy::disallowed_methods, reason = "a program of the user's own, with the user's environment")]
    pub fn fed<'a>(
        program: &Path,
        words: impl IntoIterator<Item = &'a OsStr>,
        input: &[u8],
    ) -> io::Result<Self> {
        let mut command = Command::new(program);
        let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take();
        let running = Self(child);
        // One that has ended says why by itself.
        match stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(input)) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(running),
        }
    }

    /// What it prints, as it comes; to be asked for once.
    pub fn output(&mut self) -> Option<BufReader<ChildStdout>> {
        Some(BufReader::new(self.0.stdout.take()?))
    }

    /// What it complains of, as it comes; to be asked for once, of one that is kept
    /// [apart](Self::apart).
    pub fn errors(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Waits for its end. What it prints from now on is read and lost: a program whose output
    /// nobody reads any more fails.
    pub fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(mut rest) = self.output() {
            io::copy(&mut rest, &mut io::sink())?;
        }
        self.0.wait()
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
