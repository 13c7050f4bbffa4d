//! Owner and mode of files that are created on a node.

use serde::{Serialize, Serializer};

/// Mode and owner of a new file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ownership {
    /// Permission bits.
    #[serde(serialize_with = "octal")]
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn octal<S: Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{mode:04o}"))
}
