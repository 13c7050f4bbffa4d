//! Error texts that people have asked about in public, and what is explained of them.
//!
//! tests/data/errors/known.tsv is for the author of the table of known errors; held-out.tsv is not:
//! it has texts of other threads, at which the author has not looked. README.md there says how both
//! were collected.

use flexvol::diagnostics::explain;
use std::collections::BTreeMap;
use std::path::Path;

/// Of a file of texts.
#[derive(Debug, Default)]
struct Score {
    right: usize,
    wrong: Vec<String>,
    unknown: Vec<String>,
}

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/errors").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Which answers are right for a label; `-` is none at all.
fn answers() -> BTreeMap<String, Vec<String>> {
    let words = |ids: &str| ids.split(' ').map(str::to_owned).collect();
    let text = read("labels.tsv");
    let lines = text.lines().map(|line| line.split_once('\t').unwrap());
    lines.map(|(label, ids)| (label.to_owned(), words(ids))).collect()
}

fn score(name: &str) -> Score {
    let (answers, mut score) = (answers(), Score::default());
    for line in read(name).lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<_> = line.split('\t').collect();
        let [id, _, labels, _, _, text] = fields[..] else { panic!("{line}") };
        let explained = explain(&text.replace("\\n", "\n"));
        let found = explained.map_or("-", |explained| explained.known_error.id);
        let is_right = |label: &str| answers[label].iter().any(|answer| answer == found);
        match found {
            _ if labels.split('|').any(is_right) => score.right += 1,
            "-" => score.unknown.push(format!("{id} {labels}")),
            _ => score.wrong.push(format!("{id} {labels} => {found}")),
        }
    }
    score
}

/// What the score was when these were last written. It only gets better.
#[test]
fn the_texts_of_the_table() {
    let Score { right, wrong, unknown } = score("known.tsv");
    println!("known: {right} right, {} wrong, {} unknown", wrong.len(), unknown.len());
    assert!(right >= 168 && wrong.is_empty(), "{wrong:#?} {unknown:#?}");
}

/// Says no more than numbers: who reads which ones are wrong has looked.
#[test]
fn the_texts_that_were_kept_back() {
    let Score { right, wrong, unknown } = score("held-out.tsv");
    let (wrong, unknown) = (wrong.len(), unknown.len());
    println!("held out: {right} right, {wrong} wrong, {unknown} unknown");
    assert!(right >= 76 && wrong <= 6, "{right} right, {wrong} wrong, {unknown} unknown");
}
