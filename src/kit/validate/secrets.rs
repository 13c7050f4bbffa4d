//! Checks Secrets, and references of volumes to Secrets.

use super::finding::{Findings, SECRET_DATA, SECRET_KEY, SECRET_LINE, SECRET_MISSING, SECRET_TYPE, SHAPE};
use super::flex::{self, Flex, Owner};
use super::known::{Known, KnownDrivers};
use super::node::Node;
use super::object::Object;
use super::read;
use super::slips::near;
use crate::objects::{Key, Used, rules};
use flexvol_protocol::DriverName;
use flexvol_protocol::secret::Secret;
use std::collections::BTreeSet;

/// Parts of key names whose values are a single line; `echo` adds a line break at the end.
const ONE_LINE: [&str; 11] = [
    "user",
    "pass",
    "domain",
    "token",
    "accountname",
    "accountkey",
    "endpoint",
    "accesskey",
    "secretkey",
    "apikey",
    "secretaccesskey",
];

/// Checks a Secret on its own. `drivers` are the drivers of the volumes.
pub(super) fn check(secret: &Object<'_>, drivers: &BTreeSet<String>, findings: &mut Findings) {
    let kind = secret.node.get("type");
    if !(kind.is_absent() || kind.value().is_string()) {
        findings.add(
            secret,
            kind,
            SHAPE,
            "the type of a Secret must be a string: write the driver's name, vendor/driver",
        );
    }
    let of_driver = kind.text().is_some_and(|kind| drivers.contains(kind));
    for field in ["data", "stringData"] {
        let values = secret.node.get(field);
        if !(values.is_absent() || values.value().is_object()) {
            findings.add(
                secret,
                values,
                SHAPE,
                format!("{field} of a Secret must be a mapping: write one KEY: value in each line"),
            );
        }
        for (key, node) in values.members() {
            let mut complain = |text: String| findings.add(secret, node, SECRET_DATA, text);
            if !rules::is_secret_key(key) {
                complain(format!("{field} has the key {key:?}: use letters, digits, '-', '_' and '.'"));
            }
            let text = node.value().as_str();
            if text.is_none() && !node.is_absent() {
                complain(format!("{field}[{key:?}] must be a string: quote it"));
            }
            let bytes = match (field, text) {
                ("data", Some(text)) => rules::decode(text).map(|secret| secret.expose().to_vec()),
                (_, text) => text.map(|text| text.as_bytes().to_vec()),
            };
            let bytes = bytes.map(zeroize::Zeroizing::new);
            match &bytes {
                None if text.is_some() => {
                    complain(format!("data[{key:?}] is not base64: encode it, or move it to stringData"));
                }
                Some(bytes) if of_driver && ends_with_break(key, bytes) => {
                    let text = format!(
                        "{field}[{key:?}] ends with a line break, as echo makes it: encode it with printf %s"
                    );
                    findings.add(secret, node, SECRET_LINE, text);
                }
                _ => {}
            }
        }
    }
}

/// Reports keys that the driver does not read and that resemble a missing key. Other unknown keys
/// do not concern the driver.
pub(super) fn check_keys(
    secret: &Object<'_>,
    drivers: &BTreeSet<String>,
    installed: &KnownDrivers,
    findings: &mut Findings,
) {
    let kind = secret.node.get("type").text().filter(|kind| drivers.contains(*kind));
    let name = kind.and_then(|kind| DriverName::parse(kind).ok());
    let Some(name) = name else { return };
    let Some(known) = installed.known(&name) else { return };
    let spellings = spellings(&known);
    let all: Vec<_> = spellings.iter().flatten().copied().collect();
    let given = || ["data", "stringData"].into_iter().flat_map(|field| secret.node.get(field).members());
    for (key, node) in given().filter(|(key, _)| !all.contains(key)) {
        let Some(meant) = near(key, &all) else { continue };
        let is_given =
            |keys: &&Vec<&str>| keys.contains(&meant) && given().any(|(key, _)| keys.contains(&key));
        if !spellings.iter().any(|keys| is_given(&keys)) {
            let text = format!("{name} reads no key {key:?} of a Secret: did you mean {meant:?}?");
            findings.add(secret, node, SECRET_KEY, text);
        }
    }
}

/// Returns the keys that a driver reads; keys with the same meaning form a group.
fn spellings(known: &Known) -> Vec<Vec<&'static str>> {
    let theirs = known.installed.profile.map(|profile| profile.secrets).unwrap_or_default();
    let of = |keys: &'static [&'static str]| {
        let same = theirs.iter().filter(|key| key.ours.is_some_and(|ours| keys.contains(&ours)));
        keys.iter().copied().chain(same.map(|key| key.theirs)).collect()
    };
    let others = theirs.iter().filter(|key| key.ours.is_none()).map(|key| vec![key.theirs]);
    known.installed.driver.secrets().iter().map(|spec| of(spec.keys)).chain(others).collect()
}

