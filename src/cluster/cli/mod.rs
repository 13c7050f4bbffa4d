//! The command line of `flexvold`: one file a subcommand.
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage.

mod csi;
mod csi_controller;
mod manifest;
mod trial;

use anyhow::{Error, Result};
use clap::{Parser, Subcommand};
use flexvol_linux::errno::to_failure;
use flexvol_terminal::program::{self, Program};
use flexvol_terminal::screen::Screen;
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  sudo flexvold try                                        play a pod's life over CSI, without a cluster
  sudo flexvold csi --driver flexvol/tmpfs --register      serve a driver on this node, and tell kubelet
  flexvold manifest csi --image IMAGE flexvol/tmpfs        print what serves it in a cluster

Exit status: 0 done, 1 failed, 2 wrong usage.";

/// Serve FlexVolume drivers beyond kubelet's own plugin
#[derive(Parser)]
#[command(name = "flexvold", version, after_help = EXAMPLES, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Csi(Box<csi::Csi>),
    CsiController(csi_controller::CsiController),
    Manifest(manifest::Manifest),
    Try(trial::Try),
}

/// Reads the command line (`arguments[0]` is the program) and does what it says.
pub fn main(arguments: &[OsString]) -> ExitCode {
    program::main::<Cli>(arguments)
}

impl Program for Cli {
    fn json(&self) -> bool {
        self.json
    }

    fn run(self, _: &[OsString], screen: &mut Screen) -> Result<ExitCode> {
        self.command.run(screen)
    }

    fn failed(error: Error) -> (String, u8) {
        (to_failure(error).message(), 1)
    }
}

impl Command {
    fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        match self {
            Self::Csi(command) => command.run(screen),
            Self::CsiController(command) => command.run(screen),
            Self::Manifest(command) => command.run(screen),
            Self::Try(command) => command.run(screen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
