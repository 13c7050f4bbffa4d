//! Kernel modules: the kernel loads those of file systems automatically, others only on request.

use crate::proc::helper::{Invocation, Tools};
use anyhow::{Context as _, Result};
use flexvol_protocol::failure::{Code, Failure};
use std::fs;
use std::path::Path;

/// Loads a module, unless the path that it provides exists. Fails with `ToolMissing` and the fix.
pub fn load(name: &str, brings: &Path, tools: Tools<'_>) -> Result<()> {
    if brings.exists() {
        return Ok(());
    }
    let loaded = tools.run(Invocation::of("modprobe").args([name]));
    if brings.exists() {
        return Ok(());
    }
    let text = format!("this kernel has no {name}, or cannot load it: run modprobe {name} on the node");
    let failure = Failure::new(Code::ToolMissing, text);
    match loaded {
        Ok(outcome) => Err(failure).with_context(|| outcome.describe("modprobe")),
        Err(error) => Err(failure).with_context(|| format!("{error:#}")),
    }
}

/// Reports whether the kernel has a file system, or a module of its name to load.
/// `None` if this cannot be determined, for example in a container without the node's modules.
pub fn has_file_system(name: &str) -> Option<bool> {
    let known = fs::read_to_string("/proc/filesystems").ok()?;
    if known.lines().any(|line| line.split_whitespace().next_back() == Some(name)) {
        return Some(true);
    }
    has(name)
}

/// Reports whether a module is loaded, built in or loadable; `None` if this cannot be determined.
pub fn has(name: &str) -> Option<bool> {
    if Path::new("/sys/module").join(name.replace('-', "_")).exists() {
        return Some(true);
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let modules = Path::new("/lib/modules").join(release.trim());
    let list = |file: &str| fs::read_to_string(modules.join(file)).ok();
    let (loadable, builtin) = (list("modules.dep")?, list("modules.builtin").unwrap_or_default());
    Some(is_listed(name, &loadable) || is_listed(name, &builtin))
}

/// Searches a list of module files, whose names may have a dash for an underscore of the kernel.
fn is_listed(name: &str, list: &str) -> bool {
    let file = format!("/{}.ko", name.replace('-', "_"));
    list.lines().any(|line| line.split(':').next().is_some_and(|path| path.replace('-', "_").contains(&file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_proc_and_none_has_nonsense() {
        assert_eq!(has_file_system("proc"), Some(true));
        assert_ne!(has_file_system("frobnicate"), Some(true));
    }

    #[test]
    fn a_module_is_found_whatever_stands_for_its_underscore() {
        let list =
            "kernel/drivers/md/dm-mod.ko.xz: kernel/drivers/dax/dax.ko.xz\nkernel/drivers/block/nbd.ko:\n";
        assert!(is_listed("dm_mod", list) && is_listed("dm-mod", list) && is_listed("nbd", list));
        assert!(!is_listed("dax", list) && !is_listed("bd", list) && !is_listed("loop", list));
    }
}
