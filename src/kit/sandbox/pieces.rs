//! Root of a sandbox in a user namespace. The kernel forbids uncovering what is below the machine's
//! mounts there. So a directory with mounts cannot have an overlay: only directories without mounts
//! get overlays, each its own.

use super::maker::{Maker, OWN, make_directory, make_file, show};
use anyhow::{Context as _, Result};
use flexvol_linux::mount::mount_table;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// Limit for copies, in bytes; configuration files are smaller. A mounted file cannot be replaced,
/// a copy can.
const COPIED: u64 = 1 << 20;

/// Lays the root instead of [`Maker::lay_root`]. `empty` are directories that will be mounted on:
/// their parents are created here, because only the machine's root may create anything in an
/// overlay of a directory that root owns.
pub(super) fn lay(maker: &mut Maker, empty: &[PathBuf]) -> Result<()> {
    let root = Path::new("/");
    let mut targets: Vec<_> = mount_table::read()?.into_iter().map(|entry| entry.target).collect();
    targets.retain(|target| !maker.covers(target));
    targets.extend_from_slice(empty);
    maker.fresh(&maker.place(root), root, 0o755, false).context("mount a new root")?;
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        // A directory that may not be listed stays empty.
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            match piece(maker, &targets, &path) {
                Ok(is_open) => directories.extend(is_open.then_some(path)),
                // Another process has just removed it.
                Err(_) if path.symlink_metadata().is_err() => {}
                Err(error) => return Err(error).with_context(|| format!("show {}", path.display())),
            }
        }
    }
    Ok(())
}

/// Adds one file or directory. Returns true if its content is still missing.
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
    // Set the mode regardless of our umask.
    std::fs::set_permissions(&place, data.permissions())?;
    // Another mount follows there later.
    if targets.iter().any(|target| target == path) || OWN.iter().any(|own| path == Path::new(own)) {
        return Ok(false);
    }
    if targets.iter().any(|target| target.starts_with(path)) {
        return Ok(true);
    }
    let machine = maker.open(path)?;
    maker.add_writable(&machine, &place, path).map(|()| false)
}
