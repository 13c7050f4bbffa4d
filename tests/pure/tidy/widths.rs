//! Comments, Markdown and shell are no wider than an editor beside another one.

use super::{root, tracked};
use std::fs;

/// How wide a comment may be, and a line of Markdown.
const COMMENT_WIDTH: usize = 100;
const MARKDOWN_WIDTH: usize = 120;
/// How wide a line of shell may be, whatever is in it.
const SHELL_WIDTH: usize = 120;
/// Exempt: a page of Markdown in quotes, and a file that is still to be wrapped.
const WIDE_SHELL: &[&str] = &["tests/trust", "tests/cluster/lib/node.sh"];

#[test]
fn shell_fits() {
    let shell = tracked().into_iter().filter(|path| !WIDE_SHELL.contains(&path.as_str()));
    let long: Vec<_> = shell
        .filter_map(|path| Some((fs::read_to_string(root().join(&path)).ok()?, path)))
        .filter(|(text, path)| is_shell(path, text))
        .flat_map(|(text, path)| {
            wider(&text, SHELL_WIDTH).into_iter().map(move |line| format!("{path}:{line}"))
        })
        .collect();
    assert!(long.is_empty(), "shell has {SHELL_WIDTH} columns:\n{}", long.join("\n"));
}

fn is_shell(path: &str, text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    [".sh", ".bats"].iter().any(|end| path.ends_with(end)) || first.starts_with("#!") && first.ends_with("sh")
}

/// The numbers of the lines that are wider, all told.
fn wider(text: &str, width: usize) -> Vec<usize> {
    let lines = text.lines().zip(1..).filter(|(line, _)| line.chars().count() > width);
    lines.map(|(_, number)| number).collect()
}

/// But for diagrams, tables, addresses and examples that are code.
#[test]
fn lines_fit() {
    let long: Vec<_> = tracked()
        .iter()
        .filter_map(|path| Some((path, fs::read_to_string(root().join(path)).ok()?)))
        .flat_map(|(path, text)| {
            too_wide(path, &text).into_iter().map(move |line| format!("{path}:{line}")).collect::<Vec<_>>()
        })
        .collect();
    assert!(
        long.is_empty(),
        "comments have {COMMENT_WIDTH} columns, Markdown {MARKDOWN_WIDTH}:\n{}",
        long.join("\n")
    );
}

/// The numbers of the lines of prose that are too wide.
fn too_wide(path: &str, text: &str) -> Vec<usize> {
    let (width, marks): (_, &[&str]) = match path {
        _ if path.ends_with(".md") => (MARKDOWN_WIDTH, &[""]),
        _ if path.ends_with(".rs") => (COMMENT_WIDTH, &["//! ", "/// ", "// "]),
        _ if text.starts_with("#!") || path.ends_with(".sh") => (COMMENT_WIDTH, &["# "]),
        _ => return Vec::new(),
    };
    // An example in a comment begins further in.
    let indent = if width == MARKDOWN_WIDTH { "    " } else { "  " };
    let mut fenced = false;
    let mut wide = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let text = if path.ends_with(".md") { line } else { line.trim_start() };
        let prose = marks.iter().find_map(|mark| text.strip_prefix(mark));
        fenced = prose.is_some_and(|prose| fenced != prose.starts_with("```"));
        let is_prose = |prose: &str| {
            let is_exempt = ["|", indent, "#", "<"].iter().any(|start| prose.starts_with(start));
            !(fenced || is_exempt || prose.contains("://") || prose.contains(['─', '│']))
        };
        if line.chars().count() > width && prose.is_some_and(is_prose) {
            wide.push(number + 1);
        }
    }
    wide
}

#[test]
fn what_is_wide_is_seen() {
    assert_eq!(wider("ab\nabc\näöü", 2), [2, 3]);
    assert!(is_shell("x", "#!/usr/bin/env bash\n") && !is_shell("x", "#!/usr/bin/python3\n"));
    let wide = "x ".repeat(61);
    let text = format!("{wide}\n| {wide}\n```\n{wide}\n```\n{wide}\nshort\n");
    assert_eq!(too_wide("README.md", &text), [1, 6]);
    let text = format!("/// {wide}\nlet x = 1; // {wide}\n/// short\n");
    assert_eq!(too_wide("a.rs", &text), [1]);
}
