//! Program of the user whose output is read while it runs, such as kubectl.
//!
//! A helper is searched in fixed directories and ends at its deadline.
//! This program is searched as in the user's shell, has the user's environment and terminal (it may
//! ask for a password), and has no time limit. Code that kubelet executes never starts one.

use crate::raw;
use nix::sys::signal::{SigHandler, Signal};
use rustix::io::Errno;
use rustix::process::{getpid, getppid, set_parent_process_death_signal};
use std::ffi::OsStr;
use std::io::{self, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

/// Returns the program of this name in the user's `$PATH`.
/// Skips entries that are not absolute: any user may have put files into the working directory.
pub fn of_the_user(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let is_program =
        |file: &PathBuf| file.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).filter(|it| it.is_absolute()).map(|it| it.join(name)).find(is_program)
}

/// A running program. It is killed on drop, unless it has ended.
#[derive(Debug)]
pub struct Piped(Child);

impl Piped {
    /// Starts a program; its standard error is ours.
    #[expect(clippy::disallowed_methods, reason = "a program of the user's own, with the user's environment")]
    pub fn start<'a>(program: &Path, words: impl IntoIterator<Item = &'a OsStr>) -> io::Result<Self> {
        Ok(Self(Command::new(program).args(words).stdout(Stdio::piped()).spawn()?))
    }

    /// Starts a program that passes on foreign text: its standard error is kept from the terminal,
    /// too, and it has no input.
    #[expect(clippy::disallowed_methods, reason = "a program of the user's own, with the user's environment")]
    pub fn apart<'a>(program: &Path, words: impl IntoIterator<Item = &'a OsStr>) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    /// Starts a program that serves us until we end, for whatever reason: it ends with this
    /// process, and Ctrl-C in a terminal does not end it earlier.
    ///
    /// Only for the main thread, or one that outlives the program: the kernel ends the program when
    /// the thread that started it is gone.
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

    /// Starts a program that reads this from its standard input.
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
        // A program that has ended already reports the reason.
        match stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(input)) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(running),
        }
    }

    /// Returns its output, as it comes. Only for one call.
    pub fn output(&mut self) -> Option<BufReader<ChildStdout>> {
        Some(BufReader::new(self.0.stdout.take()?))
    }

    /// Returns its error messages, as they come.
    /// Only for one call, and for a program that is started [apart](Self::apart).
    pub fn errors(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Waits for its end.
    /// Further output is read and dropped: a program fails if its output has no reader.
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
