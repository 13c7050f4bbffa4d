//! Translation of a `StorageClass` for a CSI driver, and back.
//!
//! The result contains what `csi-translation-lib` makes of a class of Kubernetes' own plugins at
//! each call, with the CSI driver as its provisioner. From then on, that driver creates the
//! volumes; existing volumes stay as they are.

use super::in_tree::ZONES;
use super::original::{self, Rewrite};
use super::persistent_volume::without_server_fields;
use super::way::To;
use super::{Reason, Translation, Warning, credential};
use serde_json::{Map, Value, json};

const PROVISIONER: &str = "/provisioner";
const PARAMETERS: &str = "/parameters";
const TOPOLOGIES: &str = "/allowedTopologies";
const FS_TYPE: &str = "csi.storage.k8s.io/fstype";

/// Translation from some provisioners to one CSI driver.
struct Class {
    from: &'static [&'static str],
    to: &'static str,
    /// Translation of each parameter; upper and lower case are equal.
    parameters: &'static [(&'static str, Becomes)],
    /// Translation of parameters that are not listed.
    others: Others,
    /// Parameters that every class gets.
    constants: &'static [(&'static str, &'static str)],
    /// Required parameters of the result, each with the parameter that it is made from.
    needs: &'static [(&'static str, &'static str)],
    /// Label of zones for the driver.
    zone: &'static str,
}

#[derive(Clone, Copy)]
enum Becomes {
    /// All of these, with the same value.
    All(&'static [&'static str]),
    /// The parameter itself, and this one with this value.
    With(&'static str, &'static str),
    /// The zones in it, separated by commas.
    Zones,
}

#[derive(Clone, Copy, PartialEq)]
enum Others {
    Kept,
    /// Left out: the driver knows no other parameters.
    LeftOut,
    Refused,
}

const ZONED: &[(&str, Becomes)] =
    &[("fstype", Becomes::All(&[FS_TYPE])), ("zone", Becomes::Zones), ("zones", Becomes::Zones)];

const PLAIN: Class = Class {
    from: &[],
    to: "",
    parameters: ZONED,
    others: Others::Kept,
    constants: &[],
    needs: &[],
    zone: "",
};

const CLASSES: &[Class] = &[
    Class {
        from: &["kubernetes.io/aws-ebs"],
        to: "ebs.csi.aws.com",
        // The plugin raised the IOPS automatically where a volume is too small for them.
        parameters: &[
            ZONED[0],
            ZONED[1],
            ZONED[2],
            ("iopspergb", Becomes::With("allowautoiopspergbincrease", "true")),
        ],
        zone: "topology.ebs.csi.aws.com/zone",
        ..PLAIN
    },
    Class {
        from: &["kubernetes.io/gce-pd"],
        to: "pd.csi.storage.gke.io",
        zone: "topology.gke.io/zone",
        ..PLAIN
    },
    Class {
        from: &["kubernetes.io/azure-disk"],
        to: "disk.csi.azure.com",
        parameters: &[ZONED[1], ZONED[2]],
        zone: AZURE_ZONE,
        ..PLAIN
    },
    Class { from: &["kubernetes.io/azure-file"], to: "file.csi.azure.com", parameters: &[], ..PLAIN },
    Class {
        from: &["kubernetes.io/cinder"],
        to: "cinder.csi.openstack.org",
        parameters: &[ZONED[0]],
        zone: "topology.cinder.csi.openstack.org/zone",
        ..PLAIN
    },
    Class {
        from: &["kubernetes.io/vsphere-volume"],
        to: "csi.vsphere.vmware.com",
        parameters: &[
            ZONED[0],
            ("storagepolicyname", Becomes::All(&["storagepolicyname"])),
            ("datastore", Becomes::All(&["datastore-migrationparam"])),
            ("diskformat", Becomes::All(&["diskformat-migrationparam"])),
            ("hostfailurestotolerate", Becomes::All(&["hostfailurestotolerate-migrationparam"])),
            ("forceprovisioning", Becomes::All(&["forceprovisioning-migrationparam"])),
            ("cachereservation", Becomes::All(&["cachereservation-migrationparam"])),
            ("diskstripes", Becomes::All(&["diskstripes-migrationparam"])),
            ("objectspacereservation", Becomes::All(&["objectspacereservation-migrationparam"])),
            ("iopslimit", Becomes::All(&["iopslimit-migrationparam"])),
        ],
        others: Others::LeftOut,
        constants: &[("csimigration", "true")],
        zone: "topology.csi.vmware.com/zone",
        ..PLAIN
    },
    Class {
        from: &["kubernetes.io/portworx-volume"],
        to: "pxd.portworx.com",
        parameters: &[
            ("openstorage.io/auth-secret-name", Becomes::All(SECRET_NAMES)),
            ("openstorage.io/auth-secret-namespace", Becomes::All(SECRET_NAMESPACES)),
        ],
        ..PLAIN
    },
    Class {
        from: &["ceph.rook.io/block", "rook.io/block"],
        to: "rook-ceph.rbd.csi.ceph.com",
        parameters: &[
            ZONED[0],
            ("blockpool", Becomes::All(&["pool"])),
            ("pool", Becomes::All(&["pool"])),
            ("datablockpool", Becomes::All(&["dataPool"])),
            (
                "clusternamespace",
                Becomes::All(&[
                    "clusterID",
                    "csi.storage.k8s.io/provisioner-secret-namespace",
                    "csi.storage.k8s.io/controller-expand-secret-namespace",
                    "csi.storage.k8s.io/node-stage-secret-namespace",
                ]),
            ),
        ],
        others: Others::Refused,
        constants: &[
            ("imageFeatures", "layering"),
            ("imageFormat", "2"),
            ("csi.storage.k8s.io/provisioner-secret-name", "rook-csi-rbd-provisioner"),
            ("csi.storage.k8s.io/controller-expand-secret-name", "rook-csi-rbd-provisioner"),
            ("csi.storage.k8s.io/node-stage-secret-name", "rook-csi-rbd-node"),
        ],
        needs: &[("clusterID", "clusterNamespace"), ("pool", "blockPool")],
        ..PLAIN
    },
    Class {
        from: &["oracle.com/oci"],
        to: "blockvolume.csi.oraclecloud.com",
        parameters: &[ZONED[0]],
        others: Others::Refused,
        ..PLAIN
    },
];

