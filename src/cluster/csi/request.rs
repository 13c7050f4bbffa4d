//! Requests of CSI, checked before anything is touched. Pure.
//!
//! Each request becomes a value that is certainly valid, or an `INVALID_ARGUMENT`. Secrets are
//! taken out of the message here and are [`Secret`] from then on.

use super::capability::{Capability, invalid, missing};
use super::handle::Handle;
use super::name::hash;
use crate::wire::csi;
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{PodRef, TargetPath};
use std::collections::{BTreeMap, HashMap};
use tonic::Status;

/// Key for the device that `attach` named: `ControllerPublishVolume` hands it to the node.
pub const DEVICE: &str = "flex/device";

/// Prefixes of attributes that are Kubernetes' or ours, and not options of the driver.
const RESERVED: [&str; 3] = ["csi.storage.k8s.io/", "storage.kubernetes.io/", "flexvol.dev/"];
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// Limit for ids, names and nodes, in bytes.
const TEXT_LIMIT: usize = 1024;
/// Limit for a path, in bytes: `PATH_MAX` counts the zero at the end.
const PATH_LIMIT: usize = 4095;

/// Requested volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// CSI's name for it.
    pub id: String,
    /// FlexVolume's name for it.
    pub name: String,
    /// True if it is a pod's own volume.
    pub inline: bool,
    /// Options that its user chose.
    pub own: BTreeMap<String, String>,
    /// The pod, as far as Kubernetes reports it.
    pub pod: PodRef,
    /// Requested capability.
    pub capability: Capability,
}

/// `NodePublishVolume`.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Volume to publish.
    pub volume: Volume,
    /// Path where the pod will find it.
    pub target: TargetPath,
    /// Path where it is staged.
    pub staging: Option<TargetPath>,
    /// Device that `attach` named.
    pub device: Option<String>,
    /// True if the pod may not write.
    pub read_only: bool,
    /// Secrets for `mount`.
    pub secrets: BTreeMap<String, Secret>,
}

/// `NodeStageVolume`.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Volume to stage.
    pub volume: Volume,
    /// Path where it will be mounted once for the node.
    pub staging: TargetPath,
    /// Device that `attach` named.
    pub device: Option<String>,
    /// Secrets, for a driver that needs them here.
    pub secrets: BTreeMap<String, Secret>,
}

/// A volume and a path of it: `NodeUnpublishVolume`, `NodeUnstageVolume`, `NodeGetVolumeStats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// CSI's name for the volume.
    pub id: String,
    /// Path of the volume.
    pub path: TargetPath,
}

/// `ControllerPublishVolume`.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Volume to attach.
    pub volume: Volume,
    /// Node that it is attached to.
    pub node: String,
    /// True if writing is forbidden there.
    pub read_only: bool,
}

/// Parts of a request that tell which volume it is about.
struct Asked<'a> {
    id: String,
    context: HashMap<String, String>,
    capability: Option<&'a csi::VolumeCapability>,
    /// Path that contains the name of an inline volume.
    target: Option<&'a TargetPath>,
}

impl Volume {
    /// Fingerprint of the options that name the data.
    pub(super) fn identity(&self) -> String {
        let own = self.own.iter().flat_map(|(key, value)| [key, value]);
        let parts = own.chain([&self.capability.fs_type]).map(|part| format!("{}:{part}", part.len()));
        hash(parts.collect::<String>().as_bytes())
    }

    fn parse(asked: Asked<'_>) -> Result<Self, Status> {
        let capability = Capability::parse(asked.capability)?;
        let pod = pod(&asked)?;
        let (name, inline) = name(&asked, &pod)?;
        Ok(Self { own: own_options(asked.context)?, id: asked.id, name, inline, pod, capability })
    }
}

