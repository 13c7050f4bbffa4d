//! `flexvol probe`.

use super::screen::Screen;
use crate::failure::{Code, Failure};
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Say what kubelet would load from a plugin directory, what not, and why
#[derive(Args)]
pub(super) struct Probe {}

impl Probe {
    #[expect(clippy::unused_self, reason = "to be built")]
    pub(super) fn run(&self, _screen: &mut Screen) -> Result<ExitCode> {
        Err(Failure::new(Code::Internal, "not built yet").into())
    }
}
