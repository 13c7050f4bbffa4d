//! Limits for calls that execute something: calls that hang do not delay those of other pods.

use crate::shares::{Place, Shares};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;

/// Limit for calls of one kind that run at the same time. Each pod may run one more.
const AT_ONCE: usize = 128;

/// Deadline for getting a place: the caller gives up soon after.
const PLACE_WAIT: Duration = Duration::from_secs(100);

/// Places for calls that execute something. Calls that take a volume away have places of their own,
/// because they may end the hanging ones; so have calls that only ask.
#[derive(Debug)]
pub struct Places {
    bringing: Arc<Shares>,
    taking: Arc<Shares>,
    asking: Arc<Shares>,
}

impl Default for Places {
    fn default() -> Self {
        let [bringing, taking, asking] = [(); 3].map(|()| Shares::new(AT_ONCE));
        Self { bringing, taking, asking }
    }
}

impl Places {
    /// Waits for a place. `who` has one of its own: a pod, or a volume.
    pub(super) async fn enter(&self, method: &str, who: &str) -> Result<Place, Status> {
        let shares = match method {
            "NodeUnpublishVolume" | "NodeUnstageVolume" | "ControllerUnpublishVolume" => &self.taking,
            "NodeGetVolumeStats" => &self.asking,
            _ => &self.bringing,
        };
        let full = |_| {
            let text =
                format!("more than {AT_ONCE} calls have not ended: servers of other volumes may be dead");
            Status::deadline_exceeded(text)
        };
        timeout(PLACE_WAIT, shares.enter(who)).await.map_err(full)
    }
}
