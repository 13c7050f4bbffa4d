//! Hints of a message: the cause of an error, and what to do about it.
//!
//! [`flexvol_linux`] tells what happened, [`flexvol_model::diagnostics`] and
//! [`flexvol_model::packages`] know what that means. This module combines them when an error leaves
//! the node.

use anyhow::Error;
use flexvol_linux::errno::{self, Missing, NotAllowed};
use flexvol_linux::fs::root::Root;
use flexvol_linux::proc::helper::{DIRECTORIES, Failed, HelperExit, runs};
use flexvol_linux::proc::process::may_mount;
use flexvol_model::diagnostics::{self, known_errors};
use flexvol_model::packages::{self, distribution::Distribution};
use flexvol_protocol::failure::Failure;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

/// Size limit for os-release, in bytes.
const OS_RELEASE: usize = 1 << 16;

/// Converts an error to the failure that is reported, with a hint after each cause that has one.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn to_failure(error: Error) -> Failure {
    errno::told(&error, |cause| {
        if let Some(missing) = cause.downcast_ref::<Missing>() {
            return Some(format!("{missing}: {}", fix(Path::new("/"), &missing.0)));
        }
        if let Some(refused) = cause.downcast_ref::<NotAllowed>() {
            return Some(format!("{refused}: {}", known_errors::NO_ADMIN.hint()));
        }
        cause.downcast_ref::<Failed>().map(explained)
    })
}

/// Returns the error of an operation that was rolled back. If the rollback failed, too, `what` is
/// left.
pub fn after_rollback(error: Error, undone: anyhow::Result<()>, what: impl fmt::Display) -> Error {
    match undone {
        Ok(()) => error,
        Err(left) => to_failure(error).with_residue(format!("{what} ({left:#})")).into(),
    }
}

/// Formats `mkfs.xfs failed (exit 1): its last words`, with a hint.
pub fn describe(outcome: &HelperExit, name: &str) -> String {
    explained(&outcome.to_error(name))
}

fn explained(failed: &Failed) -> String {
    let (text, words) = (failed.to_string(), &failed.words);
    match with_hint(words.clone()).strip_prefix(words.as_str()) {
        Some(hint) if !words.is_empty() => text + hint,
        _ => text,
    }
}

/// Adds cause and fix to a helper's last words, if they are known. If this process lacks the
/// capability to mount, that is the cause of "operation not permitted".
pub fn with_hint(words: String) -> String {
    if words.to_lowercase().contains("operation not permitted") && !may_mount() {
        return format!("{words}: {}", known_errors::NO_ADMIN.hint());
    }
    diagnostics::with_hint(words)
}

fn fix(root: &Path, name: &str) -> String {
    let known = packages::fix(name, distribution(root));
    known.unwrap_or_else(|| format!("install what brings it into one of {DIRECTORIES}"))
}

/// Returns the distribution of the node's file system, which begins at `root`.
pub fn distribution(root: &Path) -> Distribution {
    let root = Root::open(root).ok();
    let read = |path: &str| root.as_ref()?.read(Path::new(path), OS_RELEASE).ok()?;
    let text = ["etc/os-release", "usr/lib/os-release"].into_iter().find_map(read);
    text.map_or(Distribution::Unknown, |text| Distribution::of(&text))
}

