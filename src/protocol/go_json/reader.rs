//! Scanner for [`super::parse`]: byte by byte, with Go's states, and with Go's words for unexpected
//! input.

use super::{Malformed, Object, Value};
use std::iter;

/// Go's `maxNestingDepth`.
const DEEPEST: usize = 10_000;

type Result<T> = std::result::Result<T, Malformed>;

/// Unread part of a text.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    /// Returns the next byte that is not white space, without reading it.
    pub(super) fn next_byte(&mut self) -> Result<u8> {
        let space = self.rest.iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
        self.skip(space);
        self.rest.first().copied().ok_or_else(Malformed::cut_short)
    }

    /// Reads `byte` if it comes next. Reports whether it did.
    pub(super) fn accept(&mut self, byte: u8) -> bool {
        let comes = self.rest.first() == Some(&byte);
        self.skip(comes.into());
        comes
    }

    /// Fails unless the text has ended.
    pub(super) fn end(&mut self) -> Result<()> {
        self.next_byte().map_or(Ok(()), |byte| Err(Malformed::unexpected(byte, "after top-level value")))
    }

    /// Reads a member's name and the colon after it.
    pub(super) fn key(&mut self) -> Result<String> {
        match self.next_byte()? {
            b'"' => {}
            byte => return Err(Malformed::unexpected(byte, "looking for beginning of object key string")),
        }
        let key = self.string()?;
        match self.next_byte()? {
            b':' => self.skip(1),
            byte => return Err(Malformed::unexpected(byte, "after object key")),
        }
        Ok(key)
    }

    /// Reads any value. The content of an object or array is checked, and left to
    /// [`Object::members`].
    pub(super) fn value(&mut self) -> Result<Value<'a>> {
        let first = self.next_byte()?;
        let inside = self.rest.get(1..).unwrap_or_default();
        match first {
            b'{' => self.nest().map(|()| Value::Object(Object(inside))),
            b'[' => self.nest().map(|()| Value::Array),
            _ => self.scalar(),
        }
    }

    /// Walks over a value with a list of open brackets instead of recursion: the deepest text must
    /// not overflow the stack.
    fn nest(&mut self) -> Result<()> {
        let mut open = Vec::new();
        loop {
            let closer = match self.next_byte()? {
                b'{' => Some(b'}'),
                b'[' => Some(b']'),
                _ => None,
            };
            if let Some(closer) = closer {
                self.skip(1);
                open.push(closer);
                if open.len() > DEEPEST {
                    return Err(Malformed::too_deep());
                }
                if self.next_byte()? != closer {
                    self.key_within(closer)?;
                    continue;
                }
            } else {
                self.scalar()?;
            }
            if !self.another(&mut open)? {
                return Ok(());
            }
        }
    }

    /// Closes the brackets that end after a value, and reports whether another value follows.
    fn another(&mut self, open: &mut Vec<u8>) -> Result<bool> {
        while let Some(&closer) = open.last() {
            match self.next_byte()? {
                b',' => {
                    self.skip(1);
                    self.key_within(closer)?;
                    return Ok(true);
                }
                byte if byte == closer => {
                    self.skip(1);
                    open.pop();
                }
                byte if closer == b'}' => {
                    return Err(Malformed::unexpected(byte, "after object key:value pair"));
                }
                byte => return Err(Malformed::unexpected(byte, "after array element")),
            }
        }
        Ok(false)
    }

    /// Reads the key that precedes a value in an object; in an array there is no key.
    fn key_within(&mut self, closer: u8) -> Result<()> {
        if closer == b'}' {
            self.key()?;
        }
        Ok(())
    }

    fn scalar(&mut self) -> Result<Value<'a>> {
        match self.next_byte()? {
            b'"' => self.string().map(Value::String),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.literal("true", Value::Bool(true)),
            b'f' => self.literal("false", Value::Bool(false)),
            b'n' => self.literal("null", Value::Null),
            byte => Err(Malformed::unexpected(byte, "looking for beginning of value")),
        }
    }

    fn literal(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>> {
        for expected in word.bytes() {
            if !self.accept(expected) {
                let place = format!("in literal {word} (expecting '{}')", char::from(expected));
                return Err(Malformed::unexpected(self.within_token(), &place));
            }
        }
        Ok(value)
    }

    fn number(&mut self) -> Result<Value<'a>> {
        let start = self.rest;
        self.accept(b'-');
        if !self.accept(b'0') {
            self.digits("in numeric literal")?;
        }
        if self.accept(b'.') {
            self.digits("after decimal point in numeric literal")?;
        }
        if self.accept(b'e') || self.accept(b'E') {
            let _sign = self.accept(b'+') || self.accept(b'-');
            self.digits("in exponent of numeric literal")?;
        }
        let text = start.get(..start.len() - self.rest.len()).unwrap_or_default();
        Ok(Value::Number(str::from_utf8(text).ok().and_then(|text| text.parse().ok())))
    }

    fn digits(&mut self, place: &str) -> Result<()> {
        match self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count() {
            0 => Err(Malformed::unexpected(self.within_token(), place)),
            count => {
                self.skip(count);
                Ok(())
            }
        }
    }

    fn string(&mut self) -> Result<String> {
        self.skip(1);
        let mut text = String::new();
        loop {
            let special = |&byte: &u8| byte < b' ' || byte == b'"' || byte == b'\\';
            let plain = self.rest.iter().position(special).ok_or_else(Malformed::cut_short)?;
            push_as_go(&mut text, self.rest.get(..plain).unwrap_or_default());
            self.skip(plain);
            let byte = self.within_token();
            self.skip(1);
            match byte {
                b'"' => return Ok(text),
                b'\\' => text.push(self.escape()?),
                _ => return Err(Malformed::unexpected(byte, "in string literal")),
            }
        }
    }

    /// Reads the rest of an escape, after the backslash.
    fn escape(&mut self) -> Result<char> {
        let byte = self.within_token();
        self.skip(1);
        match byte {
            b'"' | b'\\' | b'/' => Ok(byte.into()),
            b'b' => Ok('\u{8}'),
            b'f' => Ok('\u{c}'),
            b'n' => Ok('\n'),
            b'r' => Ok('\r'),
            b't' => Ok('\t'),
            b'u' => self.unicode(),
            _ => Err(Malformed::unexpected(byte, "in string escape code")),
        }
    }

    /// Reads the rest of `\u`: a character, one half of a pair with the other half next, or U+FFFD
    /// for a lone half.
    fn unicode(&mut self) -> Result<char> {
        let unit = self.hex4()?;
        let mut ahead = *self;
        if (0xd800..0xdc00).contains(&unit) && ahead.accept(b'\\') && ahead.accept(b'u') {
            let pair = [unit, ahead.hex4()?];
            if let Some(Ok(character)) = char::decode_utf16(pair).next() {
                *self = ahead;
                return Ok(character);
            }
        }
        Ok(char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u16> {
        (0..4).try_fold(0, |unit: u16, _| {
            let byte = self.within_token();
            self.skip(1);
            match char::from(byte).to_digit(16).and_then(|digit| u16::try_from(digit).ok()) {
                Some(digit) => Ok(unit << 4 | digit),
                None => Err(Malformed::unexpected(byte, r"in \u hexadecimal character escape")),
            }
        })
    }

    /// Returns the next byte inside a token, without reading it. At the end of the text Go feeds
    /// its scanner a space, so `tru` is an invalid `' '`, not an unexpected end.
    fn within_token(&self) -> u8 {
        self.rest.first().copied().unwrap_or(b' ')
    }

    fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }
}

/// Appends bytes as Go does: each invalid byte becomes a U+FFFD of its own.
/// [`String::from_utf8_lossy`] makes one of several.
fn push_as_go(text: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
}