/// Returns the pod, as kubelet reports it if the `CSIDriver` object asks for that. Otherwise the
/// attributes come from a tenant, who cannot know the UID in the path.
fn pod(asked: &Asked<'_>) -> Result<PodRef, Status> {
    let of = |key: &str| asked.context.get(&format!("csi.storage.k8s.io/{key}")).cloned();
    let pod = PodRef {
        name: of("pod.name"),
        namespace: of("pod.namespace"),
        uid: of("pod.uid"),
        service_account: of("serviceAccount.name"),
    };
    let Some(target) = asked.target.filter(|_| pod != PodRef::default()) else { return Ok(pod) };
    let mut below = target.as_path().iter().skip_while(|part| *part != "pods").skip(1);
    if pod.uid.as_ref().is_some_and(|uid| below.next().is_some_and(|part| part == uid.as_str())) {
        return Ok(pod);
    }
    Err(invalid(
        "the attributes name a pod, and it is not kubelet that says so: set podInfoOnMount in the CSIDriver object",
    ))
}

/// FlexVolume's name for an inline volume, out of the path `volumes/kubernetes.io~csi/NAME/mount`.
pub(super) fn inline_name(target: &TargetPath) -> Option<&str> {
    target.as_path().parent()?.file_name()?.to_str()
}

/// Returns FlexVolume's name for a volume, and true if it is inline: kubelet says so together with
/// the pod.
fn name(asked: &Asked<'_>, pod: &PodRef) -> Result<(String, bool), Status> {
    let not_found = || Status::not_found("no such volume: write fx1# and the name of the PersistentVolume");
    let ephemeral = asked.context.get(EPHEMERAL).is_some_and(|value| value == "true");
    match Handle::parse(&asked.id).ok_or_else(not_found)? {
        Handle::Persistent(name) => Ok((name, false)),
        Handle::Inline if ephemeral && pod.uid.is_none() => Err(invalid(
            "the attributes say that the volume is a pod's own, and it is not kubelet that says so: set podInfoOnMount \
             in the CSIDriver object",
        )),
        Handle::Inline if ephemeral => {
            let name = asked.target.and_then(inline_name);
            let name = name.ok_or_else(|| invalid("target_path has no name of a volume in it"))?;
            Ok((name.to_owned(), true))
        }
        Handle::Inline => Err(not_found()),
    }
}

/// Returns the user's options among the attributes. Refuses those that only kubelet may set, as the
/// API server does for FlexVolume.
fn own_options(context: HashMap<String, String>) -> Result<BTreeMap<String, String>, Status> {
    let is_reserved = |key: &str| RESERVED.iter().any(|prefix| key.starts_with(prefix));
    let own: BTreeMap<_, _> =
        flexvol_protocol::ordered::filled(context.into_iter().filter(|(key, _)| !is_reserved(key)));
    let forbidden = |key: &&String| {
        let domain = key.split('/').next().unwrap_or_default().to_ascii_lowercase();
        let of = |name: &str| domain == name || domain.ends_with(&format!(".{name}"));
        key.contains('/') && (of("kubernetes.io") || of("k8s.io"))
    };
    match own.keys().find(forbidden) {
        Some(key) => Err(invalid(&format!("attribute {key:?} is Kubernetes' own: leave it out"))),
        None => Ok(own),
    }
}

impl Publish {
    /// Checks the request.
    #[inline(never)]
    pub fn parse(request: csi::NodePublishVolumeRequest) -> Result<Box<Self>, Status> {
        let id = text("volume_id", request.volume_id)?;
        let target = path("target_path", &request.target_path)?;
        let staging = Some(&request.staging_target_path).filter(|path| !path.is_empty());
        let staging = staging.map(|staging| path("staging_target_path", staging)).transpose()?;
        let capability = request.volume_capability.as_ref();
        let volume =
            Volume::parse(Asked { id, context: request.volume_context, capability, target: Some(&target) })?;
        Ok(Box::new(Self {
            read_only: request.readonly || volume.capability.is_read_only(),
            device: device(request.publish_context)?,
            secrets: secrets(request.secrets)?,
            volume,
            target,
            staging,
        }))
    }
}

impl Stage {
    /// Checks the request.
    pub fn parse(request: csi::NodeStageVolumeRequest) -> Result<Self, Status> {
        let id = text("volume_id", request.volume_id)?;
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let capability = request.volume_capability.as_ref();
        let volume = Volume::parse(Asked { id, context: request.volume_context, capability, target: None })?;
        let (device, secrets) = (device(request.publish_context)?, secrets(request.secrets)?);
        Ok(Self { volume, staging, device, secrets })
    }
}

