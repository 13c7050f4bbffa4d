//! Which plugin directory does kubelet read, and how do we know?
//!
//! ```text
//! /proc, files ─▶ node ─▶ claims ─▶ choose (pure) ─▶ Located: candidates, of which some are chosen
//!                  │ interpret (pure): flags, configuration files, embedded kubelets
//!                  │ trust (pure): whose word counts
//! ```
//!
//! In the order of what counts more: `--plugin-dir`; the environment; a running kubelet; what
//! kubelet's configuration says while none runs; the controller-manager; the platform table;
//! kubelet's default. Of the first of these that says anything every directory is chosen: a node
//! can have two kubelets. All the others are shown, with the reason why not. Where one has a word
//! that counts, and it cannot be understood for sure (`plain`), nothing below it is chosen: that
//! would be a guess.
//!
//! argv is anybody's word: only a process of root's in our own pid namespace that may mount is
//! taken for a kubelet ([`trust`]). A kubelet in a container is read through its own root
//! directory, and what it calls its plugin directory is translated to where the same directory is
//! for us (`node`).

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

/// The variable that names plugin directories, with colons in between.
pub const ENVIRONMENT: &str = "FLEXVOL_PLUGIN_DIR";

/// What is asked.
#[derive(Clone, Debug, Default)]
pub struct LocateRequest {
    /// The directories of `--plugin-dir`; with a root, as seen inside of it.
    pub explicit: Vec<PathBuf>,
    /// Another root directory: an image's, or that of the node, mounted into a container. No
    /// process is looked at unless its `proc` is the node's.
    pub root: Option<PathBuf>,
}

/// A running kubelet whose word counts.
#[derive(Debug)]
pub struct KubeletProcess {
    /// Its number in /proc.
    pub pid: u32,
    /// What it calls its plugin directory; `None` if that cannot be found out.
    pub inside: Option<PathBuf>,
    /// The same directory as this process sees it.
    pub directory: Option<PathBuf>,
    /// What it calls its own directory, below which the pods are.
    pub root_dir: PathBuf,
    /// Whether it calls `attach` and `detach` itself; otherwise, also if that cannot be found out,
    /// it leaves that to kube-controller-manager.
    pub attaches: bool,
    program: Program,
    process: Process,
}

impl KubeletProcess {
    /// Its release, as its own executable says when it is run; `None` if it cannot be run here, if
    /// it does not say, or not in time.
    pub fn release(&self, deadline: &Deadline) -> Option<Release> {
        let words = self.program.release_words(self.process.executable.as_deref())?;
        // What it executes and not what is called so now: that may be another release, or another's
        // program.
        let executable = self.process.open_executable()?;
        let asked = Invocation::opened(executable).args(words).answering();
        let outcome = Tools::of_host(deadline).run(asked).ok().filter(HelperExit::success)?;
        Release::told(&outcome.answer)
    }
}

/// Looks around and chooses. For `locate`, and for every command that was not told a directory.
///
/// Fails only if the other root cannot be opened or `/proc` cannot be listed. That nothing can be
/// chosen is no error: see [`Located::chosen`].
pub fn locate(request: &LocateRequest) -> Result<Located> {
    node::Node::open(request.root.as_deref())?.locate(&request.explicit, std::env::var_os(ENVIRONMENT))
}

/// The kubelets that run in our pid namespace. For who waits for one, looks at its mounts, or wants
/// to know what it is.
pub fn kubelets() -> Result<Vec<KubeletProcess>> {
    node::Node::open(None)?.kubelets()
}

/// Refuses a root that is not there: nothing shall be made below a mistake.
pub fn check_root(root: Option<&Path>) -> Result<(), Failure> {
    let wrong = root.filter(|root| !root.is_dir());
    wrong.map_or(Ok(()), |root| {
        let root = root.display();
        let text =
            format!("there is no directory {root}: --root names where a node's file system is mounted");
        Err(Failure::new(Code::BadCall, text))
    })
}
