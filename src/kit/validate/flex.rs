//! Checks a `flexVolume` of a pod or a PV by the rules of Kubernetes, which hold for every driver.

use super::finding::{
    DRIVER_NAME, Findings, NAME, NOT_INSTALLED, OPTION_TYPE, RESERVED_OPTION, SECRET_NAMESPACE, SHAPE,
    UNKNOWN_DRIVER, UNKNOWN_FIELD,
};
use super::is_configured;
use super::known::{Known, KnownDrivers};
use super::node::Node;
use super::object::Object;
use super::slips::near;
use crate::objects::rules;
use flexvol_model::drivers;
use flexvol_model::installed::Meaning;
use flexvol_model::profiles::{self, Profile};
use flexvol_protocol::DriverName;
use serde_json::Value;
use std::collections::BTreeMap;

const FIELDS: [&str; 5] = ["driver", "fsType", "options", "readOnly", "secretRef"];

/// Kind of the object that holds a `flexVolume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Pod,
    Volume,
}

/// One `flexVolume`.
#[derive(Clone, Debug)]
pub(super) struct Flex<'a> {
    pub(super) object: &'a Object<'a>,
    pub(super) owner: Owner,
    /// Name of the PV, or of the volume in the pod.
    pub(super) name: &'a str,
    pub(super) node: Node<'a>,
    /// Driver name, if it can be parsed.
    pub(super) driver: Option<DriverName>,
}

/// Returns every `flexVolume` of an object.
pub(super) fn of<'a>(object: &'a Object<'a>) -> Vec<Flex<'a>> {
    let flex = |owner, name: &'a str, node: Node<'a>| {
        let driver = node.get("driver").text().and_then(|name| DriverName::parse(name).ok());
        (!node.is_absent()).then_some(Flex { object, owner, name, node, driver })
    };
    if object.kind == "PersistentVolume" {
        let node = object.node.at(&["spec", "flexVolume"]);
        return flex(Owner::Volume, &object.key.1, node).into_iter().collect();
    }
    let volumes = object.pod().map(|pod| pod.at(&["spec", "volumes"]));
    let inline = volumes.into_iter().flat_map(Node::entries);
    let named = |volume: Node<'a>| (volume.get("name").text().unwrap_or_default(), volume.get("flexVolume"));
    inline.map(named).filter_map(|(name, node)| flex(Owner::Pod, name, node)).collect()
}