impl At {
    /// Checks id and path; `field` is the name of the path in the request.
    pub fn parse(volume_id: String, field: &str, path: &str) -> Result<Self, Status> {
        Ok(Self { id: text("volume_id", volume_id)?, path: self::path(field, path)? })
    }

    /// Checks the same for a question about an existing volume: a path that no volume can have is
    /// not found.
    pub fn find(volume_id: String, path: &str) -> Result<Self, Status> {
        let id = text("volume_id", volume_id)?;
        plain_path("volume_path", path)?;
        let nowhere = |_| Status::not_found("no volume is there: volume_path is not the path of a volume");
        Ok(Self { id, path: TargetPath::parse(path.as_ref()).map_err(nowhere)? })
    }
}

impl Attach {
    /// Checks the request.
    pub fn parse(request: csi::ControllerPublishVolumeRequest) -> Result<Self, Status> {
        let id = text("volume_id", request.volume_id)?;
        let node = node(request.node_id)?;
        let capability = request.volume_capability.as_ref();
        let volume = Volume::parse(Asked { id, context: request.volume_context, capability, target: None })?;
        let read_only = request.readonly || volume.capability.is_read_only();
        Ok(Self { volume, node, read_only })
    }
}

/// Checks the name of a node, which becomes an argument of the driver.
pub fn node(node_id: String) -> Result<String, Status> {
    let node = text("node_id", node_id)?;
    if node.starts_with('-') || node.contains('/') {
        return Err(invalid("node_id is no name of a node"));
    }
    Ok(node)
}

/// Checks a field that must have a plain text.
pub fn text(field: &str, value: String) -> Result<String, Status> {
    match () {
        () if value.is_empty() => Err(missing(field)),
        () if value.len() > TEXT_LIMIT => Err(invalid(&format!("{field} is longer than {TEXT_LIMIT} bytes"))),
        () if value.chars().any(char::is_control) => {
            Err(invalid(&format!("{field} has a control character")))
        }
        () => Ok(value),
    }
}

fn path(field: &str, value: &str) -> Result<TargetPath, Status> {
    plain_path(field, value)?;
    TargetPath::parse(value.as_ref()).map_err(|failure| invalid(&format!("{field}: {failure}")))
}

fn plain_path(field: &str, value: &str) -> Result<(), Status> {
    match () {
        () if value.is_empty() => Err(missing(field)),
        () if value.len() > PATH_LIMIT => Err(invalid(&format!("{field} is too long for a path"))),
        () if value.chars().any(char::is_control) => {
            Err(invalid(&format!("{field} has a control character")))
        }
        () => Ok(()),
    }
}

fn device(mut context: HashMap<String, String>) -> Result<Option<String>, Status> {
    let device = context.remove(DEVICE).filter(|device| !device.is_empty());
    device.map(|device| text("publish_context", device)).transpose()
}

fn secrets(secrets: HashMap<String, String>) -> Result<BTreeMap<String, Secret>, Status> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !secrets.keys().all(|key| !key.is_empty() && key.bytes().all(plain)) {
        return Err(invalid(
            "a key among the secrets is none of a Secret's: letters, digits, '-', '_' and '.'",
        ));
    }
    let secrets = secrets.into_iter().map(|(key, value)| (key, Secret::new(value.into_bytes())));
    Ok(flexvol_protocol::ordered::filled(secrets))
}

#[cfg(test)]
mod tests {
    use super::super::capability::tests::mounted;
    use super::*;
    use crate::wire::csi::volume_capability::access_mode::Mode;
    use tonic::Code;

    fn publish(change: impl FnOnce(&mut csi::NodePublishVolumeRequest)) -> Result<Box<Publish>, Status> {
        let mut request = csi::NodePublishVolumeRequest {
            volume_id: "fx1#pv".into(),
            target_path: "/k/pods/1/volumes/kubernetes.io~csi/data/mount".into(),
            volume_capability: Some(mounted(Mode::SingleNodeWriter, &[])),
            ..csi::NodePublishVolumeRequest::default()
        };
        change(&mut request);
        Publish::parse(request)
    }

