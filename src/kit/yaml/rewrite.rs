//! Rewrites a YAML text with changed documents: the rest keeps its comments, order and style.
//!
//! ```text
//! spec:                                       spec:
//!   # why                                       # why
//!   capacity: {storage: 1Gi}          ─▶        capacity: {storage: 1Gi}
//!   flexVolume:                                 csi:
//!     driver: fstab/cifs                          driver: "cifs.fstab.flex.flexvol.dev"
//! ```
//!
//! In mappings and lists in block style, only lines are replaced; a mapping in flow style, or one
//! with anchors, is written again as a whole. The result is parsed: if it is not as wanted, the
//! changed documents are written again, and their comments are lost.

use super::{Lines, parse};
use flexvol_protocol::failure::Failure;
use flexvol_protocol::ordered::sort;
use flexvol_terminal::emit;
use serde_json::{Map, Value, json};
use std::ops::Range;

/// Returns a text with other documents in place of those that [`super::parse_with_lines`] found in
/// it. `None` stands for an unchanged document.
pub fn rewrite(text: &str, before: &[(Value, Lines)], after: &[Option<Value>]) -> Result<String, Failure> {
    let mut wanted = Vec::new();
    for ((old, _), new) in before.iter().zip(after) {
        wanted.push(new.as_ref().unwrap_or(old).clone());
    }
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    for is_whole in [false, true] {
        let mut editor = Editor { lines: &lines, changes: Vec::new() };
        for ((old, at), new) in before.iter().zip(&wanted) {
            if old != new && (is_whole || editor.value(at, old, new, editor.end_of_document(at)).is_none()) {
                editor.whole(at, new);
            }
        }
        let text = editor.text();
        if parse(&text).is_ok_and(|found| found == wanted) {
            return Ok(text);
        }
    }
    Err(Failure::options("the result cannot be written as YAML: give each object a file of its own"))
}

struct Editor<'a> {
    /// Lines, with their line breaks.
    lines: &'a [&'a str],
    /// Ranges of lines, counted from 0, and their replacements.
    changes: Vec<(Range<usize>, String)>,
}

/// Key of a mapping in block style, its place, and the lines up to the next key.
type Member<'a> = (&'a str, &'a Lines, Range<usize>);

