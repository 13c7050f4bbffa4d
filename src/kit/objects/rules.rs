//! Rules of the API server and kubelet for single words, for every reader of objects.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use flexvol_protocol::secret::Secret;

/// Paths to the pod template in all kinds but Pod itself.
pub const TEMPLATES: [&[&str]; 2] = [&["spec", "template"], &["spec", "jobTemplate", "spec", "template"]];

/// Annotation for mount options, from the time before they had a field.
pub const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// Annotation for the storage class, from the time before it had a field.
pub const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Annotation that the binder writes once it has done its work.
pub const BOUND: &str = "pv.kubernetes.io/bind-completed";

/// Annotation that kubelet sets on pods from files: they have no service account.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// All annotations that are read.
pub const ANNOTATIONS: [&str; 4] = [MOUNT_OPTIONS, STORAGE_CLASS, BOUND, CONFIG_SOURCE];

/// Message for a name that [`is_label`] refuses.
pub const LABEL: &str =
    "must be at most 63 lower-case letters, digits and '-', a letter or digit first and last";

/// Message for a name that [`is_subdomain`] refuses.
pub const SUBDOMAIN: &str =
    "must be at most 253 lower-case letters, digits, '-' and '.', a letter or digit first and last";

/// Go's standard encoding, which ignores unused bits after the last byte.
const GO: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Reports whether a name is one part of a DNS name (RFC 1123), as of a pod's volume or a
/// namespace.
pub fn is_label(name: &str) -> bool {
    name.len() <= 63 && label(name)
}

/// Reports whether a name is a DNS name, as for most objects.
pub fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(label)
}

fn label(text: &str) -> bool {
    let edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|byte| edge(byte) || *byte == b'-')
}

/// Reports whether an option's key belongs to Kubernetes, in upper or lower case.
pub fn is_reserved(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default().to_ascii_lowercase();
    let of = |own: &str| domain == own || domain.strip_suffix(own).is_some_and(|rest| rest.ends_with('.'));
    of("kubernetes.io") || of("k8s.io")
}

/// Reports whether a Secret may have this key.
pub fn is_secret_key(key: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !key.is_empty() && key.len() <= 253 && key.bytes().all(plain) && key != "." && !key.starts_with("..")
}

/// Decodes a value of a Secret's `data`; `None` if it is not base64. Skips line breaks, as Go does.
pub fn decode(text: &str) -> Option<Secret> {
    let text: String = text.chars().filter(|c| !['\r', '\n'].contains(c)).collect();
    GO.decode(text).ok().map(Secret::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_keeps_its_domains_to_itself() {
        for key in ["kubernetes.io/x", "Kubernetes.IO", "a.kubernetes.io/x/y", "k8s.io/x", "storage.k8s.io"] {
            assert!(is_reserved(key), "{key}");
        }
        for key in ["kubernetes.io.example/x", "xkubernetes.io/x", "x/kubernetes.io", "k8s", "", "/k8s.io"] {
            assert!(!is_reserved(key), "{key}");
        }
    }
}
