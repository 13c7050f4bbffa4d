//! CONFORMANCE.md says of each point which cases of `flexvol check` look at it: exactly those that
//! say so. docs/kubelet-truth.md says of each must which run of a real kubelet showed it, and each
//! of these is a case of tests/cluster. `UPDATE=1` writes both again.

use flexvol::check::{Case, Level, matching};
use std::fs;
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn document() -> PathBuf {
    file("CONFORMANCE.md")
}

/// The last section of docs/kubelet-truth.md, which is written by the test.
const RUNS_SECTION: &str = "## Every must and its run\n";

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
    Point { number: usize, cells: Vec<&'a str>, remark: &'a str },
    Sequence { number: usize, text: &'a str },
}

fn row(line: &str) -> Option<Row<'_>> {
    let cells: Vec<_> = line.strip_prefix("| ")?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let number = cells[0].parse().ok()?;
    Some(match cells[..] {
        [_, _, _, _, _, remark] => Row::Point { number, cells, remark },
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

/// The level of a point: no graver than that of its gravest case.
fn level(point: usize, told: &str) -> String {
    let gravest = cases(point).map(|case| case.level).min();
    let told = Level::ALL.into_iter().find(|level| level.to_string() == told).expect("a level");
    gravest.map_or(told, |gravest| gravest.max(told)).to_string()
}

/// A line as it should be.
fn rewritten(line: &str) -> String {
    let text = match row(line) {
        None => return line.to_owned(),
        Some(Row::Point { number, cells, .. }) => {
            let ids = in_backquotes(cases(number).map(|case| case.id));
            let level = level(number, cells[1]);
            [&[cells[0], level.as_str()], &cells[2..4], &[ids.as_str()], &cells[5..]].concat().join(" | ")
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
        assert_eq!(is, should, "UPDATE=1 cargo test --test pure conformance:: writes it again");
    }
}

#[test]
fn every_point_has_a_case_or_a_reason() {
    let text = fs::read_to_string(document()).unwrap();
    let (mut points, mut covered, mut bare) = (Vec::new(), 0, Vec::new());
    for line in text.lines() {
        let Some(Row::Point { number, remark, .. }) = row(line) else { continue };
        points.push(number);
        let has_case = cases(number).next().is_some();
        covered += usize::from(has_case);
        if !has_case && remark.is_empty() {
            bare.push(number);
        }
    }
    assert!(points.iter().copied().eq(1..=POINTS), "{points:?}");
    assert!(bare.is_empty(), "neither a case nor a reason why there is none: {bare:?}");
    assert!(covered >= COVERED, "only {covered} points have a case");
}

/// The names of the cases of tests/cluster, with a star for what the shell puts in.
fn cluster_cases() -> Vec<String> {
    let scripts =
        ["tests/cluster/cases", "tests/cluster/lib"].map(|directory| fs::read_dir(file(directory)).unwrap());
    let texts = scripts.into_iter().flatten().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    texts.flat_map(|text| text.lines().filter_map(case_name).collect::<Vec<_>>()).collect()
}

/// Of a line that plays one: `says 'NAME' …`, in quotes of either kind.
fn case_name(line: &str) -> Option<String> {
    let (_, after) = line.split_once("says ")?;
    let quote = after.chars().next().filter(|first| matches!(first, '\'' | '"'))?;
    let (name, _) = after[1..].split_once(quote)?;
    let mut pieces = name.split('$');
    let first = pieces.next()?.to_owned();
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    Some(pieces.fold(first, |name, piece| name + "*" + piece.trim_start_matches(is_of_name)))
}

/// The runs that musts cite, in the order of the musts.
fn runs() -> Vec<&'static str> {
    let mut runs = Vec::new();
    for run in Case::all().filter_map(|case| case.run) {
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    runs
}

#[test]
fn every_run_that_is_cited_is_played() {
    let played = cluster_cases();
    assert!(played.len() > 300, "{played:?}");
    let is_played = |run: &str| played.iter().any(|name| matching(name, run));
    let missing: Vec<_> = runs().into_iter().filter(|run| !is_played(run)).collect();
    assert!(missing.is_empty(), "no case of tests/cluster: {missing:#?}");
}

#[test]
fn the_document_names_the_run_of_every_must() {
    let path = file("docs/kubelet-truth.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, _) = text.split_once(RUNS_SECTION).expect("the section of the runs");
    let musts = |run| in_backquotes(Case::all().filter(|case| case.run == Some(run)).map(|case| case.id));
    let rows = runs().into_iter().map(|run| format!("| {run} | {} |\n", musts(run)));
    let wanted = format!("{before}{RUNS_SECTION}\n| case of `tests/cluster` | musts |\n|---|---|\n")
        + &rows.collect::<String>();
    if std::env::var_os("UPDATE").is_some() {
        return fs::write(path, wanted).unwrap();
    }
    assert!(text == wanted, "UPDATE=1 cargo test --test pure conformance:: writes it again");
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
