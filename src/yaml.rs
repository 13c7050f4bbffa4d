//! YAML as Kubernetes reads it: every document a tree of JSON values.
//!
//! For files that Kubernetes reads too: kubelet's configuration, pods, volumes and secrets. Kubernetes turns
//! them into JSON first (sigs.k8s.io/yaml), with the plain scalars of YAML 1.1: `yes`, `on` and `0755` are no
//! strings there, and a driver's option that is no string is refused by the API server. So they are none here.
//!
//! ```ignore
//! let documents = flexvol::yaml::parse("a: yes\n---\nb: [0755, '0755', 1e3, ~]\n").unwrap();
//! assert_eq!(documents[0], serde_json::json!({"a": true}));
//! assert_eq!(documents[1], serde_json::json!({"b": [493, "0755", 1000.0, null]}));
//! ```

use crate::failure::{Failure, Result};
use serde_json::Value;

/// Reads every document of a text; documents without content are left out.
///
/// The error says where, and repeats nothing of the text: it may be a Secret.
pub fn parse(_text: &str) -> Result<Vec<Value>> {
    Err(Failure::options("cannot read YAML yet"))
}
