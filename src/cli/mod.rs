//! The admin's command line: one file a subcommand, each a thin adapter that calls the library and prints.
//!
//! Nothing else in the crate prints for people. Results go to standard output, as text or, with `--json`, as
//! JSON; errors go to standard error as one line, with `--json` to standard output as `{"error": "…"}`. Exit
//! status: 0 done, 1 failed, 2 wrong usage, and of `run` and `plan` 3 for a verb the driver does not have. Of the
//! commands that change plugin directories (`placing`): 4 somebody else's driver is in the way, 5 a newer version
//! is installed, 6 volumes are mounted, 7 the node is not fit for it, 8 the driver fails its own `init`, 9 kubelet
//! did not call it in time, 10 another installer holds the directory.

mod call;
mod call_arguments;
mod capabilities;
mod check;
mod completions;
mod deploy;
mod dialect;
mod doctor;
mod driver_dir;
mod drivers;
mod example;
mod explain;
mod explain_error;
mod install;
mod list;
mod locate;
mod logs;
mod man;
mod manifest;
mod objects;
mod placing;
mod plan;
mod pod;
mod probe;
mod probing;
mod progress;
mod record;
mod report;
mod run;
mod screen;
mod status;
mod trial;
mod uninstall;
mod validate;
mod watch;
mod which_volumes;

use crate::hints::to_failure;
use crate::text::one_line;
use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use screen::Screen;
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Wrong usage.
const USAGE: u8 = 2;
/// The driver does not have the verb.
const NOT_SUPPORTED: u8 = 3;

const OVERVIEW: &str = "\
flexvol is every FlexVolume driver a Kubernetes node needs, in one binary.
Installed as <vendor>~<driver>/<driver> it answers kubelet; as flexvol it answers you.

Try these first:
  sudo flexvol try                                do to drivers what kubelet does, without a cluster
  flexvol drivers                                 what there is
  flexvol explain tmpfs                           its options, and a PV and a pod to copy
  flexvol plan tmpfs mount /mnt -o size=16Mi      what would be done, and how it is undone
  sudo flexvol run tmpfs mount /mnt -o size=16Mi  do it, as kubelet would

On a node:
  sudo flexvol locate                             which directory kubelet reads drivers from, and why
  sudo flexvol install tmpfs                      put a driver there; kubelet finds it while it runs
  sudo flexvol list                               what is there, whose it is, and what is wrong with it
  sudo flexvol watch                              see drivers come and go as kubelet does

When a pod hangs in ContainerCreating:
  sudo flexvol doctor                             what is wrong with this node, why, and how to mend it
  sudo flexvol status                             every flex volume of the node, and whether it answers
  sudo flexvol logs --failed                      what drivers were asked for on this node, and what became of it
  flexvol explain-error 'TEXT OF THE EVENT'       what kubelet did, why it failed, how to mend it

On every node of a cluster:
  flexvol manifest daemonset tmpfs | kubectl apply -f -
  flexvol validate -f pv.yaml                     what is wrong with volumes, before they reach it

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
    Probe(probe::Probe),
    Watch(watch::Watch),
    Doctor(doctor::Doctor),
    Status(status::Status),
    Logs(logs::Logs),
    ExplainError(explain_error::ExplainError),
    Record(record::Record),
    #[command(name = "call")]
    CallDriver(call::CallDriver),
    Pod(pod::Pod),
    Validate(validate::Validate),
    Check(Box<check::Check>),
    Completions(completions::Completions),
    Man(man::Man),
}

/// Reads the command line (`arguments[0]` is the program) and does what it says.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    // A line that cannot be parsed may still say how it wants its error.
    let json = arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    match Cli::try_parse_from(arguments) {
        Ok(cli) => {
            let mut screen = Screen::standard(cli.json);
            let done = match cli.command {
                Some(command) => command.run(&mut screen),
                None => overview(&mut screen),
            };
            done.unwrap_or_else(|error| complain(error, cli.json))
        }
        Err(error) => usage(&error, json),
    }
}

impl Command {
    fn run(self, screen: &mut Screen) -> Result<ExitCode> {
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
            Self::Manifest(command) => command.run(screen),
            Self::Probe(command) => command.run(screen),
            Self::Watch(command) => command.run(screen),
            Self::Doctor(command) => command.run(screen),
            Self::Status(command) => command.run(screen),
            Self::Record(command) => command.run(screen),
            Self::CallDriver(command) => command.run(screen),
            Self::Pod(command) => command.run(screen),
            Self::Validate(command) => command.run(screen),
            Self::Check(command) => Ok(command.run(screen)),
            Self::Completions(command) => command.run(screen),
            Self::Man(command) => command.run(screen),
        }
    }
}

/// A script that forgot the command must not go on as if it had done something.
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

/// Help and version are no errors, but clap hands them out the same way.
fn usage(error: &clap::Error, json: bool) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nothing to be done about a closed terminal.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    // A value that is refused comes with its mend.
    let complete = error.kind() == ErrorKind::ValueValidation;
    let text = text.split("\n\n").next().filter(|_| complete).unwrap_or(&text);
    say(text.strip_prefix("error: ").unwrap_or(text), json);
    ExitCode::from(USAGE)
}

fn complain(error: anyhow::Error, json: bool) -> ExitCode {
    // Whoever reads us has seen enough, as in `flexvol drivers | head -1`.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let status = placing::status(&error);
    say(&one_line(&to_failure(error).message(), usize::MAX), json);
    ExitCode::from(status)
}

/// Prints an error. Nothing can be done about a closed terminal here either.
fn say(message: &str, json: bool) {
    let _ = if json {
        writeln!(io::stdout(), "{}", json!({"error": one_line(message, usize::MAX)}))
    } else {
        // Names of files and words of others are in it, and this is a terminal.
        let plain = |c: char| if crate::text::is_unprintable(c) && c != '\n' { '?' } else { c };
        writeln!(io::stderr(), "flexvol: {}", message.trim_end().chars().map(plain).collect::<String>())
    };
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
        }
    }
}
