//! Published volumes, as drivers with `LIST_VOLUMES_PUBLISHED_NODES` list them.

use super::attachment::NODE_ID;
use super::driver::{Driver, within};
use super::volumes::{PersistentVolume, VolumeAttachment};
use crate::wire::csi::ListVolumesRequest;
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt as _;
use std::collections::HashSet;
use std::time::Duration;
use tonic::Status;

/// Pairs of a volume's handle and the driver's id of a node.
#[derive(Debug, Default)]
pub struct Published(HashSet<(String, String)>);

impl Published {
    /// Asks the driver, page by page.
    ///
    /// # Errors
    ///
    /// Fails if the driver does not answer, or if a page names itself as the next one.
    pub async fn ask(driver: &Driver, timeout: Duration) -> Result<Self, Status> {
        let (mut pairs, mut token) = (HashSet::new(), String::new());
        loop {
            let request =
                ListVolumesRequest { starting_token: token.clone(), ..ListVolumesRequest::default() };
            let page = driver.controller().list_volumes(within(request, timeout)).await?.into_inner();
            for entry in page.entries {
                let nodes = entry.status.map(|status| status.published_node_ids).unwrap_or_default();
                let handle = entry.volume.map(|volume| volume.volume_id).unwrap_or_default();
                pairs.extend(nodes.into_iter().map(|node| (handle.clone(), node)));
            }
            if page.next_token.is_empty() {
                return Ok(Self(pairs));
            }
            if page.next_token == token {
                return Err(Status::internal("the driver's list of volumes has no end"));
            }
            token = page.next_token;
        }
    }

    /// Reports whether the driver contradicts an attachment's status; false if they cannot be
    /// compared.
    pub fn contradicts(
        &self,
        attachment: &VolumeAttachment,
        volume: Option<&PersistentVolume>,
        node: Option<&CSINode>,
    ) -> bool {
        let inline = attachment.spec.source.inline_volume_spec.as_ref();
        let spec = volume.and_then(|volume| volume.spec.as_ref()).or(inline);
        let Some(source) = spec.and_then(|spec| spec.csi.as_ref()) else { return false };
        let drivers = node.map(|node| node.spec.drivers.as_slice()).unwrap_or_default();
        let registered = drivers.iter().find(|driver| driver.name == attachment.spec.attacher);
        let remembered = || attachment.annotations().get(NODE_ID).cloned();
        let Some(node) = registered.map(|driver| driver.node_id.clone()).or_else(remembered) else {
            return false;
        };
        let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
        attached != self.0.contains(&(source.volume_handle.clone(), node))
    }
}
