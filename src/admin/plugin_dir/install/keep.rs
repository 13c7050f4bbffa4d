//! Replaced foreign drivers, kept outside the plugin directory for a rollback.
//!
//! ```text
//! <state>/replaced/vendor~driver/<content>/…      the driver's directory as it was
//! ```
//!
//! A copy appears as a whole, by one rename, and is named after its content: the same driver is
//! kept once, also if its take-over was killed when our side file was already beside it. Our side
//! file is not part of the copy.
//!
//! A version that `--binary` installed is kept with its side file, which identifies it. The newest
//! [`VERSIONS`] of these stay, and a version that is restored is kept no longer.

use super::source::copy;
use crate::plugin_dir::found::{self, LEFTOVER};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory::{self, Directory, Entry, Kind};
use flexvol_linux::fs::files::{self, File};
use flexvol_linux::fs::fingerprint::{Fingerprint, short};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::settings::SIDE_FILE;
use flexvol_protocol::ordered;
use flexvol_protocol::text::hex;
use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

/// Limits for the copy of one driver, in bytes and in files: some contain their helpers.
const BYTES: u64 = 1 << 30;
const FILES: u64 = 10_000;

/// Limit for versions of one driver that are kept.
const VERSIONS: usize = 3;

/// Deadline for another installer that keeps a driver of the same name.
const KEEP_LOCK_WAIT: Duration = Duration::from_mins(1);

/// Name of a copy until it is complete.
const PARTIAL: &str = ".partial";

/// Kind of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// A foreign driver: a side file of ours beside it is not part of it.
    Foreign,
    /// A version that an installer put there, with its side file.
    Version,
}

/// Copies the driver in `home` into `state`, unless that copy is there, and makes it the newest.
pub(super) fn keep(state: &Path, home: &Directory, what: Kept) -> Result<()> {
    directory::make_all(state)?;
    let state = Directory::open(state)?.with_context(|| format!("{} is gone", state.display()))?;
    // An installer for another plugin directory may keep a driver of this name, too.
    state.lock(&Deadline::after(KEEP_LOCK_WAIT))?;
    // Leftover of a killed installer.
    state.remove_tree(PARTIAL)?;
    let copied = keep_in(&state, home, what);
    if copied.is_err() {
        // The admin needs the error of the copy, not one of the cleanup.
        let _ = state.remove_tree(PARTIAL);
    }
    copied?;
    let versions = versions(&state)?;
    let old = versions.len().saturating_sub(VERSIONS);
    versions[..old].iter().try_for_each(|version| remove(&state, version))
}

/// Removes the copy of a version; the copy of a foreign driver stays.
pub(super) fn forget_version(state: &Path, copy: &Directory) -> Result<()> {
    match Directory::open(state)? {
        Some(state) if found::is_stamped(copy)? => remove(&state, copy),
        _ => Ok(()),
    }
}

fn versions(state: &Directory) -> Result<Vec<Directory>> {
    let mut versions = Vec::new();
    for copy in kept(state.path())? {
        if found::is_stamped(&copy)? {
            versions.push(copy);
        }
    }
    Ok(versions)
}

/// Renames the copy before it removes it: after a kill, no partial copy has a valid name.
fn remove(state: &Directory, copy: &Directory) -> Result<()> {
    state.remove_tree(PARTIAL)?;
    state.rename(copy.path().file_name().context("a copy has a name")?, state, PARTIAL)?;
    state.remove_tree(PARTIAL)
}

fn keep_in(state: &Directory, home: &Directory, what: Kept) -> Result<()> {
    if what == Kept::Foreign
        && found::is_stamped(home)?
        && let Some(copy) = begun(state, home)?
    {
        return copy.touch();
    }
    let partial = state.create_directory(PARTIAL, 0o700)?;
    let mut copy = Copy::new(what);
    copy.directory(home, &partial)?;
    let name = short(&hex(&copy.hash.finalize())).to_owned();
    partial.sync()?;
    match state.child(&name)? {
        Some(kept) => {
            kept.touch()?;
            state.remove_tree(PARTIAL)?;
        }
        None => state.rename_new(PARTIAL, state, &name)?,
    }
    state.sync()
}

/// Returns the copy that a take-over made before it was killed: only this copy may have a side file
/// that ours has replaced.
fn begun(state: &Directory, home: &Directory) -> Result<Option<Directory>> {
    let mut names = home.names()?;
    names.retain(|name| *name != SIDE_FILE && !name.as_encoded_bytes().starts_with(LEFTOVER.as_bytes()));
    for copy in kept(state.path())?.into_iter().rev() {
        let mut same = names.iter().map(|name| is_same(name, home, &copy));
        if !found::is_stamped(&copy)? && same.all(|same| matches!(same, Ok(true))) {
            return Ok(Some(copy));
        }
    }
    Ok(None)
}

