//! `flexvol pod`.

use super::screen::Screen;
use crate::failure::{Code, Failure};
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Bring the volumes of a pod up or down, from its YAML, without a cluster
#[derive(Args)]
pub(super) struct Pod {}

impl Pod {
    #[expect(clippy::unused_self, reason = "to be built")]
    pub(super) fn run(&self, _screen: &mut Screen) -> Result<ExitCode> {
        Err(Failure::new(Code::Internal, "not built yet").into())
    }
}