fn ends_with_break(key: &str, bytes: &[u8]) -> bool {
    let lower = key.to_ascii_lowercase().replace(['-', '_', '.'], "");
    let has_break = || Secret::new(bytes.to_vec()).line().expose().len() < bytes.len();
    (lower == "key" || ONE_LINE.iter().any(|word| lower.contains(word))) && has_break()
}

impl Flex<'_> {
    /// Checks the Secret that a volume names, for the pods that use the volume. Returns true if
    /// everything that the volume needs is known.
    pub(super) fn check_secrets(&self, all: &[Object<'_>], used: &[&Used], findings: &mut Findings) -> bool {
        let (Some(driver), Some(name)) = (&self.driver, self.node.at(&["secretRef", "name"]).text()) else {
            self.note_unnamed(all, findings);
            return true;
        };
        let namespaces = self.namespaces(used);
        // A name that no Secret can have is reported already.
        if !rules::is_subdomain(name) || !namespaces.iter().all(|name| rules::is_label(name)) {
            return false;
        }
        let own: Vec<_> = all.iter().filter(|object| object.kind == "Secret").collect();
        let mut complete = true;
        for namespace in namespaces {
            let here = |secret: &&&Object<'_>| secret.key.0 == namespace;
            if let Some(secret) = own.iter().filter(here).find(|secret| secret.key.1 == name) {
                complete &= check_type(secret, driver, findings) && !findings.has_error_in(secret);
            } else {
                let at = self.node.at(&["secretRef", "name"]);
                let text = missing(at, &(namespace, name.to_owned()), driver, &own);
                findings.add(self.object, at, SECRET_MISSING, text);
                complete = false;
            }
        }
        complete
    }

    /// Warns of a volume without `secretRef` if an unused Secret has the type of its driver.
    fn note_unnamed(&self, all: &[Object<'_>], findings: &mut Findings) {
        let Some(kind) = self.driver.as_ref().filter(|_| self.node.get("secretRef").is_absent()) else {
            return;
        };
        let kind = kind.to_string();
        let is_its =
            |object: &&Object<'_>| object.kind == "Secret" && object.node.get("type").text() == Some(&kind);
        let is_named = |secret: &Object<'_>| {
            let mut named =
                all.iter().flat_map(flex::of).filter_map(|flex| flex.node.at(&["secretRef", "name"]).text());
            named.any(|name| name == secret.key.1)
        };
        if let Some(secret) = all.iter().filter(is_its).find(|secret| !is_named(secret)) {
            let (namespace, name) = &secret.key;
            let text = format!(
                "no secretRef, so the driver does not get the Secret {namespace}/{name}, which is of its type: write \
                 secretRef: {{name: {name}}}"
            );
            findings.suspect(self.object, self.node, SECRET_MISSING, text);
        }
    }

    /// Returns the namespaces where kubelet looks for the Secret.
    fn namespaces(&self, used: &[&Used]) -> BTreeSet<String> {
        let named = self.node.at(&["secretRef", "namespace"]).text();
        match (self.owner, named) {
            (Owner::Pod, _) => [self.object.key.0.clone()].into(),
            (Owner::Volume, Some(named)) => [named.to_owned()].into(),
            (Owner::Volume, None) => {
                let volumes = used.iter().filter_map(|used| used.volume.as_ref().ok());
                volumes.filter_map(|volume| volume.options.pod.namespace.clone()).collect()
            }
        }
    }
}

fn check_type(secret: &Object<'_>, driver: &DriverName, findings: &mut Findings) -> bool {
    let node = secret.node.get("type");
    let kind = node.text().unwrap_or("Opaque");
    if kind == driver.to_string() {
        return true;
    }
    let text = format!(
        "Secret {}/{} is of type {kind:?}, and kubelet gives {driver} only secrets of its own type: make it \
         again with type: {driver}",
        secret.key.0, secret.key.1
    );
    findings.add(secret, node, SECRET_TYPE, text);
    false
}

fn missing(at: Node<'_>, key: &Key, driver: &DriverName, all: &[&Object<'_>]) -> String {
    let kind = driver.to_string();
    let fits = |secret: &&&Object<'_>| secret.key.0 == key.0 && secret.node.get("type").text() == Some(&kind);
    let here = all.iter().filter(fits).map(|secret| &secret.key);
    read::missing(at, ("Secret", key), all.iter().map(|secret| &secret.key), here)
}
