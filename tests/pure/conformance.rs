//! CONFORMANCE.md says of each point which cases of `flexvol check` look at it: exactly those that
//! say so. `UPDATE=1` writes its columns of cases anew.

use flexvol::check::{Case, Level};
use std::fs;
use std::path::{Path, PathBuf};

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("CONFORMANCE.md")
}

/// How many points there are, and how many of them have a case at least.
const POINTS: usize = 143;
const COVERED: usize = 120;

/// What replays each of the sequences.
const SEQUENCES: [&str; 14] = [
    "sequence::boot",
    "sequence::pod",
    "sequence::pod",
    "sequence::lost_answer",
    "sequence::failed_start",
    "sequence::restart_alive",
    "sequence::restart_gone",
    "sequence::reboot",
    "sequence::two_pods",
    "sequence::dead_daemon",
    "sequence::attach",
    "sequence::upgrade",
    "sequence::resize",
    "sequence::probe_storm",
];

/// A line of a table.
enum Row<'a> {
    Point { number: usize, level: &'a str, cells: Vec<&'a str>, remark: &'a str },
    Sequence { number: usize, text: &'a str },
}

fn row(line: &str) -> Option<Row<'_>> {
    let cells: Vec<_> = line.strip_prefix("| ")?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let number = cells[0].parse().ok()?;
    Some(match cells[..] {
        [_, level, _, _, _, remark] => Row::Point { number, level, cells, remark },
        [_, text, _] => Row::Sequence { number, text },
        _ => panic!("{line}"),
    })
}

/// The cases that say they look at a point.
fn cases(point: usize) -> impl Iterator<Item = &'static Case> {
    Case::all().filter(move |case| case.items.iter().any(|item| usize::from(*item) == point))
}

fn in_backquotes<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    let ids: Vec<_> = ids.map(|id| format!("`{id}`")).collect();
    ids.join(", ")
}

/// A line as it should be.
fn rewritten(line: &str) -> String {
    let text = match row(line) {
        None => return line.to_owned(),
        Some(Row::Point { number, cells, .. }) => {
            let ids = in_backquotes(cases(number).map(|case| case.id));
            [&cells[..4], &[ids.as_str()], &cells[5..]].concat().join(" | ")
        }
        Some(Row::Sequence { number, text }) => {
            let id = Some(SEQUENCES[number - 1]).filter(|id| Case::named(id).is_some());
            format!("{number} | {text} | {}", in_backquotes(id.into_iter()))
        }
    };
    // An empty cell is one blank wide.
    format!("| {text} |").replace("|  |", "| |").replace("|  |", "| |")
}

#[test]
fn the_document_names_the_cases_that_there_are() {
    let text = fs::read_to_string(document()).unwrap();
    let wanted: String = text.lines().map(|line| rewritten(line) + "\n").collect();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(document(), wanted).unwrap();
        return;
    }
    for (is, should) in text.lines().zip(wanted.lines()) {
        assert_eq!(is, should, "UPDATE=1 cargo test --test pure conformance:: writes it anew");
    }
}

#[test]
fn every_point_has_a_case_or_a_reason() {
    let text = fs::read_to_string(document()).unwrap();
    let (mut points, mut covered, mut bare, mut weak) = (Vec::new(), 0, Vec::new(), Vec::new());
    for line in text.lines() {
        let Some(Row::Point { number, level, remark, .. }) = row(line) else { continue };
        points.push(number);
        let levels: Vec<_> = cases(number).map(|case| case.level).collect();
        covered += usize::from(!levels.is_empty());
        if levels.is_empty() && remark.is_empty() {
            bare.push(number);
        }
        if level == "must" && !levels.is_empty() && !levels.contains(&Level::Must) {
            weak.push(number);
        }
    }
    assert!(points.iter().copied().eq(1..=POINTS), "{points:?}");
    assert!(bare.is_empty(), "neither a case nor a reason why there is none: {bare:?}");
    assert!(weak.is_empty(), "must hold, and only a should looks at it: {weak:?}");
    assert!(covered >= COVERED, "only {covered} points have a case");
}

#[test]
fn every_sequence_is_replayed() {
    let text = fs::read_to_string(document()).unwrap();
    let rows = text.lines().filter_map(row);
    let numbers =
        rows.filter_map(|row| if let Row::Sequence { number, .. } = row { Some(number) } else { None });
    assert!(numbers.eq(1..=SEQUENCES.len()));
    let missing: Vec<_> = SEQUENCES.iter().filter(|id| Case::named(id).is_none()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let replayed = Case::all().map(|case| case.id).filter(|id| id.starts_with("sequence::"));
    let others: Vec<_> = replayed.filter(|id| !SEQUENCES.contains(id)).collect();
    assert!(others.is_empty(), "in no row of the document: {others:?}");
}
