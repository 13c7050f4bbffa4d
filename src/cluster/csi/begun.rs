//! Publishes that an earlier `flexvold` began and did not end.
//!
//! For a pod that is still there kubelet asks again, whatever was begun. For one that was deleted
//! while `flexvold` was away it may never unpublish, and what was begun would stay for good. So it
//! is undone, each volume under its lock: whoever publishes it first keeps it.

use super::program::Budget;
use super::rpc::{Asked, answer_in_turn};
use super::served::Served;
use flexvol_model::csi_journal::Phase;
use flexvol_protocol::TargetPath;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::{Request, Status};

/// Pause before a volume is tried again whose driver still runs or fails, and its longest.
const AGAIN: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_mins(5);

/// Undoes all of them, until this is dropped.
pub(super) fn undo(served: &Arc<Served>) -> JoinSet<()> {
    let begun = served.journal.begun().into_iter();
    begun.map(|(id, target)| undo_one(Arc::clone(served), id, target)).collect()
}

async fn undo_one(served: Arc<Served>, id: String, target: TargetPath) {
    let mut pause = AGAIN;
    loop {
        let asked = Asked::about("NodeUnpublishVolume", &id).at(&target.to_string());
        let request = Request::new((id.clone(), target.clone()));
        let undone = answer_in_turn(&served, asked, request, |served, (id, target), budget| {
            served.undo_begun(&id, &target, budget)
        });
        if undone.await.is_ok() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

impl Served {
    fn undo_begun(&self, id: &str, target: &TargetPath, budget: Budget) -> Result<(), Status> {
        let guard = self.lock(id, target)?;
        let noted = self.journal.get(id).and_then(|entry| entry.target(target));
        if noted.is_none_or(|noted| noted.phase != Phase::Begun) {
            return Ok(());
        }
        tracing::warn!(volume = id, %target, "a publish was cut short: undoing it");
        self.undo(id, target, &guard, budget)
    }
}
