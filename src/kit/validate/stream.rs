//! Splits a text that is too large for memory into its objects, one after the other.
//!
//! Used for the output of `kubectl get … -A -o yaml` (or `-o json`) for a whole cluster: one
//! `List`, whose `items` are cut out as text before anything is parsed. In YAML, an item begins
//! with `- ` at the indentation of the list, where nothing inside of an item can stand; in JSON,
//! braces and strings mark its end. Each document without `items` is one piece.

use flexvol_protocol::failure::{Failure, Result};
use std::io::{BufRead, Read as _};

/// Limit for one object, in bytes: twice what an API server accepts.
const LARGEST: usize = 3 << 20;

/// Piece of the text that is one object.
pub(super) struct Piece {
    /// Line in which it begins, counted from 1.
    pub(super) line: usize,
    pub(super) text: String,
}

/// Callback for each piece.
type Take<'a> = &'a mut dyn FnMut(Piece) -> Result<()>;

/// Splits a text into its objects.
pub(super) fn pieces(input: &mut dyn BufRead, take: Take<'_>) -> Result<()> {
    let start = input.fill_buf().map_err(|error| unreadable(&error))?;
    let is_json = start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if is_json { json(input, take) } else { yaml(input, take) }
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::options(format!("cannot read it to its end: {error}"))
}

fn too_large(line: usize) -> Failure {
    let text =
        format!("the object in line {line} is larger than {LARGEST} bytes: no API server has such a one");
    Failure::options(text)
}

fn text_of(bytes: Vec<u8>, line: usize) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Failure::options(format!("the object in line {line} is not UTF-8")))
}

/// Position in a YAML document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before `items:`, or in a document without `items:`.
    Head,
    /// Before the first item.
    Items,
    /// In the list, whose dashes are indented by this number of spaces.
    List(usize),
    /// After the list: the rest belongs to no object.
    Tail,
}

fn yaml(input: &mut dyn BufRead, take: Take<'_>) -> Result<()> {
    let (mut at, mut number, mut piece) = (At::Head, 0, Piece { line: 1, text: String::new() });
    let mut line = Vec::new();
    loop {
        line.clear();
        number += 1;
        let limit = LARGEST as u64 + 1;
        let count = input.take(limit).read_until(b'\n', &mut line).map_err(|error| unreadable(&error))?;
        let text = std::str::from_utf8(&line);
        let text = text.map_err(|_| Failure::options(format!("line {number} is not UTF-8")))?;
        let next = if count == 0 || is_mark(text) { None } else { Some(place(at, text)) };
        if let Some((next, begins)) = next {
            if begins || (next != at && at != At::Items) {
                flush(&mut piece, number, matches!(at, At::List(_)), take)?;
            }
            at = next;
        } else {
            flush(&mut piece, number + 1, matches!(at, At::Head | At::List(_)), take)?;
            at = At::Head;
        }
        match at {
            _ if count == 0 => return Ok(()),
            At::List(indent) if next.is_some_and(|(_, begins)| begins) => {
                // Replace the dash by a space, so that the item is a document.
                piece.text.extend([&text[..indent], " ", &text[indent + 1..]]);
            }
            At::Head | At::List(_) if next.is_some() => piece.text.push_str(text),
            _ => {}
        }
        if piece.text.len() > LARGEST {
            return Err(too_large(piece.line));
        }
    }
}

/// Ends a piece; the next one begins in `line`.
fn flush(piece: &mut Piece, line: usize, is_object: bool, take: Take<'_>) -> Result<()> {
    let done = std::mem::replace(piece, Piece { line, text: String::new() });
    if is_object && !done.text.trim().is_empty() { take(done) } else { Ok(()) }
}

fn is_mark(line: &str) -> bool {
    line.strip_prefix("---")
        .or(line.strip_prefix("..."))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// Returns the position in this line, and true if an item begins there.
fn place(at: At, line: &str) -> (At, bool) {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let rest = line[indent..].trim_end();
    let is_item = rest == "-" || rest.starts_with("- ");
    match at {
        _ if rest.is_empty() || rest.starts_with('#') => (at, false),
        At::Head if line.trim_end() == "items:" => (At::Items, false),
        At::Items if is_item => (At::List(indent), true),
        At::List(of_list) if is_item && indent == of_list => (at, true),
        At::List(of_list) if indent > of_list => (at, false),
        At::Head => (at, false),
        At::Items | At::List(_) | At::Tail => (At::Tail, false),
    }
}

/// Position in the root, relative to its `items`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Items {
    #[default]
    Before,
    Within,
    Behind,
}

/// State of the JSON reader.
#[derive(Default)]
struct Json {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The text of the last string at the depth of the root's keys.
    key: Vec<u8>,
    items: Items,
    line: usize,
    piece: Vec<u8>,
    begun: usize,
}

