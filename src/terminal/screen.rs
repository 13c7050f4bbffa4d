//! Where commands print: text in colour or not, tables, or JSON.

use anyhow::{Context as _, Result};
use flexvol_protocol::text::{is_unprintable, one_line};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write};

/// How wide text for people is, in columns.
pub const WIDTH: usize = 80;

/// Standard output, and how to write to it.
pub struct Screen {
    out: Box<dyn Write>,
    json: bool,
    colour: bool,
    looks_on: LooksOn,
}

/// Whether someone watches the output, and where the cursor is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LooksOn {
    Nobody,
    Somebody,
    /// And the line that the cursor is in will give way to the next.
    AtPassing,
}

/// What a piece of text is; on a terminal, that is its colour.
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
    /// Standard output. Colour only for a terminal, and never with `NO_COLOR`
    /// (<https://no-color.org>).
    pub fn standard(json: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = io::stdout().is_terminal() && !dumb;
        let looks_on = if terminal { LooksOn::Somebody } else { LooksOn::Nobody };
        Self { out: Box::new(io::stdout()), json, colour: terminal && !plain, looks_on }
    }

    /// Whether `--json` was given.
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

    /// Shows a line until the next one is printed; nothing if standard output is no terminal. It
    /// has to be shorter than a terminal is wide.
    pub fn passing(&mut self, line: &str) -> Result<()> {
        if self.is_terminal() && !self.json {
            self.text(line)?;
            self.looks_on = LooksOn::AtPassing;
        }
        Ok(())
    }

    /// Whether standard output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.looks_on != LooksOn::Nobody
    }

    /// Prints one value as indented JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        self.line(&escaped(&serde_json::to_string_pretty(value)?))
    }

    /// Prints text that a program other than ours reads; as JSON, the one member of an object.
    pub fn document(&mut self, name: &str, text: &str) -> Result<()> {
        if self.json { self.json(&serde_json::json!({name: text})) } else { self.text(text) }
    }

    /// Text in the colour of its tone.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if self.colour { format!("{}{text}\x1b[0m", tone.code()) } else { text.to_owned() }
    }

    /// Prints a heading in a line of its own.
    pub fn heading(&mut self, text: &str) -> Result<()> {
        let heading = self.paint(Tone::Heading, text);
        self.line(&heading)
    }

    /// Prints columns as wide as their widest cell; the first row is the heading. What a cell holds
    /// may be anybody's words: no control character of it reaches a terminal.
    pub fn table<const N: usize>(&mut self, rows: &[[String; N]]) -> Result<()> {
        let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| printable(cell))).collect();
        let widths = widths(&rows);
        for (index, row) in rows.iter().enumerate() {
            let line = in_columns(row, &widths);
            match index {
                0 => self.heading(&line)?,
                _ => self.line(&line)?,
            }
        }
        Ok(())
    }
}

/// Text that is safe for a terminal: control characters that did not come from us, such as those
/// that reverse text, are replaced; our colours and line breaks stay.
fn shown(text: &str) -> Cow<'_, str> {
    let turns = |c: char| is_unprintable(c) && !c.is_control();
    if text.contains(turns) { text.replace(turns, "?").into() } else { text.into() }
}

/// The same JSON, with what could confuse a terminal as escapes.
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

/// A cell as it may be printed.
fn printable(cell: &str) -> String {
    // one_line would cut what blanks indent.
    if cell.contains(is_unprintable) { one_line(cell, usize::MAX) } else { cell.to_owned() }
}

fn widths<const N: usize>(rows: &[[String; N]]) -> [usize; N] {
    std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
}

fn in_columns<const N: usize>(row: &[String; N], widths: &[usize; N]) -> String {
    let mut line = String::new();
    for (cell, width) in row.iter().zip(widths) {
        // Writing to a String cannot fail.
        let _ = write!(line, "{cell:<width$}  ");
    }
    line.trim_end().to_owned()
}

/// `1 call`, `2 calls`.
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

/// With a fitting unit and at most three digits.
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
        let lines: Vec<_> = rows.iter().map(|row| in_columns(row, &widths(&rows))).collect();
        assert_eq!(lines, ["A     B", "long"]);
    }
}
