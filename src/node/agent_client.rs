//! Requests to the node's agent, and what it answers.

use anyhow::{Context as _, Result};
use flexvol_linux::errno::Errno;
use flexvol_linux::net::daemon_socket;
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_protocol::failure::{Code, Failure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How long an agent that does not listen is waited for: one may be following another.
pub(crate) const AGENT_WAIT: Duration = Duration::from_secs(10);

/// How often it is looked for.
const TICK: Duration = Duration::from_millis(100);

/// Whoever has less time than this left is told why it was not done.
const LAST: Duration = Duration::from_secs(1);

/// Of a second.
const NANOS: u64 = 1_000_000_000;

/// Its word for being busy with others.
const CROWDED: &str = "CROWDED";

/// How the answer of an agent begins that has done it.
pub(crate) const DONE: &[u8] = b"{\"ok\":";

/// Asks until the deadline, and waits within that for so long until an agent listens. What it
/// answers, if it has done it; else why not.
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
            // Nothing was begun: others are served first.
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

/// Whether it was asked and has not answered: no one knows what it has done.
pub(crate) fn is_lost(error: &anyhow::Error) -> bool {
    code_of(error).is_none() && !is_missing(error)
}

/// Whether it has answered that it does not do it. One that is too old to know what is asked for
/// has nothing to do with it.
pub(crate) fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(code_of(error), Some(Code::Conflict | Code::Busy))
}

/// Whether it has answered so for good, as against that it may be done yet.
pub(crate) fn is_final(error: &anyhow::Error) -> bool {
    matches!(code_of(error), Some(Code::Conflict | Code::BadCall))
}

fn code_of(error: &anyhow::Error) -> Option<Code> {
    let code = error.downcast_ref::<Failure>().map(Failure::code);
    code.filter(|code| matches!(code, Code::Conflict | Code::Busy | Code::BadCall))
}

/// As it is sent.
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

/// Whether no agent listens: it was asked for nothing.
pub(crate) fn is_missing(error: &anyhow::Error) -> bool {
    let errno = error.downcast_ref::<Errno>();
    matches!(errno, Some(&(Errno::NOENT | Errno::CONNREFUSED)))
}
