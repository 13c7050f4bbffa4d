//! `CreateVolume` request for a claim, and the PersistentVolume for the driver's answer. Pure.
//!
//! A plan is made once, and kept as long as the result of the call is unknown: a retry asks the
//! driver exactly the same, even if the StorageClass, the node or the claim is gone meanwhile. The
//! volume's name is derived from the claim's uid, so that no claim gets two volumes. A plan
//! contains no secrets: they are read for each call.

use super::access;
use super::capacity::{amount, bytes};
use super::driver::Facts;
use super::secret_refs::{self, Of, Pairs, Purpose, RESERVED};
use super::topology;
use super::volumes::{PersistentVolume, PersistentVolumeSpec};
use super::wishes::Wishes;
use crate::wire::csi::{CapacityRange, CreateVolumeRequest, TopologyRequirement, Volume, VolumeCapability};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolumeClaim, SecretReference,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Resource as _, ResourceExt as _};
use std::collections::{BTreeMap, HashMap};

/// Annotation with the driver that made a PersistentVolume.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Finalizer that keeps a PersistentVolume until its volume is deleted.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Prefix of two annotations with the Secret for `DeleteVolume`: the class may be gone by then.
pub const DELETION_SECRET: &str = "volume.kubernetes.io/provisioner-deletion-secret";

/// Prefix of two annotations with the Secret for `ControllerModifyVolume`, for the same reason.
const MODIFY_SECRET: &str = "volume.kubernetes.io/controller-modify-secret";

/// Volume attribute with the process that made the volume.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// Annotation with the node that the scheduler has chosen for the claim's first pod.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Name of the resource that claims request.
pub const STORAGE: &str = "storage";

/// Request to the driver, and the object to write.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `CreateVolume` without its secrets.
    pub request: CreateVolumeRequest,
    /// Secret for this request.
    pub secret: Option<SecretReference>,
    /// The claim.
    pub claim: ObjectReference,
    /// Node of the claim's first pod, if that node decides where the volume is.
    pub node: Option<String>,
    /// PersistentVolume without the values from the driver's answer.
    volume: PersistentVolume,
}

impl Plan {
    /// Makes the plan for a claim and its class. `identity` is this process, `wishes` are its
    /// flags.
    ///
    /// # Errors
    ///
    /// Fails if the claim or the class asks for something that no request can express.
    pub fn make(
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        driver: &Facts,
        requirement: Option<TopologyRequirement>,
        (identity, wishes): (&str, &Wishes),
    ) -> Result<Self, String> {
        let uid = claim.uid().unwrap_or_default();
        let nothing = Pairs::new();
        let parameters = class.parameters.as_ref().unwrap_or(&nothing);
        let name = wishes.volume_name(&uid);
        let volume = Maker { claim, class, parameters, name, wishes }.volume(&driver.name, identity)?;
        let spec = volume.spec.as_ref().ok_or("it has no specification")?;
        if driver.publishes {
            // A volume that could never be attached must not be made.
            access::of_volume(spec, driver.single_node_multi_writer)?;
        }
        let required = required_bytes(claim)?;
        let request = CreateVolumeRequest {
            name: volume.name_any(),
            capacity_range: Some(CapacityRange { required_bytes: required, limit_bytes: 0 }),
            volume_capabilities: capabilities(spec, driver.single_node_multi_writer)?,
            parameters: for_driver(parameters, wishes.extra_create_metadata.then_some(&volume))?,
            accessibility_requirements: requirement,
            ..CreateVolumeRequest::default()
        };
        let of = of(claim, &request.name);
        let secret = secret_refs::reference(Purpose::Provision, parameters, of)?;
        let node = selected_node(claim).map(str::to_owned).filter(|_| driver.topology);
        Ok(Self { request, secret, claim: claim.object_ref(&()), node, volume })
    }

    /// Returns the StorageClass and the preferred segment, which is that of the selected node.
    pub fn place(&self) -> (&str, topology::Segment) {
        let class = self.volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        let requirement = self.request.accessibility_requirements.as_ref();
        let first = requirement.and_then(|requirement| requirement.preferred.first());
        let segments = first.map(|first| first.segments.clone()).unwrap_or_default();
        (class.unwrap_or_default(), flexvol_protocol::ordered::filled(segments))
    }

