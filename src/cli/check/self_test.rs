//! `flexvol check --self`: the kit, checked by drivers that are built to misbehave.

use crate::cli::screen::Screen;
use anyhow::{Result, bail};
use std::process::ExitCode;

/// Those that a pattern means; all if there is none.
pub(super) fn run(_screen: &mut Screen, _patterns: &[String]) -> Result<ExitCode> {
    bail!("not yet")
}
