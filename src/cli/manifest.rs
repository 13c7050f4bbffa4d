//! `flexvol manifest`.

use super::screen::Screen;
use crate::failure::{Code, Failure};
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Print what deploys flexvol to every node of a cluster
#[derive(Args)]
pub(super) struct Manifest {}

impl Manifest {
    #[expect(clippy::unused_self, reason = "to be built")]
    pub(super) fn run(&self, _screen: &mut Screen) -> Result<ExitCode> {
        Err(Failure::new(Code::Internal, "not built yet").into())
    }
}
