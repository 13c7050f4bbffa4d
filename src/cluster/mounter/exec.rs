//! `flexvold mounter exec`: runs a program for a caller that reads its streams to their end, as a
//! runtime's exec does.
//!
//! A program that leaves a daemon running would hold those streams, and the caller would wait for
//! as long as the daemon lives. So the program has none of them: standard input is empty, and its
//! output goes to memory, and from there to the caller once the program itself has ended.

use anyhow::{Context as _, Result};
use flexvol_linux::proc::signal;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write};
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Exit codes of a shell and of timeout(1).
const TIMED_OUT: u8 = 124;
const NOT_EXECUTABLE: u8 = 126;
const MISSING: u8 = 127;
const SIGNALLED: u8 = 128;

/// Limit for the bytes that are kept of each stream, from its beginning.
const STREAM: u64 = 1 << 20;

/// Grace period from SIGTERM to SIGKILL.
const END: Duration = Duration::from_secs(2);

/// Runs a program to its end, prints its output, and returns the exit code.
#[expect(clippy::disallowed_methods, reason = "its caller names the program, its time and its streams")]
pub fn run(words: &[OsString], within: Duration, out: impl Write, err: impl Write) -> Result<u8> {
    let (program, args) = words.split_first().context("name a program")?;
    let name = program.to_string_lossy();
    let (kept_out, kept_err) = (stream()?, stream()?);
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).process_group(0);
    command.stdout(kept_out.try_clone()?).stderr(kept_err.try_clone()?);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return refused(&name, &error, err),
    };
    let ended = wait(&mut child, within)?;
    pass_on(kept_out, out)?;
    let mut err = pass_on(kept_err, err)?;
    Ok(match ended {
        Ended::Itself(status) => code(status),
        Ended::Told => SIGNALLED + 15,
        Ended::Late => {
            writeln!(err, "{name} timed out after {} s and was killed", within.as_secs())?;
            TIMED_OUT
        }
    })
}

/// Creates a file in memory that cannot grow: a program that prints for years does not fill the
/// memory.
fn stream() -> Result<File> {
    let file = memfd_create("flexvol-exec", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, STREAM)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Copies the output, up to the offset, which the file shares with the program.
fn pass_on<W: Write>(mut from: File, mut to: W) -> Result<W> {
    let length = from.stream_position()?;
    from.seek(SeekFrom::Start(0))?;
    io::copy(&mut from.take(length), &mut to).context("print what it has printed")?;
    to.flush()?;
    Ok(to)
}

fn refused(name: &str, error: &io::Error, mut err: impl Write) -> Result<u8> {
    writeln!(err, "cannot run {name}: {error}")?;
    Ok(if error.kind() == ErrorKind::NotFound { MISSING } else { NOT_EXECUTABLE })
}

fn code(status: ExitStatus) -> u8 {
    let signalled = status.signal().and_then(|signal| u8::try_from(signal).ok());
    match (status.code().and_then(|code| u8::try_from(code).ok()), signalled) {
        (Some(code), _) => code,
        (None, signal) => SIGNALLED.saturating_add(signal.unwrap_or_default()),
    }
}

/// Reasons why the program has ended.
enum Ended {
    Itself(ExitStatus),
    Told,
    Late,
}

/// Waits until the program ends. Kills a late program and all processes of its group: a mount that
/// they make later would surprise the users.
fn wait(child: &mut Child, within: Duration) -> Result<Ended> {
    let pid = Pid::from_child(child);
    let watched = pidfd_open(pid, PidfdFlags::empty()).context("watch a program")?;
    if signal::wait_readable(watched.as_fd(), Some(within))? {
        return Ok(Ended::Itself(child.wait()?));
    }
    let ended = if signal::interrupted() { Ended::Told } else { Ended::Late };
    signal::heeded();
    let _ = kill_process_group(pid, Signal::TERM);
    let _ = signal::wait_readable(watched.as_fd(), Some(END));
    let _ = kill_process_group(pid, Signal::KILL);
    child.wait()?;
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::{deadline, slow_seconds};
    use std::time::Instant;

    fn ran(script: &str, within: Duration) -> (u8, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let words = ["sh", "-c", script].map(OsString::from);
        let code = run(&words, within, &mut out, &mut err).unwrap();
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    /// Test 11.
    #[test]
    fn streams_and_exit_codes_are_kept_apart() {
        let long = deadline(20);
        assert_eq!(ran("echo a; echo b >&2; exit 7", long), (7, "a\n".into(), "b\n".into()));
        assert_eq!(ran("cat", long), (0, String::new(), String::new()));
        assert_eq!(ran("kill -9 $$", long).0, 137);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        for (program, code) in [("/nowhere/at/all", MISSING), ("/etc/passwd", NOT_EXECUTABLE)] {
            assert_eq!(run(&[program.into()], long, &mut out, &mut err).unwrap(), code);
        }
        assert!(out.is_empty() && String::from_utf8(err).unwrap().contains("/nowhere/at/all"));
    }

    /// Test 13.
    #[test]
    fn who_stays_behind_holds_nothing_up() {
        let (code, out, _) = ran(&format!("sleep {}.25 & echo $!", slow_seconds(61)), deadline(20));
        assert_eq!(code, 0, "it was waited for");
        // It continues to run: it may be a program that serves a volume.
        let pid = Pid::from_raw(out.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }

    /// Test 12, and a grandchild that would mount later.
    #[test]
    fn who_is_late_is_ended_with_all_it_has_started() {
        // Enough time for the script to begin.
        let within = deadline(1);
        let (code, out, err) = ran("trap '' TERM; echo $$; sh -c 'sleep 6000; true'; true", within);
        assert_eq!(code, TIMED_OUT);
        assert!(err.contains("sh timed out after"), "{err}");
        let group = Pid::from_raw(out.trim().parse().unwrap()).unwrap();
        let begun = Instant::now();
        // A process that is dead belongs to its group until it is reaped.
        while rustix::process::test_kill_process_group(group).is_ok() {
            assert!(begun.elapsed() < deadline(60), "what it has started lives on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Test 14.
    #[test]
    fn who_prints_a_lot_is_not_held_up_and_fills_no_memory() {
        let script = "head -c 20000000 /dev/zero | tr '\\0' x; echo end >&2; exit 3";
        let (code, out, err) = ran(script, deadline(60));
        assert_eq!((code, out.len() as u64), (3, STREAM));
        assert!(err.ends_with("end\n"), "{err}");
    }
}
