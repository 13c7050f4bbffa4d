//! YAML on its way through the programs: what `manifest` writes is what the kit's reader reads, and
//! what `flexvol` understands of a configuration without that reader is what it reads, too.

use flexvol::kubelet::locate::plain;
use flexvol::yaml;
use flexvol_terminal::emit::document;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn no_text_becomes_anything_else() {
    for text in ["", "yes", "~", "1e3", "a: b", "a\n- b", "# c", "\u{85}\u{2028}\u{feff}😀\u{7f}", "\"'"] {
        let value = json!({ "a": text, "b": [text], text: 1 });
        assert_eq!(yaml::parse(&document(&value)).unwrap(), [value], "{text:?}");
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "\\PC{0,8}|[-:#\\n\\t ~yn]{0,5}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z0-9./ ~-]{0,8}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(value in values()) {
        let members = json!({ "value": value });
        prop_assert_eq!(yaml::parse(&document(&members)).unwrap(), vec![members]);
    }
}

// --- configurations, with and without the reader ---------------------------------------------

/// Whether a text is clear; then it is what the reader makes of it. JSON is read as JSON, which has
/// rules of its own.
fn is_clear(text: &str) -> bool {
    let Ok(value) = plain::read(text) else { return false };
    if text.trim_start().starts_with('{') {
        return true;
    }
    let documents = if value.is_null() { Vec::new() } else { vec![value] };
    let read = yaml::parse(text).map_err(|error| error.message());
    assert_eq!(read, Ok(documents), "{text}");
    true
}

fn files(folder: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?))).collect()
}

/// As kubeadm, kops, EKS, k3s, `KubeEdge` and `OpenShift` write them.
#[test]
fn configurations_of_distributions_are_clear() {
    let all = files("tests/pure/data/configurations");
    assert!(all.len() >= 7);
    for (path, text) in all {
        assert!(is_clear(&text), "{}: {:?}", path.display(), plain::read(&text));
    }
}

#[test]
fn objects_of_kubernetes_are_clear_or_left_alone() {
    let folders = ["examples", "examples/profiles", "tests/pure/data", "tests/pure/data/validate"];
    let all: Vec<_> = folders.iter().flat_map(|folder| files(folder)).collect();
    let documents: Vec<_> = all.iter().flat_map(|(_, text)| text.split("\n---\n")).collect();
    let clear = documents.iter().filter(|text| is_clear(text)).count();
    assert!(clear * 3 > documents.len(), "{clear} of {}", documents.len());
}

/// What YAML has rules for, and a little to apply them to.
const TOKENS: &[&str] = &[
    "a",
    "b",
    "a",
    "b",
    ": ",
    ": ",
    ":",
    "\n",
    "\n",
    "\n  ",
    "\n    ",
    "\n- ",
    "- ",
    "-",
    "[",
    "]",
    "{",
    "}",
    ", ",
    ",",
    "'",
    "''",
    "\"",
    "\\\"",
    "\\",
    "\\n",
    "#",
    " #",
    "|",
    ">-",
    "&x ",
    "*x",
    "!!str ",
    "<<",
    "yes",
    "0755",
    "1e3",
    "~",
    "null",
    "true",
    "-1",
    ".5",
    "---\n",
    "...\n",
    "%",
    "?",
    "? ",
    " ",
    "  ",
    "\u{e9}",
    "/x",
    "--v=2",
    "@",
    "`",
    "=",
    "\t",
    "\r\n",
    "volumePluginDir: /a",
];

/// A file as it is written, with something else somewhere.
fn changed() -> impl Strategy<Value = String> {
    let texts: Vec<_> = files("tests/pure/data/configurations").into_iter().map(|(_, text)| text).collect();
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, select(TOKENS)), 1..4);
    (select(texts), edits).prop_map(|(mut text, edits)| {
        for (at, length, token) in edits {
            let start = at.index(text.len() + 1);
            text.replace_range(start..(start + length).min(text.len()), token);
            text.retain(|c| c.is_ascii());
        }
        text
    })
}

proptest! {
    #[test]
    fn tokens_are_clear_or_left_alone(tokens in prop::collection::vec(select(TOKENS), 0..16)) {
        is_clear(&tokens.concat());
    }

    #[test]
    fn changed_configurations_are_clear_or_left_alone(text in changed()) {
        is_clear(&text);
    }

    #[test]
    fn written_values_are_clear_or_left_alone(value in values()) {
        is_clear(&document(&json!({ "value": value })));
    }
}
