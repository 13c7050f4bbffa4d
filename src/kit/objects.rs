//! Reads what kubelet reads of a cluster's objects, from their YAML: pods, the claims and volumes
//! behind them, secrets.
//!
//! ```text
//! Pod ── spec.volumes[].flexVolume ───────────────────────────┐
//!  │                                                          ├─▶ PodVolume: what a driver is called with
//!  └─ spec.volumes[].persistentVolumeClaim ─▶ claim ─▶ PV ────┘
//!                                        Secret ──────────────┘
//! ```
//!
//! Only the fields that matter to a FlexVolume are read. Their rules are those of the API server
//! (an option of a volume is a string, no option begins with `kubernetes.io/`) and of kubelet (a
//! Secret's type is the driver's name, `readOnly` of a PV is never read, mount options are an
//! error). A claim gets the same volume that a cluster would bind it to.
//!
//! The module is pure: its inputs are texts, its outputs are volumes. No error repeats a value,
//! because it may be a secret.

mod binding;
mod fields;
mod flex;
mod pod;
pub mod rules;
mod secret;
mod volume;

use crate::yaml;
use fields::{Field, Identity};
use flex::FlexVolume;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Access, FsGroup, FsGroupSpelling, Options};
use pod::{Pod, Source};
use secret::SecretObject;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use volume::{Claim, PersistentVolume};

/// Namespace, and name in it.
pub type Key = (String, String);

/// Objects of one or more files.
#[derive(Debug, Default)]
pub struct Objects {
    pods: BTreeMap<Key, Pod>,
    claims: BTreeMap<Key, Claim>,
    volumes: BTreeMap<String, PersistentVolume>,
    secrets: BTreeMap<Key, SecretObject>,
}

/// Lookup of volumes' secrets: kubelet needs them to mount and for nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    /// Every Secret that a volume names must exist, and have the driver's type.
    Wanted,
    /// Existing Secrets of the driver's type are used; volumes do without the others.
    IfThere,
    /// Secrets are not looked up.
    Unneeded,
}

/// Volume that some pod uses, and the place of its definition.
#[derive(Clone, Debug)]
pub struct Used {
    /// Place of its `flexVolume`.
    pub origin: Origin,
    /// Pod; `None` if no pod of these objects uses the volume and one was made up for it.
    pub pod: Option<Key>,
    /// Input for the driver's calls, or the reason why the driver would never be called.
    pub volume: Result<PodVolume>,
}

/// Place of a `flexVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the pod, under this name.
    Inline(String),
    /// In the `PersistentVolume` of this name.
    Volume(String),
}

impl Objects {
    /// Adds the objects of one YAML or JSON text. Kinds without volumes are skipped.
    pub fn add(&mut self, text: &str) -> Result<()> {
        yaml::parse(text)?.iter().try_for_each(|document| self.add_object(document))
    }

    /// Adds one object, or every one of a list.
    pub fn add_object(&mut self, object: &Value) -> Result<()> {
        let field = Field::of_object(object)?;
        let kind = field.get("kind")?.text()?.unwrap_or_default();
        if kind.is_empty() {
            return Err(Failure::options("an object has no kind: it is no Kubernetes object"));
        }
        let items = field.get("items")?;
        if kind.ends_with("List") && !items.is_absent() {
            let Value::Array(items) = items.value() else { return Err(items.error("must be a list")) };
            return items.iter().try_for_each(|item| self.add_object(item));
        }
        let field = field.of_kind(kind)?;
        match kind {
            "PersistentVolume" => {
                let volume = PersistentVolume::read(&field)?;
                once(&mut self.volumes, volume.name.clone(), volume, &field)
            }
            "PersistentVolumeClaim" => {
                let claim = Claim::read(&field)?;
                once(&mut self.claims, claim.key.clone(), claim, &field)
            }
            "Secret" => {
                let identity = Identity::read(&field)?;
                once(&mut self.secrets, identity.key(), SecretObject::read(&field)?, &field)
            }
            _ => match Pod::read(kind, &field)? {
                Some(pod) => once(&mut self.pods, pod.key(), pod, &field),
                None => Ok(()),
            },
        }
    }

