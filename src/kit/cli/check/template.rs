//! `flexvol check template`: prints a well-behaved driver to begin with.

use crate::check::self_test::Reference;
use anyhow::Result;
use clap::{Args, ValueEnum};
use flexvol_terminal::screen::Screen;
use std::process::ExitCode;

/// Print a well-behaved driver in shell, as a start for your own
#[derive(Args)]
#[command(after_help = "\
They are the drivers that prove the kit: every case that must hold for them does, and every one that
should. They need /bin/sh, and no newer env.

Examples:
  flexvol check template tmpfs > mydriver && chmod +x mydriver
  flexvol check template loop                             attaches, formats, grows

Exit status: 0.")]
pub(super) struct Template {
    /// Kind of driver
    #[arg(value_enum, default_value = "tmpfs")]
    kind: TemplateKind,
}

/// Kinds of templates.
#[derive(Clone, Copy, ValueEnum)]
enum TemplateKind {
    /// Memory: mounts and unmounts, takes a secret
    Tmpfs,
    /// A disk in a file: attaches, formats what is blank, grows
    Loop,
    /// Memory, and a process that serves each mount, as with FUSE
    Keeper,
}

impl Template {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let reference = match self.kind {
            TemplateKind::Tmpfs => Reference::Tmpfs,
            TemplateKind::Loop => Reference::Loop,
            TemplateKind::Keeper => Reference::Keeper,
        };
        screen.document("driver", &reference.template())?;
        Ok(ExitCode::SUCCESS)
    }
}
