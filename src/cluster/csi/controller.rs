//! The Controller service: attaching, and a provisioner that keeps no state.
//!
//! `CreateVolume` makes nothing: the parameters of the StorageClass become the options of the
//! volume, and its name becomes the handle. The storage exists already, or the driver makes it when
//! it mounts. So `DeleteVolume` deletes nothing either.

use super::capability::{Capability, invalid, missing};
use super::handle::{Handle, of_name};
use super::request::{Attach, DEVICE, node, text};
use super::rpc::{Answering, Asked, answer, answer_in_turn};
use super::served::Served;
use crate::wire::csi;
use crate::wire::csi::controller_server::Controller;
use crate::wire::csi::controller_service_capability::rpc::Type;
use crate::wire::csi::controller_service_capability::{self, Rpc};
use crate::wire::csi::validate_volume_capabilities_response::Confirmed;
use std::sync::Arc;
use tonic::{Request, Status};

/// Prefixes of parameters that the provisioner of Kubernetes adds, or that are for it alone.
const NOT_FOR_DRIVERS: [&str; 2] = ["csi.storage.k8s.io/", "storage.kubernetes.io/"];

/// CSI's limit for the name of a volume.
const NAME_LIMIT: usize = 1024;

/// The service of one driver.
#[derive(Debug)]
pub struct ControllerService(pub Arc<Served>);

#[tonic::async_trait]
impl Controller for ControllerService {
    fn controller_get_capabilities<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Answering<'f, csi::ControllerGetCapabilitiesResponse> {
        answer(&self.0, Asked::about("ControllerGetCapabilities", ""), request, |served, _, _| {
            let of = |kind: Type| csi::ControllerServiceCapability {
                r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
            };
            let attaches = served.capabilities()?.attach;
            let mut types = vec![Type::CreateDeleteVolume, Type::SingleNodeMultiWriter];
            types.extend(attaches.then_some(Type::PublishUnpublishVolume));
            let types = if served.role.is_controller() { types } else { Vec::new() };
            let capabilities = types.into_iter().map(of).collect();
            Ok(csi::ControllerGetCapabilitiesResponse { capabilities })
        })
    }

    fn create_volume<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Answering<'f, csi::CreateVolumeResponse> {
        let asked = Asked::about("CreateVolume", &request.get_ref().name);
        answer(&self.0, asked, request, |served, request, _| {
            served.check_provisions()?;
            create(request)
        })
    }

    fn delete_volume<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Answering<'f, csi::DeleteVolumeResponse> {
        let asked = Asked::about("DeleteVolume", &request.get_ref().volume_id);
        answer(&self.0, asked, request, |served, request, _| {
            served.check_provisions()?;
            text("volume_id", request.volume_id)?;
            Ok(csi::DeleteVolumeResponse {})
        })
    }

    fn validate_volume_capabilities<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Answering<'f, csi::ValidateVolumeCapabilitiesResponse> {
        let asked = Asked::about("ValidateVolumeCapabilities", &request.get_ref().volume_id);
        answer(&self.0, asked, request, |_, request, _| validate(request))
    }

    fn controller_publish_volume<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Answering<'f, csi::ControllerPublishVolumeResponse> {
        let asked = Asked::about("ControllerPublishVolume", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            let device = served.attach(&Attach::parse(request)?, budget)?;
            Ok(csi::ControllerPublishVolumeResponse { publish_context: [(DEVICE.to_owned(), device)].into() })
        })
    }

    fn controller_unpublish_volume<'a: 'f, 'f>(
        &'a self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Answering<'f, csi::ControllerUnpublishVolumeResponse> {
        let asked = Asked::about("ControllerUnpublishVolume", &request.get_ref().volume_id);
        answer_in_turn(&self.0, asked, request, |served, request, budget| {
            let id = text("volume_id", request.volume_id)?;
            let named = Some(request.node_id).filter(|node| !node.is_empty()).map(node).transpose()?;
            served.detach(&id, named, budget)?;
            Ok(csi::ControllerUnpublishVolumeResponse {})
        })
    }
}

impl Served {
    fn check_provisions(&self) -> Result<(), Status> {
        if self.role.is_controller() {
            return Ok(());
        }
        Err(Status::unimplemented("volumes are provisioned by the controller"))
    }
}

/// Returns the answer to `CreateVolume`. Pure, because no volume is made.
pub fn create(request: csi::CreateVolumeRequest) -> Result<csi::CreateVolumeResponse, Status> {
    let csi::CreateVolumeRequest { name, volume_capabilities, parameters, capacity_range, .. } = request;
    let name = text("name", name)?;
    check_all(&volume_capabilities)?;
    if name.len() > NAME_LIMIT
        || capacity_range.is_some_and(|range| range.required_bytes < 0 || range.limit_bytes < 0)
    {
        return Err(invalid("name or capacity_range cannot be"));
    }
    if request.volume_content_source.is_some() {
        return Err(invalid("FlexVolume can neither clone a volume nor restore a snapshot"));
    }
    if !request.mutable_parameters.is_empty() {
        return Err(invalid("FlexVolume has no parameters that can change"));
    }
    let is_for_driver = |key: &str| !NOT_FOR_DRIVERS.iter().any(|prefix| key.starts_with(prefix));
    let volume_context = parameters.into_iter().filter(|(key, _)| is_for_driver(key)).collect();
    let volume = csi::Volume { volume_id: of_name(&name), volume_context, ..csi::Volume::default() };
    Ok(csi::CreateVolumeResponse { volume: Some(volume) })
}

fn check_all(capabilities: &[csi::VolumeCapability]) -> Result<(), Status> {
    if capabilities.is_empty() {
        return Err(missing("volume_capabilities"));
    }
    capabilities.iter().try_for_each(|each| Capability::parse(Some(each)).map(drop))
}

/// Returns the answer to `ValidateVolumeCapabilities`. Pure.
pub fn validate(
    request: csi::ValidateVolumeCapabilitiesRequest,
) -> Result<csi::ValidateVolumeCapabilitiesResponse, Status> {
    let id = text("volume_id", request.volume_id)?;
    if request.volume_capabilities.is_empty() {
        return Err(missing("volume_capabilities"));
    }
    if Handle::parse(&id).is_none() {
        return Err(Status::not_found("no such volume"));
    }
    Ok(match check_all(&request.volume_capabilities) {
        Err(status) => {
            csi::ValidateVolumeCapabilitiesResponse { confirmed: None, message: status.message().to_owned() }
        }
        Ok(()) => csi::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        },
    })
}
