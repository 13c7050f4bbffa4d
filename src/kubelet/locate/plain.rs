//! Reader for configuration files in the form that programs and careful people write, without a
//! YAML library: `flexvol` runs as root on every node and needs only a few keys.
//!
//! Reads JSON, and the part of YAML that can be understood line by line: one document of mappings
//! and lists in block style. Its scalars are plain or quoted and end on their line; so do its lists
//! and mappings in flow style. kubeadm, k3s, kops, OpenShift and all programs that write with
//! Kubernetes' own libraries stay within that part.
//!
//! Everything else is [`Unclear`] and never guessed: anchors, tags, merges, block scalars, complex
//! keys, escapes, tabs, a second document, a duplicate key. The result is the one of Kubernetes;
//! `tests/pure/yaml.rs` compares it with a complete YAML parser.

use crate::scalar;
use serde_json::{Map, Value};

/// Limit for the nesting of lists and mappings.
const DEPTH: usize = 32;
/// Limit for a key before its colon: in YAML a key is shorter than this.
const KEY: usize = 1000;

/// Place that cannot be understood with certainty, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unclear {
    /// Line number, counted from 1.
    pub line: usize,
    /// Reason, without any part of the text.
    pub why: &'static str,
}

/// Result for a part of one line: the reason of an error is known here, the line number is not.
type Part<T> = Result<T, &'static str>;

/// Reads the only document of a text; null if the text has no document.
pub fn read(text: &str) -> Result<Value, Unclear> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text)
            .map_err(|error| Unclear { line: error.line(), why: "it begins like JSON and is none" });
    }
    let mut reader = Reader { lines: lines(text)?, at: 0, depth: 0 };
    let Some(first) = reader.lines.first() else { return Ok(Value::Null) };
    if first.indent > 0 {
        return Err(first.unclear("the first line is indented"));
    }
    let value = reader.block(first.indent)?;
    match reader.lines.get(reader.at) {
        Some(line) => Err(line.unclear("it belongs to nothing above it")),
        None => Ok(value),
    }
}

/// A line that is neither blank nor a comment, without its indentation.
#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn unclear(self, why: &'static str) -> Unclear {
        Unclear { line: self.number, why }
    }

    /// Returns the text after the dash of a list's entry.
    fn entry(self) -> Option<&'a str> {
        self.text.strip_prefix('-').filter(|rest| rest.is_empty() || rest.starts_with(' '))
    }
}

fn lines(text: &str) -> Result<Vec<Line<'_>>, Unclear> {
    let mut lines = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let text = line.trim_start_matches(' ');
        let line = Line { number: index + 1, indent: line.len() - text.len(), text };
        let is_start = lines.is_empty() && line.indent == 0 && uncommented(text) == "---";
        if text.chars().any(is_odd) {
            return Err(line.unclear("it has a tab, or another character that YAML has rules for"));
        }
        if line.indent == 0 && (["---", "..."].iter().any(|mark| text.starts_with(mark)) && !is_start) {
            return Err(line.unclear("it begins or ends a document"));
        }
        if !uncommented(text).is_empty() && !is_start {
            lines.push(line);
        }
    }
    Ok(lines)
}

