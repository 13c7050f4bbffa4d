//! The pictures of docs/pictures: each is a text with lines of box-drawing characters, and the SVG
//! beside it is made of that text alone. `UPDATE=1` writes it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Of one character, in pixels.
const WIDTH: usize = 8;
const HEIGHT: usize = 16;

/// A dark page has light lines.
const STYLE: &str = "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#24292f}path{stroke:#57606a;fill:none}\
    .a{fill:#57606a;stroke:none}@media(prefers-color-scheme:dark){text{fill:#e6edf3}path{stroke:#9198a1}.a{fill:#9198a1}}";

/// The sides of its cell that a character's line reaches: up, right, down, left.
fn sides(character: char) -> Option<[bool; 4]> {
    let reaches = match character {
        '│' => "ud",
        '─' => "rl",
        '┌' => "rd",
        '┐' => "dl",
        '└' => "ur",
        '┘' => "ul",
        '├' => "urd",
        '┤' => "udl",
        '┬' => "rdl",
        '┴' => "url",
        '┼' => "urdl",
        _ => return None,
    };
    Some(['u', 'r', 'd', 'l'].map(|side| reaches.contains(side)))
}

/// An arrow's head: its corners, as parts of a cell.
fn head(character: char) -> Option<[(usize, usize); 3]> {
    match character {
        '▶' => Some([(0, 4), (8, 8), (0, 12)]),
        '◀' => Some([(8, 4), (0, 8), (8, 12)]),
        '▲' => Some([(0, 12), (4, 2), (8, 12)]),
        '▼' => Some([(0, 4), (4, 14), (8, 4)]),
        _ => None,
    }
}

/// Lines of one direction that touch are one.
fn strokes(cells: &[Vec<char>]) -> String {
    let mut path = String::new();
    let at =
        |row: usize, column: usize| cells.get(row).and_then(|row| row.get(column)).copied().and_then(sides);
    let columns = cells.iter().map(Vec::len).max().unwrap_or_default();
    for row in 0..cells.len() {
        // From the middle of one cell to the middle of the next.
        for column in 0..columns {
            let Some([up, right, down, left]) = at(row, column) else { continue };
            let (x, y) = (column * WIDTH + WIDTH / 2, row * HEIGHT + HEIGHT / 2);
            if left && !(column > 0 && at(row, column - 1).is_some_and(|sides| sides[1])) || right && !left {
                let start = if left { x - WIDTH / 2 } else { x };
                let end = (column..columns)
                    .find(|it| !at(row, *it).is_some_and(|sides| sides[1]))
                    .unwrap_or(columns);
                let end = if at(row, end).is_some_and(|sides| sides[3]) {
                    end * WIDTH + WIDTH / 2
                } else {
                    end * WIDTH
                };
                let _ = write!(path, "M{start} {y}H{end}");
            }
            if up && !(row > 0 && at(row - 1, column).is_some_and(|sides| sides[2])) || down && !up {
                let start = if up { y - HEIGHT / 2 } else { y };
                let end = (row..cells.len()).find(|it| !at(*it, column).is_some_and(|sides| sides[2]));
                let end = end.unwrap_or(cells.len());
                let end = if at(end, column).is_some_and(|sides| sides[0]) {
                    end * HEIGHT + HEIGHT / 2
                } else {
                    end * HEIGHT
                };
                let _ = write!(path, "M{x} {start}V{end}");
            }
        }
    }
    path
}

/// Words with single spaces between them, each with its column.
fn words(row: &[char]) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut last = None;
    for (column, character) in row.iter().enumerate() {
        if *character == ' ' || sides(*character).is_some() || head(*character).is_some() {
            continue;
        }
        match (last, all.last_mut()) {
            (Some(last), Some((_, text))) if column - last == 1 => text.push(*character),
            (Some(last), Some((_, text))) if column - last == 2 && row[column - 1] == ' ' => {
                text.extend([' ', *character]);
            }
            _ => all.push((column, character.to_string())),
        }
        last = Some(column);
    }
    all
}

fn svg(source: &str, title: &str) -> String {
    let cells: Vec<Vec<char>> = source.lines().map(|line| line.chars().collect()).collect();
    let columns = cells.iter().map(Vec::len).max().unwrap_or_default();
    let (width, height) = (columns * WIDTH, cells.len() * HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<path d=\"{}\"/>\n",
        strokes(&cells)
    );
    for (row, line) in cells.iter().enumerate() {
        for (column, corners) in line.iter().enumerate().filter_map(|(at, it)| Some((at, head(*it)?))) {
            let corners = corners.map(|(x, y)| format!("{} {}", column * WIDTH + x, row * HEIGHT + y));
            let _ = writeln!(svg, "<path class=\"a\" d=\"M{}Z\"/>", corners.join("L"));
        }
        for (column, text) in words(line) {
            let (x, y, length) = (column * WIDTH, row * HEIGHT + 12, text.chars().count() * WIDTH);
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" textLength=\"{length}\">{text}</text>");
        }
    }
    svg + "</svg>\n"
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures")
}

fn names(extension: &str) -> BTreeSet<String> {
    let paths = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| path.extension().is_some_and(|it| it == extension));
    paths.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn each_is_made_of_its_text() {
    let update = std::env::var_os("UPDATE").is_some();
    let texts = names("txt");
    assert!(texts.len() > 2, "{texts:?}");
    for name in &texts {
        let text = fs::read_to_string(directory().join(format!("{name}.txt"))).unwrap();
        let (title, drawing) = text.split_once("\n\n").expect("a title, an empty line, the drawing");
        let (file, made) = (directory().join(format!("{name}.svg")), svg(drawing, title));
        if update {
            fs::write(&file, &made).unwrap();
        }
        let there = fs::read_to_string(&file).unwrap_or_default();
        assert!(
            there == made,
            "{name}.svg is not that of its text: UPDATE=1 cargo test --test pure pictures::"
        );
    }
    assert_eq!(names("svg"), texts, "a picture without a text");
}

/// No line ends in the air beside another: what a character points to points back, or is text.
#[test]
fn lines_meet() {
    for name in names("txt") {
        let text = fs::read_to_string(directory().join(format!("{name}.txt"))).unwrap();
        let cells: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        for (row, line) in cells.iter().enumerate() {
            for (column, character) in line.iter().enumerate() {
                let Some([_, right, down, _]) = sides(*character) else { continue };
                let at = |row: usize, column: usize| cells.get(row).and_then(|it| it.get(column)).copied();
                let meets = |other: Option<char>, side: usize| {
                    other.is_some_and(|other| sides(other).is_none_or(|sides| sides[side]))
                };
                let place = format!("{name}.txt:{}:{}: {character}", row + 1, column + 1);
                assert!(!right || meets(at(row, column + 1), 3), "{place} has nothing to its right");
                assert!(!down || meets(at(row + 1, column), 0), "{place} has nothing below it");
            }
        }
    }
}

#[test]
fn a_box_is_four_lines() {
    let drawn = svg("┌─┐ ▶ a b\n│x│\n└─┘", "t");
    assert!(drawn.contains("<path d=\"M4 8H20M4 8V40M20 8V40M4 40H20\"/>"), "{drawn}");
    assert!(drawn.contains("<text x=\"48\" y=\"12\" textLength=\"24\">a b</text>"), "{drawn}");
    assert!(drawn.contains("<path class=\"a\" d=\"M32 4L40 8L32 12Z\"/>"), "{drawn}");
}
