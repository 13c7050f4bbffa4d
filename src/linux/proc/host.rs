//! Names of the node and of its current boot.

use anyhow::{Context, Result};

/// Returns the kernel's name of this node: kubelet's name for it, unless the admin gave another.
pub fn name() -> Result<String> {
    let name = nix::unistd::gethostname().context("learn the node's name")?;
    Ok(name.to_string_lossy().into_owned())
}

/// Returns the id of this boot of the node, the same in all containers. No other boot has it.
pub fn boot() -> Result<String> {
    let id =
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("learn which boot this is")?;
    Ok(id.trim_end().to_owned())
}
