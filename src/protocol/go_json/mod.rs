//! JSON exactly as Go's `encoding/json` reads and writes it, because kubelet uses that.
//!
//! `serde_json` is stricter than Go (invalid UTF-8, lone surrogates, nesting deeper than 128, huge
//! numbers). It also words its errors differently, while a driver's author searches for the words
//! that kubelet logged. So this is a reader of its own. It checks the whole text once, and then
//! reads only the requested members, as `json.Unmarshal` does.

mod reader;

use reader::Reader;
use std::error::Error;
use std::fmt::{self, Write as _};

/// Reason why kubelet could not use a reply, in the words of Go's `encoding/json`.
///
/// It contains at most one character of the reply, so it may be logged even if the driver printed a
/// secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    fn cut_short() -> Self {
        Self("unexpected end of JSON input".into())
    }

    fn too_deep() -> Self {
        Self("exceeded max depth".into())
    }

    fn unexpected(byte: u8, place: &str) -> Self {
        Self(format!("invalid character {} {place}", quoted_byte(byte)))
    }

    /// Makes a type error. `target` is Go's name for the receiver, e.g. `Go struct field
    /// DriverStatus.attached of type bool`.
    pub(super) fn wrong_type(value: &Value, target: &str) -> Self {
        Self(format!("json: cannot unmarshal {} into {target}", value.kind()))
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Malformed {}

/// Returns a byte as Go's `quoteChar` shows it: read as a Latin-1 character, and escaped as in a Go
/// string literal.
fn quoted_byte(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".into(),
        b'\\' => r"'\\'".into(),
        0x07 => r"'\a'".into(),
        0x08 => r"'\b'".into(),
        b'\t' => r"'\t'".into(),
        b'\n' => r"'\n'".into(),
        0x0b => r"'\v'".into(),
        0x0c => r"'\f'".into(),
        b'\r' => r"'\r'".into(),
        0x00..=0x1f | 0x7f => format!("'\\x{byte:02x}'"),
        0x80..=0xa0 | 0xad => format!("'\\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

/// One JSON value, whose members are parsed only on request.
#[derive(Debug, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    /// Value, if the number is an integer for Go's `ParseInt`: without fraction and exponent.
    Number(Option<i64>),
    String(String),
    Array,
    Object(Object<'a>),
}

impl Value<'_> {
    /// Returns Go's word for the kind of value, as in its type errors.
    fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Number(_) => "number",
            Self::String(_) => "string",
            Self::Array => "array",
            Self::Object(_) => "object",
        }
    }
}

/// Text of a checked object, after its opening brace.
#[derive(Debug, PartialEq)]
pub(super) struct Object<'a>(&'a [u8]);

impl<'a> Object<'a> {
    /// Returns every member in the order of the text, including duplicates.
    pub(super) fn members(self) -> Result<Vec<(String, Value<'a>)>, Malformed> {
        let mut reader = Reader::new(self.0);
        let mut members = Vec::new();
        while reader.next_byte()? != b'}' {
            reader.accept(b',');
            members.push((reader.key()?, reader.value()?));
        }
        Ok(members)
    }
}

/// Checks that `text` is one JSON value, surrounded only by JSON white space, and returns it.
pub(super) fn parse(text: &[u8]) -> Result<Value<'_>, Malformed> {
    let mut reader = Reader::new(text);
    let value = reader.value()?;
    reader.end()?;
    Ok(value)
}