fn json(input: &mut dyn BufRead, take: Take<'_>) -> Result<()> {
    let mut json = Json { line: 1, ..Json::default() };
    loop {
        let buffer = input.fill_buf().map_err(|error| unreadable(&error))?;
        if buffer.is_empty() {
            break;
        }
        let length = buffer.len();
        for byte in buffer {
            if let Some(piece) = json.next(*byte)? {
                take(piece)?;
            }
        }
        input.consume(length);
    }
    if json.depth == 0 {
        return Ok(());
    }
    Err(Failure::options(format!(
        "it ends in the middle, in line {}: was what printed it killed?",
        json.line
    )))
}

impl Json {
    /// Reads one byte. Returns the object that ends with it, if one does.
    fn next(&mut self, byte: u8) -> Result<Option<Piece>> {
        let outermost = if self.items == Items::Within { 2 } else { 0 };
        let begins = !self.in_string && byte == b'{' && self.depth == outermost;
        if begins {
            (self.begun, self.piece) = (self.line, Vec::new());
        }
        if self.depth > outermost || begins {
            self.piece.push(byte);
        }
        if self.piece.len() > LARGEST {
            return Err(too_large(self.begun));
        }
        self.line += usize::from(byte == b'\n');
        if self.in_string {
            self.in_text(byte);
            return Ok(None);
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 {
                    self.key.clear();
                }
            }
            b'{' | b'[' => {
                if (self.depth, byte, &*self.key) == (1, b'[', b"items") {
                    (self.items, self.piece) = (Items::Within, Vec::new());
                }
                self.depth += 1;
            }
            b'}' | b']' => return self.leave(),
            _ => {}
        }
        Ok(None)
    }

    fn in_text(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.in_string = false,
            // All keys that matter are shorter than this limit.
            _ if self.depth == 1 && self.key.len() < 16 => self.key.push(byte),
            _ => {}
        }
    }

    fn leave(&mut self) -> Result<Option<Piece>> {
        self.depth = self.depth.saturating_sub(1);
        let is_object = match (self.depth, self.items) {
            (2, Items::Within) => true,
            (1, Items::Within) => {
                (self.items, self.piece) = (Items::Behind, Vec::new());
                false
            }
            // Text after the items belongs to no object.
            (0, _) => std::mem::take(&mut self.items) == Items::Before,
            _ => false,
        };
        let done = is_object.then(|| std::mem::take(&mut self.piece));
        done.map(|bytes| Ok(Piece { line: self.begun, text: text_of(bytes, self.begun)? })).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns line and text of each piece; they must not depend on the buffer size.
    fn cut(text: &str) -> Vec<(usize, String)> {
        let of = |capacity| {
            let mut all = Vec::new();
            let mut input = std::io::BufReader::with_capacity(capacity, text.as_bytes());
            pieces(&mut input, &mut |piece| {
                all.push((piece.line, piece.text));
                Ok(())
            })
            .unwrap();
            all
        };
        let all = of(8192);
        assert_eq!(of(3), all);
        all
    }

    #[test]
    fn a_list_is_cut_where_its_items_begin() {
        let text = "apiVersion: v1\nitems:\n- kind: A\n  b:\n  - c\n\n  d: |\n    items:\n    - x\n-\n  kind: B\nkind: List\nmetadata: {}\n";
        let expected = [
            (3, "  kind: A\n  b:\n  - c\n\n  d: |\n    items:\n    - x\n".to_owned()),
            (10, " \n  kind: B\n".to_owned()),
        ];
        assert_eq!(cut(text), expected);
        let deeper = "items:\n  # first\n  - kind: A\n    x: 1\n  - kind: B\n";
        assert_eq!(cut(deeper), [(3, "    kind: A\n    x: 1\n".to_owned()), (5, "    kind: B\n".to_owned())]);
    }

    #[test]
    fn documents_are_pieces() {
        let text =
            "kind: A\n---\n# nothing\n--- # x\nitems:\n- kind: B\n---\nkind: C\nspec: {items: [1]}\n...\n";
        let expected = [
            (1, "kind: A\n".to_owned()),
            (3, "# nothing\n".to_owned()),
            (6, "  kind: B\n".to_owned()),
            (8, "kind: C\nspec: {items: [1]}\n".to_owned()),
        ];
        assert_eq!(cut(text), expected);
    }

    #[test]
    fn json_is_cut_by_its_braces() {
        let text = "\n{\"kind\": \"List\", \"metadata\": {\"items\": [{}]},\n \"items\": [{\"a\": \"}]\\\"{\", \"b\": [{}]},\n  {\"items\": []}],\n \"x\": {}}\n{\"kind\": \"C\"}";
        let expected = [
            (3, "{\"a\": \"}]\\\"{\", \"b\": [{}]}".to_owned()),
            (4, "{\"items\": []}".to_owned()),
            (6, "{\"kind\": \"C\"}".to_owned()),
        ];
        assert_eq!(cut(text), expected);
        let take = &mut |_| Ok(());
        assert!(pieces(&mut "{\"items\": [{".as_bytes(), take).unwrap_err().message().contains("line 1"));
    }
}
