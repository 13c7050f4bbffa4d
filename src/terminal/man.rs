//! Manual pages, made from the same table as the help.

use crate::screen::Screen;
use anyhow::{Context as _, Result};
use clap::{Args, Command};
use flexvol_model::schema::did_you_mean;
use flexvol_protocol::failure::Failure;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Print the manual page of flexvol or of one of its commands
#[derive(Args)]
#[command(after_help = "\
Examples:
  flexvol man | man -l -
  flexvol man run > /usr/local/share/man/man1/flexvol-run.1
  flexvol man --output /usr/local/share/man/man1        all of them")]
pub struct Man {
    /// The command; without one, flexvol as a whole
    pub command: Option<String>,
    /// Write the pages of all commands into this directory instead
    #[arg(short, long, value_name = "DIR", conflicts_with = "command")]
    pub output: Option<PathBuf>,
}

impl Man {
    /// Prints or writes the pages of a program with these commands.
    pub fn run(&self, mut all: Command, screen: &mut Screen) -> Result<ExitCode> {
        if let Some(directory) = &self.output {
            return written(all.disable_help_subcommand(true), directory);
        }
        all.build();
        let chosen = match &self.command {
            None => all,
            Some(name) => all.find_subcommand(name).cloned().ok_or_else(|| unknown(name, &all))?,
        };
        let mut page = Vec::new();
        clap_mangen::Man::new(chosen).render(&mut page)?;
        screen.document("man", &String::from_utf8(page)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes only the pages of the commands, for a program whose main page belongs to another program.
pub fn write_commands(all: Command, directory: &Path) -> Result<ExitCode> {
    let mut all = all.disable_help_subcommand(true);
    all.build();
    let mut pages =
        all.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help");
    pages.try_for_each(|command| written(command.clone(), directory).map(drop))?;
    Ok(ExitCode::SUCCESS)
}

fn written(command: Command, directory: &Path) -> Result<ExitCode> {
    let cannot = || format!("write manual pages into {}", directory.display());
    clap_mangen::generate_to(command, directory).with_context(cannot)?;
    Ok(ExitCode::SUCCESS)
}

fn unknown(name: &str, all: &Command) -> Failure {
    let names = all.get_subcommands().map(Command::get_name);
    let hint = match did_you_mean(name, names) {
        Some(near) => format!("did you mean {near:?}?"),
        None => "flexvol --help lists them".to_owned(),
    };
    Failure::call(format!("there is no command {name:?}: {hint}"))
}