    /// Returns the PersistentVolume for the volume that the driver has made.
    ///
    /// # Errors
    ///
    /// Fails if the volume is smaller than requested: it has to be deleted.
    pub fn volume(&self, made: &Volume) -> Result<PersistentVolume, String> {
        let asked = self.request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        let bytes = match made.capacity_bytes {
            // The driver does not know the size.
            0 => asked,
            bytes if bytes < asked => {
                return Err(format!(
                    "the driver made a volume of {bytes} bytes where {asked} were asked for"
                ));
            }
            bytes => bytes,
        };
        let mut volume = self.volume.clone();
        let spec = volume.spec.get_or_insert_default();
        spec.capacity = Some([(STORAGE.to_owned(), amount(bytes))].into());
        spec.node_affinity = topology::affinity(&made.accessible_topology);
        let source = spec.csi.get_or_insert_default();
        source.volume_handle.clone_from(&made.volume_id);
        let attributes = source.volume_attributes.get_or_insert_default();
        attributes.extend(made.volume_context.iter().map(|(key, value)| (key.clone(), value.clone())));
        Ok(volume)
    }
}

/// Returns the node that the scheduler has chosen for a claim.
pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(SELECTED_NODE).map(String::as_str).filter(|node| !node.is_empty())
}

fn of<'a>(claim: &'a PersistentVolumeClaim, volume: &'a str) -> Of<'a> {
    Of {
        volume,
        namespace: claim.metadata.namespace.as_deref().unwrap_or_default(),
        claim: claim.metadata.name.as_deref().unwrap_or_default(),
        annotations: Some(claim.annotations()),
    }
}

fn required_bytes(claim: &PersistentVolumeClaim) -> Result<i64, String> {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let Some(asked) = requests.and_then(|requests| requests.get(STORAGE)) else { return Ok(0) };
    bytes(asked).ok_or_else(|| format!("{:?} is no size that CSI has", asked.0))
}

/// Returns one capability for each access mode.
fn capabilities(
    spec: &PersistentVolumeSpec,
    single_node_multi_writer: bool,
) -> Result<Vec<VolumeCapability>, String> {
    let of_mode = |mode: &String| {
        let spec = PersistentVolumeSpec { access_modes: Some(vec![mode.clone()]), ..spec.clone() };
        access::of_volume(&spec, single_node_multi_writer)
    };
    spec.access_modes.iter().flatten().map(of_mode).collect()
}

/// Returns the parameters for the driver, without reserved ones. Adds the names of the volume and
/// of its claim if `named` is given.
fn for_driver(
    parameters: &Pairs,
    named: Option<&PersistentVolume>,
) -> Result<HashMap<String, String>, String> {
    let (reserved, own): (BTreeMap<_, _>, BTreeMap<_, _>) =
        parameters.clone().into_iter().partition(|(key, _)| key.starts_with(RESERVED));
    let unknown = reserved.into_keys().find(|key| *key != fs_type_key() && !secret_refs::is_reserved(key));
    match unknown {
        Some(key) => Err(format!(
            "the StorageClass has the parameter {key:?}, and {RESERVED} is reserved: take it out"
        )),
        None => Ok(own.into_iter().chain(named.into_iter().flat_map(names)).collect()),
    }
}

/// Returns parameters that tell a driver which claim its volume is for.
fn names(volume: &PersistentVolume) -> [(String, String); 3] {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
    let pair = |key: &str, value: Option<String>| (format!("{RESERVED}{key}"), value.unwrap_or_default());
    [
        pair("pvc/name", claim.name),
        pair("pvc/namespace", claim.namespace),
        pair("pv/name", volume.metadata.name.clone()),
    ]
}

fn fs_type_key() -> String {
    format!("{RESERVED}fstype")
}

/// Returns the file system that a class names, by one of several spellings of the parameter.
fn fs_type(parameters: &Pairs) -> Result<Option<String>, String> {
    let is_one = |key: &String| key.eq_ignore_ascii_case("fstype") || *key == fs_type_key();
    let mut named = parameters.iter().filter(|(key, _)| is_one(key));
    let first = named.next();
    match (first, named.next()) {
        (Some((one, _)), Some((other, _))) => {
            Err(format!("the StorageClass names a file system with {one:?} and with {other:?}: leave one"))
        }
        (first, _) => Ok(first.map(|(_, name)| name.clone()).filter(|name| !name.is_empty())),
    }
}

