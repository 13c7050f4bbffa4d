//! Problem of a driver whose `init` failed, and its fix: for most problems kubelet logs only
//! `unexpected end of JSON input`.

use crate::{End, Exchange, Fault, Run, Verdict};
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::directory::Kind;
use flexvol_linux::fs::files;
use flexvol_protocol::text::one_line;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Instruction with the answer that every driver must give to `init`.
const WANTED: &str = r#"answer init with {"status":"Success","capabilities":{"attach":false}}"#;

/// Limit for the first line of a script, in bytes: the kernel reads no more.
const LINE: u64 = 256;

/// Limit for the output of a driver in a message, in bytes.
const SHOWN: usize = 80;

/// Returns the fix, if kubelet's own message does not make it clear. An `init` has no secrets, so
/// its output may be shown.
pub(super) fn of(executable: &Path, exchange: &Exchange) -> Option<String> {
    let run = exchange.run.as_ref()?;
    match (&run.end, &exchange.verdict) {
        (End::NotStarted(reason), _) => Some(not_started(executable, reason)),
        (End::Signaled(signal), Verdict::Failure(Fault::Malformed(_))) => {
            Some(format!("it was killed by signal {signal} before it had answered"))
        }
        (_, Verdict::Failure(Fault::Malformed(why))) => Some(malformed(run, why)),
        (_, Verdict::Failure(Fault::Status { status, .. })) if status != "Failure" => Some(format!(
            "the status {status:?} counts as a failure: say exactly \"Success\", \"Failure\" or \"Not supported\""
        )),
        (_, Verdict::Failure(Fault::End(_))) => {
            Some("it said Success and then failed: exit with 0".to_owned())
        }
        (_, Verdict::NotSupported) => Some(WANTED.to_owned()),
        _ => None,
    }
}

fn malformed(run: &Run, why: &str) -> String {
    if run.output.trim_ascii().is_empty() {
        return format!("it printed nothing: {WANTED}");
    }
    let shown = &run.output[..run.output.len().min(4 * SHOWN)];
    let text = String::from_utf8_lossy(shown);
    if let Some(program) = text.lines().find_map(missing) {
        return format!(
            "it calls {program}, which is not on this node: install it, or correct its name in the driver"
        );
    }
    if why.contains("cannot unmarshal") {
        return format!(
            "a value in its answer has another type than kubelet reads: write true and false without quotes: {WANTED}"
        );
    }
    let text = one_line(&text, SHOWN);
    format!("it printed {text:?}: print one JSON object and nothing else, also not to standard error")
}

/// Returns the program that a shell has not found: `d: 3: jqq: not found`,
/// `d: line 3: jqq: command not found`.
fn missing(line: &str) -> Option<&str> {
    let before = line.strip_suffix(": command not found").or_else(|| line.strip_suffix(": not found"))?;
    before.rsplit(": ").next().filter(|name| !name.is_empty() && !name.contains([' ', '/']))
}

fn not_started(executable: &Path, reason: &str) -> String {
    let name = executable.file_name().unwrap_or_default().display();
    let path = executable.display();
    match (executable.symlink_metadata(), executable.metadata()) {
        (Ok(link), Err(_)) if link.is_symlink() => {
            format!("{path} is a symlink that leads nowhere: fix or replace it")
        }
        (_, Err(error)) if error.kind() == std::io::ErrorKind::NotFound => format!(
            "there is no file {name} in it: kubelet executes the file named like the part after the last ~"
        ),
        (_, Ok(found)) => unfit(executable, (found.file_type().into(), found.permissions().mode()), reason),
        _ => format!("{path} cannot be executed: {reason}"),
    }
}

/// Reports a first line with a carriage return, left by Windows editors: the kernel takes it as
/// part of the interpreter's name.
fn has_carriage_return(script: &Path) -> bool {
    let start = files::beginning(script, LINE).unwrap_or_default();
    start.starts_with(b"#!")
        && start.split(|byte| *byte == b'\n').next().is_some_and(|line| line.ends_with(b"\r"))
}

/// Explains why an existing file cannot be executed.
fn unfit(executable: &Path, (kind, mode): (Kind, u32), reason: &str) -> String {
    let path = executable.display();
    let is = |errno: Errno| reason.contains(&format!("os error {})", errno.raw_os_error()));
    match () {
        () if kind == Kind::Directory => format!("{path} is a directory: put the driver's executable there"),
        () if kind != Kind::File => {
            format!("{path} is not a regular file: put the driver's executable there")
        }
        () if mode & 0o111 == 0 => {
            format!("{path} is not executable: chmod 0755 {path}")
        }
        () if is(Errno::NOENT) && has_carriage_return(executable) => {
            format!("the first line of {path} ends in a carriage return: sed -i 's/\\r$//' {path}")
        }
        () if is(Errno::NOENT) => format!(
            "the interpreter in the first line of {path}, or its dynamic loader, is not on this node: install it, or take a static binary"
        ),
        () if is(Errno::NOEXEC) => format!(
            "{path} is not a program for this machine: build it for this architecture, or begin the script with #!"
        ),
        () if is(Errno::TXTBSY) => {
            format!("{path} is open for writing: install drivers by rename, never in place")
        }
        () if is(Errno::ACCESS) => format!(
            "the kernel refuses to execute {path}: look for a noexec mount (mount -o remount,exec) or a security module's denial"
        ),
        () => format!("{path} cannot be executed: {reason}"),
    }
}
