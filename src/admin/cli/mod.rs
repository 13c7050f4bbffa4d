//! Command line for admins: one file for each subcommand, a thin adapter that calls the library and
//! prints.
//!
//! Nothing else in the crate prints for people. Results go to standard output, as text or, with
//! `--json`, as JSON; errors go to standard error as one line, with `--json` to standard output as
//! `{"error": "…"}`. Exit status: 0 done, 1 failed, 2 wrong usage; for `run` and `plan` 3 if the
//! driver does not have the verb. For commands that change plugin directories (`placing`): 4 a
//! foreign driver is in the way, 5 a newer version is installed, 6 volumes are mounted, 7 the node
//! does not meet the requirements, 8 the driver fails its own `init`, 9 kubelet did not call it in
//! time, 10 another installer holds the directory.

mod deploy;
mod dialect;
mod doctor;
mod drivers;
mod example;
mod explain;
mod explain_error;
mod install;
mod kit;
mod list;
mod locate;
mod logs;
mod manifest;
mod placing;
mod plan;
mod run;
mod status;
mod trial;
mod uninstall;
mod which_volumes;

use anyhow::{Error, Result};
use clap::{CommandFactory as _, Parser, Subcommand};
use flexvol_node::hints::to_failure;
use flexvol_terminal::completions::Completions;
use flexvol_terminal::exit::USAGE;
use flexvol_terminal::man::Man;
use flexvol_terminal::program::{self, Program};
use flexvol_terminal::screen::Screen;
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;

const OVERVIEW: &str = "\
flexvol is every FlexVolume driver a Kubernetes node needs, in one binary.
Installed as <vendor>~<driver>/<driver> it answers kubelet; as flexvol it answers you.

Try these first:
  sudo flexvol try                                exercise drivers as kubelet would, without a cluster
  flexvol drivers                                 list the drivers
  flexvol explain tmpfs                           its options, and a PV and a pod to copy
  flexvol plan tmpfs mount /mnt -o size=16Mi      what would be done, and how it is undone
  sudo flexvol run tmpfs mount /mnt -o size=16Mi  do it, as kubelet would

On a node:
  sudo flexvol locate                             which directory kubelet reads drivers from, and why
  sudo flexvol install tmpfs                      put a driver there; kubelet finds it while it runs
  sudo flexvol list                               list installed drivers, their owners and problems
  sudo flexvol watch                              watch drivers come and go as kubelet does

When a pod hangs in ContainerCreating:
  sudo flexvol doctor                             list problems of this node, each with cause and fix
  sudo flexvol status                             every flex volume of the node, and whether it answers
  sudo flexvol logs --failed                      what drivers were asked for on this node, and what became of it
  flexvol explain-error 'TEXT OF THE EVENT'       what kubelet did, why it failed, how to fix it

On every node of a cluster:
  flexvol manifest daemonset tmpfs | kubectl apply -f -
  flexvol validate -f pv.yaml                     what is wrong with volumes, before they reach it

From where your kubectl is:
  kubectl flexvol status                          which pod of the cluster has which volume, and where
  kubectl flexvol why CLAIM                       who holds its storage, and what ends that
  kubectl flexvol validate                        what is wrong with the cluster's volumes

A driver of your own, in any language:
  flexvol call ./my-driver init                   what kubelet makes of its answer
  sudo flexvol pod up -f pod.yaml                 a pod's volumes, brought up without a cluster
  sudo flexvol check ./my-driver                  whether it is what kubelet needs, case by case

flexvol --help lists every command, flexvol <command> --help explains one.
";

const EXAMPLES: &str = "\
Examples:
  sudo flexvol try
  flexvol explain image
  sudo flexvol install image --set policy.maxSize=20Gi --wait
  flexvol list --json | jq -r '.[].drivers[] | select(.problems != []) | .directory'
  flexvol manifest daemonset --platform cos tmpfs image > flexvol.yaml

