//! `flexvol man`: manual pages, made from the same table as the help.

use super::Cli;
use super::screen::Screen;
use crate::failure::Failure;
use crate::schema::did_you_mean;
use anyhow::{Context as _, Result};
use clap::{Args, Command, CommandFactory as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the manual page of flexvol or of one of its commands
#[derive(Args)]
#[command(after_help = "\
Examples:
  flexvol man | man -l -
  flexvol man run > /usr/local/share/man/man1/flexvol-run.1
  flexvol man --output /usr/local/share/man/man1        all of them")]
pub(super) struct Man {
    /// The command; without one, flexvol as a whole
    command: Option<String>,
    /// Write the pages of all commands into this directory instead
    #[arg(short, long, value_name = "DIR", conflicts_with = "command")]
    output: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        if let Some(directory) = &self.output {
            let cannot = || format!("write manual pages into {}", directory.display());
            clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), directory)
                .with_context(cannot)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(self.chosen()?).render(&mut page)?;
        screen.document("man", &String::from_utf8(page)?)?;
        Ok(ExitCode::SUCCESS)
    }

    fn chosen(&self) -> Result<Command> {
        let mut all = Cli::command();
        all.build();
        match &self.command {
            None => Ok(all),
            Some(name) => Ok(all.find_subcommand(name).cloned().ok_or_else(|| unknown(name, &all))?),
        }
    }
}

fn unknown(name: &str, all: &Command) -> Failure {
    let names = all.get_subcommands().map(Command::get_name);
    let hint = match did_you_mean(name, names) {
        Some(near) => format!("did you mean {near:?}?"),
        None => "flexvol --help lists them".to_owned(),
    };
    Failure::call(format!("there is no command {name:?}: {hint}"))
}
