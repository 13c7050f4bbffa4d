//! This very program, executed under another name: for what has no place in a process with threads.

use flexvol_kubelet::Caller;
use flexvol_protocol::Reply;
use std::io::Write as _;
use std::process::ExitCode;

/// Executes it under a name, which `main` knows it by.
pub(crate) fn caller(name: &str) -> Caller {
    let mut caller = Caller::new("/proc/self/exe");
    caller.terms.name = Some(name.into());
    caller
}

/// Gives the one reply, as a driver does.
pub(crate) fn give(reply: &Reply) -> ExitCode {
    match std::io::stdout().write_all(reply.to_line().as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