/// Returns how to install a program that the node lacks, such as `install xfsprogs`; `None` if the
/// node has it. `root` is where the node's file system begins. The program is a plain name, as
/// [`Invocation::of`](flexvol_linux::proc::helper::Invocation::of) takes it, or an absolute path,
/// as [`Invocation::at`](flexvol_linux::proc::helper::Invocation::at) takes it.
pub fn lacks(root: &Path, program: &str) -> Option<String> {
    let path = Path::new(program);
    let mut directories = DIRECTORIES.split(':').map(Path::new);
    if !program.contains('/') {
        let is_there = directories.any(|directory| runs(root, &directory.join(path)));
        return (!is_there).then(|| fix(root, program));
    }
    // In other directories, a program of a known name is a different program.
    let name =
        path.file_name().and_then(OsStr::to_str).filter(|_| directories.any(|it| Some(it) == path.parent()));
    let known = || name.and_then(|name| packages::fix(name, distribution(root)));
    (!path.is_absolute() || !runs(root, path)).then(|| known().unwrap_or_else(|| "put it there".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};
    use flexvol_linux::proc::helper::{HostRunner, Runner as _};
    use flexvol_protocol::failure::Code;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_missing_tool_names_its_package() {
        let failure = to_failure(HostRunner.find("mkfs.not-there").unwrap_err().context("format it"));
        assert_eq!(failure.code(), Code::ToolMissing);
        let failure = to_failure(Error::new(Missing("mkfs.xfs".into())).context("format it"));
        assert_eq!(
            failure.message(),
            ["format it: ", wording_of("not-on-this-node", ["mkfs.xfs"]), ": install xfsprogs"].concat()
        );
    }

    #[test]
    fn what_could_not_be_rolled_back_is_named() {
        let failed = || Error::from(Failure::new(Code::Busy, "attach failed"));
        assert_eq!(after_rollback(failed(), Ok(()), "a device").to_string(), "attach failed");
        let left = to_failure(after_rollback(failed(), Err(anyhow::anyhow!("it hangs")), "a device"));
        assert_eq!(left.code(), Code::Busy);
        assert_eq!(left.message(), "attach failed; left behind: a device (it hangs)");
    }

    #[test]
    fn what_a_node_lacks_is_looked_for_below_its_root() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, mode| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut file = std::fs::File::create(&path).unwrap();
            file.write_all(b"#!/bin/sh\n").unwrap();
            file.set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let lacks = |program: &str| lacks(root.path(), program).unwrap_or_default();
        assert_eq!(lacks("mkfs.xfs"), "install xfsprogs");
        make("usr/sbin/mkfs.xfs", 0o644);
        assert_eq!(lacks("mkfs.xfs"), "install xfsprogs", "not executable");
        make("usr/sbin/mkfs.xfs", 0o755);
        assert_eq!((lacks("mkfs.xfs"), lacks("/usr/sbin/mkfs.xfs")), (String::new(), String::new()));
        // An absolute symlink leads to a file of the node.
        make("opt/tools/resize2fs", 0o755);
        std::os::unix::fs::symlink("/opt/tools/resize2fs", root.path().join("usr/sbin/resize2fs")).unwrap();
        assert_eq!(lacks("resize2fs"), "");
        assert_eq!(lacks("/bin/sh"), "put it there", "ours is not the node's");
        for (name, target) in [("fsck.xfs", "/bin/sh"), ("xfs_repair", "../../../../../../../bin/sh")] {
            std::os::unix::fs::symlink(target, root.path().join("usr/sbin").join(name)).unwrap();
            assert_ne!(lacks(name), "", "{target} is ours, not the node's");
        }
        assert_eq!(
            (lacks("/sbin/mkfs.btrfs"), lacks("/opt/mount")),
            (
                "install btrfs-progs (debian, ubuntu, fedora, rhel, alpine, arch) or btrfsprogs (suse)"
                    .into(),
                "put it there".into()
            )
        );
        assert_eq!(lacks("usr/sbin/mkfs.xfs"), "put it there", "relative");
        assert!(lacks("frob").starts_with(wording("install-what-brings-it")));
    }

    #[test]
    fn packages_have_the_names_of_the_node_s_distribution() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &[u8]| {
            std::fs::File::create(root.path().join(path)).unwrap().write_all(text).unwrap();
        };
        let lacks = || lacks(root.path(), "mount.nfs").unwrap();
        assert!(lacks().contains("nfs-utils (fedora"), "{}", lacks());
        std::fs::create_dir_all(root.path().join("etc")).unwrap();
        std::fs::create_dir_all(root.path().join("usr/lib")).unwrap();
        write("usr/lib/os-release", b"ID=\"rocky\"\nID_LIKE=\"rhel\"\n");
        assert_eq!(lacks(), "install nfs-utils");
        // Most nodes have such a symlink. This one is absolute: it leads to the node's root, not to
        // ours.
        write("usr/lib/other", b"ID=debian\n");
        std::os::unix::fs::symlink("/usr/lib/other", root.path().join("etc/os-release")).unwrap();
        assert_eq!(lacks(), "install nfs-common");
        write("usr/lib/other", &vec![b'a'; OS_RELEASE + 1]);
        assert_eq!(lacks(), "install nfs-utils", "one that is too large is none");
    }
}
