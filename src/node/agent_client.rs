//! Requests to the node's agent, and its answers.

use anyhow::{Context as _, Result};
use flexvol_linux::errno::Errno;
use flexvol_linux::net::daemon_socket;
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_protocol::failure::{Code, Failure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Longest wait for an agent that does not listen: a new agent may be replacing the old one.
pub(crate) const AGENT_WAIT: Duration = Duration::from_secs(10);

/// Pause between two attempts to reach the agent.
const TICK: Duration = Duration::from_millis(100);

/// Time that must remain for another attempt at a busy agent; with less, the caller gets the
/// reason.
const LAST: Duration = Duration::from_secs(1);

/// Nanoseconds in a second.
const NANOS: u64 = 1_000_000_000;

/// Error code of an agent that is busy with other requests.
const CROWDED: &str = "CROWDED";

/// Start of the agent's answer to a request that it has carried out.
pub(crate) const DONE: &[u8] = b"{\"ok\":";

/// Sends the request until the deadline; within that, waits at most `patience` until an agent
/// listens. Returns the answer if the agent has carried out the request, else the reason as an
/// error.
pub(crate) fn ask(
    socket: &Path,
    (method, params): (&str, &str),
    deadline: &Deadline,
    patience: Duration,
) -> Result<Vec<u8>> {
    let patience = Deadline::after(patience);
    loop {
        let left = deadline.remaining();
        let until = clock::since_boot() + left.as_secs() * NANOS + u64::from(left.subsec_nanos());
        match daemon_socket::ask(socket, &request(method, until, params), deadline) {
            Ok(answer) if answer.starts_with(DONE) => return Ok(answer),
            // The agent has begun nothing: it serves other requests first.
            Ok(answer) if is_crowded(&answer) && left > LAST => std::thread::sleep(TICK),
            Ok(answer) => return Err(refused(&answer)),
            Err(error) if is_missing(&error) && patience.check("").is_ok() => {
                std::thread::sleep(TICK);
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("ask the agent at {}: start flexvold agent on this node", socket.display())
                });
            }
        }
    }
}

/// Reports whether the agent was asked and has not answered: its effects are unknown.
pub(crate) fn is_lost(error: &anyhow::Error) -> bool {
    code_of(error).is_none() && !is_missing(error)
}

/// Reports whether the agent has refused the request. An agent that is too old to know the method
/// does not count: it has nothing to do with the request.
pub(crate) fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(code_of(error), Some(Code::Conflict | Code::Busy))
}

/// Reports whether the refusal is final; otherwise the agent may still carry out the request.
pub(crate) fn is_final(error: &anyhow::Error) -> bool {
    matches!(code_of(error), Some(Code::Conflict | Code::BadCall))
}

fn code_of(error: &anyhow::Error) -> Option<Code> {
    let code = error.downcast_ref::<Failure>().map(Failure::code);
    code.filter(|code| matches!(code, Code::Conflict | Code::Busy | Code::BadCall))
}

/// Formats a request as it is sent.
pub(crate) fn request(method: &str, until: u64, params: &str) -> String {
    let asked = clock::since_boot();
    format!(r#"{{"v":1,"method":"{method}","asked":{asked},"until":{until},"params":{params}}}"#)
}

fn is_crowded(answer: &[u8]) -> bool {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    answer["err"]["code"] == CROWDED
}

fn refused(answer: &[u8]) -> anyhow::Error {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let text = answer["err"]["msg"].as_str().unwrap_or("the agent's answer makes no sense");
    let code = match answer["err"]["code"].as_str() {
        Some("IN_PROGRESS" | CROWDED) => Code::Busy,
        Some("BAD_REQUEST" | "UNSUPPORTED_VERSION") => Code::BadCall,
        _ => Code::Conflict,
    };
    Failure::new(code, text).into()
}

/// Reports whether no agent listens: then nothing was requested.
pub(crate) fn is_missing(error: &anyhow::Error) -> bool {
    let errno = error.downcast_ref::<Errno>();
    matches!(errno, Some(&(Errno::NOENT | Errno::CONNREFUSED)))
}