/// Input for a PersistentVolume.
struct Maker<'a> {
    claim: &'a PersistentVolumeClaim,
    class: &'a StorageClass,
    parameters: &'a Pairs,
    name: String,
    wishes: &'a Wishes,
}

impl Maker<'_> {
    fn secret(&self, purpose: Purpose) -> Result<Option<SecretReference>, String> {
        secret_refs::reference(purpose, self.parameters, of(self.claim, &self.name))
    }

    fn volume(self, driver: &str, identity: &str) -> Result<PersistentVolume, String> {
        let mut volume = PersistentVolume::default();
        let retained = self.class.reclaim_policy.as_deref() == Some("Retain");
        volume.metadata.name = Some(self.name.clone());
        volume.metadata.annotations = Some(self.annotations()?);
        // A retained volume needs no finalizer, because it is not deleted.
        volume.metadata.finalizers = (!retained).then(|| vec![FINALIZER.to_owned()]);
        let asked = self.claim.spec.clone().unwrap_or_default();
        volume.spec = Some(PersistentVolumeSpec {
            access_modes: asked.access_modes,
            claim_ref: Some(ObjectReference {
                resource_version: self.claim.resource_version(),
                ..self.claim.object_ref(&())
            }),
            csi: Some(self.source(driver, identity)?),
            mount_options: self.class.mount_options.clone(),
            persistent_volume_reclaim_policy: self.class.reclaim_policy.clone(),
            storage_class_name: Some(self.class.name_any()),
            volume_mode: asked.volume_mode,
            ..PersistentVolumeSpec::default()
        });
        Ok(volume)
    }

    fn annotations(&self) -> Result<Pairs, String> {
        let mut annotations = Pairs::from([(PROVISIONED_BY.to_owned(), self.class.provisioner.clone())]);
        let mut note = |prefix: &str, secret: SecretReference| {
            annotations.insert(format!("{prefix}-name"), secret.name.unwrap_or_default());
            annotations.insert(format!("{prefix}-namespace"), secret.namespace.unwrap_or_default());
        };
        // An empty name means that no Secret is needed.
        note(DELETION_SECRET, self.secret(Purpose::Provision)?.unwrap_or_default());
        if let Some(secret) = self.secret(Purpose::ControllerModify)? {
            note(MODIFY_SECRET, secret);
        }
        Ok(annotations)
    }

    fn source(&self, driver: &str, identity: &str) -> Result<CSIPersistentVolumeSource, String> {
        let modes = self.claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
        let read_only =
            self.wishes.controller_publish_readonly && modes == Some(&["ReadOnlyMany".to_owned()]);
        let block = self.claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block");
        Ok(CSIPersistentVolumeSource {
            driver: driver.to_owned(),
            fs_type: fs_type(self.parameters)?
                .or_else(|| self.wishes.default_fstype.clone())
                .filter(|_| !block),
            read_only: read_only.then_some(true),
            controller_publish_secret_ref: self.secret(Purpose::ControllerPublish)?,
            node_stage_secret_ref: self.secret(Purpose::NodeStage)?,
            node_publish_secret_ref: self.secret(Purpose::NodePublish)?,
            controller_expand_secret_ref: self.secret(Purpose::ControllerExpand)?,
            node_expand_secret_ref: self.secret(Purpose::NodeExpand)?,
            volume_attributes: Some([(IDENTITY.to_owned(), identity.to_owned())].into()),
            ..CSIPersistentVolumeSource::default()
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::wire::csi::Topology;
    use crate::wire::csi::volume_capability::AccessType;
    use crate::wire::csi::volume_capability::access_mode::Mode;
    use serde_json::{Value, json};

    pub(in super::super) const DRIVER: &str = "d.example.com";

    pub(in super::super) fn facts() -> Facts {
        Facts { name: DRIVER.to_owned(), provisions: true, ..Facts::default() }
    }

    /// Builds an object from JSON with changes; `null` removes a field.
    pub(in super::super) fn object<K: serde::de::DeserializeOwned>(mut base: Value, changes: Value) -> K {
        merge(&mut base, changes);
        serde_json::from_value(base).unwrap()
    }

    pub(in super::super) fn merge(base: &mut Value, changes: Value) {
        match changes {
            Value::Object(changes) => {
                for (key, change) in changes {
                    merge(&mut base[key.as_str()], change);
                }
            }
            change => *base = change,
        }
    }

    pub(in super::super) fn claim(changes: Value) -> PersistentVolumeClaim {
        let metadata = json!({ "name": "data", "namespace": "team", "uid": "u1", "resourceVersion": "7",
            "annotations": { "volume.kubernetes.io/storage-provisioner": DRIVER } });
        let spec = json!({ "storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem", "resources": { "requests": { "storage": "1Gi" } } });
        object(json!({ "metadata": metadata, "spec": spec }), changes)
    }

    pub(in super::super) fn class(changes: Value) -> StorageClass {
        let base = json!({ "metadata": { "name": "fast" }, "provisioner": DRIVER, "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate", "parameters": {} });
        object(base, changes)
    }

    fn plan(claim_changes: Value, class_changes: Value) -> Result<Plan, String> {
        Plan::make(&claim(claim_changes), &class(class_changes), &facts(), None, ("us", &Wishes::default()))
    }

    fn made() -> Volume {
        let volume_context = [("a".to_owned(), "b".to_owned())].into();
        Volume { volume_id: "handle".to_owned(), volume_context, ..Volume::default() }
    }

    /// Checks the effect of upstream's flags.
    #[test]
    fn wishes_are_kept() {
        let wishes = Wishes {
            extra_create_metadata: true,
            default_fstype: Some("xfs".to_owned()),
            volume_name_prefix: "k8s".to_owned(),
            controller_publish_readonly: true,
            ..Wishes::default()
        };
        let made_for = |claim_changes: Value, class_changes: Value| {
            let (claim, class) = (claim(claim_changes), class(class_changes));
            let plan = Plan::make(&claim, &class, &facts(), None, ("us", &wishes)).unwrap();
            let volume = serde_json::to_value(plan.volume(&made()).unwrap()).unwrap();
            let parameters: BTreeMap<_, _> = plan.request.parameters.into_iter().collect();
            (parameters, volume["spec"]["csi"].clone())
        };
        let (parameters, csi) = made_for(json!({}), json!({}));
        let names = [("pv/name", "k8s-u1"), ("pvc/name", "data"), ("pvc/namespace", "team")];
        let names = names.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()));
        assert_eq!(parameters, names.into());
        assert_eq!((&csi["fsType"], &csi["readOnly"]), (&json!("xfs"), &Value::Null));
        let only_read = json!({ "spec": { "accessModes": ["ReadOnlyMany"], "volumeMode": "Block" } });
        let (_, csi) = made_for(only_read, json!({}));
        assert_eq!((&csi["fsType"], &csi["readOnly"]), (&Value::Null, &json!(true)));
        let (_, csi) = made_for(json!({}), json!({ "parameters": { "fsType": "ext4" } }));
        assert_eq!(csi["fsType"], "ext4");
    }

    #[test]
    fn what_could_never_be_attached_is_not_made() {
        let modes = json!({ "spec": { "accessModes": ["ReadWriteOnce", "ReadOnlyMany"] } });
        let plan = |publishes| {
            let facts = Facts { publishes, ..facts() };
            Plan::make(&claim(modes.clone()), &class(json!({})), &facts, None, ("us", &Wishes::default()))
        };
        assert!(plan(true).unwrap_err().contains("leave one"));
        assert!(plan(false).is_ok());
    }

    #[test]
    fn a_volume_says_everything() {
        let parameters = json!({ "type": "ssd", "fsType": "xfs",
            "csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}-p",
            "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
            "csi.storage.k8s.io/secret-name": "s", "csi.storage.k8s.io/secret-namespace": "ns" });
        let plan = plan(json!({}), json!({ "parameters": parameters, "mountOptions": ["noatime"] })).unwrap();
        let of = json!({ "name": "s", "namespace": "ns" });
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": "pvc-u1", "finalizers": [FINALIZER], "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "data-p",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "team",
                "volume.kubernetes.io/controller-modify-secret-name": "s",
                "volume.kubernetes.io/controller-modify-secret-namespace": "ns" } },
            "spec": { "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
                "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data",
                    "namespace": "team", "uid": "u1", "resourceVersion": "7" },
                "csi": { "driver": DRIVER, "fsType": "xfs", "volumeHandle": "handle",
                    "volumeAttributes": { "a": "b", "storage.kubernetes.io/csiProvisionerIdentity": "us" },
                    "controllerPublishSecretRef": of, "nodeStageSecretRef": of, "nodePublishSecretRef": of,
                    "controllerExpandSecretRef": of, "nodeExpandSecretRef": of },
                "mountOptions": ["noatime"], "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "fast", "volumeMode": "Filesystem" },
        });
        assert_eq!(serde_json::to_value(plan.volume(&made()).unwrap()).unwrap(), expected);
        assert_eq!(plan.secret.unwrap().name.unwrap(), "data-p");
        let sent: BTreeMap<_, _> =
            plan.request.parameters.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(sent, [("fsType", "xfs"), ("type", "ssd")].into());
        assert_eq!((plan.request.name.as_str(), plan.request.secrets.len()), ("pvc-u1", 0));
        assert_eq!(plan.request.capacity_range.unwrap().required_bytes, 1 << 30);
    }

    #[test]
    fn without_secrets_it_says_so() {
        let volume = plan(json!({}), json!({})).unwrap().volume(&made()).unwrap();
        assert_eq!(volume.annotations()["volume.kubernetes.io/provisioner-deletion-secret-name"], "");
        assert_eq!(volume.annotations().len(), 3);
        assert!(volume.spec.unwrap().csi.unwrap().node_stage_secret_ref.is_none());
    }

    #[test]
    fn each_access_mode_is_a_capability() {
        let modes = json!({ "spec": { "accessModes": ["ReadWriteOnce", "ReadOnlyMany"] } });
        let plan =
            plan(modes, json!({ "mountOptions": ["ro"], "parameters": { "fstype": "ext4" } })).unwrap();
        let found: Vec<_> =
            plan.request.volume_capabilities.iter().map(|each| each.access_mode.unwrap().mode()).collect();
        assert_eq!(found, [Mode::SingleNodeWriter, Mode::MultiNodeReaderOnly]);
        let Some(AccessType::Mount(mount)) = &plan.request.volume_capabilities[0].access_type else {
            panic!()
        };
        assert_eq!((mount.fs_type.as_str(), mount.mount_flags.as_slice()), ("ext4", &["ro".to_owned()][..]));
    }

    #[test]
    fn a_block_volume_has_no_file_system() {
        let plan =
            plan(json!({ "spec": { "volumeMode": "Block" } }), json!({ "parameters": { "fstype": "ext4" } }))
                .unwrap();
        assert!(matches!(plan.request.volume_capabilities[0].access_type, Some(AccessType::Block(_))));
        let spec = plan.volume(&made()).unwrap().spec.unwrap();
        assert_eq!((spec.volume_mode.as_deref(), spec.csi.unwrap().fs_type), (Some("Block"), None));
    }

    #[test]
    fn the_driver_says_how_large_and_where() {
        let plan = plan(json!({}), json!({ "reclaimPolicy": "Retain" })).unwrap();
        let segments = [("zone".to_owned(), "z1".to_owned())].into();
        let made =
            Volume { capacity_bytes: 3 << 29, accessible_topology: vec![Topology { segments }], ..made() };
        let volume = plan.volume(&made).unwrap();
        assert_eq!(volume.finalizers(), [""; 0]);
        let spec = volume.spec.unwrap();
        assert_eq!(spec.capacity.unwrap()["storage"].0, "1536Mi");
        assert_eq!(spec.node_affinity.unwrap().required.unwrap().node_selector_terms.len(), 1);
        let small = Volume { capacity_bytes: (1 << 30) - 1, ..made };
        assert!(plan.volume(&small).unwrap_err().contains("1073741823"));
    }

    #[test]
    fn what_a_class_cannot_say() {
        let refused = |parameters: Value| plan(json!({}), json!({ "parameters": parameters })).unwrap_err();
        assert!(refused(json!({ "csi.storage.k8s.io/other": "x" })).contains("reserved"));
        assert!(refused(json!({ "fstype": "a", "csi.storage.k8s.io/fstype": "a" })).contains("leave one"));
        assert!(refused(json!({ "csi.storage.k8s.io/node-expand-secret-name": "a" })).contains("half"));
        assert!(plan(json!({ "spec": { "accessModes": ["Whatever"] } }), json!({})).is_err());
    }
}
