//! Volume of a CSI driver: the node's agent publishes it at the target and unpublishes it.
//!
//! A note is written before the agent is asked, and stays until the volume is unpublished. So an
//! unmount knows that it has to tell the agent, whether the volume is mounted or not. An unmount
//! does not fail without an agent: the mount at the target is unmounted here, and the agent notices
//! once kubelet has removed the directory. If no unmount comes, the agent also removes the note.

use super::context::{Context, open_place};
use super::record;
use super::undo::Undo;
use super::unmount;
use crate::agent_client::{self, AGENT_WAIT};
use crate::hints::to_failure;
use anyhow::Result;
use flexvol_linux::fs::files;
use flexvol_linux::mount::place::{Look, Place};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::csi::volume::CsiVolume;
use flexvol_model::paths;
use flexvol_protocol::TargetPath;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::secret::Secret;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit for the agent to undo what it has just done.
const UNDO_WAIT: Duration = Duration::from_secs(5);

impl Context<'_> {
    pub(super) fn publish(
        &mut self,
        socket: &Path,
        target: &TargetPath,
        volume: &CsiVolume,
        secrets: &BTreeMap<String, Secret>,
    ) -> Result<Option<Undo>> {
        let params = params(volume, secrets)?;
        files::make_directories(&paths::run(paths::PUBLISHED), 0o700)?;
        let was_asked = note(target).exists();
        files::replace_unsynced(&note(target), target.to_string().as_bytes())?;
        // If this fails halfway, the agent rolls back, or continues when kubelet asks again. An
        // agent that has ended meanwhile is asked again at once.
        let mut asked = self.ask_to_publish(socket, &params);
        let is_unheard = !was_asked && asked.as_ref().is_err_and(agent_client::is_missing);
        if asked.as_ref().is_err_and(agent_client::is_lost) {
            asked = self.ask_to_publish(socket, &params);
        }
        let place = open_place(target)?;
        if let Err(error) = asked {
            if is_unheard || agent_client::is_final(&error) {
                let _ = files::forget(&note(target));
            }
            // kubelet would take a mount that is left for a success, and not apply the fsGroup.
            return Err(match unmount::take_off(&place) {
                Ok(()) => error,
                Err(left) => to_failure(error).with_residue(format!("a mount at {target}: {left:#}")).into(),
            });
        }
        if let Look::Mount(mounted) = place.look()? {
            self.mount_id = Some(mounted.id);
        }
        Ok(Some(Undo::Unpublish(socket.to_owned(), target.clone())))
    }

    /// Expands the volume without a Secret: kubelet passes the Secret only to `mount`.
    pub(super) fn expand(&self, socket: &Path, volume: &CsiVolume, size: u64) -> Result<()> {
        let params = format!(r#"{{"volume":{},"size":{size}}}"#, serde_json::to_string(volume)?);
        let patience = AGENT_WAIT.min(self.deadline.remaining());
        agent_client::ask(socket, ("csi.expand", &params), &self.deadline, patience).map(drop)
    }

    fn ask_to_publish(&self, socket: &Path, params: &str) -> Result<()> {
        let patience = AGENT_WAIT.min(self.deadline.remaining());
        agent_client::ask(socket, ("csi.publish", params), &self.deadline, patience).map(drop)
    }

    /// Unpublishes the volume. The note is removed, too, even if there was no agent to tell.
    pub(super) fn unpublish(&self, socket: &Path, target: &TargetPath) -> Result<()> {
        let Some(place) = Place::open(target)? else {
            files::forget(&note(target))?;
            return Ok(());
        };
        self.refuse_foreign(target)?;
        // The other half of the time is for the unmount here.
        let deadline = Deadline::after(self.deadline.remaining() / 2);
        let top = unmount::mount_at(target);
        let is_there = note(target).exists() || !matches!(place.look()?, Look::Missing | Look::Plain(_));
        let patience = if is_there { AGENT_WAIT.min(deadline.remaining()) } else { Duration::ZERO };
        let ask = || agent_client::ask(socket, ("csi.unpublish", &target_of(target)), &deadline, patience);
        let mut asked = ask();
        if asked.as_ref().is_err_and(agent_client::is_refusal) {
            // If several mounts are at the target, a CSI driver unmounts one, and fails.
            unmount::uncover(&place)?;
            if unmount::mount_at(target) != top {
                asked = ask();
            }
        }
        match asked {
            Err(error) if agent_client::is_refusal(&error) => {
                // A CSI driver that has not unstaged the volume may have removed the directory, and
                // kubelet retries only as long as it exists.
                let _ = place.make_directory();
                return Err(error);
            }
            _ => {}
        }
        let _ = files::forget(&note(target));
        Ok(())
    }
}

/// Reports whether the agent was asked to publish a volume at this target.
pub(super) fn is_published(context: &Context<'_>, target: &TargetPath) -> bool {
    context.driver == "csi" && note(target).exists()
}

/// Unpublishes what has just been published.
pub(super) fn undo(socket: &Path, target: &TargetPath) -> Result<()> {
    let deadline = Deadline::for_undo(UNDO_WAIT);
    agent_client::ask(socket, ("csi.unpublish", &target_of(target)), &deadline, Duration::ZERO)?;
    files::forget(&note(target))?;
    Ok(())
}

fn note(target: &TargetPath) -> PathBuf {
    paths::run(paths::PUBLISHED).join(record::name_of(target))
}

fn target_of(target: &TargetPath) -> String {
    format!(r#"{{"target":{}}}"#, Value::from(target.to_string()))
}

/// Formats the parameters of a request, with the secrets, which are text by now.
fn params(volume: &CsiVolume, secrets: &BTreeMap<String, Secret>) -> Result<String> {
    let secrets = secrets.iter().map(|(key, secret)| {
        let text = String::from_utf8_lossy(secret.expose());
        (key.clone(), Value::from(text.as_ref()))
    });
    let secrets = Value::Object(filled(secrets));
    Ok(format!(r#"{{"volume":{},"secrets":{secrets}}}"#, serde_json::to_string(volume)?))
}
