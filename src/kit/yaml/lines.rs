//! Where the parts of a document are written.

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
    /// In the order of their keys.
    Members(Vec<(String, Lines)>),
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
            Below::Members(members) => members.iter().map(|(_, lines)| lines.last()).max(),
        };
        below.unwrap_or_default().max(self.line)
    }

    /// Of a member of a mapping.
    pub fn member(&self, key: &str) -> Option<&Self> {
        match &self.below {
            Below::Members(members) => members.iter().find(|(name, _)| name == key).map(|(_, lines)| lines),
            _ => None,
        }
    }

    /// A list, written in this line.
    pub(crate) fn of_entries(line: usize, entries: Vec<Self>) -> Self {
        Self { line, below: Below::Entries(entries) }
    }

    /// A mapping, written in this line.
    pub(crate) fn of_members(line: usize, members: Vec<(String, Self)>) -> Self {
        Self { line, below: Below::Members(members) }
    }

    /// Makes them those of a text that has so many lines before.
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

    /// Of a member of a mapping, to change it.
    pub(crate) fn member_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.below {
            Below::Members(members) => {
                members.iter_mut().find(|(name, _)| name == key).map(|(_, lines)| lines)
            }
            _ => None,
        }
    }

    /// Of an entry of a list, to change it.
    pub(crate) fn entry_mut(&mut self, index: usize) -> Option<&mut Self> {
        match &mut self.below {
            Below::Entries(entries) => entries.get_mut(index),
            _ => None,
        }
    }

    /// Forgets the entries of a list that are not kept.
    pub(crate) fn keep_entries(&mut self, kept: &[bool]) {
        if let Below::Entries(entries) = &mut self.below {
            let mut kept = kept.iter();
            entries.retain(|_| kept.next().copied().unwrap_or_default());
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