/// Reports tabs, and characters that some parsers take for a line break or skip.
fn is_odd(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Removes the comment and the blanks before it; only for a text whose quotes have ended.
fn uncommented(text: &str) -> &str {
    let end = if text.starts_with('#') { Some(0) } else { text.find(" #") };
    text[..end.unwrap_or(text.len())].trim_end_matches(' ')
}

struct Reader<'a> {
    lines: Vec<Line<'a>>,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    /// Returns the next line, if it is indented at least by `indent`.
    fn next(&self, indent: usize) -> Option<Line<'a>> {
        self.lines.get(self.at).copied().filter(|line| line.indent >= indent)
    }

    /// Reads the list or mapping that begins on the next line.
    fn block(&mut self, indent: usize) -> Result<Value, Unclear> {
        let Some(first) = self.next(indent) else { return Ok(Value::Null) };
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(first.unclear("too many levels"));
        }
        let value = if first.entry().is_some() { self.list(indent) } else { self.mapping(indent) };
        self.depth -= 1;
        value
    }

    fn mapping(&mut self, indent: usize) -> Result<Value, Unclear> {
        let mut map = Map::new();
        while let Some(line) = self.next(indent) {
            if line.indent > indent {
                return Err(line.unclear("it is indented more than what it could belong to"));
            }
            let (key, rest) = key(line.text).map_err(|why| line.unclear(why))?;
            self.at += 1;
            let value = self.value(line, rest, indent, true)?;
            if map.insert(key, value).is_some() {
                return Err(line.unclear("the key stands twice"));
            }
        }
        Ok(Value::Object(map))
    }

    fn list(&mut self, indent: usize) -> Result<Value, Unclear> {
        let mut list = Vec::new();
        while let Some(line) = self.next(indent) {
            if line.indent > indent {
                return Err(line.unclear("it is indented more than what it could belong to"));
            }
            // A list may stand right below its key, without indentation.
            let Some(rest) = line.entry() else { break };
            let text = rest.trim_start_matches(' ');
            let inner = Line { indent: indent + 1 + rest.len() - text.len(), text, ..line };
            list.push(if inner.entry().is_some() || key(text).is_ok() {
                // The rest of the line begins a list or mapping of its own, after the dash.
                self.lines[self.at] = inner;
                self.block(inner.indent)?
            } else {
                self.at += 1;
                self.value(line, text, indent, false)?
            });
        }
        Ok(Value::Array(list))
    }

    /// Reads the value after a colon or a dash, or on the lines below.
    fn value(&mut self, line: Line<'a>, rest: &'a str, indent: usize, keyed: bool) -> Result<Value, Unclear> {
        if !uncommented(rest).is_empty() {
            return whole(rest).map_err(|why| line.unclear(why));
        }
        match self.next(indent) {
            Some(below) if below.indent > indent => self.block(below.indent),
            Some(below) if keyed && below.entry().is_some() => self.block(indent),
            _ => Ok(Value::Null),
        }
    }
}

/// Reads a key; returns it and the text after its colon.
fn key(text: &str) -> Part<(String, &str)> {
    let (key, rest) = if let Some(found) = quoted(text)? {
        found
    } else {
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "-_./+".contains(c)));
        let (word, rest) = text.split_at(end.unwrap_or(text.len()));
        let is_word = word.starts_with(|c: char| c.is_ascii_alphanumeric());
        let is_text = scalar::plain(word).is_ok_and(|value| value.is_string());
        if !(is_word && is_text) {
            return Err("there is no plain key");
        }
        (word.to_owned(), rest)
    };
    match rest.strip_prefix(':') {
        Some(rest) if key.len() < KEY && (rest.is_empty() || rest.starts_with(' ')) => {
            Ok((key, rest.trim_start_matches(' ')))
        }
        _ => Err("there is no key with a colon and a blank behind it"),
    }
}

/// Reads the scalar, list or mapping that fills the rest of a line, except for a comment.
fn whole(text: &str) -> Part<Value> {
    let (value, rest) = if text.starts_with(['[', '{']) {
        flow(text, DEPTH)?
    } else if let Some((word, rest)) = quoted(text)? {
        (Value::String(word), rest)
    } else {
        return word(uncommented(text));
    };
    let ends = rest.is_empty() || rest.starts_with(' ') && uncommented(rest).is_empty();
    if ends { Ok(value) } else { Err("something follows a value") }
}

/// Reads a plain scalar.
fn word(text: &str) -> Part<Value> {
    let dashed = text.strip_prefix('-').is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    if dashed || text.starts_with(|c: char| "?:,[]{}#&*!|>'\"%@`".contains(c)) {
        return Err("a value begins with a character that YAML has rules for");
    }
    if text.contains(": ") || text.ends_with(':') {
        return Err("a value has a colon that could make it a key");
    }
    scalar::plain(text).map_err(|_| "a value is no text, and no number that JSON has")
}

