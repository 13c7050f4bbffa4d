//! Output of commands: text in colour or not, tables, or JSON.

use anyhow::{Context as _, Result};
use flexvol_linux::proc::terminal::columns;
use flexvol_protocol::text::{is_unprintable, one_line};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write};

/// Width of text for people, in columns, unless the terminal has fewer.
const WIDTH: usize = 80;

/// Minimum width of text on a terminal; the next constant is that of a table's column.
const NARROWEST: usize = 40;
const NARROWEST_COLUMN: usize = 6;

/// Standard output, and how to write to it.
pub struct Screen {
    out: Box<dyn Write>,
    json: bool,
    colour: bool,
    looks_on: LooksOn,
    /// Width of the terminal, if there is one.
    columns: Option<usize>,
}

/// Viewer of the output, and state of the cursor's line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LooksOn {
    Nobody,
    Somebody,
    /// Like `Somebody`, and the next line replaces the cursor's line.
    AtPassing,
}

/// Meaning of a piece of text; on a terminal it selects the colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Bold.
    Heading,
    /// Green.
    Good,
    /// Red.
    Bad,
    /// Yellow.
    Warning,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Self::Heading => "\x1b[1m",
            Self::Good => "\x1b[32m",
            Self::Bad => "\x1b[31m",
            Self::Warning => "\x1b[33m",
        }
    }
}

impl Screen {
    /// Returns the screen for standard output. Colours appear only on a terminal, and never with
    /// `NO_COLOR` (<https://no-color.org>).
    pub fn standard(json: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = io::stdout().is_terminal() && !dumb;
        let looks_on = if terminal { LooksOn::Somebody } else { LooksOn::Nobody };
        let columns = terminal.then(|| columns(io::stdout())).flatten();
        Self { out: Box::new(io::stdout()), json, colour: terminal && !plain, looks_on, columns }
    }

    /// Returns the width of running text, in columns.
    pub fn width(&self) -> usize {
        self.columns.map_or(WIDTH, |columns| columns.clamp(NARROWEST, WIDTH))
    }

    /// Reports whether `--json` was given.
    pub fn wants_json(&self) -> bool {
        self.json
    }

    /// Prints text that ends its own lines.
    pub fn text(&mut self, text: &str) -> Result<()> {
        if self.looks_on == LooksOn::AtPassing {
            self.looks_on = LooksOn::Somebody;
            self.put(b"\r\x1b[K")?;
        }
        self.put(shown(text).as_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).and_then(|()| self.out.flush()).context("write to standard output")
    }

    /// Prints one line.
    pub fn line(&mut self, line: &str) -> Result<()> {
        self.text(&format!("{line}\n"))
    }

    /// Shows a line until the next one is printed; nothing if standard output is no terminal. The
    /// line must be shorter than the terminal's width.
    pub fn passing(&mut self, line: &str) -> Result<()> {
        if self.is_terminal() && !self.json {
            self.text(line)?;
            self.looks_on = LooksOn::AtPassing;
        }
        Ok(())
    }

    /// Reports whether standard output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.looks_on != LooksOn::Nobody
    }

    /// Prints one value as indented JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        self.line(&escaped(&serde_json::to_string_pretty(value)?))
    }

    /// Prints text that another program reads; with JSON, it is the only member of an object.
    pub fn document(&mut self, name: &str, text: &str) -> Result<()> {
        if self.json { self.json(&serde_json::json!({name: text})) } else { self.text(text) }
    }

    /// Returns text in the colour of its tone.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if self.colour { format!("{}{text}\x1b[0m", tone.code()) } else { text.to_owned() }
    }

    /// Prints a heading in a line of its own.
    pub fn heading(&mut self, text: &str) -> Result<()> {
        let heading = self.paint(Tone::Heading, text);
        self.line(&heading)
    }

    /// Prints columns as wide as their widest cell; the first row is the heading. On a terminal the
    /// columns are made to fit: the last one is wrapped between words, the others are cut. A cell
    /// may contain foreign text: its control characters never reach a terminal.
    pub fn table<const N: usize>(&mut self, rows: &[[String; N]]) -> Result<()> {
        let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| printable(cell))).collect();
        let widths = fitted(widths(&rows), self.columns);
        for (index, row) in rows.iter().enumerate() {
            let lines = in_columns(row, &widths, self.columns.is_some());
            match index {
                0 => self.heading(&lines)?,
                _ => self.line(&lines)?,
            }
        }
        Ok(())
    }
}

