//! The process kubelet starts where it has little of what a process needs: it answers, or does not
//! end well.

use crate::process::{NOWHERE, init};
use crate::support::{BINARY, Plugin, release};

/// From four on there is one for the pipe; the side file needs a fifth.
#[test]
fn few_descriptors() {
    let binaries = [Some(BINARY.into()), release()];
    for binary in binaries.into_iter().flatten() {
        let plugin = Plugin::copy(&binary, "example~tmpfs", "tmpfs");
        for limit in 4..=16 {
            let argument = format!("--nofile={limit}");
            let limited = |arguments: &[&str]| plugin.through(&["prlimit", &argument], arguments).run();
            match limit {
                4 => drop(limited(&["init"]).failure()),
                _ => init(&limited(&["init"])),
            }
            limited(&["mount", NOWHERE, "{}"]).failure();
            limited(&["unmount", NOWHERE]).reply();
        }
    }
}

/// The kernel may end a program that has no room to begin, and kubelet sees that; a call that ends
/// well has answered.
#[test]
fn little_stack_or_memory() {
    let binaries = [Some(BINARY.into()), release()];
    for binary in binaries.into_iter().flatten() {
        let plugin = Plugin::copy(&binary, "example~tmpfs", "tmpfs");
        let stacks = [4, 8, 12, 16, 24, 32, 64].map(|size| format!("--stack={0}:{0}", size << 10));
        let memory = [2, 3, 4, 5, 6, 8].map(|size| format!("--as={0}:{0}", size << 20));
        for limit in stacks.iter().chain(&memory) {
            for arguments in [&["init"][..], &["mount", NOWHERE, "{}"], &["unmount", NOWHERE]] {
                let run = plugin.through(&["prlimit", limit], arguments).run();
                if run.status.success() {
                    run.reply();
                }
            }
        }
    }
}