/// Returns `text` as `json.Marshal` writes a string: safe inside HTML and JavaScript, otherwise
/// raw.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns one compact object of these members, whose values are already JSON.
pub(super) fn object<K: AsRef<str>>(members: impl IntoIterator<Item = (K, String)>) -> String {
    let members: Vec<_> =
        members.into_iter().map(|(key, value)| format!("{}:{value}", quote(key.as_ref()))).collect();
    format!("{{{}}}", members.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: impl AsRef<[u8]>) -> String {
        parse(text.as_ref()).unwrap_err().to_string()
    }

    fn string(text: impl AsRef<[u8]>) -> String {
        match parse(text.as_ref()).unwrap() {
            Value::String(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_are_worded_as_in_go() {
        let cut = "unexpected end of JSON input";
        for (text, expected) in [
            ("", cut),
            (" \n", cut),
            ("{", cut),
            ("[1", cut),
            ("\"a", cut),
            ("{\"a\"", cut),
            ("{\"a\":", cut),
            ("Success", "invalid character 'S' looking for beginning of value"),
            ("\u{feff}{}", "invalid character 'ï' looking for beginning of value"),
            ("'a'", r"invalid character '\'' looking for beginning of value"),
            ("\x1b[0m", r"invalid character '\x1b' looking for beginning of value"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("{} {}", "invalid character '{' after top-level value"),
            ("01", "invalid character '1' after top-level value"),
            ("{}\0", r"invalid character '\x00' after top-level value"),
            ("{a:1}", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
            ("[1}", "invalid character '}' after array element"),
            ("\"a\nb\"", r"invalid character '\n' in string literal"),
            (r#""\x""#, "invalid character 'x' in string escape code"),
            (r#""\u12g4""#, r"invalid character 'g' in \u hexadecimal character escape"),
            ("True", "invalid character 'T' looking for beginning of value"),
            ("this is no JSON", "invalid character 'h' in literal true (expecting 'r')"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.", "invalid character ' ' after decimal point in numeric literal"),
            ("1e+", "invalid character ' ' in exponent of numeric literal"),
            ("nul", "invalid character ' ' in literal null (expecting 'l')"),
        ] {
            assert_eq!(error(text), expected, "{text:?}");
        }
    }

    #[test]
    fn strings_are_fixed_as_in_go() {
        assert_eq!(string(br#""\"\\\/\b\f\n\r\t\u00e4""#), "\"\\/\u{8}\u{c}\n\r\tä");
        assert_eq!(string(r#""\ud83d\ude00""#), "😀");
        for lone in [r#""\ud83d""#, r#""\ude00""#] {
            assert_eq!(string(lone), "\u{fffd}");
        }
        assert_eq!(string(r#""\ud83dx\ud83d\ud83d\ude00""#), "\u{fffd}x\u{fffd}😀");
        assert_eq!(string(br#""\ud83d\u0041""#), "\u{fffd}A");
        // Go replaces byte by byte, not sequence by sequence.
        assert_eq!(string(b"\"a\xe2\x82b\xff\""), "a\u{fffd}\u{fffd}b\u{fffd}");
    }

    #[test]
    fn numbers_that_are_no_int64_are_still_numbers() {
        for (text, expected) in [
            ("-0", Some(0)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("1.0", None),
            ("1e3", None),
            ("1E-999999", None),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(Value::Number(expected)), "{text}");
        }
    }

    #[test]
    fn nests_ten_thousand_levels() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(parse(nested(10_000).as_bytes()), Ok(Value::Array));
        assert_eq!(error(nested(10_001)), "exceeded max depth");
    }

    #[test]
    fn members_are_seen_in_order_with_duplicates() {
        let Value::Object(object) = parse(br#" { "a" : [{"x":[]}] , "b":{}, "a":null } "#).unwrap() else {
            panic!("no object");
        };
        let members = object.members().unwrap();
        let keys: Vec<_> = members.iter().map(|(key, value)| (key.as_str(), value.kind())).collect();
        assert_eq!(keys, [("a", "array"), ("b", "object"), ("a", "null")]);
    }

    #[test]
    fn writes_as_go_does() {
        assert_eq!(
            quote("a\"\\\n\r\t\u{8}\u{c}\0\u{1f}\u{7f}/'"),
            "\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0000\\u001f\u{7f}/'\""
        );
        assert_eq!(quote("<&>\u{2028}\u{2029}ä😀"), r#""\u003c\u0026\u003e\u2028\u2029ä😀""#);
        assert_eq!(object([("a", quote("b")), ("", "1".into())]), r#"{"a":"b","":1}"#);
        assert_eq!(object::<&str>([]), "{}");
    }
}
