//! FlexVolume volumes as volumes of CSI drivers, and back: pure, total and deterministic.
//!
//! ```text
//! flexVolume ─▶ to_csi ──▶ csi, for flexvold csi over the same driver
//!            ◀─ to_flex ◀─ the original, which the annotation ORIGINAL keeps
//! ```
//!
//! Volumes of Kubernetes' own plugins that are gone go the same way, to the driver that took their
//! plugin's place: `in_tree`.
//!
//! To another driver than `flexvold csi` a volume goes by a row of [`TARGETS`], which says what
//! becomes of each option: an attribute, a mount option, or nothing, with a warning that says why.
//! An option without a row is a refusal.
//!
//! What holds for every `PersistentVolume`, every pod and every template of one, whoever wrote it:
//!
//! 1. `to_flex(to_csi(object))` is the object; a `PersistentVolume` without what only the API
//!    server writes ([`without_server_fields`]): its source cannot be changed, so both are to be
//!    created.
//! 2. For `flexvold csi` each option becomes an attribute of the same name and value.
//! 3. No credential reaches an attribute, an annotation, a warning or a message. An option or an
//!    annotation that holds one is a refusal; of a Secret only its name is known here.
//! 4. Nothing can delete the data through the new volume: its reclaim policy is `Retain`, no
//!    provisioner is named, and its handle is a path to no driver: `fx1#` and the volume's name for
//!    `flexvold csi`, which deletes nothing, and without `#` and `/` for others.
//! 5. Two volumes with different names have different handles. Those of pods have none: kubelet
//!    makes them up.
//!
//! Why a volume is refused, and what a reader must know of one that is not, is data: [`Reason`] and
//! [`Warning`], each with an `id` that does not change when the sentence does.

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

/// An object that was translated.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// The whole object as it is to be created.
    pub object: Value,
    /// What its reader has to know.
    pub warnings: Vec<Warning>,
}

/// An object that is not translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Kind and name.
    pub object: String,
    /// Why, and what to do.
    pub reason: Reason,
}

/// `<what>: <why>: <what to do>`, on one line.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.reason, self.reason.fix())
    }
}

/// The object for a CSI driver; `None` if there is nothing to translate in it.
pub fn to_csi(object: &Value, to: To<'_>) -> Result<Option<Translation>, Refusal> {
    let done = match kind(object) {
        "PersistentVolume" => persistent_volume::to_csi(object, to),
        "StorageClass" => storage_class::to_csi(object, to),
        _ => pod::to_csi(object, to),
    };
    done.map_err(|reason| Refusal { object: title(object), reason })
}

/// The object as it was before [`to_csi`]; `None` if it was not translated.
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

/// Kind and name of an object, for people.
pub fn title(object: &Value) -> String {
    let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let namespace = word("/metadata/namespace").map(|name| format!("{name}/")).unwrap_or_default();
    let name = word("/metadata/name").unwrap_or("without a name");
    one_line(&format!("{} {namespace}{name}", word("/kind").unwrap_or("object")), 300)
}
