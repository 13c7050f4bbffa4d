//! The sentences of the product by their names. `tests/messages.tsv` is the only place of the tests
//! that has them: what an assertion is about is the name, and the facts a message carries. A
//! message is reworded there, once; `tests/pure/tidy/wording.rs` finds sentences elsewhere.
#![allow(dead_code, reason = "each crate asks in its way")]

const MESSAGES: &str = include_str!("../messages.tsv");

/// The message `name`; of one with holes the longest part without any.
pub(crate) fn wording(name: &str) -> &'static str {
    let parts = parts(text(name)).into_iter();
    parts.max_by_key(|part| part.len()).unwrap_or_default()
}

/// The message `name` with `facts` in its holes, in their order: up to the first hole without a
/// fact, and from behind the last one with the fact `…`.
pub(crate) fn wording_of<const N: usize>(name: &str, facts: [&str; N]) -> &'static str {
    let parts = parts(text(name));
    assert!(parts.len() > N, "{name} has fewer holes: {parts:?}");
    let mut said = parts[0].to_owned();
    for (fact, part) in facts.iter().zip(&parts[1..]) {
        match *fact {
            "…" => said.clear(),
            fact => said.push_str(fact),
        }
        said.push_str(part);
    }
    said.leak()
}

fn text(name: &str) -> &'static str {
    let named = |line: &'static str| line.split_once('\t').filter(|(found, _)| *found == name);
    let (_, text) = MESSAGES.lines().find_map(named).unwrap_or_else(|| panic!("no message {name:?}"));
    text
}

/// What stands between the holes, which are names in braces: `{path}`.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut from) = (Vec::new(), 0);
    for (at, _) in text.match_indices('{') {
        let name = text[at + 1..].split('}').next().unwrap_or_default();
        let is_hole = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if is_hole && text[at + 1 + name.len()..].starts_with('}') {
            parts.push(&text[from..at]);
            from = at + name.len() + 2;
        }
    }
    parts.push(&text[from..]);
    parts
}
