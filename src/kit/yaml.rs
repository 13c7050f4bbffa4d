//! Reads YAML as Kubernetes does: every document becomes a tree of JSON values.
//!
//! Meant for files that Kubernetes reads, too: kubelet's configuration, pods, volumes and secrets.
//! Kubernetes turns them into JSON first (sigs.k8s.io/yaml), with the plain scalars of YAML 1.1:
//! `yes`, `on`, `y` and `0755` are not strings there, and the API server refuses a driver's option
//! that is not a string. So they are not strings here.
//!
//! ```
//! let documents = flexvol_kit::yaml::parse("a: yes\n---\nb: [0755, '0755', 1e3, 1.5, ~]\n").unwrap();
//! assert_eq!(documents[0], serde_json::json!({"a": true}));
//! assert_eq!(documents[1], serde_json::json!({"b": [493, "0755", 1000, 1.5, null]}));
//! ```
//!
//! Consequences:
//!
//! * a merge (`<<`) applies where it stands, and overrides what stands before it;
//! * a key that is a number or a boolean becomes its text, a key that is null or a list is an
//!   error;
//! * dates stay strings; `.inf`, `.nan` and `!!binary` have no JSON form and are errors.
//!
//! [`parse_with_lines`] also returns the lines of all parts, for callers that report the place of a
//! mistake.
//!
//! It is stricter than Kubernetes in one point: a key that stands twice in a mapping is an error,
//! where some programs of Kubernetes silently take the last one. Its input is limited to [`DEPTH`]
//! levels, and to [`NODES`] nodes after all aliases.

mod lines;
mod rewrite;
mod scalar;

pub use lines::Lines;
pub use rewrite::rewrite;

use flexvol_protocol::failure::Failure;
use lines::Below;
use saphyr_parser::{Event, Marker, Parser, ScanError};
use serde_json::{Map, Value};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// Result whose error has a place in the text.
type Result<T, E = Mistake> = std::result::Result<T, E>;

/// Limit for nested lists and mappings; `serde_json` has the same limit.
pub const DEPTH: usize = 128;

/// Limit for the values of a text; each alias counts as everything that it repeats.
pub const NODES: usize = 100_000;

/// Bytes of a repeated text that count as one value.
const REPEATED: usize = 256;

/// Reads every document of a text; documents without content are skipped.
///
/// JSON is YAML. The error names line and column, and repeats nothing of the text, which may be a
/// Secret.
pub fn parse(text: &str) -> Result<Vec<Value>, Failure> {
    Ok(parse_with_lines(text)?.into_iter().map(|(document, _)| document).collect())
}

/// Reads every document like [`parse`], with the lines of its parts.
pub fn parse_with_lines(text: &str) -> Result<Vec<(Value, Lines)>> {
    let mut parser = Parser::new_from_str(text);
    let mut tree = Tree::default();
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| in_syntax(&error))?;
        tree.take(event, At(span.start))?;
    }
    Ok(tree.documents)
}

/// Error in a text: not YAML, or YAML without a JSON form, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line, counted from 1.
    pub line: usize,
    /// Column, counted from 1.
    pub column: usize,
    /// Description, which contains nothing of the text.
    pub what: String,
}

impl From<Mistake> for Failure {
    fn from(Mistake { line, column, what }: Mistake) -> Self {
        Self::options(format!("not valid YAML: line {line}, column {column}: {what}"))
    }
}

fn in_syntax(error: &ScanError) -> Mistake {
    // The part after a colon is a character of the text.
    let what = error.info().split(": ").next().unwrap_or_default();
    At(*error.marker()).mistake(what)
}

/// Place in the text.
#[derive(Clone, Copy)]
struct At(Marker);

impl At {
    fn mistake(self, what: &str) -> Mistake {
        Mistake { line: self.0.line(), column: self.0.col() + 1, what: what.to_owned() }
    }
}

