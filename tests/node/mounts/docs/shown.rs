//! What a page shows, against what came.

/// Stands for any text, or on a line of its own for any lines.
const ANY: &str = "…";

/// The first line of `shown` that does not come in `printed`, or comes too late; `None` if all is
/// as shown.
pub(crate) fn first_difference(shown: &[String], printed: &str) -> Option<String> {
    let shown: Vec<_> = shown.iter().map(|line| plain(line)).collect();
    let printed: Vec<_> = printed.lines().map(plain).filter(|line| !line.is_empty()).collect();
    let shown: Vec<_> = shown.into_iter().filter(|line| !line.is_empty()).collect();
    if shown.is_empty() {
        return None;
    }
    let reached = reach(&shown, &printed);
    (reached <= shown.len()).then(|| shown.get(reached).map_or("(and then no more)".to_owned(), Clone::clone))
}

/// How many lines of `shown` come in order; one more than there are if `printed` ends there, too.
fn reach(shown: &[String], printed: &[String]) -> usize {
    let Some((first, rest)) = shown.split_first() else { return usize::from(printed.is_empty()) };
    if first == ANY {
        let from = |skipped: usize| reach(rest, &printed[skipped..]);
        return 1 + (0..=printed.len()).map(from).max().unwrap_or_default();
    }
    match printed.split_first() {
        Some((line, more)) if is_shown(first, line) => 1 + reach(rest, more),
        _ => 0,
    }
}

/// Whether a line is as shown.
fn is_shown(shown: &str, line: &str) -> bool {
    let mut parts = shown.split(ANY);
    let Some(mut rest) = parts.next().and_then(|start| line.strip_prefix(start)) else { return false };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    rest.is_empty() || last.is_some_and(|part| line.ends_with(part))
}

/// Without what differs from run to run: spaces between words, durations, hashes.
fn plain(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    let mut plain: Vec<&str> = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let unit = words
            .get(index + 1)
            .is_some_and(|next| matches!(next.trim_end_matches([',', ';', ')']), "ms" | "s"));
        plain.push(if unit && is_number(word) {
            "T"
        } else if is_hash(word) {
            "H"
        } else {
            word
        });
    }
    plain.join(" ")
}

fn is_number(word: &str) -> bool {
    word.parse::<f64>().is_ok()
}

/// Twelve or more of 0-9 and a-f, with both.
fn is_hash(word: &str) -> bool {
    let word = word.trim_end_matches([')', ',']);
    word.len() >= 12
        && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        && word.bytes().any(|byte| byte.is_ascii_digit())
}

#[test]
fn a_page_may_leave_out_and_no_more() {
    let shown = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let same =
        |lines: &[&str], printed| assert_eq!(first_difference(&shown(lines), printed), None, "{lines:?}");
    let differs = |lines: &[&str], printed, line: &str| {
        assert_eq!(first_difference(&shown(lines), printed).as_deref(), Some(line), "{lines:?}");
    };
    same(&[], "anything");
    same(&["a  b", "c 1.5 ms"], "a b\nc 22 ms\n");
    same(&["a", "…", "d"], "a\nb\nc\nd\n");
    same(&["…", "d", "…"], "d\n");
    same(&["x … y …"], "x 1 2 y 3");
    same(&["(0.1.0, c864c90fcd15)"], "(0.1.0, 0123456789ab)");
    differs(&["a", "b"], "a\nc", "b");
    differs(&["a"], "a\nb", "(and then no more)");
    differs(&["a", "…", "d"], "a\nb\nd\ne", "(and then no more)");
    differs(&["a … b"], "a b c", "a … b");
}
