//! Options as others than kubelet might write them: the same text for every JSON parser, or none at
//! all.

use flexvol_protocol::Options;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Every key of the options and its value, sorted, as kubelet sends them.
pub(super) fn pairs(options: &Options) -> Vec<(String, String)> {
    let sorted: BTreeMap<String, String> = serde_json::from_str(&options.to_json()).unwrap_or_default();
    sorted.into_iter().collect()
}

/// A JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The same, of escapes alone.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::from("\"");
    for unit in text.encode_utf16() {
        let _ = write!(escaped, "\\u{unit:04x}");
    }
    escaped + "\""
}

/// A compact object.
pub(super) fn object(members: impl IntoIterator<Item = (String, String)>) -> String {
    let members: Vec<_> = members.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    format!("{{{}}}", members.join(","))
}

/// The object of the options with another member, whose value is any JSON text, at its end.
pub(super) fn with_member(options: &Options, key: &str, value: &str) -> String {
    let members = pairs(options).into_iter().map(|(key, value)| (quoted(&key), quoted(&value)));
    object(members.chain([(quoted(key), value.to_owned())]))
}

/// The object of the options with the value of a key in place of its own, any JSON text.
pub(super) fn with_value(options: &Options, changed: &str, text: &str) -> String {
    object(pairs(options).into_iter().map(|(key, value)| {
        let value = if key == changed { text.to_owned() } else { quoted(&value) };
        (quoted(&key), value)
    }))
}

/// Backwards, and with room to breathe.
pub(super) fn spacious(options: &Options) -> String {
    let members = pairs(options).into_iter().rev();
    let members: Vec<_> =
        members.map(|(key, value)| format!("\r\n\t{} : {}", quoted(&key), quoted(&value))).collect();
    format!(" \n{{{}\n}}\n\t ", members.join(" ,"))
}

/// Every character of every key and value as an escape.
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
