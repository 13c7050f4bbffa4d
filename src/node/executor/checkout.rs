//! Step of clones: each mount gets a fresh clone, which appears when it is complete.
//!
//! git runs with a home directory of ours and uses nothing of the node: no configuration, no hooks,
//! no templates, no askpass. Its secrets are in that home, in memory, and are removed before
//! anybody sees the clone. A clone on the node's disk lies in a directory that only root can enter,
//! so that the node's other users do not see it; a clone in memory has no other place than the
//! mount.

use super::context::{Context, open_place};
use super::daemon;
use super::home::Home;
use super::undo::Undo;
use crate::hints::describe;
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory;
use flexvol_linux::fs::files;
use flexvol_linux::fs::openat_beneath;
use flexvol_linux::fs::opened::OFlags;
use flexvol_linux::mount::mount_table::Entry;
use flexvol_linux::mount::place::Mounted;
use flexvol_linux::mount::{self, BindMount, Way};
use flexvol_linux::proc::helper::{HelperExit, Invocation, Tools};
use flexvol_linux::proc::{namespace, process};
use flexvol_model::plan::{Checkout, Propagation};
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::secret::Secret;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Umask for the clone's files: pods run as any user.
const UMASK: u32 = 0o022;

/// Name of the clone in its directory or memory.
const TREE: &str = "tree";

/// Entry of a clone in memory in the mount table: type and source.
const MEMORY: &str = "tmpfs";
const NAME: &str = "flexvol-clone";

/// Refspecs of everything, for a server that does not serve single commits.
const EVERYTHING: [&str; 2] = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];

/// Performs the step.
pub(super) fn checkout(context: &mut Context<'_>, checkout: &Checkout) -> Result<Option<Undo>> {
    let home = Home::of(&checkout.target);
    home.end(Duration::ZERO).context("remove what a killed call left")?;
    let shown = shown(checkout, &home, context.tools()).map(|id| context.mount_id = Some(id));
    daemon::undo_of(&checkout.target, shown)
}

/// Reports whether a mount at the target shows this directory of the clone that was made for it.
pub(super) fn is_shown(
    target: &TargetPath,
    directory: Option<&Path>,
    entry: &Entry,
    mounted: Mounted,
) -> Result<bool> {
    let below = Path::new(TREE).join(directory.unwrap_or(Path::new("")));
    let below: PathBuf = below.components().collect();
    // The type alone is not enough: the node's disk may be memory as well.
    if entry.file_system == MEMORY && entry.source == NAME {
        return Ok(entry.root == Path::new("/").join(below));
    }
    let Some(root) = openat_beneath::open_root_if_there(&Home::of(target).scratch)? else { return Ok(false) };
    let shown = openat_beneath::open_if_there(root.as_fd(), &below, OFlags::PATH)?;
    Ok(shown.map(|shown| mount::identity(shown.as_fd())).transpose()? == Some(mounted.root))
}

/// Makes the clone and mounts it. Returns the mount's id.
fn shown(checkout: &Checkout, home: &Home, tools: Tools<'_>) -> Result<u64> {
    let place = open_place(&checkout.target)?;
    home.make(false, true)?;
    let masked = home.write(&checkout.files, tools)?;
    let clone = Clone { checkout, home, masked, tools, tree: home.scratch.join(TREE) };
    if let Some(size) = checkout.size {
        // A mount can be handed on only while it is in our own mount table.
        let tree = namespace::privately(|| {
            namespace::cover(NAME, &home.scratch, Some(size))?;
            mount::tree(&binding(clone.make()?.as_fd(), checkout.flags))
        })?;
        home.private.remove()?;
        return mount::put(&tree, &place);
    }
    let tree = clone.make()?;
    home.private.remove()?;
    mount::bind(&binding(tree.as_fd(), checkout.flags), &place, Way::Detached)
}

fn binding(source: BorrowedFd<'_>, flags: MountFlags) -> BindMount<'_> {
    BindMount { source, recursive: false, flags, propagation: Propagation::Private, lift: false }
}

/// Clone that is being made.
struct Clone<'a> {
    checkout: &'a Checkout,
    home: &'a Home,
    masked: Vec<Secret>,
    tools: Tools<'a>,
    tree: PathBuf,
}

impl Clone<'_> {
    /// Makes the clone, and opens the directory to be shown.
    fn make(&self) -> Result<OwnedFd> {
        directory::make_private(&self.tree)?;
        process::with_umask(UMASK, || self.fetch())
            .with_context(|| format!("clone {}", self.checkout.repository))?;
        files::set_mode(&self.tree, 0o777 & !UMASK)?;
        let root = openat_beneath::open_root(&self.tree)?;
        let Checkout { repository, revision, directory, .. } = self.checkout;
        let Some(below) = directory else { return Ok(root) };
        openat_beneath::open_if_there(root.as_fd(), below, OFlags::PATH | OFlags::DIRECTORY)
            .with_context(|| format!("show {} of {repository}", below.display()))?
            .ok_or_else(|| {
                let text =
                    format!("{repository} has no directory {} at {revision}: name another", below.display());
                Failure::new(Code::NotFound, text).into()
            })
    }

    fn fetch(&self) -> Result<()> {
        let Checkout { repository, revision, depth, .. } = self.checkout;
        self.git(["init", "--quiet", "--template=", "."])?;
        self.git(["config", "remote.origin.url", repository])?;
        let depth = (*depth > 0).then(|| format!("--depth={depth}"));
        let fetch = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules"].into_iter();
        let one = fetch.clone().chain(depth.as_deref()).chain(["--", "origin", revision.as_str()]);
        let outcome = self.run(one)?;
        if outcome.success() {
            return self.git(["checkout", "--quiet", "--detach", "FETCH_HEAD"]);
        }
        if !outcome.output.contains("unadvertised object") {
            return Err(self.complaint(&outcome));
        }
        self.git(fetch.chain(["--", "origin"]).chain(EVERYTHING))?;
        self.git(["checkout", "--quiet", "--detach", revision.as_str(), "--"])
    }

    fn git<'w>(&self, words: impl IntoIterator<Item = &'w str>) -> Result<()> {
        let outcome = self.run(words)?;
        if outcome.success() { Ok(()) } else { Err(self.complaint(&outcome)) }
    }

    fn run<'w>(&self, words: impl IntoIterator<Item = &'w str>) -> Result<HelperExit> {
        let home = self.home.private.file("");
        let git = daemon::without_identity(Invocation::of("git"))
            .env("HOME", &home)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .args([OsStr::new("-C"), self.tree.as_os_str()]);
        self.tools.run(git.args(words).mask(&self.masked))
    }

    fn complaint(&self, outcome: &HelperExit) -> anyhow::Error {
        let revision = &self.checkout.revision;
        let (code, text) = if outcome.output.contains("find remote ref") {
            (
                Code::NotFound,
                format!("the server has no {revision:?}: name a branch, a tag or the whole id of a commit"),
            )
        } else if outcome.output.contains("returned error: 30") {
            let text = "the server redirects to another address: give that as repository, or let the admin set policy.allowRedirects";
            (Code::Denied, text.to_owned())
        } else if outcome.output.contains("dumb http transport") {
            (Code::Internal, "this server has no part of a history: set option depth to 0".to_owned())
        } else {
            (Code::Internal, describe(outcome, "git"))
        };
        Failure::new(code, text).into()
    }
}
