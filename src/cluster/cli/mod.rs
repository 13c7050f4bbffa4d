//! Command line of `flexvold`: one file per subcommand.
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage.

mod agent;
mod api_server;
mod cluster;
mod controller;
mod csi;
mod csi_controller;
mod force_detach;
mod locks;
mod log;
mod manifest;
mod migrate;
mod mounter;
mod status;
mod stores;
mod trial;
mod upstream;
mod why;

use crate::kubectl::asking::calls;
use anyhow::{Error, Result};
use clap::{Parser, Subcommand};
use flexvol_linux::errno::to_failure;
use flexvol_linux::proc::memory;
use flexvol_terminal::program::{self, Program};
use flexvol_terminal::screen::Screen;
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  sudo flexvold try                                        play a pod's life over CSI, without a cluster
  sudo flexvold try fencing                                play two nodes that want one image
  sudo flexvold csi --driver flexvol/tmpfs --register      serve a driver on this node, and tell kubelet
  sudo flexvold agent --store file:/srv/shared/locks       keep other nodes from storage while it is mounted
  flexvold manifest csi --image IMAGE flexvol/tmpfs        print what serves it in a cluster
  flexvold manifest agent --image IMAGE                    print the agent on every node of a cluster
  kubectl flexvol migrate plan --driver fstab/cifs         say how a driver's volumes go to CSI
  kubectl flexvol why CLAIM                                say why the pods of a claim wait, and what ends that
  kubectl flexvol force-detach CLAIM --dry-run             say what would be unmounted by force

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
    Agent(Box<agent::Agent>),
    Controller(controller::Controller),
    Csi(Box<csi::Csi>),
    CsiController(csi_controller::CsiController),
    ForceDetach(force_detach::ForceDetach),
    Locks(locks::Locks),
    Manifest(manifest::Manifest),
    Migrate(Box<migrate::Migrate>),
    Mounter(mounter::Mounter),
    Status(status::Status),
    Why(why::Why),
    Try(trial::Try),
}

/// Reads the command line (`arguments[0]` is the program) and carries it out.
pub fn main(arguments: &[OsString]) -> ExitCode {
    program::main::<Cli>(arguments)
}

impl Program for Cli {
    fn json(&self) -> bool {
        self.json
    }

    fn run(self, arguments: &[OsString], screen: &mut Screen) -> Result<ExitCode> {
        self.command.run(calls(arguments.first()), screen)
    }

    fn failed(error: Error) -> (String, u8) {
        (to_failure(error).message(), 1)
    }

    fn explain(error: &clap::Error) -> Option<String> {
        upstream::explain(error)
    }
}

impl Command {
    /// Reports whether it is a daemon, which has Secrets of others in its memory.
    fn is_daemon(&self) -> bool {
        matches!(
            self,
            Self::Agent(_) | Self::Controller(_) | Self::Csi(_) | Self::CsiController(_) | Self::Mounter(_)
        )
    }

    fn run(self, by_kubectl: bool, screen: &mut Screen) -> Result<ExitCode> {
        if self.is_daemon() {
            memory::refuse_dumps();
        }
        match self {
            Self::Agent(command) => command.run(screen),
            Self::Controller(command) => command.run(screen),
            Self::Csi(command) => command.run(screen),
            Self::CsiController(command) => command.run(screen),
            Self::ForceDetach(command) => command.run(screen),
            Self::Locks(command) => command.run(by_kubectl, screen),
            Self::Manifest(command) => command.run(screen),
            Self::Migrate(command) => command.run(screen),
            Self::Mounter(command) => command.run(screen),
            Self::Status(command) => command.run(screen),
            Self::Why(command) => command.run(screen),
            Self::Try(command) => command.run(screen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// Secrets pass through all daemons, or through the programs that they start.
    #[test]
    fn every_daemon_refuses_dumps() {
        let is_daemon = |words: &[&str]| {
            Cli::try_parse_from([&["flexvold"], words].concat()).unwrap().command.is_daemon()
        };
        for words in [
            &["csi", "--driver", "flexvol/tmpfs"][..],
            &["csi-controller", "--endpoint", "unix:///csi.sock"],
            &["agent", "--store", "kubernetes"],
            &["controller"],
            &["mounter", "init", "--plugin", "flexvol/nfs"],
        ] {
            assert!(is_daemon(words), "{words:?}");
        }
        assert!(!is_daemon(&["status"]) && !is_daemon(&["try"]));
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
