//! Mounts and devices of this node, as evidence about its holders.

use super::journal::Entry;
use crate::fence::evidence::{Evidence, Fence, NodeState, PodState, Sight, Usage};
use crate::fence::record::{Holder, Node, Record};
use crate::fence::request::Left;
use crate::fence::settle::Witness;
use crate::fence::store::Off;
use flexvol_linux::block::loop_device;
use flexvol_linux::fs::files;
use flexvol_linux::mount::mount_table::Tables;
use flexvol_linux::mount::place::path_in_table;
use flexvol_model::paths;
use flexvol_protocol::TargetPath;
use flexvol_protocol::volume_dir::VolumeDir;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Prefix of the handle of storage in a file.
const FILE: &str = "file:";

/// Limit for a driver's note about a device, in bytes.
const LARGEST: usize = 1 << 20;

/// Checks of a volume on this node.
pub trait Look: Send + Sync {
    /// Returns what is left of a volume. An unknown state counts as mounted.
    fn left(&self, entry: &Entry) -> Left {
        self.left_of(&entry.handle, &entry.target)
    }

    /// Returns what is left of this storage at this directory.
    fn left_of(&self, handle: &str, target: &str) -> Left;

    /// Reports whether kubelet has removed the directory, which it does only after the unmount.
    fn is_removed(&self, target: &str) -> bool;

    /// Reports whether kubelet has removed everything that the volume's pod had on this node.
    fn is_pod_gone(&self, target: &str) -> bool;
}

/// Checks by the mount tables and the loop devices.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Look for Kernel {
    fn left_of(&self, handle: &str, target: &str) -> Left {
        let mounts = Tables::open(std::iter::empty()).and_then(|mut tables| tables.read());
        // Another process may have the target under the path that kubelet gave.
        let paths = [Path::new(target).to_owned(), path_in_table(Path::new(target))];
        match mounts {
            Ok(mounts) if mounts.iter().all(|mount| !paths.contains(&mount.target)) => {}
            _ => return Left::Mounted,
        }
        let shown = |file: &str| loop_device::shows(file).unwrap_or(true);
        match handle.strip_prefix(FILE) {
            // The kernel shows a removed file with this suffix.
            Some(file) if shown(file) || shown(&format!("{file} (deleted)")) => Left::Attached,
            _ if is_attached_for(target) => Left::Attached,
            _ => Left::Nothing,
        }
    }

    fn is_removed(&self, target: &str) -> bool {
        is_missing(Path::new(target))
    }

    fn is_pod_gone(&self, target: &str) -> bool {
        pod_directory(target).is_some_and(|directory| is_missing(&directory))
    }
}

fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Reports whether a driver has noted an attached device for this directory. An unreadable list of
/// notes and a note without targets count as attached.
fn is_attached_for(target: &str) -> bool {
    let directory = paths::run(paths::ATTACHMENTS);
    let names = match std::fs::read_dir(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return false,
        Err(_) => return true,
        Ok(names) => names,
    };
    names.flatten().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")).any(|entry| {
        let text = files::read_small(&entry.path(), LARGEST).ok().flatten();
        let record: Option<Value> = text.and_then(|text| serde_json::from_str(&text).ok());
        // A note may be removed while it is read.
        record.is_some_and(|record| {
            record["targets"].as_array().is_none_or(|all| all.iter().any(|it| it == target))
        })
    })
}

/// Returns `<root>/pods/<uid>`, if kubelet's own directory exists here.
fn pod_directory(target: &str) -> Option<PathBuf> {
    let volume = VolumeDir::of(&TargetPath::parse(target.as_ref()).ok()?);
    let mut below = volume.below.components();
    let (pods, uid) = (below.next()?, below.next()?);
    let pods = volume.root.join(pods);
    (pods.ends_with("pods") && pods.is_dir()).then(|| pods.join(uid))
}

/// Evidence of a node about itself; about other nodes, only what an administrator has asserted.
pub(super) struct Local<'a> {
    pub(super) look: &'a dyn Look,
    pub(super) node: &'a Node,
    pub(super) off: Vec<Off>,
}

impl Witness for Local<'_> {
    fn look(&self, record: &Record) -> Evidence {
        let sights = record.holders.iter().map(|holder| {
            let here = holder.node.is_same(self.node);
            (holder.id.clone(), if here { self.sight(&record.handle, holder) } else { self.of_other(holder) })
        });
        Evidence { sights: flexvol_protocol::ordered::filled(sights), ..Evidence::default() }
    }

    fn fence(&self, _: &Holder) -> Fence {
        Fence::Unsupported
    }
}

impl Local<'_> {
    fn sight(&self, handle: &str, holder: &Holder) -> Sight {
        let pod = if self.look.is_pod_gone(&holder.target) { PodState::Gone } else { PodState::Unknown };
        let usage = match self.look.left_of(handle, &holder.target) {
            Left::Nothing => Usage::Unused,
            // Nothing is left of another boot.
            _ if holder.node.boot != self.node.boot => Usage::Unused,
            _ => Usage::InUse,
        };
        Sight { pod, usage, ..Sight::default() }
    }

    fn of_other(&self, holder: &Holder) -> Sight {
        let off = self.off.iter().any(|off| off.is_about(&holder.node));
        let node = if off { NodeState::OutOfService } else { NodeState::Unknown };
        Sight { node, ..Sight::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is mounted is not released, and the mount table does not know the symlink.
    #[test]
    fn a_mount_is_seen_through_a_symlink_above_it() {
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", home.path().join("kubelet")).unwrap();
        let left =
            |name: &str| Kernel.left_of("nfs:/x", home.path().join("kubelet").join(name).to_str().unwrap());
        assert_eq!((left("proc"), left("etc")), (Left::Mounted, Left::Nothing));
    }
}
