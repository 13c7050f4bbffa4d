//! Calls of a driver whose side file says `"run": "agent"`: the node's agent carries them out. Each
//! runs in its own process of this same executable, with the programs of the agent's image.
//!
//! A mount needs the agent. An unmount does not: without an answer, it is done here.

use crate::agent_client::{self, AGENT_WAIT};
use crate::hints::to_failure;
use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::agent;
use flexvol_model::installed::Installed;
use flexvol_protocol::{Reply, Verb, failure};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

/// Limit for a call, in bytes: the kernel limits each argument to an eighth of that.
const LONGEST_CALL: u64 = 1 << 20;

/// Call for the agent to carry out.
pub(super) struct Order<'a> {
    socket: &'a Path,
    verb: Verb,
    params: String,
}

impl<'a> Order<'a> {
    /// Builds the order from the original arguments, if the side file has the agent carry out the
    /// calls.
    pub(super) fn of(
        installed: &'a Installed,
        verb: Verb,
        arguments: &[OsString],
    ) -> failure::Result<Option<Self>> {
        let settings = agent::settings(&installed.settings.agent)?;
        let Some(settings) = settings.filter(|settings| settings.runs) else { return Ok(None) };
        // A volume's name needs no programs.
        let asks = verb != Verb::GetVolumeName;
        let Some(directory) = installed.directory.as_deref().filter(|_| asks) else { return Ok(None) };
        let words = std::iter::once(OsStr::new(verb.name())).chain(arguments.iter().map(OsString::as_os_str));
        let words: Vec<_> = words.map(OsStr::as_encoded_bytes).collect();
        let call = STANDARD.encode(words.join(&0));
        let params = format!(r#"{{"driver":{},"call":"{call}"}}"#, Value::from(directory));
        Ok(Some(Self { socket: Path::new(settings.socket), verb, params }))
    }

    /// Returns the reply; `None` if the call is to be carried out here.
    pub(super) fn carry_out(&self, allowed: Duration) -> Option<Reply> {
        let unmounts = matches!(self.verb, Verb::Unmount | Verb::UnmountDevice);
        let (time, patience) = if unmounts { (allowed / 2, Duration::ZERO) } else { (allowed, AGENT_WAIT) };
        match self.ask(&Deadline::after(time), patience) {
            Err(_) if unmounts => None,
            reply => Some(reply.unwrap_or_else(|error| to_failure(error).into())),
        }
    }

    fn ask(&self, deadline: &Deadline, patience: Duration) -> Result<Reply> {
        let answer = agent_client::ask(self.socket, ("call", &self.params), deadline, patience)?;
        let answer: Value = serde_json::from_slice(&answer)?;
        answer["ok"]["reply"].as_str().and_then(Reply::from_line).context("the agent's answer makes no sense")
    }
}

/// Reads the call that the agent has put on standard input, and its time limit. Both are empty if
/// there is no call.
pub(super) fn left_on_input() -> (Vec<OsString>, Duration) {
    let mut bytes = Vec::new();
    let _ = std::io::stdin().take(LONGEST_CALL).read_to_end(&mut bytes);
    let mut words = bytes.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned());
    let within = words.next().and_then(|word| word.to_str()?.parse().ok()).unwrap_or_default();
    (words.collect(), Duration::from_millis(within))
}
