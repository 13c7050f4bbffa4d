//! `flexvol check template`: prints a well-behaved driver to begin with.

use anyhow::Result;
use clap::{Args, ValueEnum};
use flexvol_terminal::screen::Screen;
use std::process::ExitCode;

/// First lines of each driver. A shell complains if it is started in a directory that was removed;
/// no kubelet does that.
const HEAD: &str = r#"#!/bin/sh
[ "${bare-}" = yes ] || exec /usr/bin/env -i bare=yes PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/sh "$0" "$@"
cd / || exit
"#;

/// Print a well-behaved driver in shell, as a start for your own
#[derive(Args)]
#[command(after_help = "\
The kit itself is tested with them: every case that must hold for them does, and every one that
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
        let text = match self.kind {
            TemplateKind::Tmpfs => include_str!("template/tmpfs.sh"),
            TemplateKind::Loop => include_str!("template/loop.sh"),
            TemplateKind::Keeper => include_str!("template/keeper.sh"),
        };
        // Busybox and coreutils before 8.30 have no `env -S`, so the driver is started by `/bin/sh`
        // and drops kubelet's environment itself.
        let rest = text.split_once('\n').map_or(text, |(_, rest)| rest);
        screen.document("driver", &(HEAD.to_owned() + rest))?;
        Ok(ExitCode::SUCCESS)
    }
}
