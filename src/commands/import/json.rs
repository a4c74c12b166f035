//! Forms of JSON other than one record a line: an array of records, records in the messages that
//! clients and servers exchange, and a byte order mark before all of it.

use std::io::{self, Read};

/// Most bytes read at a time.
const READ_BYTES: usize = 128 << 10;
/// The mark that some programs put before text in UTF-8.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Where the reader is in its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Before the first byte that is not white space.
    Start,
    /// Behind a first `[`: of an array of records, or of a message.
    Opened,
    /// One record a line.
    Lines,
    /// In an array of records, outside of them.
    Array,
    /// In a record of an array, in so many braces and brackets.
    Record { depth: u32, in_string: bool, escaped: bool },
}

/// Reads text as lines: those of an array of records are its records, without line breaks in them.
pub(super) struct RecordLines<R> {
    from: R,
    form: Form,
    /// Bytes of the mark that have been met at the very start; `None` behind the start.
    mark: Option<usize>,
    input: Vec<u8>,
    lines: Vec<u8>,
    /// Bytes of `lines` that were given out.
    given: usize,
}

impl<R: Read> RecordLines<R> {
    pub(super) fn new(from: R) -> Self {
        let (input, lines) = (vec![0; READ_BYTES], Vec::new());
        Self { from, form: Form::Start, mark: Some(0), input, lines, given: 0 }
    }

    fn take(&mut self, bytes: usize) {
        let input = std::mem::take(&mut self.input);
        for (at, &byte) in input[..bytes].iter().enumerate() {
            if self.form == Form::Lines {
                self.lines.extend_from_slice(&input[at..bytes]);
                break;
            }
            self.byte(byte);
        }
        self.input = input;
    }

    fn byte(&mut self, byte: u8) {
        if let Some(met) = self.mark {
            if BYTE_ORDER_MARK.get(met) == Some(&byte) {
                self.mark = Some(met + 1);
                return;
            }
            self.end_mark();
            if self.form == Form::Lines {
                return self.lines.push(byte);
            }
        }
        match self.form {
            Form::Start => match byte {
                b'[' => self.form = Form::Opened,
                b' ' | b'\t' | b'\r' | b'\n' => self.lines.push(byte),
                _ => self.be_lines(&[byte]),
            },
            Form::Opened => match byte {
                b'"' => self.be_lines(b"[\""),
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ => {
                    self.form = Form::Array;
                    self.byte(byte);
                }
            },
            Form::Lines => self.lines.push(byte),
            // A bracket here ends the array, or begins one that follows it.
            Form::Array => match byte {
                b',' | b'[' | b']' | b' ' | b'\t' | b'\r' | b'\n' => {}
                b'{' => {
                    self.lines.push(byte);
                    self.form = Form::Record { depth: 1, in_string: false, escaped: false };
                }
                _ => self.be_lines(&[byte]),
            },
            Form::Record { depth, in_string, escaped } => {
                self.in_record(byte, depth, in_string, escaped);
            }
        }
    }

    fn in_record(&mut self, byte: u8, depth: u32, in_string: bool, escaped: bool) {
        let is_break = matches!(byte, b'\n' | b'\r');
        self.lines.push(if is_break { b' ' } else { byte });
        self.form = match byte {
            _ if in_string => Form::Record {
                depth,
                in_string: escaped || byte != b'"',
                escaped: !escaped && byte == b'\\',
            },
            b'"' => Form::Record { depth, in_string: true, escaped: false },
            b'{' | b'[' => Form::Record { depth: depth.saturating_add(1), in_string, escaped },
            b'}' | b']' if depth == 1 => {
                self.lines.push(b'\n');
                Form::Array
            }
            b'}' | b']' => Form::Record { depth: depth - 1, in_string, escaped },
            _ => self.form,
        };
    }

    fn be_lines(&mut self, bytes: &[u8]) {
        self.form = Form::Lines;
        self.lines.extend_from_slice(bytes);
    }

