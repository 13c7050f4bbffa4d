//! Text for terminals and pod Events: one line, without characters that hide or reorder the rest.

use std::time::Duration;

/// Reports whether a terminal interprets a character instead of showing it. This holds for control
/// characters, for line separators, and for the characters of Unicode that reorder or hide their
/// neighbours (General Category Cf, such as U+202E).
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns `text` as one printable line of at most `limit` bytes. Line breaks become `; `, and
/// [unprintable](is_unprintable) characters become `?`.
pub fn one_line(text: &str, limit: usize) -> String {
    let joined = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    let mut line: String = joined.chars().map(|c| if is_unprintable(c) { '?' } else { c }).collect();
    if line.len() > limit {
        line.truncate(line.floor_char_boundary(limit.saturating_sub('…'.len_utf8())));
        line.push('…');
    }
    line
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(half.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Returns the start of a word in a text. A match in the middle of a longer word does not count:
/// `lock` is in `locked`, and not in `block`.
pub fn find_word(text: &str, word: &str) -> Option<usize> {
    let is_letter = |c: char| c.is_ascii_alphabetic();
    let begins = |at: &usize| !(word.starts_with(is_letter) && text[..*at].ends_with(is_letter));
    text.match_indices(word).map(|(at, _)| at).find(begins)
}

/// Formats a time in seconds with this number of decimal places, at most nine: `1.50`. Printing a
/// floating-point number would need 12 KB of code, in a program that does not use it elsewhere.
pub fn seconds(time: Duration, places: u32) -> String {
    let parts = 10_u64.pow(places.min(9));
    let part = 1_000_000_000 / parts;
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let rounded = nanoseconds.saturating_add(part / 2) / part;
    let (whole, rest) = (rounded / parts, rounded % parts);
    if places == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:0width$}", width = places.min(9) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_turns_text_around_is_shown() {
        for c in [
            '\u{202e}',
            '\u{2066}',
            '\u{200b}',
            '\u{feff}',
            '\u{e0041}',
            '\u{2028}',
            '\u{ad}',
            '\u{85}',
            '\x1b',
        ] {
            let line = one_line(&format!("pod-{c}a"), usize::MAX);
            assert_eq!(line, "pod-?a", "{}", c.escape_unicode());
        }
        assert_eq!(one_line("größe ü 名 🦀", usize::MAX), "größe ü 名 🦀");
    }

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(&[0, 7, 0x1f, 0xa0, 255]), "00071fa0ff");
    }

    #[test]
    fn a_word_is_not_found_inside_another_one() {
        for (text, at) in
            [("lock", Some(0)), ("a block, locked", Some(9)), ("un_lock", Some(3)), ("clock", None)]
        {
            assert_eq!(find_word(text, "lock"), at, "{text}");
        }
        assert_eq!((find_word("a: b", ": b"), find_word("ß-lock", "lock")), (Some(1), Some(3)));
    }

    #[test]
    fn seconds_are_rounded() {
        let of = |nanoseconds: u64, places: u32| seconds(Duration::from_nanos(nanoseconds), places);
        assert_eq!(of(0, 1), "0.0");
        assert_eq!((&*of(1_449_999_999, 1), &*of(1_450_000_000, 1)), ("1.4", "1.5"));
        assert_eq!((&*of(1_005_000_000, 2), &*of(999_999_999, 2)), ("1.01", "1.00"));
        assert_eq!((&*of(2_000_001, 3), &*of(7, 9)), ("0.002", "0.000000007"));
        assert_eq!((&*of(1_499_999_999, 0), &*of(1_500_000_000, 0)), ("1", "2"));
        assert_eq!(seconds(Duration::MAX, 1), "18446744073.7");
    }
}
