//! Program that serves a mount as long as the mount exists: started, watched until it serves, and
//! then left alone.

use crate::proc::helper::{Invocation, last_words};
use crate::proc::scope::{Entrance, Scope};
use crate::proc::supervise;
use anyhow::{Context, Result, ensure};
use flexvol_protocol::secret::Redactor;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, ExitStatus, Stdio};

/// Limit for the output that is kept, in bytes, from the beginning.
const LOG_SIZE: usize = 1 << 16;

/// A program that was started and may have ended.
pub struct Daemon {
    child: Child,
    log: File,
    masked: Redactor,
}

impl Invocation {
    /// Starts the daemon in a session and a scope of its own; it outlives us.
    ///
    /// It inherits only the three standard descriptors.
    /// Standard input is the text of [`Invocation::stdin`], then its end. The other two are a piece
    /// of memory that cannot grow: a pipe would end the daemon as soon as we are gone, and a file
    /// would fill the disk if the daemon writes for years.
    pub fn launch(mut self, scope: &Scope) -> Result<Daemon> {
        let log = log()?;
        let input = match &self.stdin {
            None => Stdio::null(),
            Some(secret) => filled_pipe(secret.expose())?,
        };
        let entrance = scope.enter()?;
        let groups = match entrance {
            Entrance::Through(words) => {
                self = self.behind(&words)?;
                Vec::new()
            }
            Entrance::Groups(groups) => groups,
        };
        let program = self.program.path()?;
        let mut command = self.command(&program);
        command.stdin(input).stdout(log.try_clone()?).stderr(log.try_clone()?);
        let (kept, bounds) = (std::mem::take(&mut self.kept), self.bounds(&program)?);
        supervise::prepare_daemon(&mut command, kept, bounds, groups);
        let child = command.spawn().with_context(|| format!("start {}", program.display()))?;
        Ok(Daemon { child, log, masked: self.redactor() })
    }
}

impl Daemon {
    /// Returns its PID.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Returns its exit status; `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("look at a daemon")
    }

    /// Returns its output so far, without secrets, as one line for a message.
    pub fn words(&self) -> String {
        let mut bytes = vec![0; LOG_SIZE];
        let length = self.log.read_at(&mut bytes, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..length]);
        self.told(text.trim_end_matches('\0'))
    }

    /// Does the same for a text that it has written elsewhere.
    pub fn told(&self, text: &str) -> String {
        last_words(&self.masked.clean(text))
    }
}

fn log() -> Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let log = memfd_create("flexvol-daemon", flags).context("make a log in memory")?;
    ftruncate(&log, LOG_SIZE as u64)?;
    fcntl_add_seals(&log, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(log.into())
}

/// Returns the reading end of a pipe that contains all bytes.
fn filled_pipe(bytes: &[u8]) -> Result<Stdio> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let size = fcntl_setpipe_size(&writer, bytes.len().max(1 << 12))?;
    ensure!(size >= bytes.len(), "{} bytes are too many for a program's standard input", bytes.len());
    File::from(writer).write_all(bytes).context("write a program's standard input")?;
    let flags = rustix::fs::fcntl_getfl(&reader)?;
    rustix::fs::fcntl_setfl(&reader, flags - rustix::fs::OFlags::NONBLOCK)?;
    Ok(reader.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::deadline;
    use flexvol_protocol::secret::Secret;
    use std::time::{Duration, Instant};

    fn shell(script: &str) -> Invocation {
        Invocation::of("sh").args(["-c", script])
    }

    fn scope(name: &str) -> Scope {
        Scope::named(&format!("test-{name}-{}", std::process::id()))
    }

    fn to_its_end(mut daemon: Daemon) -> (ExitStatus, String) {
        let start = Instant::now();
        loop {
            if let Some(status) = daemon.ended().unwrap() {
                return (status, daemon.words());
            }
            assert!(start.elapsed() < deadline(30));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn its_words_are_heard_without_its_secrets() {
        let scope = scope("words");
        let secret = Secret::new(b"hunter2secret".to_vec());
        let script = "read x; echo \"got $x\"; echo again >&2; read y || echo end; exit 3";
        let (status, words) = to_its_end(shell(script).stdin(secret).launch(&scope).unwrap());
        assert_eq!((status.code(), words.as_str()), (Some(3), "got ***; again; end"));
        scope.end(Duration::ZERO);
        assert!(!scope.is_left());
    }

    #[test]
    fn who_talks_for_ever_neither_ends_nor_grows() {
        let scope = scope("talk");
        let script = "head -c 1000000 /dev/zero | tr '\\0' x; echo; exit 0";
        let (status, words) = to_its_end(shell(script).launch(&scope).unwrap());
        assert_eq!(status.code(), Some(0), "{words}");
        scope.end(Duration::ZERO);
    }

    #[test]
    fn grandchildren_in_sessions_of_their_own_are_ended() {
        if !rustix::process::geteuid().is_root()
            || matches!(scope("any").enter(), Ok(Entrance::Groups(groups)) if groups.is_empty())
        {
            return println!("SKIP grandchildren_in_sessions_of_their_own_are_ended: needs control groups");
        }
        let scope = scope("kin");
        let script = "trap '' TERM; setsid sleep 61.5 & (setsid sleep 61.5 &); echo set; exec sleep 61.5";
        let mut daemon = shell(script).launch(&scope).unwrap();
        while daemon.words() != "set" {
            assert!(daemon.ended().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(scope.is_left() && !scope.is_empty());
        let start = Instant::now();
        scope.end(Duration::from_millis(20));
        assert!(start.elapsed() < deadline(10), "{:?}", start.elapsed());
        assert!(scope.is_empty() && !scope.is_left());
        assert!(!to_its_end(daemon).0.success());
    }

    #[test]
    fn it_has_no_more_memory_than_its_scope() {
        let scope = scope("memory").limited(32 << 20);
        let groups =
            |scope: &Scope| matches!(scope.enter(), Ok(Entrance::Groups(groups)) if groups.len() == 2);
        if !rustix::process::geteuid().is_root() || !groups(&scope) {
            scope.end(Duration::ZERO);
            return println!("SKIP it_has_no_more_memory_than_its_scope: needs a second group, for memory");
        }
        let script = "head -c 8000000 /dev/zero | tail -c 8000000 | wc -c; head -c 200000000 /dev/zero | tail -c 200000000 | wc -c";
        let (_, words) = to_its_end(shell(script).launch(&scope).unwrap());
        assert!(words.starts_with("8000000;") && !words.contains("200000000"), "{words}");
        scope.end(Duration::ZERO);
        assert!(!scope.is_left());
    }

    #[test]
    fn it_has_a_session_of_its_own_and_no_descriptor_of_ours() {
        let scope = scope("session");
        let script = "ls /proc/self/fd | wc -l; ps -o sid= -p $$ | tr -d ' '; echo $$";
        let (_, words) = to_its_end(shell(script).launch(&scope).unwrap());
        let words: Vec<_> = words.split("; ").collect();
        // Three descriptors, and the one of ls for the directory itself.
        assert_eq!((words[0], words[1]), ("4", words[2]), "{words:?}");
        scope.end(Duration::ZERO);
    }
}
