//! What is done to a mount that its driver does not end, by a process of its own.
//!
//! `flexvold` executes itself under the name [`NAME`] for it: a mount that does not answer may hold
//! up whoever touches it, and that must not be the agent. Nothing here looks at the mount itself,
//! only at the mount table.
//!
//! | words | what is done |
//! |---|---|
//! | `abort DIR` | ends what waits for the mount: a FUSE connection is aborted, requests to an NFS server fail. It is unmounted, unless it is in use |
//! | `lazily DIR` | takes the mount off the directory; it ends with its last user |

use crate::executed;
use anyhow::{Context as _, Result, bail};
use flexvol_linux::mount;
use flexvol_linux::mount::mount_table;
use flexvol_linux::mount::place::Place;
use flexvol_protocol::{Reply, TargetPath};
use std::ffi::OsString;
use std::process::ExitCode;

/// What `flexvold` is called as to be it.
pub const NAME: &str = "flexvold-by-force";

/// Ends what waits for a mount.
pub(super) const ABORT: &str = "abort";

/// Takes a mount off its directory.
pub(super) const LAZILY: &str = "lazily";

/// No directory has more mounts on top of each other: whoever mounts as fast as this unmounts is
/// not followed for ever.
const MOST_LAYERS: usize = 256;

/// What `main` does: one word, one reply.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let reply = match perform(arguments) {
        Ok(()) => Reply::success(),
        Err(error) => Reply::Failure(format!("{error:#}")),
    };
    executed::give(&reply)
}

fn perform(arguments: &[OsString]) -> Result<()> {
    let [word, target] = arguments else { bail!("a word and a directory: only flexvold calls this") };
    let target = TargetPath::parse(target)?;
    let Some(place) = Place::open(&target)? else { return Ok(()) };
    match word.to_str() {
        Some(ABORT) => abort(&place),
        Some(LAZILY) => take_off(&place, |place| mount::unmount(place, true)),
        _ => bail!("only flexvold calls this"),
    }
}

/// Each layer hides the one below, so the first that stays in use is the last that is tried.
fn abort(place: &Place) -> Result<()> {
    take_off(place, |place| if mount::abort(place) { Ok(()) } else { mount::unmount(place, false) })
}

fn take_off(place: &Place, unmount: impl Fn(&Place) -> std::io::Result<()>) -> Result<()> {
    let path = place.resolved()?;
    for _ in 0..MOST_LAYERS {
        if mount_table::at(&path)?.is_none() {
            return Ok(());
        }
        unmount(place).with_context(|| format!("unmount {}", path.display()))?;
    }
    bail!("{} is mounted again and again: end whoever does that", path.display())
}