/// Makes text safe for a terminal: replaces foreign control characters, such as those that reverse
/// text, and keeps our colours and line breaks.
fn shown(text: &str) -> Cow<'_, str> {
    let turns = |c: char| is_unprintable(c) && !c.is_control();
    if text.contains(turns) { text.replace(turns, "?").into() } else { text.into() }
}

/// Returns the same JSON, with escapes for characters that could confuse a terminal.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unprintable(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text
}

/// Returns a cell in printable form.
fn printable(cell: &str) -> String {
    // one_line would remove the indentation.
    if cell.contains(is_unprintable) { one_line(cell, usize::MAX) } else { cell.to_owned() }
}

fn widths<const N: usize>(rows: &[[String; N]]) -> [usize; N] {
    std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
}

/// Returns widths that fit the terminal: the widest column shrinks first.
fn fitted<const N: usize>(mut widths: [usize; N], columns: Option<usize>) -> [usize; N] {
    let Some(columns) = columns else { return widths };
    while widths.iter().sum::<usize>() + GAP.len() * N.saturating_sub(1) > columns {
        match widths.iter_mut().max() {
            Some(widest) if *widest > NARROWEST_COLUMN => *widest -= 1,
            _ => break,
        }
    }
    widths
}

const GAP: &str = "  ";

/// Formats one row, in several lines if its last cell is wrapped to fit.
fn in_columns<const N: usize>(row: &[String; N], widths: &[usize; N], fits: bool) -> String {
    let (mut line, mut indent) = (String::new(), 0);
    for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
        let is_last = index + 1 == N;
        if is_last && fits && cell.chars().count() > *width {
            let wrapped = wrap(cell, 0, *width);
            let parts: Vec<_> = wrapped.lines().map(|part| cut(part, *width)).collect();
            line.push_str(&parts.join(&format!("\n{}", " ".repeat(indent))));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(line, "{:<width$}{GAP}", cut(cell, *width));
        }
        indent += width + GAP.len();
    }
    line.trim_end().to_owned()
}

/// Returns at most `width` characters; the last one shows that there were more.
fn cut(cell: &str, width: usize) -> Cow<'_, str> {
    if cell.chars().count() <= width {
        return cell.into();
    }
    let kept: String = cell.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…").into()
}

/// Formats a count: `1 call`, `2 calls`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Breaks text into lines of at most `width` characters, each after `indent` spaces.
pub fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().filter(|line| {
            line.is_empty() || indent + line.chars().count() + 1 + word.chars().count() <= width
        });
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => line.extend([" ", word]),
            None => lines.push(word.to_owned()),
        }
    }
    let margin = " ".repeat(indent);
    lines.iter().flat_map(|line| [&margin, line, "\n"]).collect()
}

/// Formats a number of bytes with a fitting unit and at most three digits.
pub fn bytes(size: u64) -> String {
    let (mut size, mut units) = (u128::from(size) * 10, ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while size >= 10_240 {
        (size, unit) = (size / 1024, units.next().unwrap_or("Ei"));
    }
    if size >= 100 || size % 10 == 0 {
        format!("{}{unit}", size / 10)
    } else {
        format!("{}.{}{unit}", size / 10, size % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_text_turn_no_terminal_around() {
        assert_eq!(shown("\u{1b}[1ma\u{202e}b\n"), "\u{1b}[1ma?b\n");
        let value = serde_json::json!({"pod": "a\u{202e}b\u{85}\u{e0041}"});
        let text = escaped(&value.to_string());
        assert!(text.is_ascii(), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn wraps_between_words() {
        assert_eq!(wrap("one two  three", 2, 9), "  one two\n  three\n");
        assert_eq!(wrap("incomprehensibilities a", 1, 5), " incomprehensibilities\n a\n");
    }

    #[test]
    fn columns_are_aligned_without_trailing_blanks() {
        let rows = [["A", "B"], ["long", ""]].map(|row| row.map(str::to_owned));
        let lines: Vec<_> = rows.iter().map(|row| in_columns(row, &widths(&rows), false)).collect();
        assert_eq!(lines, ["A     B", "long"]);
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let rows =
            [["A", "B", "C"], ["a", "/var/lib/kubelet/pods/7/volumes/x~y/v", "dead: its program is gone"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        for columns in [20, 33, 60, 80] {
            let widths = fitted(widths(&rows), Some(columns));
            let text = in_columns(&rows[1], &widths, true);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns, "{columns}: {text}");
        }
        let widths = fitted(widths(&rows), Some(33));
        let text = in_columns(&rows[1], &widths, true);
        assert_eq!(
            text,
            "a  /var/lib/kube…  dead: its\n                   program is\n                   gone"
        );
        assert_eq!(fitted([3, 70, 50], None), [3, 70, 50]);
    }
}