Exit status: 0 done, 1 failed, 2 wrong usage; others of single commands say their --help.";

/// Every FlexVolume driver a Kubernetes node needs, in one static binary.
#[derive(Parser)]
#[command(name = "flexvol", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    #[command(name = "try")]
    Try(trial::Trial),
    Drivers(drivers::Drivers),
    Explain(explain::Explain),
    Plan(plan::PlanCall),
    Run(run::RunCall),
    Locate(locate::Locate),
    Install(install::Install),
    Uninstall(uninstall::Uninstall),
    List(list::List),
    Deploy(deploy::Deploy),
    Manifest(manifest::Manifest),
    Doctor(doctor::Doctor),
    Status(status::Status),
    Logs(logs::Logs),
    ExplainError(explain_error::ExplainError),
    #[command(flatten)]
    Kit(kit::Kit),
    #[command(flatten)]
    Daemon(kit::Daemon),
    Completions(Completions),
    Man(Man),
}

/// Reads the command line (`arguments[0]` is the program) and carries out the command.
pub fn main(arguments: &[OsString]) -> ExitCode {
    if kit::is_of_cluster(arguments) {
        return kit::of_cluster(arguments);
    }
    program::main::<Cli>(arguments)
}

impl Program for Cli {
    fn json(&self) -> bool {
        let last_word = matches!(&self.command, Some(Command::ExplainError(asked)) if asked.wants_json());
        self.json || last_word
    }

    fn run(self, arguments: &[OsString], screen: &mut Screen) -> Result<ExitCode> {
        match self.command {
            Some(command) => command.run(arguments, screen),
            None => overview(screen),
        }
    }

    fn failed(error: Error) -> (String, u8) {
        let status = placing::status(&error);
        (to_failure(error).message(), status)
    }
}

impl Command {
    fn run(self, arguments: &[OsString], screen: &mut Screen) -> Result<ExitCode> {
        match self {
            Self::Try(trial::Trial {}) => trial::Trial::run(screen),
            Self::Drivers(command) => command.run(screen),
            Self::Explain(command) => command.run(screen),
            Self::Logs(command) => command.run(screen),
            Self::ExplainError(command) => command.run(screen),
            Self::Plan(command) => command.run(screen),
            Self::Run(command) => command.run(screen),
            Self::Locate(command) => command.run(screen),
            Self::Install(command) => command.run(screen),
            Self::Uninstall(command) => command.run(screen),
            Self::List(command) => command.run(screen),
            Self::Deploy(command) => command.run(screen),
            Self::Manifest(command) => command.run(arguments, screen),
            Self::Doctor(command) => command.run(screen),
            Self::Status(command) => command.run(screen),
            Self::Kit(command) => command.run(arguments),
            Self::Daemon(command) => command.run(arguments),
            Self::Completions(command) => command.run("flexvol", Cli::command(), screen),
            Self::Man(command) => kit::manual(&command, Cli::command(), arguments, screen),
        }
    }
}

/// Prints the overview, with a status that stops a script: it must not go on without its command.
fn overview(screen: &mut Screen) -> Result<ExitCode> {
    if screen.wants_json() {
        let all = Cli::command();
        let about = |command: &clap::Command| command.get_about().map(ToString::to_string);
        let commands = all.get_subcommands();
        let commands = commands.map(|each| json!({"command": each.get_name(), "about": about(each)}));
        screen.json(&commands.collect::<Vec<_>>())?;
    } else {
        screen.text(OVERVIEW)?;
    }
    Ok(ExitCode::from(USAGE))
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
            // A line with aligned columns must not be wrapped.
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let is_aligned = |line: &str| line.starts_with("  ") && line.trim_start().contains("  ");
            let broken = help.lines().find(|line| is_aligned(line) && line.chars().count() > 100);
            assert_eq!(broken, None, "{}", command.get_name());
        }
    }
}
