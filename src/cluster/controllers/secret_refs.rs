//! Secrets that a StorageClass names for CSI's calls. Pure.
//!
//! The parameters are `csi.storage.k8s.io/<purpose>-secret-name` and `…-secret-namespace`, and
//! `csi.storage.k8s.io/secret-name` and `-namespace` for every purpose without its own. They may be
//! templates:
//!
//! | template | in a name | in a namespace |
//! |---|---|---|
//! | `${pv.name}`, `${pvc.namespace}` | yes | yes |
//! | `${pvc.name}`, `${pvc.annotations['…']}` | yes | no |
//!
//! Text from the owner of a claim never chooses a namespace: it would give access to the Secrets of
//! others.

use k8s_openapi::api::core::v1::SecretReference;
use std::collections::BTreeMap;

/// Prefix of the parameters that are not meant for the driver.
pub const RESERVED: &str = "csi.storage.k8s.io/";

/// Parameters of a StorageClass, annotations of a claim.
pub type Pairs = BTreeMap<String, String>;

/// Purpose of a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `CreateVolume` and `DeleteVolume`.
    Provision,
    /// `ControllerPublishVolume` and `ControllerUnpublishVolume`.
    ControllerPublish,
    /// `NodeStageVolume`.
    NodeStage,
    /// `NodePublishVolume`.
    NodePublish,
    /// `ControllerExpandVolume`.
    ControllerExpand,
    /// `NodeExpandVolume`.
    NodeExpand,
    /// `ControllerModifyVolume`.
    ControllerModify,
}

const ALL: [Purpose; 7] = [
    Purpose::Provision,
    Purpose::ControllerPublish,
    Purpose::NodeStage,
    Purpose::NodePublish,
    Purpose::ControllerExpand,
    Purpose::NodeExpand,
    Purpose::ControllerModify,
];

impl Purpose {
    /// Returns the prefix of its parameters, and the prefix that they had before CSI 1.0.
    fn prefixes(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Provision => ("provisioner-", Some("csiProvisioner")),
            Self::ControllerPublish => ("controller-publish-", Some("csiControllerPublish")),
            Self::NodeStage => ("node-stage-", Some("csiNodeStage")),
            Self::NodePublish => ("node-publish-", Some("csiNodePublish")),
            Self::ControllerExpand => ("controller-expand-", None),
            Self::NodeExpand => ("node-expand-", None),
            Self::ControllerModify => ("controller-modify-", None),
        }
    }

    /// Returns its pairs of parameters, each for a name and for a namespace.
    fn keys(self) -> impl Iterator<Item = (String, String)> {
        let (prefix, old) = self.prefixes();
        let old = old.map(|old| (format!("{old}SecretName"), format!("{old}SecretNamespace")));
        old.into_iter().chain([keys(prefix)])
    }
}

fn keys(prefix: &str) -> (String, String) {
    (format!("{RESERVED}{prefix}secret-name"), format!("{RESERVED}{prefix}secret-namespace"))
}

/// Reports whether a parameter names a Secret, and is not meant for the driver.
pub fn is_reserved(parameter: &str) -> bool {
    let prefixes = ALL.iter().map(|purpose| purpose.prefixes().0);
    prefixes.chain([""]).map(keys).any(|(name, namespace)| parameter == name || parameter == namespace)
}

/// Values for the templates.
#[derive(Clone, Copy, Debug)]
pub struct Of<'a> {
    /// The name of the PersistentVolume.
    pub volume: &'a str,
    /// The namespace of the claim.
    pub namespace: &'a str,
    /// The name of the claim.
    pub claim: &'a str,
    /// Its annotations, if they are known.
    pub annotations: Option<&'a Pairs>,
}

