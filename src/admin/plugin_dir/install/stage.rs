//! Staged files: made under hidden names, complete with permissions, label and content on disk,
//! before they are renamed to their places.

use super::source::Source;
use crate::plugin_dir::found::{LEFTOVER, PROGRAM_MODE};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory::{self, Directory, Kind};
use flexvol_linux::fs::files::File;
use flexvol_linux::fs::fingerprint::Fingerprint;
use flexvol_linux::proc::clock;
use flexvol_model::settings::SIZE_LIMIT;
use flexvol_model::side_file;
use flexvol_protocol::DriverName;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::AsFd as _;

/// SELinux labels for new files, taken from existing ones: a copy made in a container would have
/// the container's label, which kubelet may not execute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Labels {
    /// Label of executables.
    pub(super) program: Option<Vec<u8>>,
    /// Label of driver directories and side files.
    pub(super) other: Option<Vec<u8>>,
}

impl Labels {
    /// Returns the labels of the existing driver, else of any other, else of the plugin directory.
    pub(super) fn of(plugins: &Directory, name: &DriverName) -> Result<Self> {
        let mut names = vec![name.directory().into()];
        names.extend(plugins.names()?);
        let siblings = names.iter().filter_map(|entry| {
            let directory = entry.to_str().filter(|directory| !directory.starts_with('.'))?;
            let is_directory = plugins.look(entry).ok()??.kind == Kind::Directory;
            let home = plugins.child(entry).ok()?.filter(|_| is_directory)?;
            let program = home.label_of(DriverName::executable_in(directory.as_ref()))?;
            Some(Self { program: Some(program), other: home.label() })
        });
        let own = || Self { program: plugins.label(), other: plugins.label() };
        Ok({ siblings }.next().unwrap_or_else(own))
    }
}

/// Maker of hidden files in one directory. Every name is new, also after a killed installer.
pub(super) struct Stage<'a> {
    home: &'a Directory,
    labels: &'a Labels,
    stem: String,
    names: Vec<String>,
    /// The side file that marks the owner of a driver while it is half replaced.
    witness: Option<String>,
    warning: Option<String>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(home: &'a Directory, labels: &'a Labels) -> Self {
        let now = clock::since_1970();
        let stem = format!("{LEFTOVER}{:x}-{:x}", std::process::id(), now.as_nanos());
        Self { home, labels, stem, names: Vec::new(), witness: None, warning: None }
    }

    /// Returns a hidden name that is not in use.
    pub(super) fn name(&mut self) -> String {
        let name = format!("{}-{}", self.stem, self.names.len());
        self.names.push(name.clone());
        name
    }

    /// Returns the directory with the hidden names.
    pub(super) fn home(&self) -> &'a Directory {
        self.home
    }

    /// Sets the hidden name of the side file whose executable is in place already; `None` once the
    /// side file is in place, too.
    pub(super) fn set_witness(&mut self, name: Option<String>) {
        self.witness = name;
    }

    /// Removes files that were not renamed, after a failure. Ignores errors, as the failure is what
    /// people must see. The witness stays, as after a kill: without it the driver would belong to
    /// no one.
    pub(super) fn discard(&self) {
        for name in self.names.iter().filter(|name| Some(*name) != self.witness.as_ref()) {
            let _ = self.home.remove_tree(name);
        }
    }

    /// Returns the reason why a label could not be set.
    pub(super) fn take_warning(&mut self) -> Option<String> {
        self.warning.take()
    }

    /// Makes the executable, complete; returns its hidden name.
    pub(super) fn program(&mut self, source: &Source) -> Result<String> {
        let (name, label) = (self.name(), self.labels.program.as_deref());
        let file = self.home.create(&name, PROGRAM_MODE)?;
        self.label(&file, label);
        source.copy_to(&file)?;
        self.finish(&file, &name)?;
        Ok(name)
    }

    /// Makes the side file, complete; returns its hidden name.
    pub(super) fn side_file(&mut self, text: &str, mode: u32) -> Result<String> {
        let (name, label) = (self.name(), self.labels.other.as_deref());
        let mut file = self.home.create(&name, mode)?;
        self.label(&file, label);
        let path = self.home.path_of(&name);
        file.write_all(text.as_bytes()).with_context(|| format!("write {}", path.display()))?;
        self.finish(&file, &name)?;
        Ok(name)
    }

    fn finish(&self, file: &File, name: &str) -> Result<()> {
        let path = self.home.path_of(name);
        file.sync_all().with_context(|| format!("write {} to disk", path.display()))
    }

    fn label(&mut self, file: &File, label: Option<&[u8]>) {
        let set = label.map_or(Ok(()), |label| directory::set_label(file.as_fd(), label));
        self.note(set);
    }

    /// Sets the label of a directory.
    pub(super) fn label_directory(&mut self, made: &Directory) {
        let set = self.labels.other.as_deref().map_or(Ok(()), |label| made.set_label(label));
        self.note(set);
    }

    /// Sets the label of a file that other code has staged.
    pub(super) fn label_name(&mut self, name: &str) {
        if let Ok(Some(file)) = self.home.file(name) {
            let label = self.labels.program.as_deref();
            self.label(&file, label);
        }
    }

    fn note(&mut self, set: Result<()>) {
        if let Err(error) = set {
            let text = format!("{error:#}: if kubelet may not execute the driver, run restorecon on it");
            self.warning.get_or_insert(text);
        }
    }
}

/// Removes leftovers of killed installers. The caller holds the lock, so no process needs them.
pub(crate) fn clean(home: &Directory) -> Result<()> {
    for name in leftovers(home)? {
        home.remove_tree(name)?;
    }
    Ok(())
}

/// Reports whether an interrupted installer has brought this executable: it stopped between its two
/// renames, and the side file of the executable still has a hidden name.
pub(crate) fn is_half_replaced(home: &Directory, program: &Fingerprint) -> Result<bool> {
    let tells = |name: &OsString| {
        let content = home.read(name, SIZE_LIMIT).ok().flatten()?;
        let settings = side_file::parse(std::str::from_utf8(&content).ok()?).ok()?;
        Some(settings.hash? == program.hash)
    };
    Ok(leftovers(home)?.iter().any(|name| tells(name) == Some(true)))
}

/// Returns our hidden names in a directory.
pub(crate) fn leftovers(home: &Directory) -> Result<Vec<OsString>> {
    let ours = |name: &OsString| name.as_encoded_bytes().starts_with(LEFTOVER.as_bytes());
    Ok(home.names()?.into_iter().filter(ours).collect())
}
