//! Words as a shell would need them.

/// A line that a shell takes apart into exactly these words.
pub(crate) fn words(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
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