    /// Returns every `FlexVolume` of every pod, in the order of their names. A volume that a pod
    /// names twice is one volume, as its last entry describes it (`AddPodToVolume`,
    /// pkg/kubelet/volumemanager/cache). If there is no pod at all, one is made up for each
    /// `PersistentVolume`.
    pub fn pod_volumes(&self, kubelet_root: &Path, secrets: Secrets) -> Result<Vec<PodVolume>> {
        let made_up = self.made_up_pods();
        let pods: Vec<&Pod> = self.pods.values().chain(&made_up).collect();
        let mut found = Vec::new();
        for pod in pods {
            let first = found.len();
            for (name, source) in &pod.sources {
                if let Some(wanted) = self.resolve(pod, name, source)? {
                    let secrets = self.secrets_of(pod, &wanted, secrets)?;
                    let volume = wanted.volume(kubelet_root, pod, secrets);
                    match found[first..].iter_mut().find(|other: &&mut PodVolume| other.is_same(&volume)) {
                        Some(other) => *other = volume,
                        None => found.push(volume),
                    }
                }
            }
        }
        if found.is_empty() {
            return Err(Failure::options(
                "no FlexVolume in it: give a Pod with one, or a PersistentVolume, or both with the claim between them",
            ));
        }
        Ok(found)
    }

    /// Returns every `FlexVolume`, once per pod and with its outcome: first those of the pods, then
    /// those that no pod uses. Claims without a volume are left out, because their volumes may be
    /// of any kind.
    pub fn used(&self, kubelet_root: &Path, secrets: Secrets) -> Vec<Used> {
        let mut all: Vec<_> =
            self.pods.values().flat_map(|pod| self.used_by(pod, kubelet_root, secrets)).collect();
        let unused = self.volumes.values().filter(|volume| {
            let origin = Origin::Volume(volume.name.clone());
            volume.flex.is_some() && all.iter().all(|used| used.origin != origin)
        });
        let made_up: Vec<_> = unused.map(|volume| Pod::made_up_for(volume, self.claim_of(volume))).collect();
        for pod in made_up {
            let used = self.used_by(&pod, kubelet_root, secrets);
            all.extend(used.into_iter().map(|used| Used { pod: None, ..used }));
        }
        all
    }

    fn used_by(&self, pod: &Pod, kubelet_root: &Path, secrets: Secrets) -> Vec<Used> {
        let used = |(name, source): &(String, Source)| {
            let origin = match source {
                Source::Flex(_) => Origin::Inline(name.clone()),
                Source::Claim { claim, .. } => {
                    let key = (pod.identity.namespace.clone(), claim.clone());
                    Origin::Volume(self.bound_to(&key, pod).ok()?.name.clone())
                }
                Source::Volume(volume) => Origin::Volume(volume.clone()),
            };
            let volume = self.resolve(pod, name, source).transpose()?.and_then(|wanted| {
                let secrets = self.secrets_of(pod, &wanted, secrets)?;
                Ok(wanted.volume(kubelet_root, pod, secrets))
            });
            Some(Used { origin, pod: Some(pod.key()), volume })
        };
        let mut all: Vec<Used> = Vec::new();
        for used in pod.sources.iter().filter_map(used) {
            match all.iter_mut().find(|other| other.origin == used.origin) {
                Some(other) => *other = used,
                None => all.push(used),
            }
        }
        all
    }

    fn made_up_pods(&self) -> Vec<Pod> {
        if !self.pods.is_empty() {
            return Vec::new();
        }
        let flex = self.volumes.values().filter(|volume| volume.flex.is_some());
        flex.map(|volume| Pod::made_up_for(volume, self.claim_of(volume))).collect()
    }

