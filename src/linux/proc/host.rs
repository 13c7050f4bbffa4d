//! The node's own name.

use anyhow::{Context, Result};

/// What the kernel calls this node: kubelet's own name for it, unless the admin gave it another.
pub fn name() -> Result<String> {
    let name = nix::unistd::gethostname().context("learn the node's name")?;
    Ok(name.to_string_lossy().into_owned())
}