impl Editor<'_> {
    /// Writes a document again as a whole, as YAML or JSON like before.
    fn whole(&mut self, at: &Lines, new: &Value) {
        let start = at.line() - 1;
        let end = start + 1 + self.trimmed(start + 1..self.end_of_document(at), 0);
        let line = self.lines[start];
        let marker = if line.starts_with("---") { "---\n" } else { "" };
        let is_json = line.trim_start_matches("---").trim_start().starts_with(['{', '[']);
        let text = if is_json { format!("{new:#}\n") } else { emit::document(new) };
        self.changes.push((start..end, marker.to_owned() + &text));
    }

    fn end_of_document(&self, at: &Lines) -> usize {
        let is_end = |line: &&str| line.starts_with("---") || line.starts_with("...");
        let length = self.lines[at.line()..].iter().take_while(|line| !is_end(line)).count();
        at.line() + length
    }

    /// Turns the old value into the new one; `None` if it has to be written as a whole.
    fn value(&mut self, at: &Lines, old: &Value, new: &Value, end: usize) -> Option<()> {
        let before = self.changes.len();
        let done = match (old, new) {
            (Value::Object(old), Value::Object(new)) => self.mapping(at, old, new, end),
            (Value::Array(old), Value::Array(new)) if old.len() == new.len() => self.list(at, old, new, end),
            _ => None,
        };
        if done.is_none() {
            self.changes.truncate(before);
        }
        done
    }

    fn list(&mut self, at: &Lines, old: &[Value], new: &[Value], end: usize) -> Option<()> {
        for (index, (old, new)) in old.iter().zip(new).enumerate() {
            if old != new {
                let next = at.entry(index + 1).map_or(end, |next| next.line() - 1);
                self.value(at.entry(index)?, old, new, next)?;
            }
        }
        Some(())
    }

    fn mapping(
        &mut self,
        at: &Lines,
        old: &Map<String, Value>,
        new: &Map<String, Value>,
        end: usize,
    ) -> Option<()> {
        let (indent, members) = self.block(at, old, end)?;
        // New members go to the place of the first removed one, or after the last one.
        let mut added = Map::new();
        for (key, value) in new {
            if !old.contains_key(key) {
                added.insert(key.clone(), value.clone());
            }
        }
        let mut end = end;
        for (key, at, lines) in members {
            end = lines.end;
            let text = match new.get(key) {
                Some(value) if *value == old[key] => continue,
                Some(value) if self.value(at, &old[key], value, lines.end).is_some() => continue,
                Some(value) => json!({ key: value }),
                None => Value::Object(std::mem::take(&mut added)),
            };
            let text = self.members(indent, lines.start, &text)?;
            self.changes.push((lines, text));
        }
        if !added.is_empty() {
            self.changes.push((end..end, indented(&Value::Object(added), indent)));
        }
        (!new.is_empty()).then_some(())
    }

    /// Returns the indentation of its keys, and their places in the order of the text; `None` if a
    /// key has no line of its own.
    fn block<'b>(
        &self,
        at: &'b Lines,
        map: &'b Map<String, Value>,
        end: usize,
    ) -> Option<(usize, Vec<Member<'b>>)> {
        let mut members = Vec::new();
        for key in map.keys() {
            members.push((key.as_str(), at.member(key).filter(|at| at.line() > 0)?, 0..0));
        }
        sort(&mut members, |(_, at, _)| at.line());
        let indent = start(self.lines.get(members.first()?.1.line() - 1)?);
        let mut end = end;
        for index in (0..members.len()).rev() {
            let (key, at, lines) = &mut members[index];
            let first = at.line() - 1;
            let line = *self.lines.get(first)?;
            let is_at_start = if index == 0 { start(line) } else { blanks(line) } == indent;
            if first >= end || !is_at_start || !is_key(line.get(indent..)?, key) {
                return None;
            }
            *lines = first..first + 1 + self.trimmed(first + 1..end, indent);
            end = first;
        }
        Some((indent, members))
    }

    /// Returns how many of the lines belong to the text before them. Comments that are not indented
    /// further than its key belong to the text after them.
    fn trimmed(&self, lines: Range<usize>, indent: usize) -> usize {
        let is_foreign = |line: &&&str| {
            let text = line.trim_start();
            text.is_empty() || text.starts_with('#') && blanks(line) <= indent
        };
        let own = &self.lines[lines];
        own.len() - own.iter().rev().take_while(is_foreign).count()
    }

    /// Returns members in place of one; `None` if the first member of a list's entry would vanish.
    fn members(&self, indent: usize, line: usize, members: &Value) -> Option<String> {
        let before = &self.lines[line][..indent];
        let text = indented(members, indent);
        match text.get(indent..).filter(|_| !text.is_empty()) {
            Some(behind) => Some(before.to_owned() + behind),
            None => before.trim().is_empty().then_some(text),
        }
    }

    /// Returns the text with all changes.
    fn text(&mut self) -> String {
        sort(&mut self.changes, |(lines, _)| (lines.start, lines.end));
        let (mut text, mut at) = (String::new(), 0);
        let end = (self.lines.len()..self.lines.len(), String::new());
        self.changes.push(end);
        for (lines, new) in &self.changes {
            for line in &self.lines[at.min(lines.start)..lines.start] {
                text.push_str(line);
            }
            if !new.is_empty() && !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(new);
            at = lines.end;
        }
        text
    }
}

/// Returns the members of a mapping, each line with this indentation; no text for an empty mapping.
fn indented(members: &Value, indent: usize) -> String {
    let mut text = String::new();
    if *members != json!({}) {
        for line in emit::document(members).lines() {
            text.extend([&" ".repeat(indent), line, "\n"]);
        }
    }
    text
}

