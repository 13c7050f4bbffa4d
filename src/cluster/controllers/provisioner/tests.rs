//! Tests of the provisioner, with an API server and a driver that do what each test says.

use super::super::creation::tests::{DRIVER, claim, class, object};
use super::super::queue::Outcome;
use super::super::watches::Told;
use super::{
    Change, Client, Driver, HashMap, Key, Mutex, MutexGuard, PersistentVolumeClaim, Provisioner,
    VolumeAttachment, Watches,
};
use crate::wire::csi::controller_server::{Controller, ControllerServer};
use crate::wire::csi::identity_server::{Identity, IdentityServer};
use crate::wire::csi::{self, plugin_capability};
use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Status};

/// Result of a `CreateVolume` call.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Made,
    /// The volume is smaller than requested.
    Small,
    /// The volume is made, and no answer comes.
    Lost,
    /// The volume is made, and the driver's connections break.
    Broken,
    Failed(Code),
}

/// Requests to the driver, and its volumes.
#[derive(Debug, Default)]
struct Disks {
    answers: VecDeque<Answer>,
    asked: Vec<csi::CreateVolumeRequest>,
    made: Vec<String>,
    deleted: Vec<csi::DeleteVolumeRequest>,
    connections: Vec<std::os::unix::net::UnixStream>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Disks>>);

impl Fake {
    fn disks(&self) -> MutexGuard<'_, Disks> {
        self.0.lock().unwrap()
    }
}

type Answered<T> = Result<tonic::Response<T>, Status>;

#[tonic::async_trait]
impl Identity for Fake {
    async fn get_plugin_info(
        &self,
        _: tonic::Request<csi::GetPluginInfoRequest>,
    ) -> Answered<csi::GetPluginInfoResponse> {
        let info =
            csi::GetPluginInfoResponse { name: DRIVER.to_owned(), ..csi::GetPluginInfoResponse::default() };
        Ok(tonic::Response::new(info))
    }