impl Of<'_> {
    fn in_namespace(&self, token: &str) -> Option<&str> {
        match token {
            "pv.name" => Some(self.volume),
            "pvc.namespace" => Some(self.namespace),
            _ => None,
        }
    }

    fn in_name(&self, token: &str) -> Option<&str> {
        if token == "pvc.name" {
            return Some(self.claim);
        }
        let annotation = token.strip_prefix("pvc.annotations['").and_then(|rest| rest.strip_suffix("']"));
        match annotation {
            Some(key) => self.annotations?.get(key).map(String::as_str),
            None => self.in_namespace(token),
        }
    }
}

/// Returns the Secret for a purpose, if the StorageClass names one.
///
/// # Errors
///
/// Fails if the parameters do not name a Secret; the message says which, and why.
pub fn reference(
    purpose: Purpose,
    parameters: &Pairs,
    of: Of<'_>,
) -> Result<Option<SecretReference>, String> {
    let own = templates(parameters, purpose.keys())?;
    let Some((name, namespace)) =
        own.map_or_else(|| templates(parameters, [keys("")]), |own| Ok(Some(own)))?
    else {
        return Ok(None);
    };
    let name = resolve(name, |token| of.in_name(token), is_subdomain)?;
    let namespace = resolve(namespace, |token| of.in_namespace(token), is_label)?;
    Ok(Some(SecretReference { name: Some(name), namespace: Some(namespace) }))
}

/// Returns the single template of the name and the single one of the namespace.
fn templates(
    parameters: &Pairs,
    keys: impl IntoIterator<Item = (String, String)>,
) -> Result<Option<(&str, &str)>, String> {
    let (names, namespaces): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
    let (name, namespace) = (only(parameters, &names)?, only(parameters, &namespaces)?);
    match (name, namespace) {
        (None, None) => Ok(None),
        (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => {
            Ok(Some((name, namespace)))
        }
        _ => {
            let (name, namespace) = (names.last(), namespaces.last());
            let both = name.zip(namespace).map(|(name, namespace)| format!("{name} and {namespace}"));
            Err(format!("half a Secret is named in the StorageClass: set both {}", both.unwrap_or_default()))
        }
    }
}

fn only<'a>(parameters: &'a Pairs, keys: &[String]) -> Result<Option<&'a str>, String> {
    let mut set = keys.iter().filter_map(|key| parameters.get(key));
    let first = set.next();
    if set.next().is_some() {
        return Err(format!(
            "a Secret is named twice in the StorageClass: leave one of {}",
            keys.join(" and ")
        ));
    }
    Ok(first.map(String::as_str))
}

/// Returns the template with its tokens replaced.
fn resolve<'a>(
    template: &str,
    value: impl Fn(&str) -> Option<&'a str>,
    is_valid: impl Fn(&str) -> bool,
) -> Result<String, String> {
    let mut pieces = template.split("${");
    let mut made = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let token = piece.split_once('}');
        let known = token.and_then(|(token, rest)| Some((value(token)?, rest)));
        let (value, rest) = known
            .ok_or_else(|| format!("{template:?} cannot be resolved: \"${{{piece}\" is not known here"))?;
        made.push_str(value);
        made.push_str(rest);
    }
    if is_valid(&made) { Ok(made) } else { Err(format!("{template:?} makes {made:?}, which is no name")) }
}

/// Reports whether a text is a label of RFC 1123, as the name of a namespace has to be.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 63
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.is_empty()
        && text.bytes().all(inner)
}

