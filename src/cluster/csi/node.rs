//! Node service: the requests of kubelet.

use super::request::{At, Publish, Stage};
use super::rpc::{Answering, Asked, answer, answer_in_turn};
use super::served::Served;
use crate::wire::csi;
use crate::wire::csi::node_server::Node;
use crate::wire::csi::node_service_capability::rpc::Type;
use crate::wire::csi::node_service_capability::{self, Rpc};
use flexvol_protocol::Capabilities;
use std::sync::Arc;
use tonic::Request;

/// The service of one driver.
#[derive(Debug)]
pub struct NodeService(pub Arc<Served>);

/// Translates the answer of the driver's `init` into capabilities for kubelet.
pub(super) fn capabilities(of: Capabilities) -> Vec<Type> {
    let mut types = vec![Type::SingleNodeMultiWriter, Type::GetVolumeStats];
    types.extend(of.attach.then_some(Type::StageUnstageVolume));
    types.extend((!of.fs_group).then_some(Type::VolumeMountGroup));
    types.extend(of.requires_fs_resize.then_some(Type::ExpandVolume));
    types
}

fn tell_capabilities<'f>(
    served: &Arc<Served>,
    request: Request<csi::NodeGetCapabilitiesRequest>,
) -> Answering<'f, csi::NodeGetCapabilitiesResponse> {
    answer(served, Asked::about("NodeGetCapabilities", ""), request, |served, _, _| {
        let of = |kind: Type| csi::NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = capabilities(served.capabilities()?).into_iter().map(of).collect();
        Ok(csi::NodeGetCapabilitiesResponse { capabilities })
    })
}

/// Node service of the controller: external-resizer asks it whether the nodes grow volumes.
#[derive(Debug)]
pub struct NodesService(pub Arc<Served>);

#[tonic::async_trait]
impl Node for NodesService {
    fn node_get_capabilities<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answering<'f, csi::NodeGetCapabilitiesResponse> {
        tell_capabilities(&self.0, request)
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    fn node_stage_volume<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Answering<'f, csi::NodeStageVolumeResponse> {
        let asked = Asked::about("NodeStageVolume", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            served.stage(&Stage::parse(request)?, budget)?;
            Ok(csi::NodeStageVolumeResponse {})
        })
    }

    fn node_unstage_volume<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Answering<'f, csi::NodeUnstageVolumeResponse> {
        let asked = Asked::about("NodeUnstageVolume", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            let at = At::parse(request.volume_id, "staging_target_path", &request.staging_target_path)?;
            served.unstage(&at, budget)?;
            Ok(csi::NodeUnstageVolumeResponse {})
        })
    }

    fn node_publish_volume<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Answering<'f, csi::NodePublishVolumeResponse> {
        let asked = Asked::about("NodePublishVolume", &request.get_ref().volume_id);
        let asked = asked.at(&request.get_ref().target_path);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            let request = Publish::parse(request)?;
            served.publish(&request, budget)?;
            Ok(csi::NodePublishVolumeResponse {})
        })
    }

    fn node_unpublish_volume<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Answering<'f, csi::NodeUnpublishVolumeResponse> {
        let asked = Asked::about("NodeUnpublishVolume", &request.get_ref().volume_id);
        let asked = asked.at(&request.get_ref().target_path);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            let at = At::parse(request.volume_id, "target_path", &request.target_path)?;
            served.unpublish(&at, budget)?;
            Ok(csi::NodeUnpublishVolumeResponse {})
        })
    }

    fn node_get_volume_stats<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Answering<'f, csi::NodeGetVolumeStatsResponse> {
        let asked = Asked::about("NodeGetVolumeStats", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            served.stats(&At::find(request.volume_id, &request.volume_path)?, budget)
        })
    }

    fn node_expand_volume<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Answering<'f, csi::NodeExpandVolumeResponse> {
        let asked = Asked::about("NodeExpandVolume", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            let at = At::find(request.volume_id, &request.volume_path)?;
            let capacity_bytes = served.expand(&at, request.capacity_range, budget)?;
            Ok(csi::NodeExpandVolumeResponse { capacity_bytes })
        })
    }

    fn node_get_capabilities<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answering<'f, csi::NodeGetCapabilitiesResponse> {
        tell_capabilities(&self.0, request)
    }

    fn node_get_info<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::NodeGetInfoRequest>,
    ) -> Answering<'f, csi::NodeGetInfoResponse> {
        answer(&self.0, Asked::about("NodeGetInfo", ""), request, |served, _, _| {
            Ok(csi::NodeGetInfoResponse {
                node_id: served.node.clone(),
                ..csi::NodeGetInfoResponse::default()
            })
        })
    }
}
