//! Values of scalars, by style and tag; those of plain scalars are left to [`plain`].

use flexvol_kubelet::scalar::plain;
use saphyr_parser::{ScalarStyle, Tag};
use serde_json::Value;

/// Reports whether the text was neither quoted nor a block.
pub(super) fn is_plain(style: ScalarStyle) -> bool {
    style == ScalarStyle::Plain
}

/// Returns the value of a scalar; the error describes the problem without its text.
pub(super) fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, &'static str> {
    let quoted = || Ok(Value::String(text.to_owned()));
    match tag {
        None if is_plain(style) => plain(text),
        None => quoted(),
        Some(tag) if !tag.is_yaml_core_schema() => quoted(),
        Some(tag) => tagged(text, &tag.suffix),
    }
}

fn tagged(text: &str, tag: &str) -> Result<Value, &'static str> {
    let is_of_tag = |value: &Value| match tag {
        "bool" => value.is_boolean(),
        "null" => value.is_null(),
        "int" => value.is_i64() || value.is_u64(),
        _ => value.is_number(),
    };
    match tag {
        "bool" | "int" | "float" | "null" => {
            plain(text).ok().filter(is_of_tag).ok_or("the value is not what its tag says")
        }
        "binary" => Err("!!binary is nothing Kubernetes reads: write the base64 text without the tag"),
        _ => Ok(Value::String(text.to_owned())),
    }
}

/// Returns a key as text; numbers and booleans become text.
pub(super) fn key(value: &Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Null => Err("a key is null: quote it"),
        Value::Array(_) | Value::Object(_) => Err("a key is a list or a mapping: JSON knows only text"),
    }
}
