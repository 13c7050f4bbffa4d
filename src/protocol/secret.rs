//! Secret bytes that are never shown.
//!
//! A [`Secret`] has no `Display`, and serialises only as `***`; its bytes are wiped when it is
//! dropped. Code that needs the bytes calls [`Secret::expose`], which is easy to find in a review.

use crate::ordered::sort;
use crate::text::one_line;
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD, URL_SAFE};
use serde::{Serialize, Serializer};
use std::fmt;
use zeroize::Zeroizing;

/// Replacement for a secret in every text.
pub const MASK: &str = "***";

/// Minimum length of a secret that is searched for in texts, in bytes. Masking every `a` would only
/// destroy the message.
const SHORTEST_REDACTED: usize = 4;

/// Minimum length of a single line of a secret, such as a key in PEM form, in bytes.
const SHORTEST_LINE: usize = 8;

/// Raw bytes of one key of a Kubernetes Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Wraps the raw bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the raw bytes, for the one place that must pass them on.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Returns a single line without the line breaks at its end, which `echo` adds by accident. A
    /// secret with several lines, or one that is not text, is returned unchanged.
    #[must_use]
    pub fn line(&self) -> Self {
        let is_break = |byte: &u8| b"\r\n".contains(byte);
        let bytes = self.expose();
        let end = bytes.iter().rposition(|byte| !is_break(byte)).map_or(0, |last| last + 1);
        let is_line = !bytes[..end].iter().any(is_break);
        Self::new(if is_line { &bytes[..end] } else { bytes }.to_vec())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

/// Removes every given secret from texts of other origin, such as a helper's last words.
///
/// It searches for the raw form, also as it appears in a one-line message, and for each longer line
/// of it. It also searches for what programs make of it: base64, also inside the base64 of other
/// text (`user:password`), hex, percent, and the escapes of JSON, HTML, shells and the mount table.
#[derive(Default)]
pub struct Redactor {
    needles: Vec<Zeroizing<String>>,
}

impl Redactor {
    /// Makes a redactor for these secrets. Secrets under four bytes are left alone.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let long = secrets.into_iter().filter(|secret| secret.expose().len() >= SHORTEST_REDACTED);
        let needles = long.flat_map(|secret| forms(secret.expose())).map(Zeroizing::new);
        let needles = needles.collect();
        wipe_stack();
        Self::longest_first(needles)
    }

    fn longest_first(mut needles: Vec<Zeroizing<String>>) -> Self {
        sort(&mut needles, |needle| std::cmp::Reverse(needle.len()));
        needles.dedup();
        Self { needles }
    }

    /// Returns the length of the longest form in bytes. If a text is cut off, the remaining part of
    /// a secret is shorter.
    pub fn longest(&self) -> usize {
        self.needles.first().map_or(0, |needle| needle.len())
    }

    /// Returns `text` with every form of every secret replaced by [`MASK`].
    pub fn clean(&self, text: &str) -> String {
        self.needles.iter().fold(text.to_owned(), |text, needle| text.replace(needle.as_str(), MASK))
    }
}

/// A way to write bytes: those that stay, and what becomes of the others.
type Escape = (fn(u8) -> bool, fn(u8) -> String);

/// Escapes of URLs, hexadecimal, the mount table, shells, JSON, and Go's JSON.
const ESCAPES: [Escape; 8] = [
    (is_plain, |byte| format!("%{byte:02X}")),
    (is_plain, |byte| format!("%{byte:02x}")),
    (|_| false, |byte| format!("{byte:02x}")),
    (|_| false, |byte| format!("{byte:02X}")),
    (|byte| byte.is_ascii_graphic() && byte != b'\\', |byte| format!("\\{byte:03o}")),
    (is_plain, |byte| format!("\\{}", char::from(byte))),
    (is_kept_by_json, json_escape),
    (|byte| is_kept_by_json(byte) && !b"<>&".contains(&byte), json_escape),
];

/// Overwrites the stack below the caller: encoders leave parts of a secret there.
#[inline(never)]
fn wipe_stack() {
    std::hint::black_box(&mut [0_u8; 16 << 10]);
}

#[inline(never)]
fn forms(raw: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(raw).into_owned();
    let lines = text.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE).map(str::to_owned);
    let mut forms: Vec<_> = lines.collect();
    let mut texts = vec![text.clone(), text.trim().to_owned()];
    texts.dedup();
    for form in &texts {
        forms.extend(ESCAPES.iter().map(|escape| escaped(form, *escape)));
        forms.push(escaped(form, ESCAPES[0]).replace("%20", "+"));
        forms.push(form.replace('\'', "'\\''"));
        forms.push(html(form));
    }
    forms.push(one_line(&text, usize::MAX));
    forms.append(&mut texts);
    for engine in [&STANDARD, &URL_SAFE] {
        let encoded = engine.encode(raw);
        forms.push(encoded.trim_end_matches('=').to_owned());
        forms.push(encoded);
        forms.extend((0..3).filter_map(|before| within_base64(engine, raw, before)));
    }
    forms.retain(|form| form.len() >= SHORTEST_REDACTED);
    forms
}

