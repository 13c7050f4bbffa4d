//! `flexvol install`.

use super::screen::Screen;
use crate::failure::{Code, Failure};
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Install drivers so that kubelet never sees half of one
#[derive(Args)]
pub(super) struct Install {}

impl Install {
    #[expect(clippy::unused_self, reason = "to be built")]
    pub(super) fn run(&self, _screen: &mut Screen) -> Result<ExitCode> {
        Err(Failure::new(Code::Internal, "not built yet").into())
    }
}
