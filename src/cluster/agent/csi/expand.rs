//! Expansion of a volume on the node: its CSI driver learns the size and grows the file system.

use super::entry::Phase;
use super::publish::{capability, mode};
use super::{Volumes, Wanted};
use crate::agent::fault::{Code, Fault};
use crate::wire::csi::{CapacityRange, NodeExpandVolumeRequest};
use flexvol_model::agent::HoldAccess;

impl Volumes {
    /// Expands a published volume. The caller must have the turns of the target and the volume.
    pub(super) async fn grow(&self, wanted: &Wanted, size: u64) -> Result<(), Fault> {
        let volume = &wanted.volume;
        let plugin = self.plugins.connect(&volume.driver, wanted.until).await?;
        let refused = |refused: super::refused::Refused| refused.fault(&wanted.masked);
        let able = plugin.able().await.map_err(refused)?;
        if !able.expands {
            return Ok(());
        }
        let entry = self.journal.get(&wanted.id).filter(|entry| {
            let target = entry.targets.get(&volume.target);
            let is_read = volume.access == HoldAccess::ReadOnly;
            target.is_some_and(|target| target.phase == Phase::Published)
                && entry.suits(volume, mode(volume.access_mode, able), is_read)
        });
        let Some(entry) = entry else {
            let text = format!(
                "{} of {} is not published so at {}: kubelet mounts it first",
                volume.handle, volume.driver, volume.target
            );
            return Err(Fault::new(Code::Failed, text));
        };
        let request = NodeExpandVolumeRequest {
            volume_id: entry.handle.clone(),
            volume_path: volume.target.clone(),
            capacity_range: Some(CapacityRange {
                required_bytes: size.try_into().map_err(Fault::bad)?,
                ..CapacityRange::default()
            }),
            staging_target_path: if able.stages { entry.staging.clone() } else { String::new() },
            volume_capability: Some(capability(&entry, able, wanted)),
            ..NodeExpandVolumeRequest::default()
        };
        let call = async |mut node: crate::wire::csi::node_client::NodeClient<_>, asked| {
            node.node_expand_volume(asked).await
        };
        plugin.call("NodeExpandVolume", request, call).await.map(drop).map_err(refused)
    }
}
