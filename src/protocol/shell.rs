//! Quoting of words for a shell, and parsing of assignments in a shell's syntax.

/// Returns a line that a shell splits into exactly these words.
pub fn words(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Returns the value of a key, without a shell's quotes; the last assignment counts. `None` if the
/// key is not assigned.
pub fn assigned(text: &str, key: &str) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.trim().split_once('='));
    let (_, value) = pairs.rfind(|(name, _)| *name == key)?;
    let value = value.trim();
    let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    if let Some(plain) = quoted('\'') {
        return Some(plain.to_owned());
    }
    let mut plain = String::new();
    let mut chars = quoted('"').unwrap_or(value).chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    Some(plain)
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gives_the_words_back() {
        let all = ["mount", "/a b", "", "{\"a\":\"it's\"}", "$x"].map(str::to_owned);
        assert_eq!(words(&all), r#"mount '/a b' '' '{"a":"it'\''s"}' '$x'"#);
    }
}