    async fn probe(&self, _: tonic::Request<csi::ProbeRequest>) -> Answered<csi::ProbeResponse> {
        Ok(tonic::Response::new(csi::ProbeResponse { ready: Some(true) }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: tonic::Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Answered<csi::GetPluginCapabilitiesResponse> {
        use plugin_capability::service::Type::{ControllerService, VolumeAccessibilityConstraints};
        let of = |kind: plugin_capability::service::Type| csi::PluginCapability {
            r#type: Some(plugin_capability::Type::Service(plugin_capability::Service {
                r#type: kind.into(),
            })),
        };
        let capabilities = [ControllerService, VolumeAccessibilityConstraints].map(of).to_vec();
        Ok(tonic::Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }
}

#[tonic::async_trait]
impl Controller for Fake {
    async fn controller_get_capabilities(
        &self,
        _: tonic::Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Answered<csi::ControllerGetCapabilitiesResponse> {
        use csi::controller_service_capability::{Rpc, Type, rpc};
        let rpc = Rpc { r#type: rpc::Type::CreateDeleteVolume.into() };
        let capabilities = vec![csi::ControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) }];
        Ok(tonic::Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(
        &self,
        asked: tonic::Request<csi::CreateVolumeRequest>,
    ) -> Answered<csi::CreateVolumeResponse> {
        let asked = asked.into_inner();
        let answer = {
            let mut disks = self.disks();
            let answer = disks.answers.pop_front().unwrap_or(Answer::Made);
            if !matches!(answer, Answer::Failed(_)) && !disks.made.contains(&asked.name) {
                disks.made.push(asked.name.clone());
            }
            disks.asked.push(asked.clone());
            answer
        };
        let capacity_bytes = match answer {
            Answer::Made => 0,
            Answer::Small => 1,
            Answer::Broken => {
                let connections = std::mem::take(&mut self.disks().connections);
                for connection in connections {
                    connection.shutdown(std::net::Shutdown::Both).unwrap();
                }
                std::future::pending().await
            }
            Answer::Lost => std::future::pending().await,
            Answer::Failed(code) => return Err(Status::new(code, "so it is")),
        };
        let volume = csi::Volume { volume_id: asked.name, capacity_bytes, ..csi::Volume::default() };
        Ok(tonic::Response::new(csi::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        asked: tonic::Request<csi::DeleteVolumeRequest>,
    ) -> Answered<csi::DeleteVolumeResponse> {
        let (asked, mut disks) = (asked.into_inner(), self.disks());
        disks.made.retain(|name| *name != asked.volume_id);
        disks.deleted.push(asked);
        Ok(tonic::Response::new(csi::DeleteVolumeResponse {}))
    }
}

/// API server: objects by path, the requests and Events that it got, and the error codes for the
/// next requests of a path.
#[derive(Default)]
struct Server {
    objects: HashMap<String, Value>,
    asked: Vec<String>,
    said: Vec<String>,
    fails: VecDeque<(&'static str, u16)>,
}

#[derive(Clone, Default)]
struct World(Arc<Mutex<Server>>);

impl World {
    fn server(&self) -> MutexGuard<'_, Server> {
        self.0.lock().unwrap()
    }

    fn client(&self) -> Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, answer) = world.server().answer(&parts.method, parts.uri.path(), &body);
                let answer = serde_json::to_vec(&answer).unwrap();
                Ok::<_, std::io::Error>(Response::builder().status(code).body(Body::from(answer)).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// Returns the requests since the last call, for volumes, claims and Secrets, and the Events,
    /// which come a little later.
    async fn asked(&self) -> (Vec<String>, Vec<String>) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let mut server = self.server();
        (std::mem::take(&mut server.asked), std::mem::take(&mut server.said))
    }
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        let path = path.trim_start_matches("/api/v1/");
        if path.ends_with("/events") {
            let said = format!("{}: {}", body["reason"].as_str().unwrap(), body["message"].as_str().unwrap());
            self.said.push(said);
            return (201, body.clone());
        }
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let path = if *method == Method::POST { format!("{path}/{name}") } else { path.to_owned() };
        self.asked.push(format!("{method} {path}"));
        let fails = self.fails.iter().position(|(failing, _)| path.contains(failing));
        if let Some((_, code)) = fails.and_then(|position| self.fails.remove(position)) {
            return (code, failure(code));
        }
        match (method.as_str(), self.objects.get(&path).cloned()) {
            ("POST", Some(_)) => (409, failure(409)),
            ("POST", None) => {
                self.objects.insert(path, body.clone());
                (201, body.clone())
            }
            (_, None) => (404, failure(404)),
            ("DELETE", Some(mut found)) => {
                found["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                self.objects.insert(path, found.clone());
                (200, found)
            }
            ("PATCH", Some(mut found)) if body.is_array() => {
                let removed = body.as_array().unwrap().iter().filter(|change| change["op"] == "remove");
                for change in removed {
                    let at = change["path"].as_str().unwrap().rsplit('/').next().unwrap();
                    found["metadata"]["finalizers"].as_array_mut().unwrap().remove(at.parse().unwrap());
                }
                self.objects.insert(path, found.clone());
                (200, found)
            }
            ("PATCH", Some(found)) => {
                let patched: Value = object(found, body.clone());
                self.objects.insert(path, patched.clone());
                (200, without_nulls(patched))
            }
            (_, Some(found)) => (200, found),
        }
    }
}

fn failure(code: u16) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code,
        "reason": if code == 404 { "NotFound" } else { "Other" } })
}

fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(|field| *field = without_nulls(field.take()));
    }
    value
}

fn is<K>(object: K) -> Told<K> {
    Told::Is(Box::new(object))
}

fn gone<K>(object: K) -> Told<K> {
    Told::Gone(Box::new(object))
}