    fn refused(change: impl FnOnce(&mut csi::NodePublishVolumeRequest)) -> Code {
        publish(change).unwrap_err().code()
    }

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn attributes_are_options_pod_and_name() {
        let context = map(&[
            ("server", "s"),
            ("csi.storage.k8s.io/pod.name", "p"),
            ("csi.storage.k8s.io/pod.uid", "1"),
            ("csi.storage.k8s.io/ephemeral", "false"),
            ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
        ]);
        let volume = publish(|it| it.volume_context = context).unwrap().volume;
        assert_eq!(volume.own, [("server".to_owned(), "s".to_owned())].into());
        assert_eq!(
            (volume.name.as_str(), volume.pod.name.as_deref(), volume.inline),
            ("pv", Some("p"), false)
        );
    }

    #[test]
    fn an_inline_volume_has_the_name_in_its_path() {
        let id = format!("csi-{}", "0".repeat(64));
        assert_eq!(refused(|it| it.volume_id.clone_from(&id)), Code::NotFound);
        // A PersistentVolume may have this attribute as well; then no pod comes with it.
        let mut context = map(&[("csi.storage.k8s.io/ephemeral", "true")]);
        let says_so = |it: &mut csi::NodePublishVolumeRequest, context: &HashMap<_, _>| {
            (it.volume_id, it.volume_context) = (id.clone(), context.clone());
        };
        assert_eq!(refused(|it| says_so(it, &context)), Code::InvalidArgument);
        context.extend(map(&[("csi.storage.k8s.io/pod.uid", "1")]));
        let volume = publish(|it| says_so(it, &context)).unwrap().volume;
        assert_eq!((volume.name.as_str(), volume.inline), ("data", true));
    }

    #[test]
    fn no_tenant_plays_kubelet() {
        for key in [
            "kubernetes.io/secret/k",
            "kubernetes.io/fsType",
            "Kubernetes.IO/x",
            "a.kubernetes.io/x",
            "b.k8s.io/y",
        ] {
            assert_eq!(refused(|it| it.volume_context = map(&[(key, "x")])), Code::InvalidArgument, "{key}");
        }
        assert!(publish(|it| it.volume_context = map(&[("mykubernetes.io/x", "x")])).is_ok());
    }

    /// Without podInfoOnMount, kubelet passes a tenant's attributes on unchanged.
    #[test]
    fn no_tenant_names_another_pod() {
        let namespace = ("csi.storage.k8s.io/pod.namespace", "kube-system");
        let account = ("csi.storage.k8s.io/serviceAccount.name", "admin");
        for claims in [&[namespace][..], &[account], &[namespace, ("csi.storage.k8s.io/pod.uid", "2")]] {
            assert_eq!(refused(|it| it.volume_context = map(claims)), Code::InvalidArgument, "{claims:?}");
        }
        let told = map(&[namespace, ("csi.storage.k8s.io/pod.uid", "1")]);
        assert!(publish(|it| it.volume_context = told.clone()).is_ok());
        assert_eq!(
            refused(|it| (it.volume_context, it.target_path) = (told, "/mnt/1".into())),
            Code::InvalidArgument
        );
    }

    #[test]
    fn paths_ids_and_secrets_are_plain() {
        for path in ["", "a", "/", "/a/../b", "/a\0", "/a\nb", &format!("/{}", "a".repeat(5000))] {
            assert_eq!(refused(|it| it.target_path = path.into()), Code::InvalidArgument, "{path}");
        }
        for id in ["", "fx1#\n", &"a".repeat(2000)] {
            assert_eq!(refused(|it| it.volume_id = id.into()), Code::InvalidArgument, "{id}");
        }
        for key in ["", "a/b", "a b", "k\0"] {
            assert_eq!(refused(|it| it.secrets = map(&[(key, "x")])), Code::InvalidArgument, "{key}");
        }
        let request = publish(|it| it.secrets = map(&[("k", "hunter2")])).unwrap();
        assert!(!format!("{request:?}").contains("hunter2"));
        assert_eq!(request.secrets["k"].expose(), b"hunter2");
        for node in ["-rf", "a/b", ""] {
            assert!(super::node(node.into()).is_err(), "{node}");
        }
    }
}