/// Documents so far, and the path from the root of the current one to the parser's position.
#[derive(Default)]
struct Tree {
    documents: Vec<(Value, Lines)>,
    open: Vec<Open>,
    anchors: HashMap<usize, Value>,
    nodes: usize,
}

/// List or mapping whose end has not been read.
struct Open {
    node: YamlNode,
    anchor: usize,
    at: At,
}

enum YamlNode {
    List {
        list: Vec<Value>,
        lines: Vec<Lines>,
    },
    /// `lines` has the keys that are written here, but not those that a merge brings.
    Mapping {
        map: Map<String, Value>,
        key: Option<Key>,
        lines: BTreeMap<String, Lines>,
    },
}

/// Part before the colon.
enum Key {
    Named(String),
    Merge,
}

impl Tree {
    fn take(&mut self, event: Event<'_>, at: At) -> Result<()> {
        match event {
            Event::SequenceStart(anchor, _) => {
                self.enter(YamlNode::List { list: Vec::new(), lines: Vec::new() }, anchor, at)
            }
            Event::MappingStart(anchor, _) => {
                let node = YamlNode::Mapping { map: Map::new(), key: None, lines: BTreeMap::new() };
                self.enter(node, anchor, at)
            }
            Event::SequenceEnd | Event::MappingEnd => self.leave(),
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, at)?;
                if tag.is_none() && scalar::is_plain(style) && text == "<<" && self.wants_key() {
                    return self.set_key(Key::Merge, at);
                }
                let value = scalar::resolve(&text, style, tag.as_deref()).map_err(|what| at.mistake(what))?;
                self.add(value, Below::Nothing, anchor, at)
            }
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor);
                let value = value.ok_or_else(|| at.mistake("the alias names what it is part of"))?.clone();
                self.count_all(&value, self.open.len(), at)?;
                // The repeated value is written elsewhere; only the alias is here.
                self.add(value, Below::Nothing, 0, at)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn enter(&mut self, node: YamlNode, anchor: usize, at: At) -> Result<()> {
        if self.wants_key() {
            return Err(at.mistake("a key is a list or a mapping: JSON knows only text"));
        }
        self.count(1, at)?;
        self.open.push(Open { node, anchor, at });
        if self.open.len() > DEPTH { Err(too_deep(at)) } else { Ok(()) }
    }

    fn leave(&mut self) -> Result<()> {
        let Some(Open { node, anchor, at }) = self.open.pop() else { return Ok(()) };
        let (value, below) = match node {
            YamlNode::List { list, lines } => (Value::Array(list), Below::Entries(lines)),
            YamlNode::Mapping { map, lines, .. } => {
                (Value::Object(map), Below::Members(lines.into_iter().collect()))
            }
        };
        self.add(value, below, anchor, at)
    }

    /// Adds a finished value: a document, an entry, a key or the value of a key.
    fn add(&mut self, value: Value, below: Below, anchor: usize, at: At) -> Result<()> {
        if anchor > 0 {
            // It is kept once more for later aliases.
            self.count_all(&value, 0, at)?;
            self.anchors.insert(anchor, value.clone());
        }
        if self.wants_key() {
            let name = scalar::key(&value).map_err(|what| at.mistake(what))?;
            return self.set_key(Key::Named(name), at);
        }
        match self.open.last_mut().map(|open| &mut open.node) {
            None if value.is_null() => {}
            None => self.documents.push((value, Lines::new(at.0.line(), below))),
            Some(YamlNode::List { list, lines }) => {
                list.push(value);
                lines.push(Lines::new(at.0.line(), below));
            }
            Some(YamlNode::Mapping { map, key, lines }) => match key.take() {
                Some(Key::Merge) => merge(map, value, at)?,
                Some(Key::Named(name)) => {
                    if let Some(lines) = lines.get_mut(&name) {
                        lines.set_below(below);
                    }
                    map.insert(name, value);
                }
                None => {}
            },
        }
        Ok(())
    }

    fn wants_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { node: YamlNode::Mapping { key: None, .. }, .. }))
    }

    fn set_key(&mut self, new: Key, at: At) -> Result<()> {
        let Some(Open { node: YamlNode::Mapping { key, lines, .. }, .. }) = self.open.last_mut() else {
            return Ok(());
        };
        if let Key::Named(name) = &new {
            match lines.entry(name.clone()) {
                Entry::Vacant(place) => drop(place.insert(Lines::new(at.0.line(), Below::Nothing))),
                Entry::Occupied(_) => {
                    return Err(at.mistake("a key stands twice in one mapping: remove one"));
                }
            }
        }
        *key = Some(new);
        Ok(())
    }

    fn count(&mut self, more: usize, at: At) -> Result<()> {
        self.nodes += more;
        if self.nodes > NODES {
            return Err(at.mistake(&format!("more than {NODES} values, those behind aliases included")));
        }
        Ok(())
    }

    /// Counts everything in a value that is about to be repeated `depth` levels down.
    fn count_all(&mut self, value: &Value, depth: usize, at: At) -> Result<()> {
        let length = value.as_str().map_or(0, str::len);
        self.count(1 + length / REPEATED, at)?;
        match value {
            Value::Array(_) | Value::Object(_) if depth >= DEPTH => Err(too_deep(at)),
            Value::Array(list) => list.iter().try_for_each(|value| self.count_all(value, depth + 1, at)),
            Value::Object(map) => map.values().try_for_each(|value| self.count_all(value, depth + 1, at)),
            _ => Ok(()),
        }
    }
}