/// Provisioner with its environment.
struct Play {
    provisioner: Provisioner,
    watches: Watches,
    driver: Fake,
    world: World,
    _directory: tempfile::TempDir,
}

const NODE: &str = "volume.kubernetes.io/selected-node";

impl Play {
    async fn begin(answers: &[Answer]) -> Self {
        let (driver, world) = (Fake::default(), World::default());
        driver.disks().answers.extend(answers);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let known = driver.clone();
        let incoming = UnixListenerStream::new(UnixListener::bind(&socket).unwrap()).map(move |accepted| {
            let accepted = accepted?.into_std()?;
            known.disks().connections.push(accepted.try_clone()?);
            tokio::net::UnixStream::from_std(accepted)
        });
        let router = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(driver.clone()))
            .add_service(ControllerServer::new(driver.clone()));
        tokio::spawn(router.serve_with_incoming(incoming));
        let connected = Driver::ready(&socket).await;
        // Deadline of calls without an answer: their request arrives within a millisecond.
        let timeout = crate::pace::deadline(2);
        let watches = Watches::default();
        let provisioner =
            Provisioner::new(world.client(), watches.clone(), connected, "us".to_owned(), timeout, true);
        watches.classes.told(is(class(json!({}))));
        let drivers = json!([{ "name": DRIVER, "nodeID": "n", "topologyKeys": ["zone"] }]);
        let node = json!({ "metadata": { "name": "n", "labels": { "zone": "z1" } } });
        watches.nodes.told(is(object(node.clone(), json!({}))));
        watches.csi_nodes.told(is(object(node, json!({ "spec": { "drivers": drivers } }))));
        Self { provisioner, watches, driver, world, _directory: directory }
    }

    fn claimed(&mut self, changes: Value) -> PersistentVolumeClaim {
        let claim = claim(changes);
        self.watches.claims.told(is(claim.clone()));
        claim
    }

    async fn claim(&self) -> Outcome {
        self.provisioner.sync_claim("team", "data", "u1").await
    }

    fn may_be_made(&self) -> bool {
        self.provisioner.begun().contains_key("u1")
    }

    /// Reports its PersistentVolume, with changes.
    fn told(&mut self, changes: Value) {
        let base = json!({ "metadata": { "name": "pv", "uid": "v1", "finalizers": [super::super::creation::FINALIZER],
            "annotations": { "pv.kubernetes.io/provisioned-by": DRIVER } },
            "spec": { "persistentVolumeReclaimPolicy": "Delete", "csi": { "driver": DRIVER, "volumeHandle": "handle" } },
            "status": { "phase": "Released" } });
        let volume: Value = object(base, changes);
        self.world.server().objects.insert("persistentvolumes/pv".to_owned(), volume.clone());
        self.watches.volumes.told(is(serde_json::from_value(volume).unwrap()));
    }
}

#[tokio::test]
async fn a_claim_costs_three_requests() {
    let mut play = Play::begin(&[]).await;
    play.claimed(json!({}));
    assert_eq!(play.claim().await, Outcome::Done);
    let (asked, said) = play.world.asked().await;
    assert_eq!(asked, ["POST persistentvolumes/pvc-u1"]);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("Provisioning: ") && said[1].starts_with("ProvisioningSucceeded: "));
    assert!(!play.may_be_made());
}

#[tokio::test]
async fn a_lost_answer_leaks_nothing() {
    let mut play = Play::begin(&[Answer::Lost, Answer::Failed(Code::Aborted), Answer::Made]).await;
    let claim = play.claimed(json!({}));
    assert_eq!(play.claim().await, Outcome::Failed);
    // Everything that the request was made of is deleted.
    play.watches.claims.told(gone(claim));
    play.watches.classes.told(gone(class(json!({}))));
    play.watches.nodes.told(gone(object(json!({ "metadata": { "name": "n" } }), json!({}))));
    assert_eq!(play.claim().await, Outcome::Failed);
    assert!(play.may_be_made());
    assert_eq!(play.claim().await, Outcome::Done);
    let disks = play.driver.disks();
    assert!(disks.asked.len() == 3 && disks.asked.iter().all(|asked| *asked == disks.asked[0]));
    assert_eq!(disks.made, ["pvc-u1"]);
    let written = &play.world.server().objects["persistentvolumes/pvc-u1"];
    assert_eq!(written["spec"]["claimRef"]["uid"], "u1");
}

