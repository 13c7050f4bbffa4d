//! Execution of this same program under another name, for work that needs a process without
//! threads.

use flexvol_kubelet::Caller;
use flexvol_protocol::Reply;
use std::io::Write as _;
use std::process::ExitCode;

/// Returns a caller that executes this program under `name`, by which `main` recognises it.
pub(crate) fn caller(name: &str) -> Caller {
    let mut caller = Caller::new("/proc/self/exe");
    caller.terms.name = Some(name.into());
    caller
}

/// Prints the only reply, as a driver does.
pub(crate) fn give(reply: &Reply) -> ExitCode {
    match std::io::stdout().write_all(reply.to_line().as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
