//! Where the parts of a document are written.

use std::collections::BTreeMap;

/// The line of a value's key or, where it has none, of the value itself; and the same of all below
/// it.
///
/// What an alias or a merge brings is written somewhere else and has no lines: its place is that of
/// whatever holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    line: usize,
    below: Below,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Below {
    #[default]
    Nothing,
    Entries(Vec<Lines>),
    Members(BTreeMap<String, Lines>),
}

impl Lines {
    pub(super) fn new(line: usize, below: Below) -> Self {
        Self { line, below }
    }

    /// Once the value behind a key has been read.
    pub(super) fn set_below(&mut self, below: Below) {
        self.below = below;
    }

    /// Counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The largest of it and of all below it.
    pub fn last(&self) -> usize {
        let below = match &self.below {
            Below::Nothing => None,
            Below::Entries(entries) => entries.iter().map(Self::last).max(),
            Below::Members(members) => members.values().map(Self::last).max(),
        };
        below.unwrap_or_default().max(self.line)
    }

    /// Of a member of a mapping.
    pub fn member(&self, key: &str) -> Option<&Self> {
        match &self.below {
            Below::Members(members) => members.get(key),
            _ => None,
        }
    }

    /// Of an entry of a list.
    pub fn entry(&self, index: usize) -> Option<&Self> {
        match &self.below {
            Below::Entries(entries) => entries.get(index),
            _ => None,
        }
    }
}