#[tokio::test]
async fn a_broken_connection_says_nothing_of_the_volume() {
    let mut play = Play::begin(&[Answer::Broken]).await;
    let claim = play.claimed(json!({}));
    assert_eq!((play.claim().await, play.may_be_made()), (Outcome::Failed, true));
    let (_, said) = play.world.asked().await;
    play.watches.claims.told(gone(claim));
    assert_eq!((play.claim().await, play.may_be_made()), (Outcome::Done, false), "{said:?}");
    assert_eq!(play.driver.disks().made, ["pvc-u1"]);
}

#[tokio::test]
async fn what_has_failed_is_forgotten() {
    for (code, outcome) in [(Code::Internal, Outcome::Failed), (Code::InvalidArgument, Outcome::Refused)] {
        let mut play = Play::begin(&[Answer::Failed(code)]).await;
        let claim = play.claimed(json!({}));
        assert_eq!((play.claim().await, play.may_be_made()), (outcome, false));
        play.watches.claims.told(gone(claim));
        assert_eq!(play.claim().await, Outcome::Done);
        assert_eq!(play.driver.disks().asked.len(), 1);
    }
}

#[tokio::test]
async fn a_volume_that_is_not_written_is_written_later() {
    let mut play = Play::begin(&[]).await;
    let claim = play.claimed(json!({}));
    play.world.server().fails.push_back(("persistentvolumes", 500));
    assert_eq!((play.claim().await, play.may_be_made()), (Outcome::Failed, true));
    play.watches.claims.told(gone(claim));
    // The object was written, and that answer was lost.
    play.world.server().fails.push_back(("persistentvolumes", 409));
    assert_eq!((play.claim().await, play.may_be_made()), (Outcome::Done, false));
    assert_eq!(play.driver.disks().made, ["pvc-u1"]);
}

#[tokio::test]
async fn a_volume_that_is_too_small_is_deleted() {
    let mut play = Play::begin(&[Answer::Small]).await;
    play.claimed(json!({}));
    assert_eq!(play.claim().await, Outcome::Failed);
    assert_eq!(play.driver.disks().made, [""; 0]);
    assert_eq!(play.claim().await, Outcome::Done);
}

#[tokio::test]
async fn another_node_is_selected_where_there_is_no_room() {
    let mut play = Play::begin(&[Answer::Failed(Code::ResourceExhausted)]).await;
    let selected = json!({ "metadata": { "annotations": { NODE: "n" } } });
    let claim = play.claimed(selected);
    let path = "namespaces/team/persistentvolumeclaims/data";
    play.world.server().objects.insert(path.to_owned(), serde_json::to_value(&claim).unwrap());
    assert_eq!((play.claim().await, play.may_be_made()), (Outcome::Done, false));
    assert!(play.world.server().objects[path]["metadata"]["annotations"][NODE].is_null());
    let (asked, _) = play.world.asked().await;
    assert_eq!(asked, [format!("GET {path}"), format!("PATCH {path}")]);
    let asked = play.driver.disks().asked[0].accessibility_requirements.clone().unwrap();
    assert_eq!((asked.requisite.len(), asked.preferred.len()), (1, 1));
}

