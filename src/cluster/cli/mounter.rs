//! `flexvold mounter`: process 1 of a mount pod, and its probe.

mod upgrade;

use super::log::Log;
use crate::mounter::drained::{self, Whose};
use crate::mounter::{Setup, check, exec, place, run};
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use flexvol_linux::proc::signal;
use flexvol_model::mounter::{KUBELET, LONGEST_NAME, Registration, file_name};
use flexvol_terminal::screen::Screen;
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Default name of the container.
const CONTAINER: &str = "mounter";

/// Provide the programs that drivers need, from a pod on the node
#[derive(Args)]
pub(super) struct Mounter {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Drained(Drained),
    Exec(Exec),
    Init(Box<Init>),
    Upgrade(upgrade::UpgradeNode),
}

/// Check whether a mount pod serves no volume any more, so that it may be replaced
///
/// In a mount pod, it checks that pod; on a node, the one that is registered for a driver, or that
/// has the given uid. Exit status: 0 it serves none, 1 it serves some, which are listed. With
/// --json it is 0 in both cases.
#[derive(Args)]
struct Drained {
    /// Driver whose registered mount pod to check
    #[arg(long = "plugin", value_name = "VENDOR/DRIVER", value_parser = named, conflicts_with = "pod")]
    plugin: Option<String>,
    /// The uid of the mount pod [default: `POD_UID` of the environment]
    #[arg(long, value_name = "UID")]
    pod: Option<String>,
    /// Directory of kubelet
    #[arg(long, value_name = "DIR", default_value = KUBELET)]
    root: PathBuf,
    /// Seconds to wait until it serves none
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
}

/// Run a program for a caller that reads its streams to the end, as kubectl exec does
///
/// Processes that it leaves running hold no stream and continue. After a timeout, the program and
/// all that it has started are killed. Exits with the status of the program, 124 after a timeout,
/// 126 if it cannot be run, 127 if it is missing, as timeout(1) and a shell do.
#[derive(Args)]
struct Exec {
    /// Seconds that it may run
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    within: u64,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    words: Vec<OsString>,
}

/// Run as process 1 of a mount pod: register for drivers, and run their programs
///
/// The environment identifies the pod: `POD_NAME`, `POD_NAMESPACE`, `POD_UID` and `CONTAINER_NAME`.
#[derive(Args)]
struct Init {
    /// Driver whose volumes are served by programs of this image
    #[arg(long = "plugin", value_name = "VENDOR/DRIVER", required = true, value_parser = named)]
    plugins: Vec<String>,
    /// Directory of kubelet, the same on the node and in the container
    #[arg(long, value_name = "DIR", default_value = KUBELET)]
    root: PathBuf,
    /// Seconds to wait for volumes in use on termination
    #[arg(long, value_name = "SECONDS", default_value_t = 50)]
    grace: u64,
    /// Kernel module to load first, from the node's /lib/modules
    #[arg(long = "module", value_name = "NAME", value_parser = module)]
    modules: Vec<String>,
    #[command(flatten)]
    log: Log,
    /// Only check whether process 1 is registered and answers, as a probe
    #[arg(long)]
    check: bool,
    /// Program to run in addition, after --: it gets the signals, and the pod ends with it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Mounter {
    pub(super) fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        match self.command {
            Command::Drained(drained) => drained.run(screen),
            Command::Upgrade(upgrade) => upgrade.run(screen),
            Command::Init(init) => init.run(),
            Command::Exec(exec) => exec.run(),
        }
    }
}

impl Drained {
    fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        let left = drained::wait(&self.whose()?, Duration::from_secs(self.timeout))?;
        if screen.wants_json() {
            screen.json(&json!({"volumes": left}))?;
            return Ok(ExitCode::SUCCESS);
        }
        left.iter().try_for_each(|name| screen.line(name))?;
        Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn whose(&self) -> Result<Whose> {
        if let Some(pod) = &self.pod {
            return Ok(Whose { pod: pod.clone(), is_here: false });
        }
        let Some(plugin) = &self.plugin else {
            let pod = said("POD_UID")
                .context("which mount pod? name a driver with --plugin, or a uid with --pod")?;
            return Ok(Whose { pod, is_here: true });
        };
        let (_, found) = place::registered(&self.root, plugin)?;
        let found = found.with_context(|| format!("no mount pod is registered for {plugin}"))?;
        Ok(Whose { pod: found.pod_uid, is_here: false })
    }
}

impl Exec {
    fn run(self) -> Result<ExitCode> {
        signal::install()?;
        let within = Duration::from_secs(self.within);
        exec::run(&self.words, within, std::io::stdout(), std::io::stderr()).map(ExitCode::from)
    }
}

impl Init {
    fn run(self) -> Result<ExitCode> {
        self.log.begin();
        let pod = Registration {
            pod_namespace: said("POD_NAMESPACE")?,
            pod_name: said("POD_NAME")?,
            pod_uid: said("POD_UID")?,
            container_name: said("CONTAINER_NAME").unwrap_or_else(|_| CONTAINER.to_owned()),
        };
        let grace = Duration::from_secs(self.grace);
        let Self { root, plugins: names, modules, command, .. } = self;
        let setup = Setup { root, names, pod, modules, command, grace };
        if self.check { check(&setup).map(|()| ExitCode::SUCCESS) } else { run(&setup).map(ExitCode::from) }
    }
}

fn said(name: &str) -> Result<String> {
    let said = std::env::var(name).ok().filter(|value| !value.is_empty());
    said.with_context(|| format!("{name} is not set: give it to the container with the downward API"))
}

fn module(text: &str) -> Result<String, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let named = plain && !text.is_empty() && !text.starts_with('-');
    named.then(|| text.to_owned()).ok_or_else(|| "a module has no such name".to_owned())
}

fn named(text: &str) -> Result<String, String> {
    file_name(text).ok_or_else(|| format!("write vendor/driver, at most {LONGEST_NAME} bytes"))
}
