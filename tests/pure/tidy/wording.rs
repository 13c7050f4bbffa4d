//! A sentence of the product stands once in the tests: in `tests/messages.tsv`, under the name by
//! which assertions ask for it. A message that is reworded is reworded there and nowhere else.

use super::{before_unit_tests, opaque, root, tracked};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// So many words of a message are a sentence.
const WORDS: usize = 4;
/// Literals of tests that repeat a sentence all the same, some of them the text of a document; only
/// ever lowered.
const REPEATED: usize = 17;
/// Sentences of Kubernetes, the C library and Go, which the product repeats to the letter. They are
/// not ours to reword.
const OF_OTHERS: &[&str] = &[
    "command failed status",
    "endpoint is not connected",
    "error creating flexvolume plugin from directory",
    "error dynamically probing plugins",
    "error initializing dynamically probed plugin",
    "executable file not found",
    "failed for volume",
    "failed to acquire exclusive lock",
    "failed to fetch mon config",
    "failed to get plugin",
    "failed to unmarshal output for command",
    "driver call failed executable",
    "is not a mount point",
    "looking for beginning of",
    "no such file or directory",
    "no volume plugin matched",
    "the server does not support webdav",
    "volume plugin has invalid name",
    "unexpected end of json input",
];

#[test]
fn no_test_repeats_a_sentence() {
    let product = product(is_message);
    let found: Vec<_> = tests().flat_map(|(path, text)| repeated(&path, &text, &product)).collect();
    assert!(
        found.len() == REPEATED,
        "{} literals repeat what the product says, {REPEATED} may: give the sentence a name in \
         tests/messages.tsv and ask for it with `wording`, or lower REPEATED:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn every_message_is_said_and_asked_for() {
    let all = product(|_, _| true);
    let literals: BTreeSet<_> = tests()
        .flat_map(|(_, text)| literals(&text).map(|(_, literal)| literal).collect::<Vec<_>>())
        .collect();
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for (name, text) in messages() {
        if !literals.contains(&format!("\"{name}\"")) {
            wrong.push(format!("no test asks for {name}"));
        }
        if let Some(sentence) = sentences(&text).find(|it| !is_of_others(it) && !all.contains_key(it)) {
            wrong.push(format!("{name}: the product has no {sentence:?}"));
        }
        if !names.insert(name.clone()) {
            wrong.push(format!("{name} is there twice"));
        }
    }
    assert!(wrong.is_empty(), "tests/messages.tsv:\n{}", wrong.join("\n"));
}

/// Each name with its text.
fn messages() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("tests/messages.tsv")).unwrap();
    let pair = |line: &str| line.split_once('\t').map(|(name, text)| (name.to_owned(), text.to_owned()));
    text.lines().map(|line| pair(line).unwrap_or_else(|| panic!("no tabulator: {line}"))).collect()
}

/// Where each sentence of the product stands that `counts`, by path and literal.
fn product(counts: impl Fn(&str, &str) -> bool) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for path in tracked().into_iter().filter(|path| is_product(path)) {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let text = before_unit_tests(&text);
        let has_signs = path.starts_with("src/model/diagnostics/");
        for (at, literal) in literals(text) {
            // By what a known error is recognised: words of others.
            let is_sign = has_signs && text[..at].rfind("sign: ") > text[..at].rfind("cause: ");
            if is_sign || !counts(&path, &literal) {
                continue;
            }
            for sentence in sentences(&literal).filter(|sentence| !is_of_others(sentence)) {
                all.entry(sentence).or_insert_with(|| path.clone());
            }
        }
    }
    all
}

fn is_product(path: &str) -> bool {
    let code = path.ends_with(".rs") && !path.ends_with("/tests.rs");
    code && ["src/", "bin/"].iter().any(|start| path.starts_with(start)) && !is_prose(path)
}

/// Not what `--help` and the kit's cases tell at length, and not Go's words.
fn is_message(path: &str, literal: &str) -> bool {
    let of_go = ["src/protocol/go_json/", "src/protocol/status.rs"];
    let at_length = literal.len() > 300 || path.starts_with("src/kit/check/cases/");
    !at_length && !of_go.iter().any(|start| path.starts_with(start))
}

