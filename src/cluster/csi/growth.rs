//! `NodeGetVolumeStats` and `NodeExpandVolume`, for volumes on this node.

use super::by_kubelet;
use super::by_kubelet::Usage;
use super::capability::{invalid, missing};
use super::program::{Answer, Budget};
use super::request::At;
use super::served::Served;
use super::target::{self, Standing};
use crate::wire::csi::volume_usage::Unit;
use crate::wire::csi::{CapacityRange, NodeGetVolumeStatsResponse, VolumeUsage};
use flexvol_model::csi_journal::Entry;
use flexvol_protocol::{Call, Options};
use std::time::Duration;
use tonic::Status;

/// Deadline for a file system to report its use.
const STATS_WAIT: Duration = Duration::from_secs(20);

impl Served {
    /// Returns the usage of the volume, in bytes and in inodes.
    pub(super) fn stats(&self, request: &At, budget: Budget) -> Result<NodeGetVolumeStatsResponse, Status> {
        self.find(request)?;
        // One question at a time: then only one process waits for a file system that hangs.
        let guard = self.locks.take(&[&format!("stats {}", request.id)])?;
        let found = target::look(&request.path)?;
        if found != Standing::Mounted && !(self.ground.habits.mountless && found == Standing::Directory) {
            return Err(not_found(request));
        }
        let said =
            self.by_kubelet.ask(by_kubelet::USAGE, &request.path, &guard, budget.at_most(STATS_WAIT))?;
        let usage = serde_json::from_str(&said).map_err(|error| Status::internal(error.to_string()))?;
        Ok(NodeGetVolumeStatsResponse { usage: vec![bytes(&usage), inodes(&usage)] })
    }

    /// Tells the driver that the volume has grown, and returns its size.
    pub(super) fn expand(
        &self,
        request: &At,
        range: Option<CapacityRange>,
        budget: Budget,
    ) -> Result<i64, Status> {
        let entry = self.find(request)?;
        let bytes = size(range)?;
        let guard = self.lock(&request.id, &request.path)?;
        if target::look(&request.path)? != Standing::Mounted {
            return Err(not_found(request));
        }
        let device = entry.staged.map(|staged| staged.device).unwrap_or_default();
        let options =
            Options::parse(&entry.options).map_err(|failure| Status::internal(failure.message()))?;
        // The driver knows the volume by the path at which it has mounted it.
        let inner = self.inner_in_use(&request.id, &request.path)?.map(|inner| inner.target);
        let (target, new_bytes) = (inner.unwrap_or_else(|| request.path.clone()), bytes.unsigned_abs());
        let call = Call::ExpandFs { options, device, target, new_bytes, old_bytes: 0 };
        if let Answer::NotSupported = self.program.call(&call, &guard, budget)? {
            // Without a device there is nothing to grow: the server decides the size of a share.
            self.by_kubelet.call(&call, &guard, budget)?;
        }
        Ok(bytes)
    }

    fn find(&self, request: &At) -> Result<Entry, Status> {
        let entry = self.journal.get(&request.id).filter(|entry| entry.is_at(&request.path));
        entry.ok_or_else(|| not_found(request))
    }
}

fn not_found(request: &At) -> Status {
    Status::not_found(format!("volume {} is not published at {}", request.id, request.path))
}

/// Returns the requested size.
pub fn size(range: Option<CapacityRange>) -> Result<i64, Status> {
    let range = range.ok_or_else(|| missing("capacity_range"))?;
    let bytes = if range.required_bytes > 0 { range.required_bytes } else { range.limit_bytes };
    match () {
        () if bytes <= 0 || range.limit_bytes < 0 => Err(invalid("capacity_range names no size")),
        () if range.limit_bytes > 0 && bytes > range.limit_bytes => {
            Err(Status::out_of_range("required_bytes is more than limit_bytes"))
        }
        () => Ok(bytes),
    }
}

fn bytes(usage: &Usage) -> VolumeUsage {
    let of = |blocks: u64| number(blocks.saturating_mul(usage.block));
    VolumeUsage {
        total: of(usage.blocks),
        available: of(usage.available_blocks),
        used: of(usage.blocks.saturating_sub(usage.free_blocks)),
        unit: Unit::Bytes.into(),
    }
}

fn inodes(usage: &Usage) -> VolumeUsage {
    VolumeUsage {
        total: number(usage.files),
        available: number(usage.available_files),
        used: number(usage.files.saturating_sub(usage.free_files)),
        unit: Unit::Inodes.into(),
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_named_and_within_its_limit() {
        let of = |required_bytes, limit_bytes| size(Some(CapacityRange { required_bytes, limit_bytes })).ok();
        assert_eq!([of(5, 0), of(5, 5), of(0, 7)], [Some(5), Some(5), Some(7)]);
        assert_eq!([of(0, 0), of(-1, 0), of(6, 5), of(5, -1), of(i64::MIN, 0)], [None; 5]);
        assert!(size(None).is_err());
    }

    /// The numbers are those of df: ext4 reserves a twentieth for root, which pods cannot use.
    #[test]
    fn what_is_kept_for_root_is_neither_used_nor_available() {
        let usage = Usage {
            block: 1024,
            blocks: 100,
            free_blocks: 60,
            available_blocks: 55,
            files: 10,
            free_files: 7,
            available_files: 6,
        };
        let of = |usage: VolumeUsage| (usage.total, usage.used, usage.available);
        assert_eq!(of(bytes(&usage)), (100 << 10, 40 << 10, 55 << 10));
        assert_eq!(of(inodes(&usage)), (10, 3, 6));
    }
}
