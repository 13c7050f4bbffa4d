//! The commands of `flexvol-kit`, which a node does not need: named here, done there.

use anyhow::{Error, Result};
use clap::{Args, Command, Subcommand};
use flexvol_linux::proc::helper::DIRECTORIES;
use flexvol_linux::proc::process::executing;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_terminal::man::Man;
use flexvol_terminal::screen::Screen;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// The program, beside this one or where programs are.
const PROGRAM: &str = "flexvol-kit";

/// What each does is said here for `flexvol --help`; how, by the kit itself.
#[derive(Subcommand)]
pub(super) enum Kit {
    /// Say what kubelet would load from a plugin directory, what not, and why
    Probe(Words),
    /// Watch a plugin directory and its drivers as kubelet does
    Watch(Words),
    /// Write down the calls that kubelet makes, without secrets, to be made again elsewhere
    Record(Words),
    /// Call any driver as kubelet does, and say what kubelet would make of it
    Call(Words),
    /// Bring the volumes of a pod up or down, from its YAML, without a cluster
    Pod(Words),
    /// Check the volumes in YAML files without a cluster: options, secrets, claims, policy
    Validate(Words),
    /// Check whether a driver is what kubelet needs, case by case
    Check(Words),
}

/// Whatever the kit makes of them.
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
        execute(arguments)
    }
}

/// Of a command of the kit the kit prints its page; among all it writes those of its own.
pub(super) fn manual(
    man: &Man,
    all: Command,
    arguments: &[OsString],
    screen: &mut Screen,
) -> Result<ExitCode> {
    let theirs = Kit::augment_subcommands(Command::new(PROGRAM));
    let is_theirs = |name: &str| theirs.find_subcommand(name).is_some();
    if man.command.as_deref().is_some_and(is_theirs) {
        return execute(arguments);
    }
    let done = man.run(all, screen)?;
    if man.output.is_some() && place().is_some() { execute(arguments) } else { Ok(done) }
}

fn execute(arguments: &[OsString]) -> Result<ExitCode> {
    let kit = place().ok_or_else(missing)?;
    // It answers by our name: that is what was typed.
    Err(Error::new(executing(&kit, arguments)).context(format!("execute {}", kit.display())))
}

/// Where it is, as far as this process can tell. `$PATH` is not asked: whoever runs this is root.
fn place() -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.to_owned()));
    beside
        .into_iter()
        .chain(DIRECTORIES.split(':').map(PathBuf::from))
        .map(|it| it.join(PROGRAM))
        .find(|it| it.is_file())
}

fn missing() -> Failure {
    let text = format!(
        "this command is one of {PROGRAM}, which a node does not need and this one does not have: put the {PROGRAM} of the same release beside flexvol"
    );
    Failure::new(Code::ToolMissing, text)
}