/// Reads a scalar in quotes that end on this line; returns it and the text after it, or `None` if
/// the text does not begin with a quote.
fn quoted(text: &str) -> Part<Option<(String, &str)>> {
    let mut chars = text.chars();
    let Some(quote) = chars.next().filter(|c| ['"', '\''].contains(c)) else { return Ok(None) };
    let mut found = String::new();
    while let Some(c) = chars.next() {
        match c {
            '\\' if quote == '"' => match chars.next() {
                Some(escaped @ ('"' | '\\')) => found.push(escaped),
                _ => return Err("a value has an escape"),
            },
            c if c != quote => found.push(c),
            // In single quotes, a doubled quote stands for one quote.
            '\'' if chars.as_str().starts_with('\'') => found.extend(chars.next()),
            _ => return Ok(Some((found, chars.as_str()))),
        }
    }
    Err("quotes do not end on their line")
}

/// Reads a list or mapping in flow style; returns it and the text after it.
fn flow(text: &str, depth: usize) -> Part<(Value, &str)> {
    let depth = depth.checked_sub(1).ok_or("too many levels")?;
    if text.starts_with('[') {
        let mut list = Vec::new();
        let rest = items(text, ']', |text| {
            let (value, rest) = item(text, depth)?;
            list.push(value);
            Ok(rest)
        })?;
        return Ok((Value::Array(list), rest));
    }
    let mut map = Map::new();
    let rest = items(text, '}', |text| {
        let (key, text) = key(text)?;
        let (value, rest) = item(text, depth)?;
        map.insert(key, value).map_or(Ok(rest), |_| Err("a key stands twice"))
    })?;
    Ok((Value::Object(map), rest))
}

/// Reads items up to the closing bracket and returns the text after it. `take` reads one item and
/// returns the text after that item.
fn items<'a>(text: &'a str, close: char, mut take: impl FnMut(&'a str) -> Part<&'a str>) -> Part<&'a str> {
    let blank = |text: &'a str| text.trim_start_matches(' ');
    let mut rest = blank(&text[1..]);
    if !rest.starts_with(close) {
        rest = blank(take(rest)?);
        while let Some(next) = rest.strip_prefix(',') {
            rest = blank(take(blank(next))?);
        }
    }
    rest.strip_prefix(close).ok_or("a list or mapping does not end on its line")
}

