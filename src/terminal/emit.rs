//! JSON as YAML in block style.
//!
//! Every string is quoted, and everything but ASCII is escaped. So any YAML reader gets the same
//! text back: it takes no text for a boolean, a number, a comment or a line break.
//! `tests/pure/yaml.rs` reads it back.

use serde_json::{Value, json};
use std::fmt::Write as _;

/// Formats documents. Each note becomes a comment line before the first document.
pub fn documents(notes: &[String], documents: &[Value]) -> String {
    let comments = notes.iter().flat_map(|note| ["# ", note, "\n"]).collect::<String>();
    let texts: Vec<_> = documents.iter().map(document).collect();
    comments + &texts.join("---\n")
}

/// Combines several objects into one `List`, as kubectl prints them.
pub fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Formats one document.
pub fn document(value: &Value) -> String {
    let mut out = String::new();
    match scalar(value) {
        Some(text) => out = text + "\n",
        None => block(&mut out, value, 0),
    }
    out
}

/// Writes the lines of a map or list that is not empty.
fn block(out: &mut String, value: &Value, indent: usize) {
    let margin = " ".repeat(indent);
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                let _ = write!(out, "{margin}{}:", word(key));
                member(out, value, indent);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut lines = String::new();
                match scalar(item) {
                    Some(text) => lines = format!("{margin}  {text}\n"),
                    None => block(&mut lines, item, indent + 2),
                }
                // The dash replaces the last two spaces of the first line's indentation.
                let _ = write!(out, "{margin}- {}", &lines[indent + 2..]);
            }
        }
        _ => {}
    }
}

fn member(out: &mut String, value: &Value, indent: usize) {
    if let Some(text) = scalar(value) {
        let _ = writeln!(out, " {text}");
    } else {
        out.push('\n');
        block(out, value, indent + 2);
    }
}

/// Formats a value that fits on one line: anything but a map or list with content.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(quote(text)),
        Value::Array(items) if items.is_empty() => Some("[]".into()),
        Value::Object(members) if members.is_empty() => Some("{}".into()),
        Value::Array(_) | Value::Object(_) => None,
        value => Some(value.to_string()),
    }
}

/// Formats a key as people write it, if it can only be read as text; quotes it otherwise.
fn word(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let letter = key.starts_with(|c: char| c.is_ascii_alphabetic());
    let other = OTHER.iter().any(|word| key.eq_ignore_ascii_case(word));
    if letter && !other && key.bytes().all(plain) { key.to_owned() } else { quote(key) }
}

/// Words that YAML 1.1 does not read as text.
const OTHER: &[&str] = &["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// Quotes a string; the result is ASCII only.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            _ => {
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_people_write_them() {
        let value = json!({"kind": "A", "spec": {"list": [{"name": "x", "n": 1}, "two", [3, []]], "no": {}}});
        let expected = "kind: \"A\"\nspec:\n  list:\n    - \"n\": 1\n      name: \"x\"\n    - \"two\"\n    - - 3\n      - []\n  \"no\": {}\n";
        assert_eq!(document(&value), expected);
    }
}
