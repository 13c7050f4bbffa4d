//! Which test shows each of the things that were asked of the agent and of mount pods, and what is
//! missing.

use std::collections::BTreeSet;
use std::path::Path;

/// Of the agent: so many things were asked, and of so many something is missing. The second only
/// falls.
const AGENT: Table = (include_str!("../data/agent_tests.tsv"), ASKED, LACKING);

/// The same of mount pods.
const MOUNTER: Table = (include_str!("../data/mounter_tests.tsv"), 25, 1);

type Table = (&'static str, usize, usize);

/// So many things were asked.
const ASKED: usize = 58;

/// Of so many something is missing: it only falls.
const LACKING: usize = 16;

struct Row<'a> {
    number: usize,
    shown: Vec<(&'a str, &'a str)>,
    missing: &'a str,
}

fn row(line: &str) -> Row<'_> {
    let cells: Vec<_> = line.split('\t').collect();
    let [number, about, shown, missing] = cells[..] else { panic!("four cells: {line}") };
    assert!(!about.is_empty(), "{line}");
    let shown = shown.split("; ").filter(|test| !test.is_empty());
    let shown = shown.map(|test| test.split_once(' ').unwrap_or_else(|| panic!("a file and a test: {line}")));
    Row { number: number.parse().unwrap(), shown: shown.collect(), missing }
}

#[test]
fn each_thing_that_was_asked_has_a_test_or_a_reason() {
    for (text, asked, missing) in [AGENT, MOUNTER] {
        let rows: Vec<_> = text.lines().map(row).collect();
        let numbers: Vec<_> = rows.iter().map(|row| row.number).collect();
        assert_eq!(numbers, (1..=asked).collect::<Vec<_>>());
        let silent: Vec<_> =
            rows.iter().filter(|row| row.shown.is_empty() && row.missing.is_empty()).collect();
        assert!(silent.is_empty(), "{:?}", silent.iter().map(|row| row.number).collect::<Vec<_>>());
        let lacking = rows.iter().filter(|row| !row.missing.is_empty()).count();
        assert_eq!(lacking, missing, "lower what is missing, or say why it rises");
    }
}

#[test]
fn every_test_that_is_named_is_there() {
    let lines = [AGENT, MOUNTER].into_iter().flat_map(|(text, ..)| text.lines());
    let named: BTreeSet<_> = lines.flat_map(|line| row(line).shown).collect();
    for (file, test) in named {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
        let text = text.unwrap_or_else(|error| panic!("{file}: {error}"));
        let is_shell = Path::new(file).extension() == Some("sh".as_ref());
        let said = if is_shell { format!("says '{test}' ") } else { format!("fn {test}(") };
        assert!(text.contains(&said), "{file} has no {test}");
    }
}
