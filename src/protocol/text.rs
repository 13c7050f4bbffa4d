//! Text for terminals and pod Events: one line, without characters that would hide or turn the
//! rest.

/// Whether a terminal does something with a character instead of showing it: control characters,
/// and those of Unicode that turn or hide what stands beside them (General Category Cf, U+202E
/// among them, and the separators of lines).
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// `text` as one printable line of at most `limit` bytes: line breaks become `; `, what is
/// [unprintable](is_unprintable) `?`.
pub fn one_line(text: &str, limit: usize) -> String {
    let joined = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    let mut line: String = joined.chars().map(|c| if is_unprintable(c) { '?' } else { c }).collect();
    if line.len() > limit {
        line.truncate(line.floor_char_boundary(limit.saturating_sub('…'.len_utf8())));
        line.push('…');
    }
    line
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
}
