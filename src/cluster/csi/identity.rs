//! Identity service: the driver's name, its capabilities, and its readiness.

use super::rpc::{Answering, Asked, answer};
use super::served::Served;
use crate::wire::csi;
use crate::wire::csi::identity_server::Identity;
use crate::wire::csi::plugin_capability::{self, Service, VolumeExpansion, service, volume_expansion};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The service of one driver.
#[derive(Debug)]
pub struct IdentityService(pub Arc<Served>);

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: self.0.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: [("flexvolume".to_owned(), self.0.driver.to_string())].into(),
        }))
    }

    fn get_plugin_capabilities<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Answering<'f, csi::GetPluginCapabilitiesResponse> {
        answer(&self.0, Asked::about("GetPluginCapabilities", ""), request, |served, _, _| {
            let of = |kind| csi::PluginCapability { r#type: Some(kind) };
            let controller = Service { r#type: service::Type::ControllerService.into() };
            let expansion = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
            let grows = served.capabilities()?.requires_fs_resize;
            let mut capabilities = Vec::new();
            capabilities.extend(
                served.role.is_controller().then(|| of(plugin_capability::Type::Service(controller))),
            );
            capabilities.extend(grows.then(|| of(plugin_capability::Type::VolumeExpansion(expansion))));
            Ok(csi::GetPluginCapabilitiesResponse { capabilities })
        })
    }

    fn probe<'a: 'f, 'f>(&'a self, request: Request<csi::ProbeRequest>) -> Answering<'f, csi::ProbeResponse> {
        answer(&self.0, Asked::about("Probe", ""), request, |served, _, _| {
            served.capabilities().map(|_| csi::ProbeResponse { ready: Some(true) })
        })
    }
}
