//! Lines in which the parts of a document are written.

/// Line of a value's key or, without a key, of the value itself, and the lines of all values below.
///
/// The content of an alias or a merge is written somewhere else and has no lines: its place is that
/// of the value around it.
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
    /// In the order of their keys.
    Members(Vec<(String, Lines)>),
}

impl Lines {
    pub(super) fn new(line: usize, below: Below) -> Self {
        Self { line, below }
    }

    /// Sets the lines below, once the value behind a key has been read.
    pub(super) fn set_below(&mut self, below: Below) {
        self.below = below;
    }

    /// Returns the line, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the largest line of the value and all values below it.
    pub fn last(&self) -> usize {
        let below = match &self.below {
            Below::Nothing => None,
            Below::Entries(entries) => entries.iter().map(Self::last).max(),
            Below::Members(members) => members.iter().map(|(_, lines)| lines.last()).max(),
        };
        below.unwrap_or_default().max(self.line)
    }

    /// Returns the lines of a member of a mapping.
    pub fn member(&self, key: &str) -> Option<&Self> {
        match &self.below {
            Below::Members(members) => members.iter().find(|(name, _)| name == key).map(|(_, lines)| lines),
            _ => None,
        }
    }

    /// Returns the lines of a list that is written in this line.
    pub(crate) fn of_entries(line: usize, entries: Vec<Self>) -> Self {
        Self { line, below: Below::Entries(entries) }
    }

    /// Returns the lines of a mapping that is written in this line.
    pub(crate) fn of_members(line: usize, members: Vec<(String, Self)>) -> Self {
        Self { line, below: Below::Members(members) }
    }

    /// Shifts all lines by the number of lines before this text.
    pub(crate) fn shift(&mut self, lines: usize) {
        self.line += lines;
        let below: &mut dyn Iterator<Item = &mut Self> = match &mut self.below {
            Below::Nothing => return,
            Below::Entries(entries) => &mut entries.iter_mut(),
            Below::Members(members) => &mut members.iter_mut().map(|(_, lines)| lines),
        };
        for each in below {
            each.shift(lines);
        }
    }

    /// Returns the lines of a member of a mapping, to change them.
    pub(crate) fn member_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.below {
            Below::Members(members) => {
                members.iter_mut().find(|(name, _)| name == key).map(|(_, lines)| lines)
            }
            _ => None,
        }
    }

    /// Returns the lines of an entry of a list, to change them.
    pub(crate) fn entry_mut(&mut self, index: usize) -> Option<&mut Self> {
        match &mut self.below {
            Below::Entries(entries) => entries.get_mut(index),
            _ => None,
        }
    }

    /// Removes the entries of a list that are not kept.
    pub(crate) fn keep_entries(&mut self, kept: &[bool]) {
        if let Below::Entries(entries) = &mut self.below {
            let mut kept = kept.iter();
            entries.retain(|_| kept.next().copied().unwrap_or_default());
        }
    }

    /// Returns the lines of an entry of a list.
    pub fn entry(&self, index: usize) -> Option<&Self> {
        match &self.below {
            Below::Entries(entries) => entries.get(index),
            _ => None,
        }
    }
}
