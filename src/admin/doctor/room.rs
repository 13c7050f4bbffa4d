//! Free space and inodes where something must be written. A full /run is the hardest case: nothing
//! works, and no message says why.

use super::{DoctorRequest, Finding};
use crate::inventory;
use anyhow::Result;
use flexvol_linux::fs::directory::{Directory, FileSystem};
use flexvol_model::paths;
use flexvol_protocol::quantity::Quantity;
use std::path::{Path, PathBuf};

/// Minimum of free bytes and of free files: with less, hardly anything works.
const LEAST: u64 = 256 << 10;
const LEAST_FILES: u64 = 8;

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let mut places =
        vec![(PathBuf::from(paths::RUN), "run-full", "drivers keep locks, records and credentials")];
    let roots = inventory::roots(&request.kubelet_root)?;
    places.extend(
        roots.into_iter().map(|root| (root, "kubelet-root-full", "kubelet makes the directories of volumes")),
    );
    let plugins = request.plugin_dirs().unwrap_or_default();
    places.extend(plugins.into_iter().map(|path| (path, "plugin-dir-full", "drivers are installed")));
    Ok(places.iter().filter_map(|(path, id, what)| full(path, id, what)).collect())
}

fn full(path: &Path, id: &str, what: &str) -> Option<Finding> {
    let there = path.ancestors().find_map(|path| Directory::open(path).ok().flatten())?;
    let FileSystem { read_only, free, free_files, .. } = there.file_system().ok()?;
    let (path, held) = (path.display(), there.path().display());
    if read_only && id == "run-full" {
        let evidence = format!("{held} is read-only, and below {path} {what}");
        return Some(Finding::error("run-read-only", &evidence, &format!("mount -o remount,rw {held}")));
    }
    let files = free_files.filter(|files| *files < LEAST_FILES);
    // A file system that counts no blocks, as ramfs does, is never full.
    let bytes = (free < LEAST && !read_only).then_some(free);
    let lacks = match (bytes, files) {
        (Some(free), _) => format!("has only {} left", Quantity(free)),
        (None, Some(files)) => format!("has only {files} inodes left"),
        (None, None) => return None,
    };
    let evidence = format!("{held} {lacks}, and below {path} {what}");
    Some(Finding::error(id, &evidence, &format!("make room there: df -h {held}; df -i {held}; du -x {held}")))
}
