//! Completion scripts for shells.

use crate::screen::Screen;
use anyhow::Result;
use clap::{Args, Command, ValueEnum};
use clap_complete::generate;
use clap_complete::shells;
use std::process::ExitCode;

/// Shells that nodes have. Others would only make every node's binary larger.
#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// Print the completion script of a shell
#[derive(Args)]
#[command(after_help = "\
Examples:
  flexvol completions bash > /etc/bash_completion.d/flexvol
  flexvol completions zsh > \"${fpath[1]}/_flexvol\"
  flexvol completions fish > ~/.config/fish/completions/flexvol.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script for a program of that name with these commands.
    pub fn run(&self, program: &str, mut all: Command, screen: &mut Screen) -> Result<ExitCode> {
        let mut script = Vec::new();
        match self.shell {
            Shell::Bash => generate(shells::Bash, &mut all, program, &mut script),
            Shell::Fish => generate(shells::Fish, &mut all, program, &mut script),
            Shell::Zsh => generate(shells::Zsh, &mut all, program, &mut script),
        }
        screen.document("completions", &String::from_utf8(script)?)?;
        Ok(ExitCode::SUCCESS)
    }
}
