//! Work of kubelet for a driver that lacks the verb, in the form of a FlexVolume driver.
//!
//! `flexvold` executes itself under the name [`NAME`] for it: mounting, formatting and their helper
//! programs do not belong in a process with threads, and a call that asks a server may hang
//! forever. It is called, watched and stopped like any other driver.
//!
//! | verb | action |
//! |---|---|
//! | `mountdevice DIR DEVICE JSON` | formats the device if it is blank and not read-only, mounts it |
//! | `mount DIR STAGED JSON` | binds the staged directory, read-only if the JSON says so |
//! | `unmount DIR`, `unmountdevice DIR` | unmounts |
//! | `expandfs JSON DEVICE DIR NEW OLD` | grows the file system to its device |
//! | `usage DIR` | returns the use of the file system: [`Usage`] as JSON, in `device` |
//! | `pulse DIR` | fails if the mount is dead: no process serves it |
//! | `end CALL` | ends leftover processes of a driver's call; `device` lists those that remain |

use super::{running, target};
use crate::executed;
use anyhow::{Context as _, bail};
use flexvol_kubelet::by_kubelet;
use flexvol_linux::mount::place::{Answer, Place};
use flexvol_linux::proc::orphans;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Access, Call, Reply, TargetPath, Verb};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::Duration;

/// Name under which `flexvold` executes itself for this work.
pub const NAME: &str = "flexvold-by-kubelet";

/// Verb of our own, which FlexVolume does not have.
pub const USAGE: &str = "usage";
/// See [`USAGE`].
pub const PULSE: &str = "pulse";
/// See [`USAGE`].
pub const END: &str = "end";

/// Wait for an answer of a mount: a mount that is silent for longer does not count as dead.
const PULSE_WAIT: Duration = Duration::from_secs(3);

/// Use of a file system, with the values of statvfs(3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Size of a block, in bytes.
    pub block: u64,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are free for root.
    pub free_blocks: u64,
    /// Blocks that are free for all users.
    pub available_blocks: u64,
    /// Inodes.
    pub files: u64,
    /// Inodes that are free for root.
    pub free_files: u64,
    /// Inodes that are free for all users.
    pub available_files: u64,
}

/// Executes one verb, and gives one reply: the `main` of this program.
pub fn main(arguments: &[OsString]) -> ExitCode {
    executed::give(&answer(arguments))
}

fn answer(arguments: &[OsString]) -> Reply {
    let Some((verb, rest)) = arguments.split_first() else {
        return Reply::Failure("no verb: only flexvold calls this".to_owned());
    };
    if let Some(answer) = asked(verb, rest) {
        return answer.unwrap_or_else(|error| Reply::Failure(format!("{error:#}")));
    }
    let Some(verb) = Verb::parse(verb) else { return Reply::NotSupported };
    match Call::parse(verb, rest).map_err(anyhow::Error::from).and_then(|call| perform(&call)) {
        Ok(Some(())) => Reply::success(),
        Ok(None) => Reply::NotSupported,
        Err(error) => Reply::Failure(format!("{error:#}")),
    }
}

/// Executes the verbs that FlexVolume does not have; `None` for others.
fn asked(verb: &OsStr, rest: &[OsString]) -> Option<anyhow::Result<Reply>> {
    let word = || rest.first().context("a word is missing");
    let target = || Ok(TargetPath::parse(word()?)?);
    Some(match verb.to_str()? {
        USAGE => target().and_then(|target| usage(&target)),
        PULSE => target().and_then(|target| pulse(&target)),
        END => word().and_then(|call| end(&call.to_string_lossy())),
        _ => return None,
    })
}

fn end(call: &str) -> anyhow::Result<Reply> {
    let left = orphans::end_all_with(running::CALL, call)?;
    Ok(Reply::device(left.iter().map(i32::to_string).collect::<Vec<_>>().join(" ")))
}

fn usage(target: &TargetPath) -> anyhow::Result<Reply> {
    let found = target::usage(target)?;
    let usage = Usage {
        block: found.f_frsize,
        blocks: found.f_blocks,
        free_blocks: found.f_bfree,
        available_blocks: found.f_bavail,
        files: found.f_files,
        free_files: found.f_ffree,
        available_files: found.f_favail,
    };
    Ok(Reply::device(serde_json::to_string(&usage)?))
}

fn pulse(target: &TargetPath) -> anyhow::Result<Reply> {
    let Some(place) = Place::open(target)? else { return Ok(Reply::success()) };
    if place.ask(PULSE_WAIT) == Answer::Gone {
        bail!("{target} is dead: the program that served it has ended");
    }
    Ok(Reply::success())
}

/// Performs a verb of FlexVolume; `None` for one that kubelet does not perform either.
fn perform(call: &Call) -> anyhow::Result<Option<()>> {
    match call {
        Call::MountDevice { target, device, options } => {
            let read_only = options.access() == Access::ReadOnly;
            by_kubelet::mount_device(device, target, options.fs_type().unwrap_or_default(), read_only)
        }
        Call::Mount { target, device: Some(staged), options } => {
            let staged = TargetPath::parse(staged.as_ref())?;
            by_kubelet::bind(&staged, target, options.access())
        }
        Call::Unmount { target } | Call::UnmountDevice { target } => by_kubelet::unmount(target),
        Call::ExpandFs { device, target, .. } if !device.is_empty() => by_kubelet::grow(device, target),
        Call::Mount { device: None, .. } => {
            Err(Failure::new(Code::BadCall, "mount needs the staged directory").into())
        }
        _ => return Ok(None),
    }
    .map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(words: &[&str]) -> Reply {
        answer(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn it_has_the_verbs_that_kubelet_does_without() {
        for words in [&["init"][..], &["attach", "{}", "n"], &["waitforattach", "", "{}"], &["nonsense"]] {
            assert_eq!(reply(words), Reply::NotSupported, "{words:?}");
        }
        assert_eq!(reply(&["expandfs", "{}", "", "/a", "2", "1"]), Reply::NotSupported);
        for words in [&[][..], &["mount", "/a", "{}"], &["mount", "/a", "../b", "{}"], &["unmount", "a"]] {
            assert!(matches!(reply(words), Reply::Failure(_)), "{words:?}");
        }
        assert_eq!(reply(&["unmount", "/nowhere/at/all"]), Reply::success());
    }
}