/// Reads one value in a list or mapping in flow style; returns it and the text after it.
fn item(text: &str, depth: usize) -> Part<(Value, &str)> {
    if text.starts_with(['[', '{']) {
        return flow(text, depth);
    }
    if let Some((word, rest)) = quoted(text)? {
        return Ok((Value::String(word), rest));
    }
    let end = text.find([',', '[', ']', '{', '}']).ok_or("a list or mapping does not end on its line")?;
    let (plain, rest) = text.split_at(end);
    let plain = plain.trim_end_matches(' ');
    if plain.is_empty() || plain.contains([':', '#', '"', '\'']) {
        return Err("a value in a list or mapping is not plain");
    }
    Ok((word(plain)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn why(text: &str) -> (usize, &'static str) {
        match read(text) {
            Err(Unclear { line, why }) => (line, why),
            Ok(value) => panic!("{text:?} is {value}"),
        }
    }

    #[test]
    fn what_programs_write_is_read() {
        let text = "---\n# kubelet's\napiVersion: kubelet.config.k8s.io/v1beta1\nauthentication:\n  anonymous:\n    enabled: false\n\
                    clusterDNS:\n- 10.96.0.10\n- \"fd00::a\"   # both\nmaxPods: 110\nevictionHard: {memory.available: 100Mi, imagefs: '5%'}\n\
                    volumePluginDir: /a b/c#d # where\nnothing:\nlogging:\n  options:\n    json:\n      infoBufferSize: \"0\"\n  verbosity: 0\n";
        let expected = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "authentication": {"anonymous": {"enabled": false}},
            "clusterDNS": ["10.96.0.10", "fd00::a"],
            "maxPods": 110,
            "evictionHard": {"memory.available": "100Mi", "imagefs": "5%"},
            "volumePluginDir": "/a b/c#d",
            "nothing": null,
            "logging": {"options": {"json": {"infoBufferSize": "0"}}, "verbosity": 0},
        });
        assert_eq!(read(text), Ok(expected.clone()));
        assert_eq!(read(&text.replace('\n', "\r\n")), Ok(expected.clone()));
        assert_eq!(read(&expected.to_string()), Ok(expected));
        for empty in ["", "\n", "# nothing\n", "---\n"] {
            assert_eq!(read(empty), Ok(Value::Null), "{empty:?}");
        }
    }

    #[test]
    fn lists_may_begin_behind_a_dash_or_right_below_their_key() {
        let text = "spec:\n  containers:\n  - command:\n    - kube-controller-manager\n    - --v=2\n    args: []\n    name: a\n  - - x\n    - z\n  -\n    b: c\n";
        let containers = json!([{"command": ["kube-controller-manager", "--v=2"], "args": [], "name": "a"}, ["x", "z"], {"b": "c"}]);
        assert_eq!(read(text), Ok(json!({"spec": {"containers": containers}})));
    }

    #[test]
    fn quotes_are_taken_off() {
        let text = r##"{a: 'it''s', "b": "\"\\", c: ['\', "#"]}"##;
        let expected = json!({"x": {"a": "it's", "b": "\"\\", "c": ["\\", "#"]}});
        assert_eq!(read(&format!("x: {text} # ']\n")), Ok(expected));
    }

    #[test]
    fn what_is_not_sure_is_unclear() {
        for (line, text) in [
            (1, "a: &x b"),
            (1, "a: *x"),
            (1, "a: !!str b"),
            (2, "x: 1\n<<: b"),
            (1, "a: |\n  b: c"),
            (1, "a: >-\n  b"),
            (1, "? a\n: b"),
            (1, "[a]: b"),
            (1, "a b: c"),
            (1, "yes: c"),
            (1, "1: c"),
            (1, "a: \"b\\u0041\""),
            (1, "a: \"b\n  c\""),
            (1, "a: 'b\nvolumePluginDir: /c'"),
            (1, "a: [b,\nc]"),
            (1, "a: {\nvolumePluginDir: /c}"),
            (1, "{volumePluginDir: /c}"),
            (1, "a: [b] c"),
            (1, "a: [b, ]"),
            (1, "a: ['b' c]"),
            (1, "a: {b: c, b: d}"),
            (1, "a: {b:c}"),
            (1, "a: [b: c]"),
            (1, "a: 'b'#c"),
            (1, "a: b: c"),
            (1, "a: b:"),
            (1, "a: - b"),
            (1, "a: .inf"),
            (1, "a:\tb"),
            (1, "\u{feff}a: b"),
            (1, "a: b\u{2028}c: d"),
            (1, "a: b\rc: d"),
            (2, "a: b\n  c"),
            (2, "a:\n  b"),
            (3, "a:\n    b: c\n  d: e"),
            (2, "a: b\na: c"),
            (2, "a: b\n---\nc: d"),
            (2, "a: b\n..."),
            (1, "--- a"),
            (1, " ---"),
            (1, "%YAML 1.2"),
            (1, "  a: b"),
            (2, "- a\nb: c"),
            (4, "a:\n- b: c\n- d\n  e"),
            (1, "word"),
        ] {
            let (at, why) = why(text);
            assert_eq!(at, line, "{text:?}: {why}");
        }
        assert!(why(&"- ".repeat(100_000)).1.contains("levels"));
        assert!(why(&format!("a: {}", "[".repeat(100_000))).1.contains("levels"));
    }
}
