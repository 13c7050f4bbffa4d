//! Commands of `flexvol-kit` and of `flexvold`, which a node does not need: this program only knows
//! their names, and executes the other program.

use anyhow::{Error, Result};
use clap::{Args, Command, Subcommand};
use flexvol_linux::proc::helper::DIRECTORIES;
use flexvol_linux::proc::process::executing;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_terminal::exit::{complain, wants_json};
use flexvol_terminal::man::Man;
use flexvol_terminal::program::Program as _;
use flexvol_terminal::screen::Screen;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Names of the programs, which are beside this one or in the usual directories.
pub(super) const KIT: &str = "flexvol-kit";
const DAEMON: &str = "flexvold";

/// Name of the program that kubectl executes for `kubectl flexvol`.
const PLUGIN: &str = "kubectl-flexvol";

/// Commands of the kit, for `flexvol --help`; the kit itself has the details.
#[derive(Subcommand)]
pub(super) enum Kit {
    /// Show which drivers kubelet would load from a plugin directory, or why not
    Probe(Words),
    /// Watch a plugin directory and its drivers as kubelet does
    Watch(Words),
    /// Record the calls that kubelet makes, without secrets, to replay them elsewhere
    Record(Words),
    /// Call any driver as kubelet does, and show how kubelet would react
    Call(Words),
    /// Bring the volumes of a pod up or down, from its YAML, without a cluster
    Pod(Words),
    /// Check the volumes in YAML files or of a cluster: options, secrets, claims, policy
    Validate(Words),
    /// Check whether a driver does what kubelet needs, case by case
    Check(Words),
}

/// Cluster commands of `flexvold`, for `flexvol --help`.
#[derive(Subcommand)]
pub(super) enum Daemon {
    /// Unmount by force and release the storage (flexvold, as kubectl flexvol force-detach)
    ForceDetach(Words),
    /// Show who holds which storage (flexvold; in a cluster as kubectl flexvol locks)
    Locks(Words),
    /// Move a cluster's volumes to CSI drivers, and back (flexvold, as kubectl flexvol migrate)
    Migrate(Words),
    /// Replace the mount pod of a node, once it is drained (flexvold, as kubectl flexvol mounter)
    Mounter(Words),
    /// Show why pods of a claim wait, and what ends the wait (flexvold, as kubectl flexvol why)
    Why(Words),
}

/// Arguments, passed on unchanged.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(super) struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

impl Kit {
    /// Executes the kit with the same command line in place of this program.
    pub(super) fn run(&self, arguments: &[OsString]) -> Result<ExitCode> {
        let (Self::Probe(_)
        | Self::Watch(_)
        | Self::Record(_)
        | Self::Call(_)
        | Self::Pod(_)
        | Self::Validate(_)
        | Self::Check(_)) = self;
        execute(KIT, arguments)
    }
}

impl Daemon {
    /// Executes `flexvold` in the same way.
    pub(super) fn run(&self, arguments: &[OsString]) -> Result<ExitCode> {
        let (Self::ForceDetach(_) | Self::Locks(_) | Self::Migrate(_) | Self::Mounter(_) | Self::Why(_)) =
            self;
        execute(DAEMON, arguments)
    }
}

/// Reports whether kubectl asks for the status of volumes: of its cluster, not of this machine.
pub(super) fn is_of_cluster(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter();
    let program = words.next().map(Path::new).and_then(Path::file_name);
    program == Some(PLUGIN.as_ref())
        && words.find(|word| *word != "--json").is_some_and(|word| word == "status")
}

/// Executes `flexvold` with the same command line in place of this program.
pub(super) fn of_cluster(arguments: &[OsString]) -> ExitCode {
    let done = execute(DAEMON, arguments);
    done.unwrap_or_else(|error| complain(error, super::Cli::failed, wants_json(arguments)))
}

/// Prints manual pages. The kit prints those of its commands; if all are written, it adds its own.
pub(super) fn manual(
    man: &Man,
    all: Command,
    arguments: &[OsString],
    screen: &mut Screen,
) -> Result<ExitCode> {
    let theirs = Kit::augment_subcommands(Command::new(KIT));
    let is_theirs = |name: &str| theirs.find_subcommand(name).is_some();
    if man.command.as_deref().is_some_and(is_theirs) {
        return execute(KIT, arguments);
    }
    let done = man.run(all, screen)?;
    if man.output.is_some() && place(KIT).is_some() { execute(KIT, arguments) } else { Ok(done) }
}

pub(super) fn execute(program: &str, arguments: &[OsString]) -> Result<ExitCode> {
    let program = place(program).ok_or_else(|| missing(program))?;
    // The program runs under our name, because the user typed that name.
    Err(Error::new(executing(&program, arguments)).context(format!("execute {}", program.display())))
}

/// Returns a program's path, if this process can find it. `$PATH` is not used: the caller is root.
fn place(program: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.to_owned()));
    beside
        .into_iter()
        .chain(DIRECTORIES.split(':').map(PathBuf::from))
        .map(|it| it.join(program))
        .find(|it| it.is_file())
}

fn missing(program: &str) -> Failure {
    let text = format!(
        "this command is one of {program}, which a node does not need and this one does not have: put the {program} of the same release beside flexvol"
    );
    Failure::new(Code::ToolMissing, text)
}
