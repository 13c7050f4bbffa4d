//! Storage of a volume that the node's agent holds and releases.
//!
//! A note is written before the agent is asked, and stays until the agent has been told of the
//! release. So an unmount, which has no options, knows that there is something to tell. No unmount
//! waits for the agent or fails without it: a release that could not be told is left beside the
//! note, and the agent reads it when it starts.

use super::context::Context;
use super::record;
use super::undo::Undo;
use crate::agent_client::{self, AGENT_WAIT, DONE, request};
use anyhow::Result;
use flexvol_linux::fs::files;
use flexvol_linux::net::daemon_socket;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::agent::LONGEST_FRAME;
use flexvol_model::paths;
use flexvol_protocol::TargetPath;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit for the agent to start and to decide.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Limit for a release; after that, the agent reads the note of it.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

/// End of the name of a note that the agent has to read.
const RELEASED: &str = ".released";

/// Asks until the agent holds the storage for this mount. Otherwise the error names the other
/// holder.
pub(super) fn hold(
    context: &Context<'_>,
    socket: &Path,
    hold: &BTreeMap<String, String>,
) -> Result<Option<Undo>> {
    let target = hold.get("target").map(OsStr::new).unwrap_or_default();
    let target = TargetPath::parse(target)?;
    let note = note(&target, "");
    files::make_directories(&paths::run(paths::HOLDS), 0o700)?;
    let params = serde_json::to_string(hold)?;
    files::replace_unsynced(&note, params.as_bytes())?;
    let told = ask(context, socket, &params);
    // Released in any case, whether the agent holds it or not: nothing will be mounted.
    if told.is_err() {
        release(socket, &target);
    }
    told.map(|()| Some(Undo::Release(socket.to_owned(), target)))
}

fn ask(context: &Context<'_>, socket: &Path, params: &str) -> Result<()> {
    let deadline = Deadline::after(ANSWER_WAIT.min(context.deadline.remaining()));
    let told = agent_client::ask(socket, ("hold", params), &deadline, AGENT_WAIT.min(deadline.remaining()));
    told.map(drop)
}

/// Reports whether the storage of this target was held, and the agent does not know yet that it is
/// free.
pub(super) fn is_held(target: &TargetPath) -> bool {
    note(target, "").exists()
}

/// Tells the agent, or leaves a note for it. On a full disk neither may be possible: then the agent
/// notices once kubelet has removed the target.
pub(super) fn release(socket: &Path, target: &TargetPath) {
    let note = note(target, "");
    let Ok(Some(params)) = files::read_small(&note, LONGEST_FRAME) else { return };
    let request = request("release", 0, &params);
    let answer = daemon_socket::ask(socket, &request, &Deadline::for_undo(RELEASE_WAIT));
    if !answer.is_ok_and(|answer| answer.starts_with(DONE)) {
        let _ = files::replace_unsynced(&self::note(target, RELEASED), request.as_bytes());
    }
    let _ = files::forget(&note);
}

/// Returns the note of a target's hold; with [`RELEASED`], the note that the agent has to read.
fn note(target: &TargetPath, end: &str) -> PathBuf {
    paths::run(paths::HOLDS).join(record::name_of(target) + end)
}
