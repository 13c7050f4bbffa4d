//! What the paper driver says of volumes as drivers did up to CSI 1.12.

use super::driver::Driver;
use flexvol_cluster::wire::before;
use flexvol_cluster::wire::before::controller_server as older;
use flexvol_cluster::wire::csi::controller_server::ControllerServer;
use futures_util::future::BoxFuture;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tower::Service;

/// A capability of the Controller service.
pub(crate) const VOLUME_CONDITION: i32 = 11;

/// The Controller service of two ages of CSI: both have the same name.
#[derive(Clone)]
pub(crate) struct Both {
    newer: ControllerServer<Driver>,
    older: older::ControllerServer<Driver>,
}

impl Both {
    pub(crate) fn new(driver: &Driver) -> Self {
        let newer = ControllerServer::new(driver.clone());
        Self { newer, older: older::ControllerServer::new(driver.clone()) }
    }
}

impl NamedService for Both {
    const NAME: &'static str = <ControllerServer<Driver> as NamedService>::NAME;
}

impl Service<http::Request<Body>> for Both {
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;
    type Response = http::Response<Body>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match request.uri().path().rsplit('/').next() {
            Some("ListVolumes" | "ControllerGetVolume") => self.older.call(request),
            _ => self.newer.call(request),
        }
    }
}

fn condition(message: String) -> before::VolumeStatus {
    let abnormal = !message.is_empty();
    before::VolumeStatus { volume_condition: Some(before::VolumeCondition { abnormal, message }) }
}

#[tonic::async_trait]
impl older::Controller for Driver {
    async fn list_volumes(
        &self,
        request: Request<before::ListVolumesRequest>,
    ) -> Result<Response<before::ListVolumesResponse>, Status> {
        let (all, next_token) = self.conditions(&request.into_inner().starting_token).await?;
        let entry = |(volume_id, message)| before::list_volumes_response::Entry {
            volume: Some(before::Volume { volume_id }),
            status: Some(condition(message)),
        };
        let entries = all.into_iter().map(entry).collect();
        Ok(Response::new(before::ListVolumesResponse { entries, next_token }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<before::ControllerGetVolumeRequest>,
    ) -> Result<Response<before::ControllerGetVolumeResponse>, Status> {
        let said = self.condition(&request.into_inner().volume_id).await?;
        let said = said.ok_or_else(|| Status::not_found("no such volume"))?;
        Ok(Response::new(before::ControllerGetVolumeResponse { status: Some(condition(said)) }))
    }
}
