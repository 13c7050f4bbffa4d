//! Comments that one has to read twice, counted by how they begin and by turns of speech: at most
//! one of twenty, and at most two of twenty-five in each directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Limits in percent, for the whole and for each directory.
const OF_ALL: usize = 5;
const OF_DIRECTORY: usize = 8;

/// Words that turn a statement round.
const OPENERS: &[&str] = &[
    "What",
    "Whether",
    "How",
    "Where",
    "Who",
    "Which",
    "Why",
    "Whose",
    "When",
    "Of",
    "As",
    "Nor",
    "That",
    "For whom",
    "To whom",
    "By whom",
    "With what",
    "From where",
];

/// Turns of speech, each from the beginning of a word. Those before the first empty one end with a
/// word as well.
const WHOLE_TURNS: &[&str] = &[
    "who is",
    "who has",
    "who does",
    "who cannot",
    "who stops",
    "who gets",
    "who wants",
    "who needs",
    "who asks",
    "who looks",
    "who writes",
    "who reads",
    "what is not",
    "what is there",
    "what is left",
    "what is none",
    "what is of",
    "what was not",
    "what was there",
    "what was left",
    "what was none",
    "what was of",
    "is none",
    "are none",
    "anew",
    "theirs",
    "all the same",
    "by itself",
];
const TURNS: &[&str] = &[
    "nobody",
    "somebody",
    "else's",
    "of nothing",
    "to nothing",
    "is told so",
    "let go",
    "lets go",
    "letting go",
];

/// Texts of the comments of a file: paragraphs, each in one line.
fn blocks(source: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in source.lines() {
        let line = line.trim_start();
        let text = ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark));
        let text = text.filter(|text| !text.starts_with('/')).map_or("", str::trim);
        match (text, blocks.last_mut()) {
            ("", _) => blocks.push(String::new()),
            (text, Some(block)) if !block.is_empty() => *block = format!("{block} {text}"),
            (text, Some(block)) => text.clone_into(block),
            (_, None) => {}
        }
    }
    blocks.retain(|block| block.starts_with(|c: char| c.is_ascii_alphabetic() || "`[".contains(c)));
    blocks
}

fn is_end_of_word(rest: &str) -> bool {
    !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn is_odd(block: &str) -> bool {
    let opens = OPENERS.iter().any(|word| block.strip_prefix(word).is_some_and(is_end_of_word));
    let lower = block.to_lowercase();
    let begins = |at: usize| !lower[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let turns = |turn: &str, is_whole: bool| {
        lower.match_indices(turn).any(|(at, _)| {
            let rest = &lower[at + turn.len()..];
            let is_question = turn.starts_with("who ") && rest.starts_with(" to");
            begins(at) && (!is_whole || is_end_of_word(rest)) && !is_question
        })
    };
    opens || WHOLE_TURNS.iter().any(|turn| turns(turn, true)) || TURNS.iter().any(|turn| turns(turn, false))
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn comments_read_at_first_sight() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for directory in ["src", "bin"] {
        sources(&root.join(directory), &mut files);
    }
    let mut counted: BTreeMap<PathBuf, (usize, Vec<String>)> = BTreeMap::new();
    for file in files {
        let path = file.strip_prefix(root).unwrap();
        let depth = if path.components().count() > 3 { 3 } else { 2 };
        let (all, odd) = counted.entry(path.components().take(depth).collect()).or_default();
        let blocks = blocks(&fs::read_to_string(&file).unwrap());
        *all += blocks.len();
        let of_file = blocks.iter().filter(|block| is_odd(block));
        odd.extend(of_file.map(|block| format!("{}: {block}", path.display())));
    }
    let over = |limit: usize, (all, odd): &(usize, Vec<String>)| odd.len() * 100 > all * limit;
    let bad = counted.values().filter(|counts| over(OF_DIRECTORY, counts)).flat_map(|(_, odd)| odd.clone());
    let bad: Vec<_> = bad.collect();
    assert!(
        bad.is_empty(),
        "over {OF_DIRECTORY} % of a directory have to be read twice:\n{}",
        bad.join("\n")
    );
    let sum = (
        counted.values().map(|(all, _)| all).sum(),
        counted.into_values().flat_map(|(_, odd)| odd).collect(),
    );
    assert!(!over(OF_ALL, &sum), "over {OF_ALL} % have to be read twice:\n{}", sum.1.join("\n"));
}

#[test]
fn what_is_odd_is_known() {
    for odd in ["What is left", "Of nobody", "Code who is root", "It lets go", "They are none."] {
        assert!(is_odd(odd), "{odd}");
    }
    for plain in
        ["Offset in bytes", "Returns who is to wait", "Name of the node", "Whenever", "It is nonempty"]
    {
        assert!(!is_odd(plain), "{plain}");
    }
    let source = "//! One\n//! block\n\n/// two\nfn f() {} // no\n//// no\n// `three`\n";
    assert_eq!(blocks(source), ["One block", "two", "`three`"]);
}
