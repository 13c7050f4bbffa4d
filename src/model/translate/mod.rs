//! Translation of FlexVolume volumes into volumes of CSI drivers, and back: pure, total and
//! deterministic.
//!
//! ```text
//! flexVolume ─▶ to_csi ──▶ csi, for flexvold csi over the same driver
//!            ◀─ to_flex ◀─ the original, which the annotation ORIGINAL keeps
//! ```
//!
//! Volumes of Kubernetes' removed in-tree plugins are translated in the same way, for the driver
//! that replaced the plugin: `in_tree`.
//!
//! A row of [`TARGETS`] translates a volume for a driver other than `flexvold csi`. Each option
//! becomes an attribute, a mount option, or nothing, with a warning that gives the reason. An
//! option without an entry in the row is refused.
//!
//! The following holds for every `PersistentVolume`, every pod and every pod template, whoever
//! wrote it:
//!
//! 1. `to_flex(to_csi(object))` is the object; a `PersistentVolume` loses what only the API server
//!    writes ([`without_server_fields`]). The source of a volume cannot be changed, so both
//!    directions give an object that has to be created.
//! 2. For `flexvold csi` each option becomes an attribute of the same name and value.
//! 3. No credential reaches an attribute, an annotation, a warning or a message. An option or an
//!    annotation that holds one is refused. Of a Secret, only the name is known here.
//! 4. Nothing can delete the data through the new volume: its reclaim policy is `Retain`, no
//!    provisioner is named, and no driver can read its handle as a path. For `flexvold csi`, which
//!    deletes nothing, the handle is `fx1#` and the volume's name; for other drivers it has neither
//!    `#` nor `/`.
//! 5. Two volumes with different names have different handles. Volumes of pods have no handle:
//!    kubelet generates it.
//!
//! Reasons for a refusal and warnings for a reader are data: [`Reason`] and [`Warning`]. Each has
//! an `id` that stays the same when its sentence changes.

mod credential;
mod flex_volume;
mod form;
mod in_tree;
mod options;
mod original;
mod persistent_volume;
mod pod;
mod reason;
mod storage_class;
pub mod target;
mod targets;
pub mod through;
mod warning;
mod way;

#[cfg(test)]
mod tests;

pub use form::Form;
pub use original::ORIGINAL;
pub use persistent_volume::without_server_fields;
pub use reason::Reason;
pub use targets::TARGETS;
pub use warning::Warning;
pub use way::{To, is_target, target_names};

use original::Rewrite;

use flexvol_protocol::text::one_line;
use serde_json::Value;
use std::fmt;

/// Translated object.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// Whole object, as it is to be created.
    pub object: Value,
    /// Warnings for its reader.
    pub warnings: Vec<Warning>,
}

/// Object that is not translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Kind and name.
    pub object: String,
    /// Reason, which also has the fix.
    pub reason: Reason,
}

/// `<what>: <why>: <what to do>`, on one line.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.reason, self.reason.fix())
    }
}

/// Returns the object for a CSI driver; `None` if it contains nothing to translate.
pub fn to_csi(object: &Value, to: To<'_>) -> Result<Option<Translation>, Refusal> {
    let done = match kind(object) {
        "PersistentVolume" => persistent_volume::to_csi(object, to),
        "StorageClass" => storage_class::to_csi(object, to),
        _ => pod::to_csi(object, to),
    };
    done.map_err(|reason| Refusal { object: title(object), reason })
}

/// Returns the object as it was before [`to_csi`]; `None` if it was not translated.
pub fn to_flex(object: &Value) -> Result<Option<Translation>, Refusal> {
    let done = match kind(object) {
        "PersistentVolume" => persistent_volume::to_flex(object),
        "StorageClass" => storage_class::to_flex(object),
        _ => pod::to_flex(object),
    };
    done.map_err(|reason| Refusal { object: title(object), reason })
}

fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// Returns kind and name of an object, for people.
pub fn title(object: &Value) -> String {
    let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let namespace = word("/metadata/namespace").map(|name| format!("{name}/")).unwrap_or_default();
    let name = word("/metadata/name").unwrap_or("without a name");
    one_line(&format!("{} {namespace}{name}", word("/kind").unwrap_or("object")), 300)
}
