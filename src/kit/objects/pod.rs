//! Pods, and pod templates of other objects.

use super::fields::{Field, Identity, is_label, is_subdomain};
use super::flex::{FlexVolume, Owner};
use super::rules::{CONFIG_SOURCE, TEMPLATES};
use super::volume::{Claim, PersistentVolume};
use flexvol_protocol::PodRef;
use flexvol_protocol::failure::Result;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;

/// Relevant fields of a pod.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) identity: Identity,
    pub(super) uid: String,
    service_account: String,
    pub(super) fs_group: Option<u32>,
    /// Volume name and source, in the pod's order; other kinds of volumes are left out.
    pub(super) sources: Vec<(String, Source)>,
}

/// Source of a volume.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Flex(FlexVolume),
    Claim {
        claim: String,
        read_only: bool,
    },
    /// PV itself, for a made-up pod.
    Volume(String),
}

impl Pod {
    /// Reads a pod, or the pod that a template would make; `None` for a kind without pods.
    pub(super) fn read(kind: &str, object: &Field<'_>) -> Result<Option<Self>> {
        let Some(template) = template(kind, object)? else { return Ok(None) };
        let (mut identity, spec) = (Identity::read(object)?, template.get("spec")?);
        let mut sources = sources(&spec.get("volumes")?)?;
        if kind == "StatefulSet" {
            identity.name += "-0";
            sources.extend(templates_of_claims(object, &identity.name)?);
        }
        let uid = object.at(&["metadata", "uid"])?;
        let uid = if kind == "Pod" && !uid.is_absent() { given_uid(&uid)? } else { made_up_uid(&identity) };
        Ok(Some(Self {
            uid,
            service_account: service_account(object, &spec)?,
            fs_group: spec.at(&["securityContext", "fsGroup"])?.group()?,
            sources,
            identity,
        }))
    }

    /// Creates a pod that uses one PV and nothing else.
    pub(super) fn made_up_for(volume: &PersistentVolume, claim: Option<&Claim>) -> Self {
        let namespace =
            claim.map(|claim| &claim.key.0).or(volume.claim.as_ref().map(|(namespace, _)| namespace));
        let namespace = namespace.map_or("default", String::as_str).to_owned();
        let identity = Identity { namespace, name: volume.name.clone() };
        let source = Source::Volume(volume.name.clone());
        Self {
            uid: made_up_uid(&identity),
            service_account: "default".to_owned(),
            fs_group: None,
            sources: vec![(volume.name.clone(), source)],
            identity,
        }
    }

    pub(super) fn key(&self) -> (String, String) {
        self.identity.key()
    }

    /// Returns its name for messages.
    pub(super) fn title(&self) -> String {
        format!("pod {}/{}", self.identity.namespace, self.identity.name)
    }

    /// Returns the data of the pod that `mount` receives.
    pub(super) fn reference(&self) -> PodRef {
        PodRef {
            name: Some(self.identity.name.clone()),
            namespace: Some(self.identity.namespace.clone()),
            uid: Some(self.uid.clone()),
            service_account: Some(self.service_account.clone()),
        }
    }
}

/// Returns the pod itself, or its template. Other kinds may use the same field names for anything.
fn template<'a>(kind: &str, object: &Field<'a>) -> Result<Option<Field<'a>>> {
    if kind == "Pod" {
        return Ok(Some(object.clone()));
    }
    for path in TEMPLATES {
        let template = path.iter().try_fold(object.value(), |value, key| value.get(key));
        if template.is_some_and(|template| template.pointer("/spec/containers").is_some()) {
            return object.at(path).map(Some);
        }
    }
    Ok(None)
}

fn service_account(object: &Field<'_>, spec: &Field<'_>) -> Result<String> {
    let given = spec.get("serviceAccountName")?.text()?.or(spec.get("serviceAccount")?.text()?);
    let is_static = object.at(&["metadata", "annotations"])?.get(CONFIG_SOURCE)?.text()? == Some("file");
    let otherwise = if is_static { "" } else { "default" };
    Ok(given.filter(|name| !name.is_empty()).unwrap_or(otherwise).to_owned())
}

fn sources(volumes: &Field<'_>) -> Result<Vec<(String, Source)>> {
    let (mut found, mut names) = (Vec::new(), BTreeSet::new());
    for volume in volumes.list()? {
        let name = volume.get("name")?;
        is_label(&name)?;
        if !names.insert(name.required()?) {
            return Err(name.error("names two volumes: rename one"));
        }
        if let Some(source) = source(&volume)? {
            found.push((name.required()?.to_owned(), source));
        }
    }
    Ok(found)
}

fn source(volume: &Field<'_>) -> Result<Option<Source>> {
    if let Some(flex) = FlexVolume::read(&volume.get("flexVolume")?, Owner::Pod)? {
        return Ok(Some(Source::Flex(flex)));
    }
    let claim = volume.get("persistentVolumeClaim")?;
    if claim.is_absent() {
        return Ok(None);
    }
    claim.only(&["claimName", "readOnly"])?;
    let name = claim.get("claimName")?;
    is_subdomain(&name)?;
    let read_only = claim.get("readOnly")?.flag()?;
    Ok(Some(Source::Claim { claim: name.required()?.to_owned(), read_only }))
}

/// Returns the claims that a `StatefulSet` makes for its first pod.
fn templates_of_claims(object: &Field<'_>, pod: &str) -> Result<Vec<(String, Source)>> {
    let templates = object.at(&["spec", "volumeClaimTemplates"])?.list()?;
    let source = |template: &Field<'_>| {
        let name = template.at(&["metadata", "name"])?;
        is_label(&name)?;
        let name = name.required()?;
        Ok((name.to_owned(), Source::Claim { claim: format!("{name}-{pod}"), read_only: false }))
    };
    templates.iter().map(source).collect()
}

/// Returns the given uid, which becomes the name of a directory.
fn given_uid(field: &Field<'_>) -> Result<String> {
    let uid = field.required()?;
    let plain = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if plain && uid.len() <= 64 {
        return Ok(uid.to_owned());
    }
    Err(field.error("must be a UUID: remove it, and one is made from the pod's name"))
}

/// Returns a uid in the form of a UUID of version 8. It is the same for the same pod, so that
/// `down` finds what `up` made.
fn made_up_uid(identity: &Identity) -> String {
    let digest = Sha256::digest(format!("{}/{}", identity.namespace, identity.name));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    let versioned = u128::from_be_bytes(bytes) & !(0xf << 76 | 0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    let hex = format!("{versioned:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
