//! The node's own name, and that of its boot.

use anyhow::{Context, Result};

/// What the kernel calls this node: kubelet's own name for it, unless the admin gave it another.
pub fn name() -> Result<String> {
    let name = nix::unistd::gethostname().context("learn the node's name")?;
    Ok(name.to_string_lossy().into_owned())
}

/// What the kernel calls this boot of it, for all of its containers: no other has the same.
pub fn boot() -> Result<String> {
    let id =
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("learn which boot this is")?;
    Ok(id.trim_end().to_owned())
}
