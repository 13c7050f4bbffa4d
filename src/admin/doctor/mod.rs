//! What is wrong with this node, why, and how it is fixed.
//!
//! ```text
//! CHECKS ─▶ each in a process of its own, with an end to its patience ─▶ Finding: id, severity, evidence, fix
//!                                                                          │
//!                                             repair (only when told) ◀─ Repair: what can be fixed from here
//! ```
//!
//! Checks know nothing of each other, so one that hangs or fails costs the others nothing, and none
//! needs a kubelet to run. They only look. [`examine`] runs one; findings are put in the order of
//! their severity, then of the checks: causes come before what follows from them. A [`Repair`] says
//! what it would do; [`Repair::carry_out`] looks again before it does it.

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

/// The most findings of one check that are told.
const MOST: usize = 50;

/// Where to look; empty lists mean where such things are by themselves.
#[derive(Clone, Debug, Default)]
pub struct DoctorRequest {
    /// Plugin directories.
    pub plugin_dir: Vec<PathBuf>,
    /// kubelets' own directories.
    pub kubelet_root: Vec<PathBuf>,
    /// kubelet's log, a file.
    pub kubelet_log: Option<PathBuf>,
    /// Execute nothing: no driver's `init`.
    pub no_init: bool,
}

impl DoctorRequest {
    fn located(&self) -> Result<Located> {
        locate::locate(&locate::LocateRequest { explicit: self.plugin_dir.clone(), root: None })
    }

    /// The plugin directories that kubelet reads, as this process sees them.
    fn plugin_dirs(&self) -> Result<Vec<PathBuf>> {
        let located = self.located()?;
        Ok(located.chosen().into_iter().filter_map(|each| each.directory().map(PathBuf::from)).collect())
    }
}

/// One thing to look at.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name, for `--check`.
    pub name: &'static str,
    /// What it looks at.
    pub about: &'static str,
    /// How long it may take.
    pub patience: Duration,
    look: fn(&DoctorRequest) -> Result<Vec<Finding>>,
}

/// All of them: what is asked about first, then causes before what follows from them.
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

/// What came of one check.
#[derive(Clone, Debug)]
pub struct Examined {
    /// Its name.
    pub check: &'static str,
    /// What it found.
    pub findings: Vec<Finding>,
    /// Why it says nothing, if it could not look.
    pub unable: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// Runs one check in a process of its own. Only for a process with one thread.
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

/// In the other process.
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

/// All findings, the worst first; of the same severity in the order of the checks.
pub fn in_order(examined: &[Examined]) -> Vec<&Finding> {
    let mut all: Vec<_> = examined.iter().flat_map(|each| &each.findings).collect();
    ordered::sort(&mut all, |finding| finding.severity);
    all
}