fn too_deep(at: At) -> Mistake {
    at.mistake(&format!("more than {DEPTH} levels of lists and mappings"))
}

/// Merges the value of `<<` over the existing members: a mapping, or a list of mappings in which
/// the first one wins.
fn merge(map: &mut Map<String, Value>, value: Value, at: At) -> Result<()> {
    let several = match value {
        Value::Array(list) => list,
        one => vec![one],
    };
    for one in several.into_iter().rev() {
        let Value::Object(one) = one else {
            return Err(at.mistake("what << merges is no mapping"));
        };
        map.extend(one);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn one(text: &str) -> Value {
        let mut documents = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(documents.len(), 1, "{text}");
        documents.remove(0)
    }

    /// Returns the line of a value; 0 if it has no line of its own.
    fn line(text: &str, keys: &[&str]) -> usize {
        let documents = parse_with_lines(text).unwrap();
        let step = |lines: Option<&Lines>, key: &&str| match key.parse() {
            Ok(index) => lines?.entry(index).cloned(),
            Err(_) => lines?.member(key).cloned(),
        };
        let first = documents.first().map(|(_, lines)| lines.clone());
        keys.iter().fold(first, |lines, key| step(lines.as_ref(), key)).map_or(0, |lines| lines.line())
    }

    #[test]
    fn every_key_and_entry_has_its_line() {
        let text = "# a remark\nkind: Pod\nspec:\n  volumes:\n  - name: a\n    options: {a: 1,\n      b: 2}\n  -\n    name: b\n\
                    text: |\n  one\n  two\nlast: 1\n";
        for (keys, expected) in [
            (&["kind"][..], 2),
            (&["spec", "volumes"], 4),
            (&["spec", "volumes", "0"], 5),
            (&["spec", "volumes", "0", "options"], 6),
            (&["spec", "volumes", "0", "options", "b"], 7),
            (&["spec", "volumes", "1", "name"], 9),
            (&["text"], 10),
            (&["last"], 13),
            (&["nothing"], 0),
        ] {
            assert_eq!(line(text, keys), expected, "{keys:?}");
        }
        let second = parse_with_lines("a: 1\n---\nb: 1\n").unwrap();
        assert_eq!(second[1].1.line(), 3);
    }

    #[test]
    fn what_an_alias_repeats_has_no_line_but_the_alias_s() {
        let text = "base: &b\n  a: 1\nother: *b\nmerged:\n  <<: *b\n  c: 1\n";
        assert_eq!(line(text, &["base", "a"]), 2);
        assert_eq!((line(text, &["other"]), line(text, &["other", "a"])), (3, 0));
        assert_eq!((line(text, &["merged", "a"]), line(text, &["merged", "c"])), (0, 6));
    }

    fn refused(text: &str) -> String {
        match parse(text) {
            Err(error) => error.message(),
            Ok(value) => panic!("{text}: {value:?}"),
        }
    }

    #[test]
    fn plain_scalars_are_those_of_yaml_1_1() {
        for (text, value) in [
            ("y", json!(true)),
            ("Yes", json!(true)),
            ("ON", json!(true)),
            ("true", json!(true)),
            ("n", json!(false)),
            ("off", json!(false)),
            ("yEs", json!("yEs")),
            ("~", json!(null)),
            ("Null", json!(null)),
            ("0755", json!(493)),
            ("0o755", json!(493)),
            ("0x1F", json!(31)),
            ("-0x1F", json!(-31)),
            ("0b101", json!(5)),
            ("-0b101", json!(-5)),
            ("+12", json!(12)),
            ("-0", json!(0)),
            ("1_000", json!(1000)),
            ("08", json!(8)),
            ("1e3", json!(1000)),
            ("1.50", json!(1.5)),
            (".5", json!(0.5)),
            ("5.", json!(5)),
            ("1_0.5", json!(10.5)),
            ("18446744073709551615", json!(u64::MAX)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("99999999999999999999", json!(99_999_999_999_999_999_999.0_f64)),
            ("1e400", json!("1e400")),
            ("1:30", json!("1:30")),
            ("2001-12-14", json!("2001-12-14")),
            ("2001-12-14t21:59:43.10-05:00", json!("2001-12-14t21:59:43.10-05:00")),
            ("0x", json!("0x")),
            ("0xg", json!("0xg")),
            ("1e", json!("1e")),
            ("--1", json!("--1")),
            ("+", json!("+")),
            (".", json!(".")),
            ("1.2.3.4", json!("1.2.3.4")),
            ("10Gi", json!("10Gi")),
            ("<<", json!("<<")),
        ] {
            assert_eq!(one(&format!("- {text}"))[0], value, "{text}");
            assert_eq!(one(&format!("- '{text}'"))[0], json!(text), "{text}");
            assert_eq!(one(&format!("- \"{text}\""))[0], json!(text), "{text}");
        }
        assert_eq!(one("a:\nb: |\n  0755\n"), json!({"a": null, "b": "0755\n"}));
    }

    #[test]
    fn tags_decide() {
        let text =
            "[!!str 5, !!int '5', !!float 5, !!bool 'yes', !!null '', ! 5, !mine 5, !!timestamp 2001-1-1]";
        assert_eq!(one(text), json!(["5", 5, 5, true, null, "5", "5", "2001-1-1"]));
        assert!(refused("!!int five").contains("line 1, column"), "{}", refused("!!int five"));
        assert!(refused("!!binary aGk=").contains("!!binary"));
        assert_eq!(one("!!map {a: !!seq [1]}"), json!({"a": [1]}));
    }

    #[test]
    fn what_json_cannot_say_is_an_error() {
        for text in ["a: .inf", "a: -.INF", "a: .nan", "~: 1", "? [a]\n: 1", "? {a: b}\n: 1", ".inf: 1"] {
            assert!(refused(text).starts_with("not valid YAML: line 1, column "), "{text}");
        }
    }

    #[test]
    fn keys_become_text() {
        let text = "1: a\n0755: b\nyes: c\n1.5: d\n1e3: e\n'': f\n";
        assert_eq!(one(text), json!({"1": "a", "493": "b", "true": "c", "1.5": "d", "1000": "e", "": "f"}));
    }

    #[test]
    fn a_key_stands_once() {
        assert_eq!(
            refused("a: 1\nb: 2\na: 3\n"),
            "not valid YAML: line 3, column 1: a key stands twice in one mapping: remove one"
        );
        assert!(refused("{\"a\": 1, \"a\": 2}").contains("twice"));
        assert!(refused("1: a\n'1': b\n").contains("twice"));
        assert_eq!(one("- {a: 1}\n- {a: 2}\n"), json!([{"a": 1}, {"a": 2}]));
    }

    #[test]
    fn a_merge_writes_over_what_stands_before_it() {
        let text = "base: &b {a: 1, b: 2}\nother: &o {b: 3, c: 4}\nlate: {<<: *b, b: 9}\nearly: {b: 9, <<: *b}\n\
                    list: {<<: [*b, *o]}\n";
        let tree = one(text);
        assert_eq!(tree["late"], json!({"a": 1, "b": 9}));
        assert_eq!(tree["early"], json!({"a": 1, "b": 2}));
        assert_eq!(tree["list"], json!({"a": 1, "b": 2, "c": 4}));
        assert_eq!(one("'<<': 1"), json!({"<<": 1}));
        assert!(refused("<<: 1").contains("no mapping"));
        assert!(refused("<<: [{a: 1}, 2]").contains("no mapping"));
    }

    #[test]
    fn documents_without_content_are_left_out() {
        let text = "# only a remark\n---\n---\na: 1\n...\n---\n# nothing\n---\n- b\n---\n";
        assert_eq!(parse(text).unwrap(), [json!({"a": 1}), json!(["b"])]);
        assert!(parse("").unwrap().is_empty());
        assert_eq!(parse("\u{feff}a: 1\r\nb: 2\r\n").unwrap(), [json!({"a": 1, "b": 2})]);
    }

    #[test]
    fn json_is_yaml() {
        let text = "{\n\t\"a\": [1, -2.5, true, null, \"x\\u0041\\/\\n\\\"\"],\n\t\"b\": {\"c\": \"\"}, \"d\":\"0755\"}\n";
        assert_eq!(one(text), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn an_alias_bomb_is_refused_at_once() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..10 {
            let list = vec![format!("*a{}", n - 1); 10].join(", ");
            text = format!("{text}a{n}: &a{n} [{list}]\n");
        }
        assert!(refused(&text).contains("more than 100000 values"));
        assert!(refused("a: &a [*a]").contains("the alias names what it is part of"));
        assert!(refused("a: *b").contains("line 1, column"));
    }

    #[test]
    fn depth_is_bounded_through_aliases_too() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(&nested(DEPTH)).is_ok());
        assert!(refused(&nested(DEPTH + 1)).contains("levels"));
        assert!(refused(&nested(100_000)).starts_with("not valid YAML"));
        assert!(refused(&"- ".repeat(100_000)).starts_with("not valid YAML"));
        let joined = |inner| format!("a: &a {}\nb: {}*a{}\n", nested(inner), "[".repeat(60), "]".repeat(60));
        assert!(parse(&joined(DEPTH - 61)).is_ok());
        assert!(refused(&joined(DEPTH - 60)).contains("levels"));
    }

    #[test]
    fn an_error_says_where_and_repeats_nothing() {
        for text in [
            "password: 'hunter2hunter2",
            "a: hunter2: hunter2",
            "a: [hunter2",
            "hunter2: 1\nhunter2: 2",
            "a: !!int hunter2",
            "a: *hunter2",
            "a: hunter2\n b: @hunter2",
            "a: !!binary hunter2",
            "a: \"\\hunter2\"",
            "&hunter2 a: *hunter2 b",
        ] {
            let message = refused(text);
            assert!(message.starts_with("not valid YAML: line "), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[-a0:{}\\[\\]&*!?|>'\"%@#,<~ \t\n.]{0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn every_json_text_is_read(text in "\\PC{0,20}", number: i64) {
            let value = json!({"text": text, "list": [number, text, null, true], text.clone(): {}});
            prop_assert_eq!(parse(&value.to_string()).unwrap(), vec![value.clone()]);
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(parse(&pretty).unwrap(), vec![value]);
        }
    }
}
