//! `flexvol deploy`.

use super::install::Install;
use crate::deploy::keeper::Installs;
use crate::deploy::{self, Wanted, ready};
use anyhow::Result;
use clap::Args;
use flexvol_linux::proc::reply_pipe::is_writable;
use flexvol_model::paths;
use flexvol_terminal::exit::USAGE;
use flexvol_terminal::exit::say;
use flexvol_terminal::screen::Screen;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Limit for the wait while standard output is full; after that, the line is lost. Keeping drivers
/// in place matters more than reporting it.
const STDOUT_FULL_WAIT: Duration = Duration::from_millis(200);

/// Install drivers and keep them in place: the entry point of the image
#[derive(Args)]
#[command(after_help = "\
Stays until it is told to stop (SIGTERM, SIGINT). A driver that is removed or altered is put back
at once; where two deployments want different things, ever less often, up to once a minute. What
cannot be done now (no plugin directory, a read-only one, somebody else's driver in the way) is
tried again, and said when it changes.

Standard output has one line of JSON for everything: what this process did (event: started,
installed, repaired, failed, ready, not ready, leaving) and, from now on, every call of the drivers
on this node (verb, target, outcome, message), which is the log in /run/flexvol/log.

Examples:
  flexvol deploy example/tmpfs --plugin-dir /usr/libexec/kubernetes/kubelet-plugins/volume/exec
  flexvol deploy --once example/tmpfs      as an init container: install, and be done
  flexvol deploy --is-ready                as a readiness probe

flexvol manifest prints whole deployments.

Exit status: 0 told to stop (--is-ready: every driver is in place), 1 failed (--is-ready: not yet),
2 wrong usage; with --once that of flexvol install.")]
pub(super) struct Deploy {
    #[command(flatten)]
    install: Install,
    /// Install and exit
    #[arg(long)]
    once: bool,
    /// Uninstall when told to stop, unless volumes of the driver are mounted
    #[arg(long, conflicts_with = "once")]
    uninstall_on_exit: bool,
    /// File that exists while every driver is in place
    #[arg(long, value_name = "FILE", default_value = paths::READY)]
    ready_file: PathBuf,
    /// Only check whether the deployment that writes the ready file is ready
    #[arg(long, conflicts_with_all = ["drivers", "once"])]
    is_ready: bool,
}

impl Deploy {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        if self.is_ready {
            ready::check(&self.ready_file)?;
        } else if self.once {
            return self.install.run(screen);
        } else if self.install.is_once_only() {
            let text = "--dry-run, --roll-back and --wait are for one installation: add --once";
            say(text, screen.wants_json());
            return Ok(ExitCode::from(USAGE));
        } else {
            self.stay(screen)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn stay(&self, screen: &mut Screen) -> Result<()> {
        let (source, requests) = self.install.requests(screen)?;
        let mut keeper = Installs::new(source, requests)?;
        let wanted = Wanted {
            homes: keeper.homes(),
            ready_file: std::path::absolute(&self.ready_file)?,
            uninstall_on_exit: self.uninstall_on_exit,
        };
        let mut patience = STDOUT_FULL_WAIT;
        let mut output = |line: &str| {
            // The log collector may be gone, or may not read: the wait for it happens once.
            let room = is_writable(io::stdout(), Instant::now() + patience);
            patience = if room { STDOUT_FULL_WAIT } else { Duration::ZERO };
            let _ = if room { screen.text(line) } else { Ok(()) };
        };
        deploy::deploy(wanted, &mut keeper, &mut output)
    }
}