/// Reports whether a text can name a Secret. Unlike labels of DNS, its labels may have any length.
fn is_subdomain(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_part = |part: &str| {
        !part.is_empty() && !part.starts_with('-') && !part.ends_with('-') && part.bytes().all(inner)
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Pairs {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn named(purpose: Purpose, parameters: &[(&str, &str)]) -> Result<Option<(String, String)>, String> {
        let annotations = pairs(&[("example.com/secret", "noted"), ("bad", "Not A Name")]);
        let of = Of { volume: "pvc-1", namespace: "team", claim: "data", annotations: Some(&annotations) };
        let found = reference(purpose, &pairs(parameters), of)?;
        Ok(found.map(|found| (found.namespace.unwrap(), found.name.unwrap())))
    }

    fn of_templates(name: &str, namespace: &str) -> Option<(String, String)> {
        let parameters = [
            ("csi.storage.k8s.io/node-stage-secret-name", name),
            ("csi.storage.k8s.io/node-stage-secret-namespace", namespace),
        ];
        named(Purpose::NodeStage, &parameters).ok().flatten()
    }

    #[test]
    fn which_template_may_use_what() {
        for (name, namespace, made) in [
            ("plain", "kube-system", Some("kube-system/plain")),
            ("${pv.name}", "${pv.name}", Some("pvc-1/pvc-1")),
            ("${pvc.namespace}-${pvc.name}", "${pvc.namespace}", Some("team/team-data")),
            ("${pvc.annotations['example.com/secret']}", "x", Some("x/noted")),
            ("a.b-${pvc.name}.c", "ns-${pvc.namespace}-1", Some("ns-team-1/a.b-data.c")),
            // Text from the owner of the claim does not choose a namespace.
            ("plain", "${pvc.name}", None),
            ("plain", "${pvc.annotations['example.com/secret']}", None),
            // Missing, invalid as a name, or not closed.
            ("${pvc.annotations['other']}", "x", None),
            ("${pvc.annotations['bad']}", "x", None),
            ("${pvc.uid}", "x", None),
            ("${pvc.name", "x", None),
            ("${}", "x", None),
            ("$pvc", "x", None),
            ("Upper", "x", None),
            ("a..b", "x", None),
            ("-a", "x", None),
            ("a", "x.y", None),
            ("a", "../kube-system", None),
        ] {
            let found = of_templates(name, namespace).map(|(namespace, name)| format!("{namespace}/{name}"));
            assert_eq!(found.as_deref(), made, "{name} in {namespace}");
        }
        assert!(of_templates(&"a".repeat(253), &"b".repeat(63)).is_some());
        assert!(of_templates(&"a".repeat(254), "b").is_none());
        assert!(of_templates("a", &"b".repeat(64)).is_none());
    }

    #[test]
    fn each_purpose_has_its_own_and_a_default() {
        let default =
            [("csi.storage.k8s.io/secret-name", "d"), ("csi.storage.k8s.io/secret-namespace", "ns")];
        for purpose in ALL {
            let word = purpose.prefixes().0;
            let (name, namespace) =
                (format!("{RESERVED}{word}secret-name"), format!("{RESERVED}{word}secret-namespace"));
            let own = [(name.as_str(), "own"), (namespace.as_str(), "ns")];
            assert_eq!(named(purpose, &default).unwrap().unwrap().1, "d");
            assert_eq!(named(purpose, &[&default[..], &own[..]].concat()).unwrap().unwrap().1, "own");
            assert_eq!(named(purpose, &[]), Ok(None));
            assert!(named(purpose, &own[..1]).unwrap_err().contains("half"));
            assert!(named(purpose, &[own[0], (namespace.as_str(), "")]).unwrap_err().contains("half"));
            assert!(is_reserved(&name) && is_reserved(&namespace));
        }
        assert!(is_reserved(default[0].0) && !is_reserved("csi.storage.k8s.io/other-secret-name"));
        assert!(!is_reserved("csiNodeStageSecretName"));
    }

    #[test]
    fn the_old_names_count_but_not_beside_the_new() {
        let old = [("csiNodeStageSecretName", "old"), ("csiNodeStageSecretNamespace", "ns")];
        assert_eq!(named(Purpose::NodeStage, &old).unwrap().unwrap().1, "old");
        assert_eq!(named(Purpose::NodePublish, &old), Ok(None));
        let both = [&old[..], &[("csi.storage.k8s.io/node-stage-secret-name", "new")]].concat();
        assert!(named(Purpose::NodeStage, &both).unwrap_err().contains("twice"));
    }
}