fn blanks(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Returns the column of the first key of a line, after the dashes of lists.
fn start(line: &str) -> usize {
    let mut at = blanks(line);
    while line[at..].starts_with("- ") {
        at += 1 + blanks(&line[at + 1..]);
    }
    at
}

fn is_key(text: &str, key: &str) -> bool {
    let quoted = |quote: char| text.strip_prefix(quote)?.strip_prefix(key)?.strip_prefix(quote);
    let rest = text.strip_prefix(key).or_else(|| quoted('"')).or_else(|| quoted('\''));
    let behind = rest.and_then(|rest| rest.trim_start_matches(' ').strip_prefix(':'));
    behind.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\n', '\r', '\t']))
}

#[cfg(test)]
mod tests {
    use super::super::parse_with_lines;
    use super::*;
    use proptest::prelude::*;

    /// Rewrites the first document with a value at each path; `null` removes it.
    fn changed(text: &str, changes: &[(&str, Value)]) -> String {
        let before = parse_with_lines(text).unwrap();
        let mut after = before[0].0.clone();
        for (path, value) in changes {
            let (parent, key) = path.rsplit_once('/').unwrap();
            let fields = after.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            match value {
                Value::Null => drop(fields.remove(key)),
                value => drop(fields.insert(key.to_owned(), value.clone())),
            }
        }
        let all: Vec<_> = [Some(after)].into_iter().chain(before.iter().skip(1).map(|_| None)).collect();
        rewrite(text, &before, &all).unwrap()
    }

    #[test]
    fn comments_order_and_style_of_the_rest_stay() {
        let text = "# head\nkind: A\nspec:\n  # why\n  b: {x: 1}   # flow\n  gone:\n    - 1\n\n    # inside\n    - 2\n\n  # of a\n  a: 'x'\n# tail\n---\nkind: B # other\n";
        let expected = "# head\nkind: A\nspec:\n  # why\n  b: {x: 1}   # flow\n  new:\n    k: \"v\"\n\n  # of a\n  a: 'x'\n# tail\n---\nkind: B # other\n";
        assert_eq!(changed(text, &[("/spec/gone", json!(null)), ("/spec/new", json!({"k": "v"}))]), expected);
        assert_eq!(changed("a: 1", &[("/b", json!(2))]), "a: 1\nb: 2\n");
        assert_eq!(changed("a: 1\nb:\n- x\nc: 3\n", &[("/b", json!(null))]), "a: 1\nc: 3\n");
        assert_eq!(changed("a:\n  b: 1\n", &[("/a/b", json!(null))]), "a: {}\n");
    }

    #[test]
    fn entries_of_lists_are_changed_in_place() {
        let text = "items:\n- kind: A # one\n  x: 1\n- x: 2 # two\n  w: 3\n-\n  x: 4\n";
        let before = parse_with_lines(text).unwrap();
        let after = |index: usize, entry: Value| {
            let mut all = before[0].0.clone();
            all["items"][index] = entry;
            rewrite(text, &before, &[Some(all)]).unwrap()
        };
        assert_eq!(after(0, json!({"kind": "A", "z": 1})), text.replace("x: 1", "z: 1"));
        assert_eq!(after(1, json!({"z": 2, "w": 3})), text.replace("x: 2 # two", "z: 2"));
        assert_eq!(after(2, json!({"x": 5})), text.replace("x: 4", "x: 5"));
        // The first key of an entry has the dash before it.
        assert!(after(1, json!({"w": 3})).starts_with("items:\n  - kind: \"A\"\n"));
    }

    #[test]
    fn what_cannot_be_changed_line_by_line_is_written_anew() {
        assert_eq!(
            changed("# a\n{a: 1, b: 2}\n# z\n---\nc: 1 # c\n", &[("/a", json!(3))]),
            "# a\n{\n  \"a\": 3,\n  \"b\": 2\n}\n# z\n---\nc: 1 # c\n"
        );
        let anchors = "a: &x\n  k: 1\nb: *x\n";
        assert_eq!(changed(anchors, &[("/a", json!(null))]), "b:\n  k: 1\n");
        let merged = "base: &b {k: 1}\na:\n  <<: *b\n  l: 2\n";
        assert_eq!(changed(merged, &[("/a/k", json!(3))]), "base: &b {k: 1}\na:\n  k: 3\n  l: 2\n");
        assert_eq!(changed("--- {a: 1}\n", &[("/a", json!(2))]), "---\n{\n  \"a\": 2\n}\n");
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(json!(1)), "[a-z#: \n'\"-]{0,6}".prop_map(Value::from), Just(json!(null))];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-e]", inner, 0..4).prop_map(|all| json!(all)),
            ]
        })
    }

    proptest! {
        /// Rewrites values in any style: the text must read as wanted afterwards.
        #[test]
        fn what_is_written_is_what_is_wanted(old in values(), new in values(), style in 0..3, comments: bool) {
            let (old, new) = (json!({"k": old, "z": 1}), json!({"k": new, "y": 2}));
            let text = match style {
                0 => emit::document(&old),
                1 => old.to_string() + "\n",
                _ => format!("{old:#}\n"),
            };
            let text = if comments && style == 0 { text.replace('\n', " # note\n# line\n") } else { text };
            let text = format!("{text}---\nother: 1 # kept\n");
            let before = parse_with_lines(&text).unwrap();
            let after = rewrite(&text, &before, &[Some(new.clone()), None]).unwrap();
            prop_assert_eq!(parse(&after).unwrap(), vec![new, json!({"other": 1})]);
            prop_assert!(after.ends_with("---\nother: 1 # kept\n"), "{}", after);
            // Unchanged documents must stay as they are.
            prop_assert_eq!(rewrite(&text, &before, &[Some(old), None]).unwrap(), text);
        }
    }
}
