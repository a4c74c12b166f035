//! A cursor over JSON text. A string without escapes is returned as a span of the text, and a
//! string with escapes as a span of a scratch string. Once the scratch string has grown, nothing is
//! allocated.
//!
//! The JSON must be strict (RFC 8259), with one more restriction: half of a surrogate pair is an
//! error.

use super::json_error::{DEPTH_MAX, JsonError, NumberError};
use super::span::Span;
use crate::{hex, scan};

/// Maximum length of a text, in bytes, because offsets have 31 bits.
const LEN_MAX: usize = (1 << 31) - 1;

#[derive(Clone)]
pub(crate) struct JsonReader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    pub(crate) at: usize,
    /// Becomes false once the reader finds text that is not in the canonical spelling of `json.rs`:
    /// white space, or an escape in another spelling. A caller that uses this flag must first set
    /// it to true.
    pub(crate) canonical: bool,
}

impl<'a> JsonReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, JsonError> {
        let text = simdutf8::basic::from_utf8(bytes).map_err(|_| JsonError::Utf8)?;
        if bytes.len() > LEN_MAX {
            return Err(JsonError::TooLong);
        }
        Ok(Self { text, bytes, at: 0, canonical: true })
    }

    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the current byte, or 0 at the end. Outside of strings, a 0 is never valid.
    #[inline]
    pub(crate) fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    /// Returns the byte after the current one, or 0 at the end.
    #[inline]
    pub(crate) fn second(&self) -> u8 {
        self.bytes.get(self.at + 1).copied().unwrap_or(0)
    }

    /// Skips `text` if the input continues with `text`. Returns whether it was skipped.
    #[inline]
    pub(crate) fn skip_if<const N: usize>(&mut self, text: &[u8; N]) -> bool {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let there = rest.first_chunk::<N>() == Some(text);
        self.at += if there { N } else { 0 };
        there
    }

    /// The text read since `from`.
    #[inline]
    pub(crate) fn since(&self, from: usize) -> Span {
        Span::of_text(from, self.at)
    }

    #[inline]
    pub(crate) fn skip_space(&mut self) {
        if self.peek() <= b' ' {
            self.skip_space_there();
        }
    }

    #[cold]
    fn skip_space_there(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
            self.canonical = false;
        }
    }

    #[cold]
    pub(crate) fn expected(&self, wanted: &'static str) -> JsonError {
        JsonError::Expected { wanted, at: self.at as u32 }
    }

    /// Skips the next byte if it is `byte`. Returns whether it was skipped.
    #[inline]
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        let there = self.peek() == byte;
        self.at += usize::from(there);
        there
    }

    #[inline]
    pub(crate) fn expect(&mut self, byte: u8, wanted: &'static str) -> Result<(), JsonError> {
        if self.eat(byte) { Ok(()) } else { Err(self.expected(wanted)) }
    }

    /// Moves to the next item of an array or object whose opening bracket has been read. If no item
    /// is left, skips the closing bracket and returns false.
    #[inline]
    pub(crate) fn next_item(&mut self, first: &mut bool, close: u8) -> Result<bool, JsonError> {
        // The most frequent case is checked first: the next item of a list without white space.
        if !*first && self.eat(b',') {
            self.skip_space();
            return Ok(true);
        }
        self.first_or_last_item(first, close)
    }

    /// Does the work of [`Self::next_item`] before the first item, after the last item, and if
    /// white space precedes the comma.
    fn first_or_last_item(&mut self, first: &mut bool, close: u8) -> Result<bool, JsonError> {
        self.skip_space();
        if self.eat(close) {
            return Ok(false);
        }
        if *first {
            *first = false;
        } else {
            self.expect(b',', "a comma or the closing bracket")?;
            self.skip_space();
        }
        Ok(true)
    }

    /// Reads an object's key and the colon, and stops at the value.
    #[inline]
    pub(crate) fn key(&mut self, scratch: &mut String) -> Result<Span, JsonError> {
        let from = self.at + 1;
        if self.peek() == b'"' {
            let to = scan::find_special(self.bytes, from);
            if self.bytes.get(to..).is_some_and(|rest| rest.starts_with(b"\":")) {
                self.at = to + 2;
                self.skip_space();
                return Ok(Span::of_text(from, to));
            }
        }
        let key = self.string(scratch)?;
        self.skip_space();
        self.expect(b':', "a colon")?;
        self.skip_space();
        Ok(key)
    }

    /// Reads consecutive arrays of strings without escapes and without white space in between.
    /// Stops before any other text, valid or not. Appends the strings to `values`, and the end of
    /// each array's strings to `ends`. The cursor is kept in a local variable, which makes the
    /// function 1.6 times as fast. The function is not inlined, because an inlined copy would have
    /// too few registers.
    #[inline(never)]
    pub(crate) fn plain_arrays(&mut self, values: &mut Vec<Span>, ends: &mut Vec<u32>) {
        let bytes = self.bytes;
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        loop {
            let whole = values.len();
            let mut at = self.at + usize::from(!ends.is_empty());
            if (!ends.is_empty() && byte(at - 1) != b',') || byte(at) != b'[' {
                return;
            }
            loop {
                // Most long strings are keys and ids. Testing the digits of such a string takes as
                // long as searching for the string's end, and other code need not repeat the test.
                let key = bytes.get(at + 2..at + 67).filter(|key| key[64] == b'"');
                let is_key = key.is_some_and(|key| hex::is_hex_64(&key[..64]));
                let to = if is_key { at + 66 } else { scan::find_special(bytes, at + 2) };
                if byte(at + 1) != b'"' || byte(to) != b'"' {
                    return values.truncate(whole);
                }
                let span = Span::of_text(at + 2, to);
                values.push(if is_key { Span::of_hex_64(at + 2) } else { span });
                at = to + 1;
                match byte(at) {
                    b',' => {}
                    b']' => break,
                    _ => return values.truncate(whole),
                }
            }
            ends.push(values.len() as u32);
            self.at = at + 1;
        }
    }

    /// Checks that only white space follows.
    pub(crate) fn end(&mut self) -> Result<(), JsonError> {
        self.skip_space();
        if self.at == self.bytes.len() { Ok(()) } else { Err(JsonError::Trailing(self.at as u32)) }
    }

    /// Reads a string, quotes included.
    #[inline]
    pub(crate) fn string(&mut self, scratch: &mut String) -> Result<Span, JsonError> {
        self.expect(b'"', "a string")?;
        let from = self.at;
        let to = scan::find_special(self.bytes, from);
        if self.bytes.get(to) == Some(&b'"') {
            self.at = to + 1;
            return Ok(Span::of_text(from, to));
        }
        self.escaped_string(scratch, to)
    }

    /// Reads the remainder of a string whose first special byte is at `to`.
    fn escaped_string(&mut self, scratch: &mut String, mut to: usize) -> Result<Span, JsonError> {
        let start = scratch.len();
        let mut at = self.at;
        loop {
            scratch.push_str(self.text.get(at..to).unwrap_or_default());
            // Short escapes are read with a local cursor, which is faster.
            if let Some(&[b'\\', letter]) = self.bytes.get(to..).and_then(<[u8]>::first_chunk)
                && let Some(plain) = short_escape(letter)
            {
                scratch.push(char::from(plain));
                at = to + 2;
                to = scan::find_special(self.bytes, at);
                continue;
            }
            self.at = to;
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(Span::of_scratch(scratch, start));
                }
                b'\\' => scratch.push(self.escape()?),
                _ if to == self.bytes.len() => return Err(self.expected("the end of a string")),
                _ => return Err(JsonError::Control(to as u32)),
            }
            at = self.at;
            to = scan::find_special(self.bytes, at);
        }
    }

    /// Reads one escape that is not a short escape, including the backslash.
    #[inline]
    fn escape(&mut self) -> Result<char, JsonError> {
        let at = self.at as u32;
        let letter = self.bytes.get(self.at + 1).copied().unwrap_or(0);
        self.at += 2;
        match letter {
            b'/' => {
                self.canonical = false;
                Ok('/')
            }
            b'u' => self.unicode_escape(at),
            _ => Err(JsonError::Escape(at)),
        }
    }

    /// Reads the hex digits after `\u`, and the second half of a surrogate pair.
    fn unicode_escape(&mut self, at: u32) -> Result<char, JsonError> {
        let unit = self.four_digits().ok_or(JsonError::Escape(at))?;
        let short = matches!(unit, 8 | 9 | 10 | 12 | 13);
        let lowercase =
            self.bytes.get(self.at - 1).is_some_and(|digit| !digit.is_ascii_uppercase());
        self.canonical &= unit < 0x20 && !short && lowercase;
        if unit & 0xfc00 != 0xd800 {
            return char::from_u32(unit).ok_or(JsonError::Surrogate(at));
        }
        if !(self.eat(b'\\') && self.eat(b'u')) {
            return Err(JsonError::Surrogate(at));
        }
        let low = self.four_digits().ok_or(JsonError::Escape(at))?;
        if low & 0xfc00 != 0xdc00 {
            return Err(JsonError::Surrogate(at));
        }
        let both = 0x1_0000 + ((unit & 0x3ff) << 10 | (low & 0x3ff));
        char::from_u32(both).ok_or(JsonError::Surrogate(at))
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at..)?.first_chunk::<4>()?;
        let mut value = 0;
        for digit in digits {
            value = value << 4 | char::from(*digit).to_digit(16)?;
        }
        self.at += 4;
        Some(value)
    }

    /// Reads a whole number that is not negative.
    #[inline]
    pub(crate) fn number(&mut self) -> Result<u64, NumberError> {
        let from = self.at;
        let rest = self.bytes.get(from..).unwrap_or_default();
        let (mut value, mut len) = (0u64, 0);
        while let Some(digit) =
            rest.get(len).map(|byte| byte.wrapping_sub(b'0')).filter(|n| *n < 10)
        {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            len += 1;
        }
        self.at = from + len;
        // A number of up to 19 digits always fits into 64 bits.
        if len > 19 {
            let digits = self.text.get(from..self.at).unwrap_or_default();
            value = digits.parse().map_err(|_| NumberError::TooLarge)?;
        }
        match self.peek() {
            b'-' if self.at == from => Err(NumberError::Negative),
            _ if self.at == from => Err(NumberError::NoNumber),
            b'.' | b'e' | b'E' => Err(NumberError::NotWhole),
            _ if self.at - from > 1 && self.bytes.get(from) == Some(&b'0') => {
                Err(NumberError::NoNumber)
            }
            _ => Ok(value),
        }
    }

    /// Reads `"<hex>"` with `decode`, which receives the bytes between the quotes. If the bytes are
    /// not exactly `N` hex digits, returns `None` and stays at the same position. Escapes are not
    /// accepted, since no hex digit needs an escape.
    #[inline]
    pub(crate) fn hex<const N: usize, T>(
        &mut self,
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let hex = self.bytes.get(self.at + 1..self.at + 1 + N)?;
        if self.peek() != b'"' || self.bytes.get(self.at + 1 + N) != Some(&b'"') {
            return None;
        }
        let value = decode(hex)?;
        self.at += N + 2;
        Some(value)
    }

    /// Skips a value of any type.
    pub(crate) fn skip_value(&mut self, scratch: &mut String) -> Result<(), JsonError> {
        let start = scratch.len();
        let result = self.skip_nested(scratch, DEPTH_MAX);
        scratch.truncate(start);
        result
    }

    fn skip_nested(&mut self, scratch: &mut String, depth: u32) -> Result<(), JsonError> {
        let mut first = true;
        match self.peek() {
            b'"' => self.string(scratch).map(drop),
            b'{' | b'[' if depth == 0 => Err(JsonError::Depth),
            b'{' => {
                self.at += 1;
                while self.next_item(&mut first, b'}')? {
                    self.key(scratch)?;
                    self.skip_nested(scratch, depth - 1)?;
                }
                Ok(())
            }
            b'[' => {
                self.at += 1;
                while self.next_item(&mut first, b']')? {
                    self.skip_nested(scratch, depth - 1)?;
                }
                Ok(())
            }
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.skip_number(),
        }
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), JsonError> {
        if !self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            return Err(self.expected("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn skip_number(&mut self) -> Result<(), JsonError> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.skip_digits()?;
        }
        if self.eat(b'.') {
            self.skip_digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _ = self.eat(b'+') || self.eat(b'-');
            self.skip_digits()?;
        }
        Ok(())
    }

    fn skip_digits(&mut self) -> Result<(), JsonError> {
        let from = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == from { Err(self.expected("a value")) } else { Ok(()) }
    }
}

/// Returns the byte for one of the seven short escapes of NIP-01.
#[inline]
fn short_escape(letter: u8) -> Option<u8> {
    Some(match letter {
        b'"' | b'\\' => letter,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'f' => 12,
        _ => return None,
    })
}
