//! Directory of this node that has the programs a driver needs, with all that they need: an
//! unpacked image, for example. They are processes of the node like its own.
//!
//! A user who may write there is root here, so only root may.

use super::context::Context;
use anyhow::Result;
use flexvol_linux::fs::directory::Directory;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{DIRECTORIES, HelperExit, HostRunner, Invocation, Runner};
use flexvol_model::mounter;
use flexvol_protocol::failure::{Code, Failure};
use std::path::Path;

/// Path of the directory.
#[derive(Debug)]
pub(super) struct ToolsRoot<'a>(&'a Path);

/// Returns the directory that the side file names, if there is one.
pub(super) fn of<'a>(context: &Context<'a>) -> Result<Option<ToolsRoot<'a>>> {
    let Some(root) = mounter::settings(context.settings)?.root.map(Path::new) else { return Ok(None) };
    match Directory::open_of_root(root)? {
        Some(_) => Ok(Some(ToolsRoot(root))),
        None => Err(missing(format!("{} is not on this node: unpack an image there", root.display()))),
    }
}

fn missing(text: String) -> anyhow::Error {
    Failure::new(Code::ToolMissing, text).into()
}

impl ToolsRoot<'_> {
    /// Prepares a program of the directory to be run.
    pub(super) fn program(&self, program: Invocation) -> Invocation {
        program.inside(self.0)
    }
}

impl Runner for ToolsRoot<'_> {
    fn find(&self, name: &str) -> Result<()> {
        let mut places = DIRECTORIES.split(":/").map(|at| self.0.join(at.trim_start_matches('/')).join(name));
        // A link leads to a file inside the directory.
        let is_program =
            |path: &Path| path.symlink_metadata().is_ok_and(|at| at.is_file() || at.is_symlink());
        if places.any(|path| is_program(&path)) {
            return Ok(());
        }
        Err(missing(format!("{name} is not in {}: install it there", self.0.display())))
    }

    fn run(&self, invocation: Invocation, deadline: &Deadline) -> Result<HelperExit> {
        HostRunner.run(self.program(invocation), deadline)
    }
}