    /// Ends the look for the mark. What began like it, but is none, is text.
    fn end_mark(&mut self) {
        let met = self.mark.take().unwrap_or_default();
        if met > 0 && met < BYTE_ORDER_MARK.len() {
            self.be_lines(&BYTE_ORDER_MARK[..met]);
        }
    }
}

impl<R: Read> Read for RecordLines<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.given == self.lines.len() {
            self.lines.clear();
            self.given = 0;
            let got = self.from.read(&mut self.input)?;
            if got == 0 {
                self.end_mark();
                if self.form == Form::Opened {
                    self.be_lines(b"[");
                }
                if self.lines.is_empty() {
                    return Ok(0);
                }
                break;
            }
            self.take(got);
        }
        let ready = &self.lines[self.given..];
        let size = ready.len().min(into.len());
        into[..size].copy_from_slice(&ready[..size]);
        self.given += size;
        Ok(size)
    }
}

/// Returns the record of a line. If the line is a message, an array of strings and a record, that
/// is the record in it; else it is the line.
pub(super) fn record_of(line: &[u8]) -> &[u8] {
    message(line).unwrap_or(line)
}

fn message(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line.strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii();
    while let Some(text) = rest.strip_prefix(b"\"") {
        let mut escaped = false;
        let end = text.iter().position(|&byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        rest = text[end + 1..].trim_ascii_start().strip_prefix(b",")?.trim_ascii_start();
    }
    (rest.starts_with(b"{") && rest.ends_with(b"}")).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let size = into.len().min(self.1);
            self.0.read(&mut into[..size])
        }
    }

    #[test]
    fn records_of_an_array_are_lines_and_lines_stay_as_they_are() {
        for (text, lines) in [
            ("", ""),
            ("\u{feff}", ""),
            ("\u{feff}{\"a\":1}\n{}", "{\"a\":1}\n{}"),
            ("\n  {\"a\":[1]}\n[2]\n", "\n  {\"a\":[1]}\n[2]\n"),
            ("[]", ""),
            ("[", "["),
            ("[{\"a\":1},{\"b\":\"x]},{\\\"\"}]", "{\"a\":1}\n{\"b\":\"x]},{\\\"\"}\n"),
            ("\u{feff}\n[\n  {\n \"a\": [[1]]\n},\r\n{}\n]\n", "\n{  \"a\": [[1]] }\n{}\n"),
            ("[{}][{}]", "{}\n{}\n"),
            ("[{},7]", "{}\n7]"),
            ("[ \"EVENT\",{}]\n[]\n", "[\"EVENT\",{}]\n[]\n"),
            ("\u{fe}x", "\u{fe}x"),
            ("text", "text"),
            ("[{\"a\"", "{\"a\""),
        ] {
            for drip in [1, 2, 1000] {
                let mut got = Vec::new();
                RecordLines::new(Drip(text.as_bytes(), drip)).read_to_end(&mut got).unwrap();
                assert_eq!(String::from_utf8(got).unwrap(), lines, "{text:?} by {drip}");
            }
        }
    }

    #[test]
    fn the_record_of_a_message_is_found() {
        for (line, record) in [
            ("{\"a\":1}", "{\"a\":1}"),
            ("[\"EVENT\",{\"a\":1}]", "{\"a\":1}"),
            ("[ \"EVENT\" , \"s\\\"{\" , {\"a\":[1]} ]", "{\"a\":[1]}"),
            ("[\"EOSE\",\"s\"]", "[\"EOSE\",\"s\"]"),
            ("[\"EVENT\",{}", "[\"EVENT\",{}"),
            ("[\"EVENT", "[\"EVENT"),
            ("[1,{}]", "[1,{}]"),
        ] {
            assert_eq!(record_of(line.as_bytes()), record.as_bytes(), "{line}");
        }
    }
}
