//! The kit's command line: one file per subcommand, each a thin adapter that calls the library and
//! prints.
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage; the `--help` of a command lists its other values.

mod call;
mod chart;
mod check;
mod objects;
mod pod;
mod probe;
mod record;
mod translate;
mod validate;
mod watch;

use anyhow::{Error, Result};
use clap::{CommandFactory as _, Parser, Subcommand};
use flexvol_linux::errno::{code_of, to_failure};
use flexvol_protocol::failure::Code;
use flexvol_terminal::completions::Completions;
use flexvol_terminal::exit::USAGE;
use flexvol_terminal::man::{self, Man};
use flexvol_terminal::program::{self, Program};
use flexvol_terminal::screen::Screen;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  flexvol call ./my-driver init                   what kubelet makes of its answer
  sudo flexvol pod up -f pod.yaml                 a pod's volumes, brought up without a cluster
  sudo flexvol check ./my-driver                  whether it is what kubelet needs, case by case
  flexvol validate -f pv.yaml                     what is wrong with volumes, before they reach a cluster
  flexvol-kit translate -f pv.yaml                a CSI driver's volumes of FlexVolumes, and back

flexvol itself executes this program for these commands, but for translate.
Exit status: 0 done, 1 failed, 2 wrong usage; others of single commands say their --help.";

/// Exercise FlexVolume drivers as kubelet would, without a cluster
#[derive(Parser)]
#[command(name = "flexvol", version, after_help = EXAMPLES, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Probe(probe::Probe),
    Watch(watch::Watch),
    Record(record::Record),
    #[command(name = "call")]
    CallDriver(call::CallDriver),
    Pod(pod::Pod),
    Validate(validate::Validate),
    Translate(translate::Translate),
    Check(Box<check::Check>),
    #[command(hide = true)]
    Chart(chart::Chart),
    #[command(hide = true)]
    Completions(Completions),
    #[command(hide = true)]
    Man(Man),
}

/// Reads the command line (`arguments[0]` is the program) and runs its command.
pub fn main(arguments: &[OsString]) -> ExitCode {
    program::main::<Cli>(arguments)
}

impl Program for Cli {
    fn json(&self) -> bool {
        self.json
    }

    fn run(self, arguments: &[OsString], screen: &mut Screen) -> Result<ExitCode> {
        self.command.run(arguments.first().map(OsString::as_os_str).unwrap_or_default(), screen)
    }

    /// Returns message and exit status; arguments that no call accepts are wrong usage.
    fn failed(error: Error) -> (String, u8) {
        let status = if code_of(&error) == Code::BadCall { USAGE } else { 1 };
        (to_failure(error).message(), status)
    }
}

impl Command {
    /// Runs the command. `program` is the name by which the program was called.
    fn run(self, program: &OsStr, screen: &mut Screen) -> Result<ExitCode> {
        match self {
            Self::Probe(command) => command.run(screen),
            Self::Watch(command) => command.run(screen),
            Self::Record(command) => command.run(screen),
            Self::CallDriver(command) => command.run(screen),
            Self::Pod(command) => command.run(screen),
            Self::Validate(command) => command.run(program, screen),
            Self::Translate(command) => command.run(screen),
            Self::Check(command) => Ok(command.run(screen)),
            Self::Chart(command) => command.run(screen),
            Self::Completions(command) => command.run("flexvol-kit", Cli::command(), screen),
            // Write only the pages of the commands: the first page is that of `flexvol`.
            Self::Man(Man { output: Some(directory), .. }) => man::write_commands(Cli::command(), &directory),
            Self::Man(command) => command.run(Cli::command(), screen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does() {
        for command in Cli::command().get_subcommands() {
            let about = command.get_about().unwrap_or_else(|| panic!("{}", command.get_name())).to_string();
            assert!(about.len() > 20 && !about.ends_with('.'), "{about}");
            // Aligned columns are lost if a line is wrapped.
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let is_aligned = |line: &str| line.starts_with("  ") && line.trim_start().contains("  ");
            let broken = help.lines().find(|line| is_aligned(line) && line.chars().count() > 100);
            assert_eq!(broken, None, "{}", command.get_name());
        }
    }
}
