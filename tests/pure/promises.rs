//! SECURITY.md's table of promises: each program has a test of each promise, or a reason.

const DOCUMENT: &str = include_str!("../../SECURITY.md");

/// Columns: the promise, and the programs.
const COLUMNS: usize = 6;

#[test]
fn every_program_has_a_test_or_a_reason_for_every_promise() {
    let (_, section) = DOCUMENT.split_once("\n## One guard for each promise\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("a section after it");
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'))
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 10, "the table is not read: {rows:?}");
    for row in rows {
        assert!(row.len() == COLUMNS && row.iter().all(|cell| !cell.is_empty()), "{row:?}");
    }
}