/// Returns the copies of a driver, the newest last.
pub(crate) fn kept(state: &Path) -> Result<Vec<Directory>> {
    let Some(state) = Directory::open(state)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for name in state.names()?.iter().filter(|name| *name != PARTIAL) {
        if state.look(name)?.is_some_and(|entry| entry.kind == Kind::Directory) {
            found.extend(state.child(name)?);
        }
    }
    let mut dated = found.into_iter().map(|copy| Ok((copy.changed()?, copy))).collect::<Result<Vec<_>>>()?;
    ordered::sort(&mut dated, |(time, _)| *time);
    Ok(dated.into_iter().map(|(_, copy)| copy).collect())
}

/// Reports whether a name has the same content in a copy, with all that is in it: then removing it
/// loses nothing.
pub(crate) fn is_same(name: &OsStr, one: &Directory, copy: &Directory) -> Result<bool> {
    let kind = |of: &Directory| Ok::<_, anyhow::Error>(of.look(name)?.map(|entry| entry.kind));
    let content = |of: &Directory| -> Result<Option<Fingerprint>> {
        let Some(file) = of.file(name)? else { return Ok(None) };
        let read = Fingerprint::of(file.take(BYTES + 1));
        Ok(Some(read.with_context(|| format!("read {}", of.path_of(name).display()))?))
    };
    match (kind(one)?, kind(copy)?) {
        (Some(Kind::File), Some(Kind::File)) => Ok(content(one)? == content(copy)?),
        (Some(Kind::Link), Some(Kind::Link)) => Ok(one.link(name)? == copy.link(name)?),
        (Some(Kind::Directory), Some(Kind::Directory)) => {
            let inside = one.child_not_mounted(name)?.zip(copy.child(name)?);
            let (one, copy) = inside.with_context(|| gone(one, name))?;
            for inner in one.names()? {
                if !is_same(&inner, &one, &copy)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Copies one name, with all that is in it, to another name, which must not exist yet.
pub(super) fn restore(from: &Directory, name: &OsStr, to: &Directory, new: &str) -> Result<()> {
    let mut copy = Copy::new(Kept::Version);
    copy.entry(from, name, to, new.as_ref())
}

/// Copy in progress.
struct Copy {
    what: Kept,
    hash: Sha256,
    bytes: u64,
    files: u64,
}

impl Copy {
    fn new(what: Kept) -> Self {
        Self { what, hash: Sha256::new(), bytes: BYTES, files: FILES }
    }

    fn directory(&mut self, from: &Directory, to: &Directory) -> Result<()> {
        let is_left_out = self.what == Kept::Foreign && found::is_stamped(from)?;
        for name in from.names()? {
            if is_left_out && name == SIDE_FILE {
                continue;
            }
            if name.as_encoded_bytes().starts_with(LEFTOVER.as_bytes()) {
                continue;
            }
            self.files = self.files.checked_sub(1).with_context(|| too_much(from))?;
            self.entry(from, &name, to, &name)?;
        }
        to.sync()
    }

    fn entry(&mut self, from: &Directory, name: &OsStr, to: &Directory, new: &OsStr) -> Result<()> {
        let Some(entry) = from.look(name)? else { return Ok(()) };
        self.note(name.as_encoded_bytes());
        self.note(&entry.mode.to_le_bytes());
        match entry.kind {
            Kind::File => self.file(from, name, &to.create(new, 0o600)?, entry),
            Kind::Link => {
                let target = from.link(name)?;
                self.note(target.as_os_str().as_encoded_bytes());
                to.create_link(new, &target)
            }
            Kind::Directory => {
                let inner = from.child_not_mounted(name)?.with_context(|| gone(from, name))?;
                let made = to.create_directory(new, 0o700)?;
                self.directory(&inner, &made)?;
                made.give_to(entry)?;
                self.note(b"/");
                Ok(())
            }
            // A socket or fifo is made by the program that uses it.
            Kind::Other => Ok(()),
        }
    }

    fn file(&mut self, from: &Directory, name: &OsStr, target: &File, entry: Entry) -> Result<()> {
        let file = from.file(name)?.with_context(|| gone(from, name))?;
        let path = from.path_of(name);
        let fingerprint =
            copy(file.take(self.bytes + 1), target).with_context(|| format!("copy {}", path.display()))?;
        files::give_owner(target.as_fd(), (entry.owner, entry.group), entry.mode)
            .with_context(|| format!("copy {}", path.display()))?;
        target.sync_all().with_context(|| format!("copy {}", path.display()))?;
        self.bytes = self.bytes.checked_sub(fingerprint.size).with_context(|| too_much(from))?;
        self.note(fingerprint.hash.as_bytes());
        Ok(())
    }

    /// Adds bytes with their length, so that no two lists of names and contents are the same.
    fn note(&mut self, bytes: &[u8]) {
        self.hash.update(bytes.len().to_le_bytes());
        self.hash.update(bytes);
    }
}

fn gone(from: &Directory, name: &OsStr) -> String {
    format!("{} was removed meanwhile: try again", from.path_of(name).display())
}

fn too_much(from: &Directory) -> String {
    format!(
        "{} holds too much to be kept (1 GiB, 10,000 files): move its data elsewhere",
        from.path().display()
    )
}
