//! Options as callers other than kubelet might write them: with the same meaning for every JSON
//! parser, or with none.

use flexvol_protocol::Options;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Returns every key of the options and its value, sorted, as kubelet sends them.
pub(super) fn pairs(options: &Options) -> Vec<(String, String)> {
    let sorted: BTreeMap<String, String> = serde_json::from_str(&options.to_json()).unwrap_or_default();
    sorted.into_iter().collect()
}

/// Writes a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Writes a JSON string with every character as an escape.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::from("\"");
    for unit in text.encode_utf16() {
        let _ = write!(escaped, "\\u{unit:04x}");
    }
    escaped + "\""
}

/// Writes a compact object.
pub(super) fn object(members: impl IntoIterator<Item = (String, String)>) -> String {
    let members: Vec<_> = members.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    format!("{{{}}}", members.join(","))
}

/// Writes the options with one more member at the end. Its value is any JSON text.
pub(super) fn with_member(options: &Options, key: &str, value: &str) -> String {
    let members = pairs(options).into_iter().map(|(key, value)| (quoted(&key), quoted(&value)));
    object(members.chain([(quoted(key), value.to_owned())]))
}

/// Writes the options with the value of one key replaced by any JSON text.
pub(super) fn with_value(options: &Options, changed: &str, text: &str) -> String {
    object(pairs(options).into_iter().map(|(key, value)| {
        let value = if key == changed { text.to_owned() } else { quoted(&value) };
        (quoted(&key), value)
    }))
}

/// Writes the options in reverse order, with much white space.
pub(super) fn spacious(options: &Options) -> String {
    let members = pairs(options).into_iter().rev();
    let members: Vec<_> =
        members.map(|(key, value)| format!("\r\n\t{} : {}", quoted(&key), quoted(&value))).collect();
    format!(" \n{{{}\n}}\n\t ", members.join(" ,"))
}

/// Writes the options with every character of every key and value as an escape.
pub(super) fn all_escaped(options: &Options) -> String {
    object(pairs(options).into_iter().map(|(key, value)| (escaped(&key), escaped(&value))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::parse(r#"{"a":"1 \"ü😀","b":"\u2028<","kubernetes.io/readwrite":"ro"}"#).unwrap()
    }

    #[test]
    fn every_spelling_means_the_same() {
        let spelled = [all_escaped(&options()), spacious(&options())];
        for text in spelled {
            assert_eq!(Options::parse(&text).unwrap(), options(), "{text}");
            assert_ne!(text, options().to_json());
        }
    }

    #[test]
    fn one_member_is_added_or_changed() {
        assert!(with_member(&options(), "c", "[1]").ends_with(r#","c":[1]}"#));
        assert!(with_value(&options(), "a", "17").starts_with(r#"{"a":17,"b":"#));
    }
}