#[tokio::test]
async fn the_secret_of_the_class_is_read_for_each_call() {
    let mut play = Play::begin(&[Answer::Lost]).await;
    let named = json!({ "parameters": { "csi.storage.k8s.io/provisioner-secret-name": "s",
        "csi.storage.k8s.io/provisioner-secret-namespace": "ns" } });
    play.watches.classes.told(is(class(named)));
    play.claimed(json!({}));
    assert_eq!((play.claim().await, play.may_be_made()), (Outcome::Failed, false));
    let secret = json!({ "metadata": { "name": "s" }, "data": { "word": "aGlkZGVu" } });
    play.world.server().objects.insert("namespaces/ns/secrets/s".to_owned(), secret);
    for outcome in [Outcome::Failed, Outcome::Done] {
        assert_eq!(play.claim().await, outcome);
    }
    let asked = std::mem::take(&mut play.driver.disks().asked);
    assert!(asked.len() == 2 && asked.iter().all(|asked| asked.secrets["word"] == "hidden"));
    let (_, said) = play.world.asked().await;
    assert!(said.iter().all(|said| !said.contains("hidden")), "{said:?}");
}

#[tokio::test]
async fn the_volume_goes_before_its_object() {
    let mut play = Play::begin(&[]).await;
    play.told(json!({}));
    assert_eq!(play.provisioner.sync_volume("pv").await.0, Outcome::Done);
    let (asked, said) = play.world.asked().await;
    assert_eq!(asked, ["DELETE persistentvolumes/pv", "PATCH persistentvolumes/pv"]);
    assert_eq!((play.driver.disks().deleted.len(), said), (1, Vec::new()));
    assert_eq!(play.world.server().objects["persistentvolumes/pv"]["metadata"]["finalizers"], json!([]));
}

#[tokio::test]
async fn a_secret_that_has_gone_keeps_no_volume() {
    let noted = json!({ "metadata": { "annotations": {
        "volume.kubernetes.io/provisioner-deletion-secret-name": "s",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "ns" } } });
    let mut play = Play::begin(&[]).await;
    play.told(noted.clone());
    assert_eq!(play.provisioner.sync_volume("pv").await.0, Outcome::Done);
    assert!(play.driver.disks().deleted[0].secrets.is_empty());
    // A Secret that cannot be read is an error.
    let mut play = Play::begin(&[]).await;
    play.told(noted);
    play.world.server().fails.extend([("secrets", 403), ("secrets", 403)]);
    assert_eq!(play.provisioner.sync_volume("pv").await.0, Outcome::Failed);
    assert!(play.driver.disks().deleted.is_empty());
    let (_, said) = play.world.asked().await;
    assert!(said[0].starts_with("VolumeFailedDelete: "), "{said:?}");
}

#[tokio::test]
async fn a_volume_that_is_attached_waits() {
    let mut play = Play::begin(&[]).await;
    play.told(json!({}));
    let attachment = json!({ "metadata": { "name": "a" }, "spec": { "attacher": DRIVER, "nodeName": "n",
        "source": { "persistentVolumeName": "pv" } } });
    let attachment: VolumeAttachment = object(attachment, json!({}));
    play.watches.attachments.told(is(attachment.clone()));
    assert_eq!(play.provisioner.sync_volume("pv").await.0, Outcome::Done);
    assert!(play.driver.disks().deleted.is_empty());
    // The volume is handled again when the attachment is gone.
    let gone = Change { before: Some(Arc::new(attachment)), now: None };
    play.provisioner.attachment(&gone);
    assert_eq!(play.provisioner.queue.next().await, Key::Volume("pv".to_owned()));
}

#[tokio::test]
async fn what_is_retained_is_let_go() {
    let mut play = Play::begin(&[]).await;
    play.told(json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }));
    play.world.server().fails.push_back(("persistentvolumes", 409));
    assert_eq!(play.provisioner.sync_volume("pv").await.0, Outcome::Done);
    assert!(play.driver.disks().deleted.is_empty());
    assert_eq!(play.world.server().objects["persistentvolumes/pv"]["metadata"]["finalizers"], json!([]));
}
