//! Diagnosis of a node: what is wrong, why, and how to fix it.
//!
//! ```text
//! CHECKS ─▶ each in a process with a deadline ─▶ Finding: id, severity, evidence, fix
//!                                                  │
//!                    repair (only on request) ◀─ Repair: a fix that doctor can do
//! ```
//!
//! Checks are independent of each other: if one hangs or fails, the others still run. None needs a
//! running kubelet, and none changes anything. [`examine`] runs one check. Findings are sorted by
//! severity, then by check: causes come before their effects. A [`Repair`] says what it would do;
//! [`Repair::carry_out`] checks again before it acts.

mod agent;
mod calls;
mod drivers;
mod finding;
mod installed;
mod kubelet_log;
mod leftovers;
mod mount_pods;
mod needs;
mod node;
mod place;
mod repair;
mod room;
mod servers;
mod volumes;
mod waiting;

pub use finding::{Finding, Severity};
pub use repair::Repair;

use anyhow::Result;
use flexvol_kubelet::locate::{self, Located};
use flexvol_linux::proc::process::{Ended, Worker};
use flexvol_node::hints::to_failure;
use flexvol_protocol::ordered;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum number of findings that are reported per check.
const MOST: usize = 50;

/// Places to check; an empty list stands for the detected ones.
#[derive(Clone, Debug, Default)]
pub struct DoctorRequest {
    /// Plugin directories.
    pub plugin_dir: Vec<PathBuf>,
    /// kubelets' own directories.
    pub kubelet_root: Vec<PathBuf>,
    /// kubelet's log, a file.
    pub kubelet_log: Option<PathBuf>,
    /// True if nothing may be executed, not even a driver's `init`.
    pub no_init: bool,
}

impl DoctorRequest {
    fn located(&self) -> Result<Located> {
        locate::locate(&locate::LocateRequest { explicit: self.plugin_dir.clone(), root: None })
    }

    /// Returns the plugin directories that kubelet reads, as this process sees them.
    fn plugin_dirs(&self) -> Result<Vec<PathBuf>> {
        let located = self.located()?;
        Ok(located.chosen().into_iter().filter_map(|each| each.directory().map(PathBuf::from)).collect())
    }
}

/// One check of the node.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name, for `--check`.
    pub name: &'static str,
    /// Description for people.
    pub about: &'static str,
    /// Deadline for the check.
    pub patience: Duration,
    look: fn(&DoctorRequest) -> Result<Vec<Finding>>,
}

/// All checks: the most frequent question first, then causes before their effects.
pub const CHECKS: &[Check] = &[
    Check {
        name: "pods",
        about: "pods that wait for a volume to be mounted, or to go: why, since when, how often",
        patience: Duration::from_secs(30),
        look: waiting::look,
    },
    Check {
        name: "room",
        about: "space and inodes where drivers and kubelet must write",
        patience: Duration::from_secs(5),
        look: room::look,
    },
    Check {
        name: "place",
        about: "the plugin directory: which, readable, executable, and drivers where kubelet does not look",
        patience: Duration::from_secs(10),
        look: place::look,
    },
    Check {
        name: "drivers",
        about: "every installed driver as kubelet sees it",
        patience: Duration::from_mins(1),
        look: drivers::look,
    },
    Check {
        name: "needs",
        about: "programs and kernel support that the drivers need",
        patience: Duration::from_secs(10),
        look: needs::look,
    },
    Check {
        name: "mount-pods",
        about: "programs that come from mount pods: which from where, and whether they can be used",
        patience: Duration::from_secs(30),
        look: mount_pods::look,
    },
    Check {
        name: "agent",
        about: "the node's agent, if drivers hold storage with it: whether it answers, what it has lost, what waits",
        patience: Duration::from_secs(15),
        look: agent::look,
    },
    Check {
        name: "volumes",
        about: "volumes that are dead, hung, mounted twice, or not mounted with files in their place; pods that are gone",
        patience: Duration::from_secs(30),
        look: volumes::look,
    },
    Check {
        name: "calls",
        about: "calls of drivers that do not end",
        patience: Duration::from_secs(10),
        look: calls::look,
    },
    Check {
        name: "kubelet-log",
        about: "whether kubelet runs, and what it says about volumes in its log of the last hour",
        patience: Duration::from_secs(20),
        look: kubelet_log::look,
    },
    Check {
        name: "servers",
        about: "names and ports of the servers of volumes that do not answer",
        patience: Duration::from_secs(30),
        look: servers::look,
    },
    Check {
        name: "node",
        about: "mount propagation, security modules, control groups of daemons",
        patience: Duration::from_secs(10),
        look: node::look,
    },
    Check {
        name: "leftovers",
        about: "loop devices, credentials and hidden files that killed calls have left",
        patience: Duration::from_secs(10),
        look: leftovers::look,
    },
];

/// Result of one check.
#[derive(Clone, Debug)]
pub struct Examined {
    /// The check's name.
    pub check: &'static str,
    /// The check's findings.
    pub findings: Vec<Finding>,
    /// Reason why the check could not run, if it could not.
    pub unable: Option<String>,
    /// Duration of the check.
    pub took: Duration,
}

/// Runs one check in a process of its own. The calling process must have only one thread.
pub fn examine(check: &Check, request: &DoctorRequest) -> Examined {
    let start = Instant::now();
    let heard = Worker::start(|| answer(check, request)).map(|worker| worker.wait(check.patience));
    let (findings, unable) = match heard {
        Ok(Ended::Replied(line)) => match serde_json::from_str(&line) {
            Ok(Ok(findings)) => (findings, None),
            Ok(Err(why)) => (Vec::new(), Some(why)),
            Err(error) => (Vec::new(), Some(format!("its answer cannot be read: {error}"))),
        },
        Ok(Ended::Panicked(text)) => {
            (Vec::new(), Some(format!("this is a bug of flexvol, please report it: {text}")))
        }
        Ok(Ended::Died(how)) => (Vec::new(), Some(how)),
        Ok(Ended::Stuck(_)) => (Vec::new(), Some(format!("no end after {} s", check.patience.as_secs()))),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    Examined { check: check.name, findings, unable, took: start.elapsed() }
}

/// Runs the check in the new process, and returns the findings as a line of JSON.
fn answer(check: &Check, request: &DoctorRequest) -> String {
    let found: Result<Vec<Finding>, String> = (check.look)(request)
        .map(|mut findings| {
            ordered::sort(&mut findings, |finding| finding.severity);
            findings.truncate(MOST);
            findings
        })
        .map_err(|error| to_failure(error).message());
    serde_json::to_string(&found).unwrap_or_default() + "\n"
}

/// Returns all findings, the most severe first; of the same severity in the order of the checks.
pub fn in_order(examined: &[Examined]) -> Vec<&Finding> {
    let mut all: Vec<_> = examined.iter().flat_map(|each| &each.findings).collect();
    ordered::sort(&mut all, |finding| finding.severity);
    all
}
