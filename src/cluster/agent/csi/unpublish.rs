//! Unpublishing of a volume at a target, and unstaging after its last target; also if kubelet has
//! removed the directory without asking.

use super::entry::{Entry, Phase};
use super::plugin::Plugin;
use super::refused::Refused;
use super::{LONGEST, Volumes};
use crate::agent::fault::{Code, Fault};
use crate::wire::csi::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use flexvol_linux::fs::files;
use flexvol_linux::mount::place::{Look, Place};
use flexvol_model::paths;
use flexvol_protocol::TargetPath;
use flexvol_protocol::secret::Redactor;
use flexvol_protocol::volume_dir::VolumeDir;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Limit for kubelet to repeat a mount that has failed: it waits two minutes at most.
const AGAIN: Duration = Duration::from_mins(5);

/// Limit for a CSI driver to clean up one target that kubelet no longer uses.
const SWEEP: Duration = Duration::from_mins(1);

impl Volumes {
    /// Unpublishes a target, and unstages the volume after its last target. The caller must have
    /// the turns of the target and the volume. The target stays in the journal until everything is
    /// done: kubelet and the sweep try again.
    pub(super) async fn take_away(
        &self,
        mut entry: Entry,
        target: &str,
        until: Instant,
    ) -> Result<(), Fault> {
        if let Some(found) = entry.targets.get_mut(target) {
            // A published target needs no write: the next call or the sweep does the same.
            let was_asked = std::mem::replace(&mut found.phase, Phase::Unpublishing);
            if was_asked == Phase::Publishing {
                self.write(&entry)?;
            }
            let said = self.ask_to_withdraw(&entry, target, until).await?;
            let was_never = was_asked != Phase::Published && said.as_ref().is_err_and(Refused::is_malformed);
            if !was_never || is_mounted(target) {
                done(said)?;
            }
        }
        if entry.has_others(target) {
            entry.targets.remove(target);
            return self.write(&entry);
        }
        if entry.is_staged() {
            let plugin = self.plugins.connect(&entry.driver, until).await?;
            unstage(&entry, &plugin).await?;
            remove(&entry)?;
        }
        self.journal.forget(entry.id()).map_err(|error| Fault::journal(&error))
    }

    /// Calls `NodeUnpublishVolume`.
    pub(super) async fn withdraw(&self, entry: &Entry, target: &str, until: Instant) -> Result<(), Fault> {
        done(self.ask_to_withdraw(entry, target, until).await?)
    }

    async fn ask_to_withdraw(
        &self,
        entry: &Entry,
        target: &str,
        until: Instant,
    ) -> Result<Result<(), Refused>, Fault> {
        let plugin = self.plugins.connect(&entry.driver, until).await?;
        let request =
            NodeUnpublishVolumeRequest { volume_id: entry.handle.clone(), target_path: target.to_owned() };
        let call = async |mut node: crate::wire::csi::node_client::NodeClient<_>, asked| {
            node.node_unpublish_volume(asked).await
        };
        Ok(plugin.call("NodeUnpublishVolume", request, call).await.map(drop))
    }

    /// Cleans up what kubelet no longer uses: targets whose directory it has removed, and the
    /// drivers' notes about them.
    pub fn sweep(&self) {
        // A driver that fails may hang: it is asked only once, so that others do not wait for it.
        let mut failing = BTreeSet::new();
        for entry in self.journal.all() {
            for target in entry.targets.keys().filter(|path| self.is_abandoned(&entry, path)) {
                // Another call has the turn, and does this.
                let Ok(_turns) = self.turns(target, entry.id(), Instant::now()) else { continue };
                let Some(entry) = self.journal.get(entry.id()) else { continue };
                if failing.contains(&entry.driver) || !self.is_abandoned(&entry, target) {
                    continue;
                }
                let driver = entry.driver.clone();
                if !self.clean_up(entry, target) {
                    failing.insert(driver);
                }
            }
        }
        let notes = paths::run(paths::PUBLISHED).read_dir().into_iter().flatten().flatten();
        for note in notes.map(|note| note.path()) {
            let target = files::read_small(&note, LONGEST).ok().flatten();
            if target.is_some_and(|target| is_removed(&target) && self.of_target(&target).is_none()) {
                let _ = files::forget(&note);
            }
        }
    }

    fn clean_up(&self, entry: Entry, target: &str) -> bool {
        let until = Instant::now() + SWEEP;
        let (driver, handle) = (entry.driver.clone(), entry.handle.clone());
        let done = super::handle().and_then(|runtime| runtime.block_on(self.take_away(entry, target, until)));
        match &done {
            Ok(()) => tracing::info!(driver, handle, target, "unpublished: kubelet has removed it"),
            Err(fault) => {
                let reason = &fault.message;
                tracing::warn!(driver, handle, target, reason, "not unpublished yet, kubelet has removed it");
            }
        }
        done.is_ok()
    }

    fn is_abandoned(&self, entry: &Entry, target: &str) -> bool {
        let Some(found) = entry.targets.get(target) else { return false };
        let may_come = found.phase == Phase::Publishing && found.age(&self.boot) <= AGAIN;
        !may_come && is_removed(target)
    }
}

async fn unstage(entry: &Entry, plugin: &Plugin) -> Result<(), Fault> {
    let request = NodeUnstageVolumeRequest {
        volume_id: entry.handle.clone(),
        staging_target_path: entry.staging.clone(),
    };
    let call = async |mut node: crate::wire::csi::node_client::NodeClient<_>, asked| {
        node.node_unstage_volume(asked).await
    };
    done(plugin.call("NodeUnstageVolume", request, call).await.map(drop))
}

/// Treats an object that does not exist as removed.
fn done(said: Result<(), Refused>) -> Result<(), Fault> {
    match said {
        Err(refused) if !refused.is_gone() => Err(refused.fault(&Redactor::default())),
        _ => Ok(()),
    }
}

/// Removes the staging directory and its parent, named after the volume, if they are empty. Fails
/// if the volume is still mounted, whatever its driver says: another node may get it.
fn remove(entry: &Entry) -> Result<(), Fault> {
    let staging = Path::new(&entry.staging);
    if is_mounted(&entry.staging) {
        let text = format!(
            "the CSI driver {}: NodeUnstageVolume: it says that it is done, and {} is still mounted",
            entry.driver, entry.staging
        );
        return Err(Fault::new(Code::InProgress, text));
    }
    let _ = std::fs::remove_dir(staging);
    let _ = staging.parent().map(std::fs::remove_dir);
    Ok(())
}

/// Reports whether kubelet has removed a target. False if its directory is only not visible here.
fn is_removed(target: &str) -> bool {
    let Ok(path) = TargetPath::parse(target.as_ref()) else { return false };
    let volume = VolumeDir::of(&path);
    let tree = volume.below.components().next().map(|first| volume.root.join(first));
    let is_in_sight = match tree {
        Some(tree) if volume.driver.is_some() => tree.is_dir(),
        _ => volume.root.is_dir(),
    };
    is_in_sight && look_at(target) == Some(Look::Missing)
}

fn is_mounted(path: &str) -> bool {
    matches!(look_at(path), Some(Look::Mount(_) | Look::Dead(_)))
}

/// Returns what is at the path, without asking a server, which may be gone; `None` if unknown.
pub(super) fn look_at(path: &str) -> Option<Look> {
    let place = Place::open(&TargetPath::parse(path.as_ref()).ok()?).ok()?;
    place.map_or(Some(Look::Missing), |place| place.look().ok())
}