/// What a fault of the kit's drivers is, for people; these tests; and texts that are explained.
fn is_prose(path: &str) -> bool {
    ["tests/node/kit/faults/", "src/model/diagnostics/tests.rs", "tests/pure/tidy"]
        .iter()
        .any(|start| path.starts_with(start))
}

/// Path and text of every test, of a source file what is behind its product.
fn tests() -> impl Iterator<Item = (String, String)> {
    let rust = tracked().into_iter().filter(|path| path.ends_with(".rs"));
    rust.filter_map(|path| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let product = if is_product(&path) { before_unit_tests(&text).len() } else { 0 };
        let lines = text[..product].matches('\n').count();
        let is_test = ["src/", "tests/"].iter().any(|start| path.starts_with(start)) && !is_prose(&path);
        is_test.then(|| (path, "\n".repeat(lines) + &text[product..]))
    })
}

/// Each literal of a test that says what the product says.
fn repeated(path: &str, text: &str, product: &BTreeMap<String, String>) -> Vec<String> {
    // Not what a test says of itself.
    let own = |before: &str| {
        let statement = before.rsplit([';', '{', '}']).next().unwrap_or_default();
        ["expect(", "reason =", "skip(", "println!(", "panic!(", "doc ="]
            .iter()
            .any(|it| statement.contains(it))
    };
    let in_literal = |(at, literal): (usize, String)| {
        let told = own(&text[..at]) || literal.contains("SKIP ") || literal.contains(":?}");
        let sentence = sentences(&literal).find(|sentence| !told && product.contains_key(sentence))?;
        let line = text[..at].matches('\n').count() + 1;
        Some(format!("{path}:{line}: {sentence:?} is of {}", product[&sentence]))
    };
    literals(text).filter_map(in_literal).collect()
}

/// The string literals with their offsets, read as they are written but for broken lines.
fn literals(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < text.len() {
            let rest = &text[at..];
            let length = opaque(rest, text[..at].chars().next_back());
            let from = at;
            at += length.unwrap_or_else(|| rest.chars().next().map_or(1, char::len_utf8));
            let is_string = length.is_some() && rest.starts_with(['"', 'r']);
            if is_string {
                return Some((from, unbroken(&rest[..length.unwrap_or(0)])));
            }
        }
        None
    })
}

/// A literal without what breaks its lines, and with a bar for everything escaped.
fn unbroken(literal: &str) -> String {
    let mut parts = literal.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    let whole = parts.fold(first, |whole, part| whole + part.trim_start());
    whole.replace("\\n", "|").replace("\\\"", "|")
}

/// Every run of [`WORDS`] plain words, in small letters.
fn sentences(text: &str) -> impl Iterator<Item = String> {
    let small = text.to_lowercase().replace(" -", "|");
    let plain = |c: char| c.is_ascii_lowercase() || " ,;-'".contains(c);
    let run = |run: &str| {
        let words: Vec<_> = run
            .split_whitespace()
            .map(|word| word.trim_matches([',', ';', '-', '\'']))
            .filter(|word| !word.is_empty())
            .collect();
        words.windows(WORDS).map(|words| words.join(" ")).collect::<Vec<_>>()
    };
    small.split(|c: char| !plain(c)).flat_map(run).collect::<Vec<_>>().into_iter()
}

fn is_of_others(sentence: &str) -> bool {
    OF_OTHERS.iter().any(|other| other.contains(sentence) || sentence.contains(other))
}

#[test]
fn a_repeated_sentence_is_seen() {
    let product = BTreeMap::from([("run this as root".to_owned(), "a.rs".to_owned())]);
    let of = |text: &str| repeated("x.rs", text, &product).len();
    assert_eq!(of("assert!(said.ends_with(\"/p: run this \\\n   as root\"))"), 1);
    assert_eq!(of("(r#\"run this as root\"#, 1)"), 1);
    assert_eq!(of("// \"run this as root\"\nskip(\"run this as root\"); \"run this\""), 0);
    assert_eq!(sentences("run it, now: as root or do -n nothing").collect::<Vec<_>>(), ["as root or do"]);
    assert!(is_of_others("such file or directory") && !is_of_others("run this as root"));
}
