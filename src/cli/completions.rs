//! `flexvol completions`: what makes the shell complete our command line.

use super::Cli;
use super::screen::Screen;
use anyhow::Result;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use std::process::ExitCode;

/// Print the completion script of a shell
#[derive(Args)]
#[command(after_help = "\
Examples:
  flexvol completions bash > /etc/bash_completion.d/flexvol
  flexvol completions zsh > \"${fpath[1]}/_flexvol\"
  flexvol completions fish > ~/.config/fish/completions/flexvol.fish")]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "flexvol", &mut script);
        screen.document("completions", &String::from_utf8(script)?)?;
        Ok(ExitCode::SUCCESS)
    }
}