    /// Resolves one entry of `spec.volumes` as kubelet's volume manager does; `None` if it is not a
    /// `FlexVolume`.
    fn resolve<'a>(&'a self, pod: &Pod, name: &'a str, source: &'a Source) -> Result<Option<Wanted<'a>>> {
        match source {
            Source::Flex(flex) => {
                let namespace = pod.identity.namespace.clone();
                Ok(Some(Wanted { flex, name, read_only: flex.read_only, namespace, capacity: None }))
            }
            Source::Claim { claim, read_only } => self.resolve_claim(pod, claim, *read_only),
            Source::Volume(volume) => match self.volumes.get(volume) {
                Some(volume) => Self::resolve_volume(volume, &pod.identity.namespace, false),
                None => Ok(None),
            },
        }
    }

    fn resolve_claim(&self, pod: &Pod, claim: &str, read_only: bool) -> Result<Option<Wanted<'_>>> {
        let key = (pod.identity.namespace.clone(), claim.to_owned());
        Self::resolve_volume(self.bound_to(&key, pod)?, &key.0, read_only)
    }

    fn resolve_volume<'a>(
        volume: &'a PersistentVolume,
        pod_namespace: &str,
        read_only: bool,
    ) -> Result<Option<Wanted<'a>>> {
        let Some(flex) = &volume.flex else { return Ok(None) };
        volume.check()?;
        let namespace = flex.secret.as_ref().and_then(|secret| secret.namespace.as_deref());
        let namespace = namespace.unwrap_or(pod_namespace).to_owned();
        Ok(Some(Wanted { flex, name: &volume.name, read_only, namespace, capacity: volume.capacity }))
    }

    fn secrets_of(
        &self,
        pod: &Pod,
        wanted: &Wanted<'_>,
        secrets: Secrets,
    ) -> Result<BTreeMap<String, Secret>> {
        let Some(reference) = wanted.flex.secret.as_ref().filter(|_| secrets != Secrets::Unneeded) else {
            return Ok(BTreeMap::new());
        };
        let key = (wanted.namespace.clone(), reference.name.clone());
        if secrets == Secrets::IfThere {
            let fitting = self.secrets.get(&key).map(|secret| secret.for_driver(&key, &wanted.flex.driver));
            return Ok(fitting.and_then(Result::ok).unwrap_or_default());
        }
        let Some(secret) = self.secrets.get(&key) else {
            let text = format!(
                "{}, volume {}: there is no Secret {}/{}: add its file",
                pod.title(),
                wanted.name,
                key.0,
                key.1
            );
            return Err(Failure::options(text));
        };
        secret.for_driver(&key, &wanted.flex.driver)
    }
}

/// Volume of a pod, with everything that decides its options.
struct Wanted<'a> {
    flex: &'a FlexVolume,
    /// Name of the PV, or of the pod's volume.
    name: &'a str,
    read_only: bool,
    /// Namespace of its Secret.
    namespace: String,
    /// Capacity of the PV, in bytes.
    capacity: Option<u64>,
}

impl Wanted<'_> {
    fn volume(&self, kubelet_root: &Path, pod: &Pod, secrets: BTreeMap<String, Secret>) -> PodVolume {
        let options = Options {
            fs_type: Some(self.flex.fs_type.clone()),
            access: Some(if self.read_only { Access::ReadOnly } else { Access::ReadWrite }),
            volume_name: Some(self.name.to_owned()),
            pod: pod.reference(),
            fs_group: pod.fs_group.map(|gid| FsGroup { gid, spelling: FsGroupSpelling::Current }),
            secrets,
            own: self.flex.options.clone(),
            ..Options::default()
        };
        PodVolume {
            kubelet_root: kubelet_root.to_owned(),
            pod_uid: pod.uid.clone(),
            driver: self.flex.driver.clone(),
            name: self.name.to_owned(),
            options,
            capacity: self.capacity,
        }
    }
}