fn escaped(text: &str, (is_kept, written): Escape) -> String {
    let mut bytes = Vec::new();
    for byte in text.bytes() {
        if is_kept(byte) {
            bytes.push(byte);
        } else {
            bytes.extend_from_slice(written(byte).as_bytes());
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)
}

fn is_kept_by_json(byte: u8) -> bool {
    !byte.is_ascii_control() && !b"\"\\".contains(&byte)
}

fn json_escape(byte: u8) -> String {
    match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b'\n' => "\\n".to_owned(),
        b'\r' => "\\r".to_owned(),
        b'\t' => "\\t".to_owned(),
        _ => format!("\\u{byte:04x}"),
    }
}

fn html(text: &str) -> String {
    let pairs = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;"), ("'", "&#39;")];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Returns the characters that are always the same in the base64 of a text, if `before` bytes
/// (modulo 3) precede the secret. Short results are dropped, because they could be words.
fn within_base64(engine: &GeneralPurpose, raw: &[u8], before: usize) -> Option<String> {
    let encoded = engine.encode([&vec![0; before][..], raw].concat());
    let (first, end) = ((before * 8).div_ceil(6), (before + raw.len()) * 8 / 6);
    encoded.get(first..end).filter(|form| form.len() >= SHORTEST_LINE).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_shows_itself() {
        let secret = Secret::new(b"hunter2".to_vec());
        assert_eq!(format!("{secret:?} {}", serde_json::to_string(&secret).unwrap()), "*** \"***\"");
    }

    #[test]
    fn a_line_ends_before_its_break() {
        for (given, meant) in [
            ("a\n", "a"),
            ("a\r\n\n", "a"),
            ("a", "a"),
            (" a ", " a "),
            ("\n", ""),
            ("a\nb\n", "a\nb\n"),
            ("\na\n", "\na\n"),
        ] {
            let line = Secret::new(given.as_bytes().to_vec()).line();
            assert_eq!(line.expose(), meant.as_bytes(), "{given:?}");
        }
    }

    #[test]
    fn redacts_every_form() {
        let secret = Secret::new(b"p@ss,word\n".to_vec());
        let redactor = Redactor::new([&secret]);
        let text = "raw p@ss,word b64 cEBzcyx3b3JkCg== bare cEBzcyx3b3JkCg url p%40ss%2Cword%0A";
        assert_eq!(redactor.clean(text), "raw *** b64 *** bare *** url ***");
    }

    /// Covers what shells, languages and protocols make of a secret.
    #[test]
    fn redacts_what_programs_make_of_it() {
        let secret = Secret::new(b"it's <p@ss> \"w\\rd\" & 7".to_vec());
        let redactor = Redactor::new([&secret]);
        for form in [
            "it%27s%20%3Cp%40ss%3E%20%22w%5Crd%22%20%26%207",
            "it%27s%20%3cp%40ss%3e%20%22w%5crd%22%20%26%207",
            "it%27s+%3Cp%40ss%3E+%22w%5Crd%22+%26+7",
            "69742773203c704073733e2022775c72642220262037",
            "69742773203C704073733E2022775C72642220262037",
            r#"it's\040<p@ss>\040"w\134rd"\040&\0407"#,
            r#"it\'s\ \<p\@ss\>\ \"w\\rd\"\ \&\ 7"#,
            r#"it's <p@ss> \"w\\rd\" & 7"#,
            r#"it's \u003cp@ss\u003e \"w\\rd\" \u0026 7"#,
            r#"it'\''s <p@ss> "w\rd" & 7"#,
            "it&#39;s &lt;p@ss&gt; &quot;w\\rd&quot; &amp; 7",
            "aXQncyA8cEBzcz4gIndccmQiICYgNw==",
        ] {
            assert_eq!(redactor.clean(form), MASK, "{form}");
        }
    }

    /// `Authorization: Basic` is base64 of a user and the password.
    #[test]
    fn redacts_base64_of_more_than_it() {
        let secret = Secret::new(b"correct horse".to_vec());
        let redactor = Redactor::new([&secret]);
        for user in ["", "u", "me", "you", "anna"] {
            for after in ["", "!", "\n", "??"] {
                let encoded = STANDARD.encode(format!("{user}:correct horse{after}"));
                let cleaned = redactor.clean(&encoded);
                assert!(cleaned.contains(MASK) && cleaned.len() < encoded.len() - 12, "{cleaned}");
            }
        }
        // Words are not taken for parts of a short secret.
        assert_eq!(Redactor::new([&Secret::new(b"abcd".to_vec())]).clean("YmNk data"), "YmNk data");
    }

    #[test]
    fn redacts_what_messages_make_of_lines() {
        let secret = Secret::new(b"first line\tof\nsecond line\r\nend\n".to_vec());
        let redactor = Redactor::new([&secret]);
        for text in [
            "first line\tof\nsecond line\r\nend\n",
            "first line?of; second line; end",
            "second line",
            "first line\tof",
        ] {
            assert_eq!(redactor.clean(text), MASK);
            assert_eq!(redactor.clean(&one_line(text, 1000)).replace("first line?of", MASK), MASK);
        }
        assert_eq!(redactor.clean("the end of it"), "the end of it");
        assert!(redactor.longest() >= "first line\tof\nsecond line\r\nend\n".len());
        assert_eq!(Redactor::default().longest(), 0);
    }
}
