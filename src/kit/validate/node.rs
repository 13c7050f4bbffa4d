//! Values of a document, with the lines they are written in. Reading never fails: a value that is
//! missing or has another type reads as absent.

use crate::yaml::Lines;
use serde_json::Value;

/// Value of an absent node.
static ABSENT: Value = Value::Null;

/// One value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    value: &'a Value,
    lines: Option<&'a Lines>,
    line: usize,
}

impl<'a> Node<'a> {
    /// Returns the root node of a document.
    pub(super) fn root(value: &'a Value, lines: &'a Lines) -> Self {
        Self { value, lines: Some(lines), line: lines.line() }
    }

    pub(super) fn value(self) -> &'a Value {
        self.value
    }

    /// Returns the line of its key, or of the nearest value around it that has a line.
    pub(super) fn line(self) -> usize {
        self.line
    }

    /// Returns the line of the last key in it.
    pub(super) fn last_line(self) -> usize {
        self.lines.map_or(self.line, Lines::last)
    }

    pub(super) fn is_absent(self) -> bool {
        self.value.is_null()
    }

    /// Returns a member of a mapping.
    pub(super) fn get(self, key: &str) -> Self {
        let lines = self.lines.and_then(|lines| lines.member(key));
        self.below(self.value.get(key), lines)
    }

    /// Returns the value at the end of several keys.
    pub(super) fn at(self, keys: &[&str]) -> Self {
        keys.iter().fold(self, |node, key| node.get(key))
    }

    /// Returns an entry of a list.
    pub(super) fn entry(self, index: usize) -> Self {
        let lines = self.lines.and_then(|lines| lines.entry(index));
        self.below(self.value.get(index), lines)
    }

    fn below(self, value: Option<&'a Value>, lines: Option<&'a Lines>) -> Self {
        Self { value: value.unwrap_or(&ABSENT), lines, line: lines.map_or(self.line, Lines::line) }
    }

    /// Returns the members of a mapping.
    pub(super) fn members(self) -> impl Iterator<Item = (&'a str, Self)> {
        let members = self.value.as_object().into_iter().flatten();
        members.map(move |(key, _)| (key.as_str(), self.get(key)))
    }

    /// Returns the entries of a list.
    pub(super) fn entries(self) -> impl Iterator<Item = Self> {
        let count = self.value.as_array().map_or(0, Vec::len);
        (0..count).map(move |index| self.entry(index))
    }

    /// Returns its text, if it is not empty.
    pub(super) fn text(self) -> Option<&'a str> {
        self.value.as_str().filter(|text| !text.is_empty())
    }

    /// Returns the node at the end of a path such as `spec.volumes[0].name`, or the last node on
    /// this path that exists.
    pub(super) fn nearest(self, path: &str) -> Self {
        let mut node = self;
        for part in path.split(['.', '[', ']']).filter(|part| !part.is_empty()) {
            let next = part.parse().map_or_else(|_| node.get(part), |index| node.entry(index));
            if next.is_absent() {
                break;
            }
            node = next;
        }
        node
    }
}