const AZURE_ZONE: &str = "topology.disk.csi.azure.com/zone";

const SECRET_NAMES: &[&str] = &[
    "csi.storage.k8s.io/provisioner-secret-name",
    "csi.storage.k8s.io/controller-publish-secret-name",
    "csi.storage.k8s.io/node-stage-secret-name",
    "csi.storage.k8s.io/node-publish-secret-name",
    "csi.storage.k8s.io/controller-expand-secret-name",
    "csi.storage.k8s.io/node-expand-secret-name",
];

const SECRET_NAMESPACES: &[&str] = &[
    "csi.storage.k8s.io/provisioner-secret-namespace",
    "csi.storage.k8s.io/controller-publish-secret-namespace",
    "csi.storage.k8s.io/node-stage-secret-namespace",
    "csi.storage.k8s.io/node-publish-secret-namespace",
    "csi.storage.k8s.io/controller-expand-secret-namespace",
    "csi.storage.k8s.io/node-expand-secret-namespace",
];

pub(super) fn to_csi(object: &Value, to: To<'_>) -> Result<Option<Translation>, Reason> {
    let provisioner = object.get("provisioner").and_then(Value::as_str).unwrap_or_default();
    let is_its = |class: &&Class| class.from.contains(&provisioner) && To::Driver(class.to) == to;
    let Some(class) = CLASSES.iter().find(is_its) else { return Ok(None) };
    if original::is_in(object) {
        return Err(Reason::HasOriginal);
    }
    let made = class.made(object)?;
    let topologies = class.topologies(object, &made.zones)?;
    let mut rewrite = Rewrite::new(without_server_fields(object));
    rewrite.set(PROVISIONER, Some(class.to.into()));
    rewrite.set(PARAMETERS, Some(made.parameters.into()));
    rewrite.note(TOPOLOGIES);
    if let Some(topologies) = topologies {
        rewrite.set(TOPOLOGIES, Some(topologies));
    }
    if let Some(key) = credential::in_volume(object) {
        return Err(Reason::CredentialInAnnotation(key.to_owned()));
    }
    Ok(Some(Translation { object: rewrite.finish()?, warnings: made.warnings }))
}

pub(super) fn to_flex(object: &Value) -> Result<Option<Translation>, Reason> {
    let is_changed = |path: &str| [PROVISIONER, PARAMETERS, TOPOLOGIES].contains(&path);
    let Some(restored) = original::restored(object, is_changed)? else { return Ok(None) };
    let restored = without_server_fields(&restored);
    let driver = object.get("provisioner").and_then(Value::as_str).ok_or(Reason::NotCsi)?;
    let again = to_csi(&restored, To::Driver(driver))?.ok_or(Reason::OriginalForeign)?;
    let differs = |path: &&str| original::given(object, path) != original::given(&again.object, path);
    let is_drift = [PARAMETERS, TOPOLOGIES].iter().any(differs);
    Ok(Some(Translation {
        object: restored,
        warnings: is_drift.then_some(Warning::Drift).into_iter().collect(),
    }))
}

