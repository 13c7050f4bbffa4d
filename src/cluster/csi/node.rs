//! Node service: the requests of kubelet.

use super::request::{At, Publish, Stage};
use super::rpc::{Asked, answer, answer_in_turn};
use super::served::Served;
use crate::wire::csi;
use crate::wire::csi::node_server::Node;
use crate::wire::csi::node_service_capability::rpc::Type;
use crate::wire::csi::node_service_capability::{self, Rpc};
use flexvol_protocol::Capabilities;
use std::sync::Arc;
use tonic::{Request, Response, Status};

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

async fn tell_capabilities(
    served: &Arc<Served>,
    request: Request<csi::NodeGetCapabilitiesRequest>,
) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
    answer(served, Asked::about("NodeGetCapabilities", ""), request, |served, _, _| {
        let of = |kind: Type| csi::NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = capabilities(served.capabilities()?).into_iter().map(of).collect();
        Ok(csi::NodeGetCapabilitiesResponse { capabilities })
    })
    .await
}

/// Node service of the controller: external-resizer asks it whether the nodes grow volumes.
#[derive(Debug)]
pub struct NodesService(pub Arc<Served>);

#[tonic::async_trait]
impl Node for NodesService {
    async fn node_get_capabilities(
        &self,
        request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        tell_capabilities(&self.0, request).await
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let asked = Asked::about("NodeStageVolume", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            served.stage(&Stage::parse(request)?, budget)?;
            Ok(csi::NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let asked = Asked::about("NodeUnstageVolume", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            let at = At::parse(request.volume_id, "staging_target_path", &request.staging_target_path)?;
            served.unstage(&at, budget)?;
            Ok(csi::NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let asked = Asked::about("NodePublishVolume", &request.get_ref().volume_id);
        let asked = asked.at(&request.get_ref().target_path);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            served.publish(&Publish::parse(request)?, budget)?;
            Ok(csi::NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let asked = Asked::about("NodeUnpublishVolume", &request.get_ref().volume_id);
        let asked = asked.at(&request.get_ref().target_path);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            let at = At::parse(request.volume_id, "target_path", &request.target_path)?;
            served.unpublish(&at, budget)?;
            Ok(csi::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let asked = Asked::about("NodeGetVolumeStats", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            served.stats(&At::find(request.volume_id, &request.volume_path)?, budget)
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let asked = Asked::about("NodeExpandVolume", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            let at = At::find(request.volume_id, &request.volume_path)?;
            let capacity_bytes = served.expand(&at, request.capacity_range, budget)?;
            Ok(csi::NodeExpandVolumeResponse { capacity_bytes })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        tell_capabilities(&self.0, request).await
    }

    async fn node_get_info(
        &self,
        request: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        answer(&self.0, Asked::about("NodeGetInfo", ""), request, |served, _, _| {
            Ok(csi::NodeGetInfoResponse {
                node_id: served.node.clone(),
                ..csi::NodeGetInfoResponse::default()
            })
        })
        .await
    }
}