/// Adds an object. Two objects of one name are an error, although a cluster would keep the last.
fn once<K: Ord, V>(all: &mut BTreeMap<K, V>, key: K, value: V, field: &Field<'_>) -> Result<()> {
    match all.insert(key, value) {
        None => Ok(()),
        Some(_) => Err(field.error("is there twice: remove one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};

    fn volumes(texts: &[&str]) -> Result<Vec<PodVolume>> {
        let mut objects = Objects::default();
        texts.iter().try_for_each(|text| objects.add(text))?;
        objects.pod_volumes(Path::new("/k"), Secrets::Wanted)
    }

    fn found(texts: &[&str]) -> Vec<PodVolume> {
        volumes(texts).unwrap_or_else(|error| panic!("{texts:?}: {error}"))
    }

    fn refused(texts: &[&str]) -> String {
        match volumes(texts) {
            Err(error) => error.message(),
            Ok(volumes) => panic!("{texts:?}: {volumes:?}"),
        }
    }

    /// Returns a pod with this `flexVolume`, in flow style.
    fn pod(flex: &str) -> String {
        format!("{{kind: Pod, metadata: {{name: p}}, spec: {{volumes: [{{name: v, flexVolume: {flex}}}]}}}}")
    }

    const PV: &str = "kind: PersistentVolume\nmetadata: {name: pv}\nspec:\n  capacity: {storage: 1Gi}\n  \
                      accessModes: [ReadWriteMany]\n  flexVolume: {driver: a/b, readOnly: true, secretRef: {name: s}}\n";
    const CLAIM: &str = "kind: PersistentVolumeClaim\nmetadata: {name: c, namespace: ns}\nspec:\n  \
                         accessModes: [ReadWriteMany]\n  resources: {requests: {storage: 500M}}\n";
    const POD: &str = "kind: Pod\nmetadata: {name: p, namespace: ns}\nspec:\n  volumes:\n  - name: v\n    \
                       persistentVolumeClaim: {claimName: c}\n";
    const SECRET: &str = "kind: Secret\nmetadata: {name: s, namespace: ns}\ntype: a/b\ndata: {k: aGk=, l: aGk=}\n\
                          stringData: {l: plain}\n";

    #[test]
    fn an_inline_volume_has_the_pod_s_word() {
        let volume =
            &found(&[&pod("{driver: a/b, fsType: xfs, readOnly: true, options: {o: 'yes', e: ''}}")])[0];
        assert_eq!((volume.name.as_str(), volume.capacity), ("v", None));
        assert_eq!((volume.options.access(), volume.options.fs_type()), (Access::ReadOnly, Some("xfs")));
        assert_eq!(volume.options.own.iter().collect::<Vec<_>>().len(), 2);
    }

    #[test]
    fn a_claim_leads_to_its_volume_and_decides_the_access() {
        let volume = &found(&[POD, CLAIM, PV, SECRET])[0];
        assert_eq!((volume.name.as_str(), volume.capacity), ("pv", Some(1 << 30)));
        // The PV's own readOnly has no effect.
        assert_eq!(volume.options.access(), Access::ReadWrite);
        assert_eq!(volume.options.secrets["k"].expose(), b"hi");
        assert_eq!(volume.options.secrets["l"].expose(), b"plain");
        let read_only = POD.replace("claimName: c", "claimName: c, readOnly: true");
        assert_eq!(found(&[&read_only, CLAIM, PV, SECRET])[0].options.access(), Access::ReadOnly);
    }

    #[test]
    fn the_smallest_volume_that_fits_is_bound() {
        let other = |name: &str, size: &str, more: &str| {
            PV.replace("name: pv", &format!("name: {name}")).replace("1Gi", size) + more
        };
        let small = other("a-small", "100M", "");
        let fits = other("fits", "600M", "");
        let reserved = other("reserved", "500M", "  claimRef: {name: x}\n");
        let classed = other("classed", "500M", "  storageClassName: fast\n");
        let all = [POD, CLAIM, PV, SECRET, &small, &fits, &reserved, &classed];
        assert_eq!(found(&all)[0].name, "fits");
        let mine = other("mine", "10Gi", "  claimRef: {name: c, namespace: ns}\n");
        assert_eq!(found(&[&all[..], &[&mine]].concat())[0].name, "mine");
        let named = format!("{CLAIM}  volumeName: pv\n");
        assert_eq!(found(&[POD, &named, SECRET, PV, &fits])[0].name, "pv");
        assert_eq!(found(&[POD, SECRET, &mine])[0].name, "mine", "a claimRef needs no claim");
    }

    #[test]
    fn without_a_pod_one_is_made_up() {
        let volume = &found(&[CLAIM, PV, SECRET])[0];
        assert_eq!(volume.options.pod.namespace.as_deref(), Some("ns"));
        let again = &found(&[PV, SECRET, CLAIM])[0];
        assert_eq!((&volume.pod_uid, volume.pod_uid.len()), (&again.pod_uid, 36));
    }

    #[test]
    fn templates_are_pods() {
        let spec = "spec: {containers: [], volumes: [{name: v, flexVolume: {driver: a/b}}]}";
        for kind in ["Deployment", "DaemonSet", "Job", "ReplicaSet", "DeploymentConfig"] {
            let text = format!("{{kind: {kind}, metadata: {{name: x}}, spec: {{template: {{{spec}}}}}}}");
            assert_eq!(found(&[&text])[0].options.pod.name.as_deref(), Some("x"), "{kind}");
        }
        let text = format!(
            "{{kind: CronJob, metadata: {{name: x}}, spec: {{jobTemplate: {{spec: {{template: {{{spec}}}}}}}}}}}"
        );
        assert_eq!(found(&[&text]).len(), 1);
        let claim = CLAIM.replace("name: c", "name: data-db-0");
        let set = "kind: StatefulSet\nmetadata: {name: db, namespace: ns}\nspec:\n  template: {spec: {containers: []}}\n  \
                   volumeClaimTemplates: [{metadata: {name: data}}]\n";
        assert_eq!(found(&[set, &claim, PV, SECRET])[0].options.pod.name.as_deref(), Some("db-0"));
        let list = format!("{{kind: List, items: [{}]}}", pod("{driver: a/b}"));
        assert_eq!(found(&[&list]).len(), 1);
    }

    #[test]
    fn what_has_nothing_to_do_with_it_is_left_out() {
        let other = "kind: Service\nmetadata: {name: x}\nspec: {template: 5}\n---\nkind: PersistentVolume\n\
                     metadata: {name: other}\nspec: {nfs: {server: x}, mountOptions: [hard]}\n---\n";
        assert_eq!(found(&[other, &pod("{driver: a/b}")]).len(), 1);
        let claims_nfs = "{kind: Pod, metadata: {name: q}, spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: c}},\
                          {name: w, emptyDir: {}}]}}\n---\n{kind: PersistentVolumeClaim, metadata: {name: c}, spec: {volumeName: other}}";
        assert_eq!(found(&[other, claims_nfs, &pod("{driver: a/b}")]).len(), 1);
    }

    #[test]
    fn the_uid_is_the_pod_s_or_of_its_name() {
        let own = pod("{driver: a/b}").replace("name: p}", "name: p, uid: 03923e36-9e6f}");
        assert_eq!(found(&[&own])[0].pod_uid, "03923e36-9e6f");
        assert_eq!(found(&[&pod("{driver: a/b}")])[0].pod_uid, "9b12a56b-1da0-8680-8cc1-420966c5099a");
    }

    #[test]
    fn for_unmount_no_secret_is_needed() {
        let mut objects = Objects::default();
        for text in [POD, CLAIM, PV] {
            objects.add(text).unwrap();
        }
        assert!(objects.pod_volumes(Path::new("/k"), Secrets::Wanted).is_err());
        assert_eq!(objects.pod_volumes(Path::new("/k"), Secrets::Unneeded).unwrap().len(), 1);
    }

    #[test]
    fn a_pod_s_own_mistakes_are_named_with_the_fix() {
        for (flex, expected) in [
            (
                "{driver: a/b, options: {size: 64}}",
                wording_of("must-be-text", ["options[\"size\"]", "a number", "quote it"]),
            ),
            (
                "{driver: a/b, options: {on: yes}}",
                wording_of("must-be-text", ["options[\"true\"]", wording("true-or-false"), "quote it"]),
            ),
            (
                "{driver: a/b, options: {l: [a]}}",
                wording_of("must-be-text", ["options[\"l\"]", "a list", wording("one-text")]),
            ),
            (
                "{driver: a/b, options: {m: {a: b}}}",
                wording_of("must-be-text", ["options[\"m\"]", "a mapping"]),
            ),
            ("{driver: a/b, options: [a]}", wording_of("must-be-mapping", ["flexVolume.options"])),
            ("{driver: a/b, options: {kubernetes.io/x: z}}", wording("reserved-option")),
            ("{options: {}}", wording_of("field-missing", ["flexVolume.driver"])),
            ("{driver: a/b/c}", wording("two-slashes")),
            ("{driver: 5}", wording_of("must-be-text", ["flexVolume.driver", "a number"])),
            ("{driver: a/b, readOnly: 'true'}", wording("read-only-unquoted")),
            ("{driver: a/b, fstype: ext4}", "flexVolume.fstype is no field: write fsType"),
            ("{driver: a/b, source: x}", wording_of("no-field", ["flexVolume.source", "driver, fsType"])),
            ("{driver: a/b, secretRef: s}", wording_of("must-be-mapping", ["flexVolume.secretRef"])),
            ("{driver: a/b, secretRef: {name: s, namespace: ns}}", "secretRef.namespace is no field"),
            (
                "{driver: a/b, secretRef: {name: s}}",
                ["pod default/p, volume v: ", wording_of("no-secret", ["default", "s"])].concat().as_str(),
            ),
            ("{driver: a/b, driver: a/b}", "line 1, column"),
            ("5", wording_of("must-be-mapping", ["spec.volumes[0].flexVolume"])),
        ] {
            let message = refused(&[&pod(flex)]);
            assert!(message.contains(expected), "{flex}: {message}");
            assert!(
                message.contains("od p: spec.volumes[0].flexVolume")
                    || message.contains("default/p")
                    || message.contains("YAML: line"),
                "{message}"
            );
        }
    }

    #[test]
    fn other_mistakes_are_named_with_the_fix() {
        let with = |from: &str, to: &str, text: &str| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        };
        for (texts, expected) in [
            (vec![POD.to_owned()], wording_of("claim-in-no-file", ["ns/p", "ns/c"])),
            (vec![POD.into(), CLAIM.into()], "claim ns/c fits no PersistentVolume: set its volumeName"),
            (vec![POD.into(), format!("{CLAIM}  volumeName: x\n")], wording_of("volume-in-no-file", ["x"])),
            (
                vec![
                    POD.into(),
                    format!("{CLAIM}  volumeName: pv\n"),
                    format!("{PV}  claimRef: {{name: x}}\n"),
                ],
                wording_of("volume-bound-elsewhere", ["pv", "default/x"]),
            ),
            (
                vec![POD.into(), CLAIM.into(), format!("{PV}  mountOptions: [hard]\n"), SECRET.into()],
                wording("no-mount-options"),
            ),
            (
                vec![with(
                    "name: pv}",
                    "name: pv, annotations: {volume.beta.kubernetes.io/mount-options: ro}}",
                    PV,
                )],
                "mountOptions",
            ),
            (
                vec![PV.into(), with("a/b", "Opaque", SECRET).replace("namespace: ns", "namespace: default")],
                wording_of("secret-type", ["\"Opaque\"", "a/b", "a/b"]),
            ),
            (
                vec![with("aGk=, l", "hunter2!, l", SECRET)],
                wording_of("not-base64", ["Secret s: data", "\"k\""]),
            ),
            (vec![with("l: plain", "'a b': plain", SECRET)], "has the key \"a b\""),
            (
                vec![with("l: plain", "l: 5", SECRET)],
                wording_of("must-be-text", ["stringData[\"l\"]", "a number"]),
            ),
            (vec![with("1Gi", "lots", PV)], wording_of("field-no-size", ["spec.capacity.storage"])),
            (vec![with("1Gi", "1000m", PV)], wording("field-no-size")),
        ] {
            let message = refused(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(message.contains(expected) && !message.contains("hunter2"), "{texts:?}: {message}");
        }
    }

    #[test]
    fn what_is_no_good_object_is_named_with_the_fix() {
        for (texts, expected) in [
            (vec![PV.into(), PV.into()], wording_of("twice", ["PersistentVolume pv"])),
            (vec!["a: b".into()], wording("no-kind")),
            (vec!["- a".into()], wording("document-mapping")),
            (vec!["kind: Pod\nspec: {}\n".into()], "a Pod: metadata.name is missing"),
            (vec!["kind: Pod\nmetadata: {name: ../x}\n".into()], wording_of("name-rule", ["metadata.name"])),
            (
                vec!["kind: Pod\nmetadata: {name: x, namespace: a.b}\n".into()],
                wording_of("label-rule", ["metadata.namespace"]),
            ),
            (
                vec!["kind: Pod\nmetadata: {name: x, uid: ../y}\n".into()],
                wording_of("must-be-uuid", ["metadata.uid"]),
            ),
            (
                vec!["kind: Pod\nmetadata: {name: x}\nspec: {volumes: [{name: A}]}\n".into()],
                wording_of("label-rule", ["volumes[0].name"]),
            ),
            (
                vec!["kind: Pod\nmetadata: {name: x}\nspec: {volumes: [{name: a}, {name: a}]}\n".into()],
                "volumes[1].name names two volumes",
            ),
            (
                vec!["kind: Pod\nmetadata: {name: x}\nspec: {securityContext: {fsGroup: '5'}}\n".into()],
                wording_of("must-be-number", ["fsGroup"]),
            ),
            (
                vec![
                    "kind: Pod\nmetadata: {name: x}\nspec: {securityContext: {fsGroup: 4294967295}}\n".into(),
                ],
                wording_of("must-be-number", ["fsGroup"]),
            ),
            (vec!["kind: Pod\nmetadata: {name: x}\n".into()], wording("no-flex-volume-in-file")),
            (vec![String::new()], wording("no-flex-volume-in-file")),
            (vec!["a: &a [*a]".into()], "not valid YAML"),
        ] {
            let message = refused(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(message.contains(expected) && !message.contains("hunter2"), "{texts:?}: {message}");
        }
    }

    #[test]
    fn base64_is_as_go_reads_it() {
        let read = |text: &str| {
            SecretObject::read(&Field::of_object(&serde_json::json!({"data": {"k": text}}))?).map(drop)
        };
        for (text, good) in [
            ("aGk=", true),
            ("aG\nk=\r\n", true),
            ("aGl=", true),
            ("", true),
            ("aGk", false),
            ("a Gk=", false),
            ("_-8=", false),
        ] {
            assert_eq!(read(text).is_ok(), good, "{text:?}");
        }
    }
}
