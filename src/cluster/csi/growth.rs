//! `NodeGetVolumeStats` and `NodeExpandVolume`: of volumes that are here.

use super::capability::{invalid, missing};
use super::codes::of_error;
use super::program::{Answer, Budget};
use super::request::At;
use super::served::Served;
use super::target::{self, Standing};
use crate::wire::csi::volume_usage::Unit;
use crate::wire::csi::{CapacityRange, NodeGetVolumeStatsResponse, VolumeUsage};
use flexvol_model::csi_journal::Entry;
use flexvol_protocol::{Call, Options};
use rustix::fs::StatVfs;
use tonic::Status;

impl Served {
    /// How full the volume is.
    pub(super) fn stats(&self, request: &At) -> Result<NodeGetVolumeStatsResponse, Status> {
        self.find(request)?;
        // One at a time: a file system that hangs holds a thread of ours.
        let _guard = self.locks.take(&[&format!("stats {}", request.id)])?;
        let found = target::look(&request.path)?;
        if found != Standing::Mounted && !(self.ground.habits.mountless && found == Standing::Directory) {
            return Err(not_found(request));
        }
        let usage = target::usage(&request.path).map_err(|error| of_error(&error))?;
        Ok(NodeGetVolumeStatsResponse { usage: vec![bytes(&usage), inodes(&usage)] })
    }

    /// Tells the driver that the volume has grown; how large it is now.
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
        // The driver knows the volume by where it has mounted it.
        let inner = self.inner_in_use(&request.id, &request.path)?.map(|inner| inner.target);
        let (target, new_bytes) = (inner.unwrap_or_else(|| request.path.clone()), bytes.unsigned_abs());
        let call = Call::ExpandFs { options, device, target, new_bytes, old_bytes: 0 };
        if let Answer::NotSupported = self.program.call(&call, &guard, budget)? {
            // Without a device there is nothing to grow: a share is as large as its server has it.
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

/// The size that is asked for.
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

fn bytes(usage: &StatVfs) -> VolumeUsage {
    let of = |blocks: u64| number(blocks.saturating_mul(usage.f_frsize));
    VolumeUsage {
        total: of(usage.f_blocks),
        available: of(usage.f_bavail),
        used: of(usage.f_blocks.saturating_sub(usage.f_bfree)),
        unit: Unit::Bytes.into(),
    }
}

fn inodes(usage: &StatVfs) -> VolumeUsage {
    VolumeUsage {
        total: number(usage.f_files),
        available: number(usage.f_favail),
        used: number(usage.f_files.saturating_sub(usage.f_ffree)),
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

    /// As df shows it: ext4 keeps a twentieth for root, which pods cannot have.
    #[test]
    fn what_is_kept_for_root_is_neither_used_nor_available() {
        let mut usage = rustix::fs::statvfs("/").unwrap();
        (usage.f_frsize, usage.f_blocks, usage.f_bfree, usage.f_bavail) = (1024, 100, 60, 55);
        (usage.f_files, usage.f_ffree, usage.f_favail) = (10, 7, 6);
        let of = |usage: VolumeUsage| (usage.total, usage.used, usage.available);
        assert_eq!(of(bytes(&usage)), (100 << 10, 40 << 10, 55 << 10));
        assert_eq!(of(inodes(&usage)), (10, 3, 6));
    }
}