impl<'a> Flex<'a> {
    pub(super) fn options(&self) -> Node<'a> {
        self.node.get("options")
    }

    /// Returns the driver, if it is one of ours.
    pub(super) fn known(&self, installed: &KnownDrivers) -> Option<Known> {
        let name = self.driver.as_ref()?;
        installed.known(name).or_else(|| installed.known_as(name, Some(&Meaning::Profile(self.of_rook()?))))
    }

    /// Returns the profile of a Rook volume, which depends on its options, not on the driver name.
    fn of_rook(&self) -> Option<&'static Profile> {
        let key = |key: &str| !self.options().get(key).is_absent();
        let driver = if key("fsName") { "cephfs" } else { "rbd" };
        let all = profiles::rook(self.driver.as_ref()?).iter().copied();
        all.filter(|_| key("fsName") || key("image")).find(|profile| profile.driver.name() == driver)
    }

    /// Warns of a driver name that has both kinds of Rook volumes, block and file system.
    pub(super) fn check_rook(all: &[Self], installed: &KnownDrivers, findings: &mut Findings) {
        let mut first = BTreeMap::new();
        for flex in all {
            let Some(name) = flex.driver.as_ref().filter(|name| installed.known(name).is_none()) else {
                continue;
            };
            let Some(profile) = flex.of_rook() else { continue };
            if *first.entry(name).or_insert(profile.name) != profile.name {
                let text = format!(
                    "{name} has block volumes and file systems of Rook, and an installed driver is for one of them: install \
                     {name}=rbd or {name}=cephfs, and give the volumes of the other kind another name"
                );
                findings.add(flex.object, flex.node.get("driver"), UNKNOWN_DRIVER, text);
            }
        }
    }

    pub(super) fn check(&self, installed: &KnownDrivers, findings: &mut Findings) {
        if !self.node.value().is_object() {
            return findings.add(
                self.object,
                self.node,
                SHAPE,
                "flexVolume must be a mapping: write driver: vendor/driver below it",
            );
        }
        self.check_fields(findings);
        self.check_driver(installed, findings);
        self.check_options(findings);
        self.check_secret(findings);
    }

    fn check_fields(&self, findings: &mut Findings) {
        for (key, node) in self.node.members().filter(|(key, _)| !FIELDS.contains(key)) {
            let fix = match near(key, &FIELDS) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "move it below options if it is one of the driver's, else remove it".to_owned(),
            };
            findings.add(self.object, node, UNKNOWN_FIELD, format!("flexVolume has no field {key:?}: {fix}"));
        }
        let (fs_type, read_only) = (self.node.get("fsType"), self.node.get("readOnly"));
        if !(fs_type.is_absent() || fs_type.value().is_string()) {
            findings.add(self.object, fs_type, SHAPE, "flexVolume.fsType must be a string: quote it");
        }
        if !(read_only.is_absent() || read_only.value().is_boolean()) {
            let text = "flexVolume.readOnly must be true or false, without quotes";
            findings.add(self.object, read_only, SHAPE, text);
        }
    }

    fn check_driver(&self, installed: &KnownDrivers, findings: &mut Findings) {
        let node = self.node.get("driver");
        let mut complain = |rule, text: &str| findings.add(self.object, node, rule, text);
        let Some(text) = node.text() else {
            let text = if node.is_absent() { "is missing: write" } else { "must be a string such as" };
            return complain(DRIVER_NAME, &format!("flexVolume.driver {text} driver: vendor/driver"));
        };
        let name = match DriverName::parse(text) {
            Ok(name) => name,
            Err(why) => return complain(DRIVER_NAME, &why.message()),
        };
        if let Some(meant) = drivers::with_vendor(&name).filter(|_| !installed.has(&name)) {
            let text = format!(
                "driver name {text:?} has no vendor: write {meant}, which is what flexvol install {name} installs, else \
                 kubelet says \"no volume plugin matched\""
            );
            return complain(DRIVER_NAME, &text);
        }
        if let Some(directory) = installed.lacks(&name) {
            let fix = match name.vendor() {
                Some(_) => format!("flexvol install {name}"),
                None => "write vendor/driver, as its directory vendor~driver says".to_owned(),
            };
            let text = format!(
                "{name} is not installed in {directory}: {fix}, else kubelet says \"no volume plugin matched\""
            );
            return complain(NOT_INSTALLED, &text);
        }
        match self.known(installed) {
            None => complain(UNKNOWN_DRIVER, &stranger(&name)),
            Some(known) if !is_configured(&known) => {
                let text = "what exec does is in its side file: give it with --settings, else options are not checked";
                complain(UNKNOWN_DRIVER, text);
            }
            Some(_) => {}
        }
    }

    fn check_options(&self, findings: &mut Findings) {
        let options = self.options();
        if !(options.is_absent() || options.value().is_object()) {
            return findings.add(
                self.object,
                options,
                SHAPE,
                "flexVolume.options must be a mapping: write one KEY: \"value\" in each line",
            );
        }
        for (key, node) in options.members() {
            let (what, fix) = match node.value() {
                Value::Number(_) => ("a number", "quote it"),
                Value::Bool(_) => ("true or false for YAML", "quote it"),
                Value::Array(_) => ("a list", "write one text in quotes"),
                Value::Object(_) => ("a mapping", "write one text in quotes"),
                Value::Null | Value::String(_) => ("", ""),
            };
            if !what.is_empty() {
                let text = format!("option {key:?} must be a string and is {what}: {fix}");
                findings.add(self.object, node, OPTION_TYPE, text);
            }
            if rules::is_reserved(key) {
                let text = format!("option {key:?}: kubernetes.io and k8s.io are Kubernetes' own: rename it");
                findings.add(self.object, node, RESERVED_OPTION, text);
            }
        }
    }

    fn check_secret(&self, findings: &mut Findings) {
        let reference = self.node.get("secretRef");
        if reference.is_absent() {
            return;
        }
        if !reference.value().is_object() {
            let text = "flexVolume.secretRef must be a mapping: write secretRef: {name: …}";
            return findings.add(self.object, reference, SHAPE, text);
        }
        let (name, namespace) = (reference.get("name"), reference.get("namespace"));
        if name.text().is_none() {
            let text =
                "secretRef has no name: kubelet looks for no Secret at all: name one, or remove secretRef";
            findings.add(self.object, reference, SHAPE, text);
        } else if !name.text().is_some_and(rules::is_subdomain) {
            findings.add(self.object, name, NAME, format!("secretRef.name {}", rules::SUBDOMAIN));
        }
        self.check_namespace(reference, namespace, findings);
        for (key, node) in reference.members().filter(|(key, _)| !["name", "namespace"].contains(key)) {
            let text =
                format!("secretRef has no field {key:?}: there is name, and in a PersistentVolume namespace");
            findings.add(self.object, node, UNKNOWN_FIELD, text);
        }
    }

    fn check_namespace(&self, reference: Node<'_>, namespace: Node<'_>, findings: &mut Findings) {
        match (self.owner, namespace.text()) {
            (Owner::Pod, _) if !namespace.is_absent() => {
                let text = "secretRef has no field \"namespace\" in a pod: remove it, the Secret is in the pod's own";
                findings.add(self.object, namespace, UNKNOWN_FIELD, text);
            }
            (Owner::Volume, None) => {
                let text = "secretRef has no namespace: kubelet takes that of each pod: add namespace";
                findings.add(self.object, reference, SECRET_NAMESPACE, text);
            }
            (Owner::Volume, Some(name)) if !rules::is_label(name) => {
                findings.add(self.object, namespace, NAME, format!("secretRef.namespace {}", rules::LABEL));
            }
            _ => {}
        }
    }
}

fn stranger(name: &DriverName) -> String {
    let slip = |near: &str, typed: &str| strsim::damerau_levenshtein(near, typed) == 1;
    let dialect = profiles::ALL.iter().map(|profile| profile.name).find(|near| slip(near, &name.to_string()));
    let vendor = name.vendor().map(|vendor| format!("{vendor}/")).unwrap_or_default();
    let driver = drivers::ALL.iter().map(|driver| driver.name()).find(|near| slip(near, name.driver()));
    let fix = match dialect.map(str::to_owned).or_else(|| Some(format!("{vendor}{}", driver?))) {
        Some(near) => format!("did you mean {near}?"),
        None => format!(
            "keep its program, which the driver exec can run (flexvol explain exec), or say which driver it is with \
             --profile {name}=NAME"
        ),
    };
    format!("{name} is none of flexvol's drivers, its options are not checked: {fix}")
}
