//! Resources of one target on the node besides its mount: private files in memory, a directory on
//! disk, and a control group. The target's name alone is enough to find them, so a lost record does
//! not matter.

use super::mount_pod;
use super::record;
use anyhow::{Context as _, Result, bail};
use flexvol_linux::fs::directory::{self, Directory};
use flexvol_linux::fs::files;
use flexvol_linux::fs::private::Private;
use flexvol_linux::proc::helper::{Invocation, Tools};
use flexvol_linux::proc::process;
use flexvol_linux::proc::scope::Scope;
use flexvol_model::mounter::{NOTE, NOTE_LIMIT};
use flexvol_model::paths;
use flexvol_model::plan::{Content, Piece, Word};
use flexvol_protocol::TargetPath;
use flexvol_protocol::secret::Secret;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit for a log, in bytes: only its beginning is read.
const LOG_LIMIT: u64 = 1 << 16;

/// Places of one target; each of them may be missing.
pub(super) struct Home {
    pub(super) private: Private,
    pub(super) scratch: PathBuf,
    pub(super) scope: Scope,
}

impl Home {
    pub(super) fn of(target: &TargetPath) -> Self {
        Self::named(&record::name_of(target))
    }

    /// Returns the places with this name.
    pub(super) fn named(name: &str) -> Self {
        Self {
            private: Private::at(paths::run(paths::DAEMONS).join(name)),
            scratch: Path::new(paths::SCRATCH).join(name),
            scope: scope(name),
        }
    }

    /// Returns the name that all places of the target have.
    pub(super) fn name(&self) -> String {
        self.scratch.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Notes which mount pod serves the target.
    pub(super) fn note(&self, pod: &str) -> Result<()> {
        self.private.write(NOTE, pod.as_bytes())
    }

    /// Gives the processes that serve the target `patience` to finish, then ends them.
    pub(super) fn end_processes(&self, patience: Duration) {
        if let Ok(Some(note)) = files::read_small(&self.private.file(NOTE), NOTE_LIMIT) {
            mount_pod::end(&note, &self.name(), patience);
        }
        self.scope.end(patience);
    }

    /// Returns the control group with a memory limit, in bytes.
    pub(super) fn limited_scope(&self, bytes: u64) -> Scope {
        scope(&self.name()).limited(bytes)
    }

    /// Reports whether any of the places is left.
    pub(super) fn is_left(&self) -> bool {
        self.private.is_left() || self.scratch.symlink_metadata().is_ok() || self.scope.is_left()
    }

    /// Ends the processes that serve the target after `patience`, and removes all places.
    pub(super) fn end(&self, patience: Duration) -> Result<()> {
        self.end_processes(patience);
        self.private.remove()?;
        match (Directory::open(Path::new(paths::SCRATCH))?, self.scratch.file_name()) {
            (Some(parent), Some(name)) => parent.remove_tree(name),
            _ => Ok(()),
        }
    }

    /// Makes the private directory, with a size limit if something is going to grow in it, and the
    /// directory on disk if requested.
    pub(super) fn make(&self, limited: bool, scratch: bool) -> Result<()> {
        if limited {
            self.private.make_limited()?;
        } else {
            self.private.make()?;
        }
        if scratch {
            directory::make_all(Path::new(paths::SCRATCH))?;
            directory::make_private(&self.scratch)?;
        }
        Ok(())
    }

    /// Returns the text of a log; empty if it is missing.
    pub(super) fn log(&self, name: &str) -> String {
        let bytes = files::beginning(&self.private.file(name), LOG_LIMIT).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(super) fn word(&self, word: &Word) -> Result<OsString> {
        let after = |before: &str, path: &Path| {
            let mut word = OsString::from(before);
            word.push(path);
            word
        };
        Ok(match word {
            Word::Text(text) => text.into(),
            Word::File { before, name } => after(before, &self.private.file(name)),
            Word::Scratch { before } => after(before, &self.scratch),
            Word::Secret { .. } | Word::Server(_) | Word::Program(_) => {
                bail!("a daemon's secrets are in its files")
            }
        })
    }

    /// Writes the private files. Returns the secrets in them.
    pub(super) fn write(
        &self,
        files: &BTreeMap<&'static str, Content>,
        tools: Tools<'_>,
    ) -> Result<Vec<Secret>> {
        let mut masked = Vec::new();
        for (name, content) in files {
            self.private.write(name, self.content(content, tools, &mut masked)?.expose())?;
        }
        Ok(masked)
    }

    /// Returns the content on this node, and adds its secrets to `masked`.
    pub(super) fn content(
        &self,
        content: &Content,
        tools: Tools<'_>,
        masked: &mut Vec<Secret>,
    ) -> Result<Secret> {
        let mut bytes = Vec::new();
        for piece in &content.0 {
            match piece {
                Piece::Text(text) => bytes.extend_from_slice(text.as_bytes()),
                Piece::Secret(secret) => {
                    masked.push(secret.clone());
                    bytes.extend_from_slice(secret.expose());
                }
                Piece::Printed(argv, secret) => {
                    let printed = printed(argv, secret, tools)?;
                    bytes.extend_from_slice(printed.expose());
                    masked.extend([secret.clone(), printed]);
                }
                Piece::File(name) => {
                    bytes.extend_from_slice(self.private.file(name).as_os_str().as_encoded_bytes());
                }
                Piece::Scratch => bytes.extend_from_slice(self.scratch.as_os_str().as_encoded_bytes()),
            }
        }
        Ok(Secret::new(bytes))
    }
}

/// Returns the control group. The PID namespace is in its name, because several nodes, each in its
/// container, may share the control groups.
fn scope(name: &str) -> Scope {
    Scope::named(&format!("{name}-{}", process::namespace()))
}

/// Returns what a program prints for a secret.
fn printed(argv: &[&str], secret: &Secret, tools: Tools<'_>) -> Result<Secret> {
    let (program, words) = argv.split_first().context("nothing to run")?;
    let asked = Invocation::of(program).args(words).stdin(secret.clone()).answering();
    let outcome = tools.run_to_success(asked)?;
    Ok(Secret::new(outcome.answer.trim().as_bytes().to_vec()))
}