/// Translated parameters.
#[derive(Default)]
struct Made {
    parameters: Map<String, Value>,
    zones: Vec<String>,
    warnings: Vec<Warning>,
}

impl Class {
    fn made(&self, object: &Value) -> Result<Made, Reason> {
        let mut made = Made::default();
        for (key, value) in self.constants {
            original::set(&mut made.parameters, key, (*value).into());
        }
        let given = object.get("parameters").filter(|given| !given.is_null());
        let given = given.map(|given| given.as_object().ok_or_else(|| field("parameters", "a mapping")));
        for (key, value) in given.transpose()?.into_iter().flatten() {
            let text =
                value.as_str().ok_or_else(|| field(&format!("parameters[{key:?}]"), "text: quote it"))?;
            if credential::is_held_by(key, text) {
                return Err(Reason::CredentialInOption(key.clone()));
            }
            self.take(key, text, &mut made)?;
        }
        match self.needs.iter().find(|(key, _)| !made.parameters.contains_key(*key)) {
            Some((_, parameter)) => Err(Reason::OptionMissing(parameter)),
            None => Ok(made),
        }
    }

    fn take(&self, key: &str, text: &str, made: &mut Made) -> Result<(), Reason> {
        let row = self.parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
        let mut put = |name: &str, text: &str| match made.parameters.insert(name.to_owned(), text.into()) {
            Some(before) if before != text => Err(Reason::OptionTwice(key.to_owned())),
            _ => Ok(()),
        };
        match row.map(|(_, becomes)| *becomes) {
            Some(Becomes::All(names)) => names.iter().try_for_each(|name| put(name, text)),
            Some(Becomes::With(other, value)) => put(key, text).and_then(|()| put(other, value)),
            Some(Becomes::Zones) if !made.zones.is_empty() => Err(Reason::OptionTwice(key.to_owned())),
            Some(Becomes::Zones) => {
                let zones = text.split(',').map(str::trim).filter(|zone| !zone.is_empty());
                made.zones = zones.map(str::to_owned).collect();
                Ok(())
            }
            None => match self.others {
                Others::Kept => put(key, text),
                Others::LeftOut => {
                    made.warnings
                        .push(Warning::Ignored(key.to_owned(), "the CSI driver knows none of the name"));
                    Ok(())
                }
                Others::Refused => Err(Reason::OptionUnknown(key.to_owned(), self.to)),
            },
        }
    }

    /// Returns `allowedTopologies` with the driver's labels; `None` without topologies.
    fn topologies(&self, object: &Value, zones: &[String]) -> Result<Option<Value>, Reason> {
        let before = object.get("allowedTopologies").filter(|terms| !terms.is_null() && **terms != json!([]));
        let mut terms = match (before, zones.is_empty()) {
            (Some(_), false) => return Err(field("allowedTopologies", "left out beside zone and zones")),
            (None, true) => return Ok(None),
            (None, false) => json!([{"matchLabelExpressions": [{"key": self.zone, "values": zones}]}]),
            (Some(before), true) => before.clone(),
        };
        for term in terms.as_array_mut().into_iter().flatten() {
            let all = term.get_mut("matchLabelExpressions").and_then(Value::as_array_mut);
            for expression in all.into_iter().flatten() {
                let is_zone = expression["key"].as_str().is_some_and(|key| ZONES.contains(&key));
                if is_zone && !self.zone.is_empty() {
                    expression["key"] = self.zone.into();
                }
                if expression["key"] == AZURE_ZONE {
                    without_numbers(expression);
                }
            }
        }
        Ok(Some(terms))
    }
}

/// Replaces numbers by an empty text. In a region without zones, nodes have numbers in their
/// labels, but the driver has an empty text.
fn without_numbers(expression: &mut Value) {
    for zone in expression["values"].as_array_mut().into_iter().flatten() {
        if zone
            .as_str()
            .is_some_and(|zone| !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_digit()))
        {
            *zone = "".into();
        }
    }
}

fn field(path: &str, must: &'static str) -> Reason {
    Reason::Field(path.to_owned(), must)
}
