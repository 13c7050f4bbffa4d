//! Search for the plugin directory that kubelet reads, with the evidence for it.
//!
//! ```text
//! /proc, files ─▶ node ─▶ claims ─▶ choose (pure) ─▶ candidates, some chosen
//!                  │ interpret (pure): flags, configuration files, embedded kubelets
//!                  │ trust (pure): which processes are trusted
//! ```
//!
//! Order of precedence: `--plugin-dir`; the environment; a running kubelet; kubelet's
//! configuration, while no kubelet runs; the controller-manager; the platform table; kubelet's
//! default. Every directory of the first origin that names one is chosen: a node can have two
//! kubelets. All other candidates are shown with the reason why they are not chosen. If an origin
//! takes precedence but cannot be understood with certainty (`plain`), no lower one is chosen: that
//! would be a guess.
//!
//! Any process can have any argv: only a root process in our own pid namespace that may mount is
//! treated as a kubelet ([`trust`]). The files of a kubelet in a container are read through its own
//! root directory, and its path of the plugin directory is translated to our path of the same
//! directory (`node`).

pub mod choose;
pub mod command_line;
pub mod configuration;
pub mod interpret;
mod node;
pub mod plain;
mod translate;
pub mod trust;

pub use choose::{Candidate, Located, Origin, Verdict};

use crate::release::Release;
use anyhow::Result;
use command_line::Program;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{HelperExit, Invocation, Tools};
use flexvol_linux::proc::process_table::Process;
use flexvol_protocol::failure::{Code, Failure};
use std::path::{Path, PathBuf};

/// Environment variable that names plugin directories, separated by colons.
pub const ENVIRONMENT: &str = "FLEXVOL_PLUGIN_DIR";

/// Request for a search.
#[derive(Clone, Debug, Default)]
pub struct LocateRequest {
    /// Directories of `--plugin-dir`; with a root, in the view from inside it.
    pub explicit: Vec<PathBuf>,
    /// Another root directory: of an image, or of the node, mounted into a container. Processes are
    /// inspected only if its `proc` is the node's.
    pub root: Option<PathBuf>,
}

/// Running kubelet that is trusted.
#[derive(Debug)]
pub struct KubeletProcess {
    /// Process id in /proc.
    pub pid: u32,
    /// Its own path of its plugin directory; `None` if that cannot be determined.
    pub inside: Option<PathBuf>,
    /// Our path of the same directory.
    pub directory: Option<PathBuf>,
    /// Its own path of its own directory, below which the pods are.
    pub root_dir: PathBuf,
    /// True if it calls `attach` and `detach` itself; false if it leaves them to
    /// kube-controller-manager, or if that cannot be determined.
    pub attaches: bool,
    program: Program,
    process: Process,
}

impl KubeletProcess {
    /// Returns its release, from the version output of its own executable; `None` if the executable
    /// cannot be run here, prints no release, or takes too long.
    pub fn release(&self, deadline: &Deadline) -> Option<Release> {
        let words = self.program.release_words(self.process.executable.as_deref())?;
        // Run the file that the process executes. The file now at that path may be another release,
        // or another program.
        let executable = self.process.open_executable()?;
        let asked = Invocation::opened(executable).args(words).answering();
        let outcome = Tools::of_host(deadline).run(asked).ok().filter(HelperExit::success)?;
        Release::told(&outcome.answer)
    }
}

/// Searches the node and chooses. For `locate`, and for every command without a given directory.
///
/// Fails only if the other root cannot be opened or `/proc` cannot be listed. An empty choice is
/// not an error: see [`Located::chosen`].
pub fn locate(request: &LocateRequest) -> Result<Located> {
    node::Node::open(request.root.as_deref())?.locate(&request.explicit, std::env::var_os(ENVIRONMENT))
}

/// Returns the kubelets in our pid namespace, for callers that wait for one, inspect its mounts, or
/// need to know its release.
pub fn kubelets() -> Result<Vec<KubeletProcess>> {
    node::Node::open(None)?.kubelets()
}

/// Rejects a root that does not exist: nothing may be created below a wrong path.
pub fn check_root(root: Option<&Path>) -> Result<(), Failure> {
    let wrong = root.filter(|root| !root.is_dir());
    wrong.map_or(Ok(()), |root| {
        let root = root.display();
        let text =
            format!("there is no directory {root}: --root names where a node's file system is mounted");
        Err(Failure::new(Code::BadCall, text))
    })
}
