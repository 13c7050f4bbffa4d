//! Bytes that are never shown.
//!
//! A [`Secret`] has no `Display` and no serialisation but `***`; its bytes are wiped when it is
//! dropped. Who needs them says so with [`Secret::expose`], which is easy to find in a review.

use crate::ordered::sort;
use crate::text::one_line;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use std::fmt;
use zeroize::Zeroizing;

/// What stands in every text where a secret would.
pub const MASK: &str = "***";

/// Secrets shorter than this are not searched for in texts: masking every `a` would only destroy
/// the message.
const SHORTEST_REDACTED: usize = 4;

/// The same for a single line of a secret, such as a key in PEM form.
const SHORTEST_LINE: usize = 8;

/// The raw bytes of one key of a Kubernetes Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the raw bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The raw bytes, for the one place that must hand them on.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// One line without the line breaks at its end, which `echo` leaves there and no one means;
    /// what has several lines, or is no text at all, is left as it is.
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

/// Removes every given secret from texts that come from elsewhere, such as a helper's last words.
///
/// Looks for the raw, the base64 and the percent-encoded form, for the raw one as it stands in a
/// one-line message, and for each longer line of it.
#[derive(Default)]
pub struct Redactor {
    needles: Vec<Zeroizing<String>>,
}

impl Redactor {
    /// A redactor for these secrets. Those under four bytes are left alone.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let long = secrets.into_iter().filter(|secret| secret.expose().len() >= SHORTEST_REDACTED);
        let needles = long.flat_map(|secret| forms(secret.expose())).map(Zeroizing::new);
        Self::longest_first(needles.collect())
    }

    fn longest_first(mut needles: Vec<Zeroizing<String>>) -> Self {
        sort(&mut needles, |needle| std::cmp::Reverse(needle.len()));
        needles.dedup();
        Self { needles }
    }

    /// The length of the longest form in bytes: what a cut in a text can leave of a secret is
    /// shorter.
    pub fn longest(&self) -> usize {
        self.needles.first().map_or(0, |needle| needle.len())
    }

    /// `text` with every form of every secret replaced by [`MASK`].
    pub fn clean(&self, text: &str) -> String {
        self.needles.iter().fold(text.to_owned(), |text, needle| text.replace(needle.as_str(), MASK))
    }
}

fn forms(raw: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(raw).into_owned();
    let trimmed = text.trim().to_owned();
    let encoded = STANDARD.encode(raw);
    let unpadded = encoded.trim_end_matches('=').to_owned();
    let percent = raw.iter().fold(String::new(), |out, &byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            out + char::from(byte).encode_utf8(&mut [0; 4])
        }
        _ => out + &format!("%{byte:02X}"),
    });
    let message = one_line(&text, usize::MAX);
    let lines: Vec<_> =
        text.lines().map(|line| line.trim().to_owned()).filter(|line| line.len() >= SHORTEST_LINE).collect();
    let forms = [text, trimmed, message, encoded, unpadded, percent];
    forms.into_iter().filter(|form| form.len() >= SHORTEST_REDACTED).chain(lines).collect()
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
