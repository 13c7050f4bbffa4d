//! Start of a driver.

use super::{Reader, Terms};
use flexvol_linux::fs::opened::in_memory;
use flexvol_linux::proc::{child, limits};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Returns the standard input, and the writing end that must stay open to keep a silent input
/// silent.
pub(super) fn input(terms: &Terms) -> io::Result<(Stdio, Option<OwnedFd>)> {
    if let Some(input) = &terms.input {
        return Ok((in_memory("input", input.expose())?.into(), None));
    }
    if !terms.silent_input {
        return Ok((Stdio::null(), None));
    }
    let (reader, writer) = child::pipe()?;
    Ok((reader.into(), Some(writer)))
}

/// Returns the process and the reading end of its output; no reading end if no one reads the
/// output.
#[expect(
    clippy::disallowed_methods,
    reason = "a foreign driver is executed as kubelet would, not as a helper"
)]
pub(super) fn spawn(
    program: &Path,
    arguments: &[OsString],
    terms: &Terms,
    input: Stdio,
) -> io::Result<(Child, Option<OwnedFd>)> {
    let (reader, writer) = child::pipe()?;
    if let Reader::Slow { .. } = terms.reader {
        child::make_smallest(reader.as_fd())?;
    }
    // The reading end is closed before the start, so that it is closed before the first byte.
    let reader = (terms.reader != Reader::Closed).then_some(reader);
    let mut command = Command::new(program);
    if let Some(name) = &terms.name {
        command.arg0(name);
    }
    command.args(arguments).env_clear().envs(terms.environment.iter().map(|(name, value)| (name, value)));
    if let Some(directory) = &terms.directory {
        command.current_dir(directory);
    }
    command.process_group(0);
    limits::impose(&mut command, terms.limits, terms.umask);
    if let Some(observer) = &terms.observer {
        observer.prepare(&mut command)?;
    }
    command.stdin(input).stdout(writer.try_clone()?).stderr(writer);
    // The command holds our copies of the pipe's writing end until it is dropped, on return.
    Ok((command.spawn()?, reader))
}
