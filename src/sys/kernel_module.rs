//! Modules of the kernel, which loads those of file systems by itself, and those of other things only when told.

use super::deadline::Deadline;
use super::helper::Helper;
use crate::failure::{Code, Failure};
use anyhow::{Context as _, Result};
use std::path::Path;

/// Loads a module, unless what it brings is there. Fails with `ToolMissing` and what to do.
pub fn load(name: &str, brings: &Path, deadline: &Deadline) -> Result<()> {
    if brings.exists() {
        return Ok(());
    }
    let loaded = Helper::find("modprobe").and_then(|modprobe| modprobe.args([name]).run(deadline));
    if brings.exists() {
        return Ok(());
    }
    let text = format!("this kernel has no {name}, or cannot load it: run modprobe {name} on the node");
    let failure = Failure::new(Code::ToolMissing, text);
    match loaded {
        Ok(outcome) => Err(failure).with_context(|| outcome.describe("modprobe")),
        Err(error) => Err(failure).with_context(|| format!("{error:#}")),
    }
}
