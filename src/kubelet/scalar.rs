//! Meaning of an unquoted word of a YAML file, by the rules of go-yaml 2, which Kubernetes uses.
//!
//! ```
//! use flexvol_kubelet::scalar::plain;
//! assert_eq!(plain("yes").unwrap(), true);
//! assert_eq!(plain("0755").unwrap(), 493);
//! assert_eq!(plain("1m40s").unwrap(), "1m40s");
//! ```

use serde_json::{Number, Value};

/// Returns the value of an unquoted scalar. The error names the problem and leaves out the scalar.
pub fn plain(text: &str) -> Result<Value, &'static str> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => return Err("not-a-number has no JSON: quote it"),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" => {
            return Err("infinity has no JSON: quote it");
        }
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    })
}

fn number(text: &str) -> Option<Number> {
    match text.as_bytes().first()? {
        b'.' => float(text),
        // A date has a second dash and a time has a colon, so neither parses as a number.
        b'0'..=b'9' | b'+' | b'-' => {
            let digits = text.replace('_', "");
            integer(&digits).or_else(|| float(&digits)).or_else(|| huge(&digits))
        }
        _ => None,
    }
}

/// Splits a number into sign, radix and digits, as Go's `ParseInt` does with base 0.
fn split(text: &str) -> (bool, u32, &str) {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    match lower.as_deref() {
        Some("0x") => (negative, 16, &digits[2..]),
        Some("0o") => (negative, 8, &digits[2..]),
        Some("0b") => (negative, 2, &digits[2..]),
        Some(two) if two.starts_with('0') => (negative, 8, &digits[1..]),
        _ => (negative, 10, digits),
    }
}

fn integer(text: &str) -> Option<Number> {
    let (negative, radix, digits) = split(text);
    // Rust's parser accepts a second sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative { 0_i64.checked_sub_unsigned(magnitude).map(Number::from) } else { Some(magnitude.into()) }
}

/// Parses digits with at most one point and an exponent; rejects `inf` and `nan`.
fn float(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let shaped = unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let value = text.parse::<f64>().ok().filter(|value| shaped && value.is_finite())?;
    Some(shortest(value))
}

/// Parses an integer of another radix that exceeds 64 bits: it stays a number, not a string.
fn huge(text: &str) -> Option<Number> {
    let (negative, radix, digits) = split(text);
    let fold = |sum: f64, digit: char| Some(sum * f64::from(radix) + f64::from(digit.to_digit(radix)?));
    let value = digits.chars().try_fold(0.0, fold).filter(|_| !digits.is_empty())?;
    Number::from_f64(if negative { -value } else { value })
}

/// Returns a whole float in 64 bits as an integer: Go writes floats below 10^21 without point and
/// exponent, so readers see an integer.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole, and in the range of what it is made"
)]
fn shortest(value: f64) -> Number {
    /// Limit for 64 bits without sign; with sign the lower limit is -`END` / 2.
    const END: f64 = 18_446_744_073_709_551_616.0;
    let is_whole = value.fract() == 0.0 && !(value == 0.0 && value.is_sign_negative());
    let integer = match value {
        _ if !is_whole => None,
        0.0..END => Some((value as u64).into()),
        _ if (-END / 2.0..0.0).contains(&value) => Some((value as i64).into()),
        _ => None,
    };
    integer.or_else(|| Number::from_f64(value)).unwrap_or_else(|| 0.into())
}
