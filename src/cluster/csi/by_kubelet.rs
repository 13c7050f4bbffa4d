//! What kubelet does itself for a driver that lacks the verb, as a FlexVolume driver of its own.
//!
//! `flexvold` executes itself under the name [`NAME`] for it: mounting, formatting and their helper
//! programs have no place in a process with threads. It is called, watched and stopped like any
//! other driver.
//!
//! | verb | what is done |
//! |---|---|
//! | `mountdevice DIR DEVICE JSON` | formats the device if it is blank and not read-only, mounts it |
//! | `mount DIR STAGED JSON` | binds the staged directory, read-only if the JSON says so |
//! | `unmount DIR`, `unmountdevice DIR` | unmounts |
//! | `expandfs JSON DEVICE DIR NEW OLD` | grows the file system to its device |

use crate::executed;
use flexvol_kubelet::by_kubelet;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Access, Call, Reply, TargetPath, Verb};
use std::ffi::OsString;
use std::process::ExitCode;

/// What `flexvold` is called as to be it.
pub const NAME: &str = "flexvold-by-kubelet";

/// What `main` does: one verb, one reply.
pub fn main(arguments: &[OsString]) -> ExitCode {
    executed::give(&answer(arguments))
}

fn answer(arguments: &[OsString]) -> Reply {
    let Some((verb, rest)) = arguments.split_first() else {
        return Reply::Failure("no verb: only flexvold calls this".to_owned());
    };
    let Some(verb) = Verb::parse(verb) else { return Reply::NotSupported };
    match Call::parse(verb, rest).map_err(anyhow::Error::from).and_then(|call| perform(&call)) {
        Ok(Some(())) => Reply::success(),
        Ok(None) => Reply::NotSupported,
        Err(error) => Reply::Failure(format!("{error:#}")),
    }
}

/// `None` for what kubelet does not do either.
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
