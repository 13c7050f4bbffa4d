//! A mount namespace for one test: whatever it mounts is gone with its thread, also when it fails.

use super::skip;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Gives this thread, and what it starts, a mount table of its own, without the volumes and drivers
/// of a kubelet of this machine, and an empty `/run`; says SKIP where that is not allowed.
pub(crate) fn enter(name: &str) -> bool {
    match unshare(CloneFlags::CLONE_NEWNS).and_then(|()| seclude()) {
        Ok(()) => {
            let cover = Command::new("sh").args(["-ec", include_str!("no_kubelet.sh")]).status();
            assert!(cover.unwrap().success(), "what a kubelet of this machine has could not be hidden");
            true
        }
        Err(error) => {
            skip(name, &format!("needs root for a mount namespace ({error})"));
            false
        }
    }
}

fn seclude() -> nix::Result<()> {
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), nothing)
}

/// The types of what is mounted at a path, bottom first.
pub(crate) fn mounts_at(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| Path::new(fields[4]) == path)
        .filter_map(|fields| Some((*fields.iter().skip_while(|field| **field != "-").nth(1)?).to_owned()))
        .collect()
}
