//! Forced unmount of a mount that its driver cannot unmount, in a separate process.
//!
//! `flexvold` executes itself under the name [`NAME`] for this. A mount that does not answer may
//! block every process that touches it, and the agent must not be blocked. This process does not
//! access the mount itself, only the mount table.
//!
//! | arguments | effect |
//! |---|---|
//! | `abort DIR` | ends the pending requests of the mount: aborts a FUSE connection, fails requests to an NFS server. Unmounts it, unless it is in use |
//! | `lazily DIR` | removes the mount from the directory; the mount ends with its last user |

use crate::executed;
use anyhow::{Context as _, Result, bail};
use flexvol_linux::mount;
use flexvol_linux::mount::mount_table;
use flexvol_linux::mount::place::Place;
use flexvol_protocol::{Reply, TargetPath};
use std::ffi::OsString;
use std::process::ExitCode;

/// Name under which `flexvold` performs forced unmounts.
pub const NAME: &str = "flexvold-by-force";

/// Argument to end the pending requests of a mount.
pub(super) const ABORT: &str = "abort";

/// Argument to remove a mount from its directory.
pub(super) const LAZILY: &str = "lazily";

/// Limit for mounts on top of each other: the loop must end even if another process mounts as fast
/// as this one unmounts.
const MOST_LAYERS: usize = 256;

/// Entry point: performs one command and prints one reply.
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

/// Unmounts each layer. A layer hides the one below, so the first one in use is the last one tried.
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
