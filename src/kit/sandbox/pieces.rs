//! The root of a sandbox in a user namespace. What the machine has mounted in a directory may not
//! be uncovered there, so there can be no overlay of it: only of the directories without mounts,
//! each by itself.

use super::maker::{Maker, OWN, make_directory, make_file, show};
use anyhow::{Context as _, Result};
use flexvol_linux::mount::mount_table;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// A file that is mounted cannot be replaced, a copy can: what is configured is smaller than this.
const COPIED: u64 = 1 << 20;

/// Instead of [`Maker::lay_root`]. `empty` are directories that will be mounted on: the ones above
/// them are made here, because no one but the machine's root may make anything in an overlay of
/// root's.
pub(super) fn lay(maker: &mut Maker, empty: &[PathBuf]) -> Result<()> {
    let root = Path::new("/");
    let mut targets: Vec<_> = mount_table::read()?.into_iter().map(|entry| entry.target).collect();
    targets.retain(|target| !maker.covers(target));
    targets.extend_from_slice(empty);
    maker.fresh(&maker.place(root), root, 0o755, false).context("mount a new root")?;
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        // One that may not be listed stays empty.
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            match piece(maker, &targets, &path) {
                Ok(is_open) => directories.extend(is_open.then_some(path)),
                // Someone has just removed it.
                Err(_) if path.symlink_metadata().is_err() => {}
                Err(error) => return Err(error).with_context(|| format!("show {}", path.display())),
            }
        }
    }
    Ok(())
}

/// Whether what is in it is still missing.
fn piece(maker: &mut Maker, targets: &[PathBuf], path: &Path) -> Result<bool> {
    let (place, data) = (maker.place(path), path.symlink_metadata()?);
    if data.is_symlink() {
        symlink(std::fs::read_link(path)?, place)?;
        return Ok(false);
    }
    if !data.is_dir() {
        let is_copied =
            data.is_file() && data.len() <= COPIED && !targets.iter().any(|target| target == path);
        if is_copied && std::fs::copy(path, &place).is_ok() {
            return Ok(false);
        }
        make_file(&place)?;
        return show(&maker.open(path)?, &place).map(|()| false);
    }
    make_directory(&place, data.permissions().mode())?;
    // Whatever our umask.
    std::fs::set_permissions(&place, data.permissions())?;
    // Something is mounted there later.
    if targets.iter().any(|target| target == path) || OWN.iter().any(|own| path == Path::new(own)) {
        return Ok(false);
    }
    if targets.iter().any(|target| target.starts_with(path)) {
        return Ok(true);
    }
    let machine = maker.open(path)?;
    maker.add_writable(&machine, &place, path).map(|()| false)
}
