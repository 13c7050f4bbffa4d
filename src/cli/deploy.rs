//! `flexvol deploy`.

use super::screen::Screen;
use crate::failure::{Code, Failure};
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Install drivers and keep them in place: the entry point of the image
#[derive(Args)]
pub(super) struct Deploy {}

impl Deploy {
    #[expect(clippy::unused_self, reason = "to be built")]
    pub(super) fn run(&self, _screen: &mut Screen) -> Result<ExitCode> {
        Err(Failure::new(Code::Internal, "not built yet").into())
    }
}
