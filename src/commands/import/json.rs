//! Reads records from JSON in forms other than one record per line. These forms are arrays of
//! records, objects that contain such arrays, and records over several lines. A byte order mark
//! before the text is skipped.

use std::io::{self, Read};

use super::brackets::OpenBrackets;

/// Maximum number of bytes per read.
const READ_BYTES: usize = 128 << 10;
/// The mark that some programs write before UTF-8 text.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// The end of a record that has no line break in the source. The byte is from RFC 7464 and cannot
/// occur in JSON.
pub(super) const RECORD_END: u8 = 0x1e;
/// An object may contain records, as in `{"events":[…]}`, if at most this number of bytes precede
/// its array. Otherwise the object itself counts as a record.
const HELD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of line breaks in a record. A record with more line breaks counts as cut off. The
/// line breaks of a record are written after the record.
const BREAKS_MAX: usize = 64 << 10;

/// Whether this byte ends a record, or a piece of other text.
pub(super) fn is_end(byte: u8) -> bool {
    byte == b'\n' || byte == RECORD_END
}

/// The position of the reader relative to the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Between records.
    Between,
    /// In a string between records.
    String { escaped: bool },
    /// After a `[` between records, which begins an array of records or a message.
    Opened,
    /// In text that is no record. The text ends with the line; within an array, a comma or a `]`
    /// ends the text as well.
    Text,
    /// In a record.
    Record(RecordState),
}

/// The position of the reader in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordState {
    /// The number of open braces and brackets around the record.
    base: usize,
    /// The offset in `lines` of an object that is held back: it is the record, unless it turns out
    /// to contain an array of records.
    held: Option<usize>,
    in_string: bool,
    escaped: bool,
    /// Number of line breaks in the record so far. The line breaks are written after the record.
    breaks: usize,
    /// The last byte that was not white space.
    last: u8,
    /// Whether the byte before was a line break.
    at_start: bool,
}

/// A reader that turns text into records without inner line breaks. Each record ends with a line
/// break or with [`RECORD_END`]. As many line breaks precede the record as in the source, so that
/// lines can be counted. Records are outermost objects and messages, objects in arrays at any
/// depth, and messages in arrays. The text around records is dropped. Text that is not JSON is
/// passed on line by line.
pub(super) struct RecordLines<R> {
    from: R,
    form: Form,
    open: OpenBrackets,
    /// The last byte between records that was not white space.
    last: u8,
    /// Number of bytes of the byte order mark found at the start of the source; `None` after the
    /// start.
    mark: Option<usize>,
    input: Vec<u8>,
    lines: Vec<u8>,
    /// Number of bytes of `lines` that were returned.
    given: usize,
    ended: bool,
}

impl<R: Read> RecordLines<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            form: Form::Between,
            open: OpenBrackets::default(),
            last: 0,
            mark: Some(0),
            input: vec![0; READ_BYTES],
            lines: Vec::new(),
            given: 0,
            ended: false,
        }
    }

    fn consume(&mut self, bytes: usize) {
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..bytes];
        while let Some((&byte, behind)) = rest.split_first() {
            // Fast path for strings, which are the largest part of most records.
            if let Form::Record(RecordState { in_string: true, escaped: false, .. }) = self.form {
                let plain = |byte: &u8| !matches!(byte, b'"' | b'\\' | b'\n');
                let end = rest.iter().position(|byte| !plain(byte)).unwrap_or(rest.len());
                if end > 0 {
                    self.lines.extend_from_slice(&rest[..end]);
                    self.bound_held();
                    rest = &rest[end..];
                    continue;
                }
            }
            self.byte(byte);
            rest = behind;
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
        }
        match self.form {
            Form::Between => self.between(byte),
            // No string in JSON has a line break.
            Form::String { .. } if byte == b'\n' => self.cut_off(byte),
            Form::String { escaped } => {
                self.form = match byte {
                    b'"' if !escaped => Form::Between,
                    _ => Form::String { escaped: byte == b'\\' && !escaped },
                };
            }
            Form::Opened => match byte {
                b'"' => {
                    self.begin(b'[', false);
                    self.byte(byte);
                }
                b' ' | b'\t' | b'\r' | b'\n' => self.skip(byte),
                _ => {
                    self.open.open(b'[');
                    self.form = Form::Between;
                    self.byte(byte);
                }
            },
            Form::Text => match byte {
                b'\n' => {
                    self.lines.push(byte);
                    self.form = Form::Between;
                }
                b',' | b']' if self.open.depth > 0 => {
                    self.lines.push(RECORD_END);
                    self.form = Form::Between;
                    self.byte(byte);
                }
                _ => self.lines.push(byte),
            },
            Form::Record(state) => self.in_record(byte, state),
        }
    }

    /// Replaces a byte by a space, but keeps line breaks, since lines are counted.
    fn skip(&mut self, byte: u8) {
        self.lines.push(if byte == b'\n' { byte } else { b' ' });
    }

    fn between(&mut self, byte: u8) {
        let is_outermost = self.open.depth == 0;
        let last = self.last;
        if !byte.is_ascii_whitespace() {
            self.last = byte;
        }
        match byte {
            b'{' if is_outermost || self.open.is_array() => self.begin(byte, true),
            b'[' if is_outermost || self.open.is_array() => self.form = Form::Opened,
            b' ' | b'\t' | b'\r' | b'\n' | b',' | RECORD_END => self.skip(byte),
            // In an object, a value follows a colon.
            b'{' | b'[' if self.open.is_object() && last != b':' => self.cut_off(byte),
            b'{' | b'[' => self.open.open(byte),
            b'}' | b']' if !is_outermost => {
                self.open.close();
                self.skip(byte);
            }
            // Text that is not part of an object around records.
            _ if is_outermost || (self.open.depth == 1 && self.open.is_array()) => {
                self.form = Form::Text;
                self.lines.push(byte);
            }
            b'"' => self.form = Form::String { escaped: false },
            _ => {}
        }
    }

    /// Ends an object or array around records that is cut off before this byte. The records behind
    /// the cut are outside, and a bracket stands for the cut: it counts as a malformed record.
    fn cut_off(&mut self, byte: u8) {
        self.open.depth = 0;
        self.form = Form::Between;
        self.lines.extend([b'{', RECORD_END]);
        self.byte(byte);
    }

    fn begin(&mut self, byte: u8, is_object: bool) {
        let held = is_object.then_some(self.lines.len());
        let base = self.open.depth;
        self.open.open(byte);
        self.lines.push(byte);
        self.form = Form::Record(RecordState {
            base,
            held,
            in_string: false,
            escaped: false,
            breaks: 0,
            last: byte,
            at_start: false,
        });
    }

    fn in_record(&mut self, byte: u8, mut state: RecordState) {
        // The record counts as cut off at a line break in a string, after too many line breaks, and
        // if a line begins with a brace or bracket that cannot continue the record.
        let is_cut = match byte {
            b'\n' => state.in_string || state.breaks == BREAKS_MAX,
            b'{' | b'[' if state.at_start => match state.last {
                b':' => self.open.is_array(),
                b',' | b'[' => !self.open.is_array(),
                _ => true,
            },
            _ => false,
        };
        if is_cut {
            self.open.depth = state.base;
            self.end_record(state);
            return self.byte(byte);
        }
        if byte == b'{'
            && !state.in_string
            && self.open.is_array()
            && let Some(held) = state.held
        {
            self.lines.truncate(held);
            self.lines.extend(std::iter::repeat_n(b'\n', state.breaks));
            self.form = Form::Between;
            return self.byte(byte);
        }
        self.lines.push(if matches!(byte, b'\n' | b'\r') { b' ' } else { byte });
        state.at_start = byte == b'\n';
        state.breaks += usize::from(byte == b'\n');
        if !byte.is_ascii_whitespace() {
            state.last = byte;
        }
        match byte {
            _ if state.in_string => {
                state.in_string = state.escaped || byte != b'"';
                state.escaped = !state.escaped && byte == b'\\';
            }
            b'"' => state.in_string = true,
            b'{' | b'[' => self.open.open(byte),
            b'}' | b']' => {
                self.open.close();
                if self.open.depth == state.base {
                    return self.end_record(state);
                }
            }
            _ => {}
        }
        self.form = Form::Record(state);
        self.bound_held();
    }

    /// Stops holding a record back once the record is longer than [`HELD_BYTES_MAX`]. An array that
    /// begins later in the object does not count as an array of records, so the object itself is
    /// the record.
    fn bound_held(&mut self) {
        if let Form::Record(state) = &mut self.form
            && state.held.is_some_and(|held| self.lines.len() - held > HELD_BYTES_MAX)
        {
            state.held = None;
        }
    }

    fn end_record(&mut self, state: RecordState) {
        self.lines.push(RECORD_END);
        self.lines.extend(std::iter::repeat_n(b'\n', state.breaks));
        self.form = Form::Between;
    }

    /// Ends the search for the byte order mark. An incomplete mark counts as text.
    fn end_mark(&mut self) {
        let met = self.mark.take().unwrap_or_default();
        if met > 0 && met < BYTE_ORDER_MARK.len() {
            self.form = Form::Text;
            self.lines.extend_from_slice(&BYTE_ORDER_MARK[..met]);
        }
    }

    /// Completes the output at the end of the source, including an unfinished record.
    fn end(&mut self) {
        self.end_mark();
        match self.form {
            Form::Opened => self.lines.push(b'['),
            Form::Record(state) => self.end_record(state),
            _ => {}
        }
        self.ended = true;
    }

    /// Returns the number of bytes of `lines` that may be returned.
    fn ready(&self) -> usize {
        match self.form {
            Form::Record(RecordState { held: Some(held), .. }) => held,
            _ => self.lines.len(),
        }
    }

    /// Removes the returned bytes from `lines`.
    fn forget(&mut self) {
        self.lines.drain(..self.given);
        if let Form::Record(RecordState { held: Some(held), .. }) = &mut self.form {
            *held -= self.given;
        }
        self.given = 0;
    }
}

impl<R: Read> Read for RecordLines<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.given == self.ready() {
            self.forget();
            if self.ended {
                return Ok(0);
            }
            let got = self.from.read(&mut self.input)?;
            if got == 0 {
                self.end();
            }
            self.consume(got);
        }
        let ready = &self.lines[self.given..self.ready()];
        let size = ready.len().min(into.len());
        into[..size].copy_from_slice(&ready[..size]);
        self.given += size;
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns a few bytes at a time.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let size = into.len().min(self.1);
            self.0.read(&mut into[..size])
        }
    }

    #[test]
    fn an_object_without_an_end_is_not_kept() {
        for (begin, rest) in
            [("{\"a\":\"", "x"), ("{\"a\":", "\n"), ("{\"a\":[\"", "\\\""), ("[", " ")]
        {
            let text = format!("{begin}{}", rest.repeat(4 << 20));
            let mut lines = RecordLines::new(text.as_bytes());
            let (mut into, mut kept) = (vec![0; 8 << 10], 0);
            while lines.read(&mut into).unwrap() > 0 {
                kept = kept.max(lines.lines.capacity());
            }
            assert!(kept < 1 << 20, "{kept} bytes were kept of {begin}");
        }
    }

    /// Returns the output for a text, and the number of line breaks in the output. Asserts that the
    /// output does not depend on the size of the reads.
    fn read(text: &str) -> (String, usize) {
        let mut all = Vec::new();
        for drip in [1, 2, 7, 1 << 20] {
            let mut got = Vec::new();
            RecordLines::new(Drip(text.as_bytes(), drip)).read_to_end(&mut got).unwrap();
            all.push(String::from_utf8(got).unwrap());
        }
        assert!(all.iter().all(|got| *got == all[0]), "{:.200}: {:.200}", text, all[0]);
        let breaks = all[0].matches('\n').count();
        (all.remove(0), breaks)
    }

    /// Asserts that a text has these records, each on the line of its first byte, counted from 0.
    fn assert_records(text: &str, expected: &[(usize, &str)]) {
        let (got, breaks) = read(text);
        assert_eq!(breaks, text.matches('\n').count(), "{text:?}: {got:?}");
        let (mut line, mut found) = (0, Vec::new());
        for part in got.split_inclusive(|c: char| u8::try_from(c).is_ok_and(is_end)) {
            let record = part.trim_matches(|c: char| c.is_whitespace() || c == '\u{1e}');
            if !record.is_empty() {
                found.push((line, record.to_owned()));
            }
            line += usize::from(part.ends_with('\n'));
        }
        let found: Vec<_> = found.iter().map(|(line, record)| (*line, record.as_str())).collect();
        assert_eq!(found, expected, "{text:?}: {got:?}");
    }

    #[test]
    fn records_are_found_wherever_they_are_with_their_lines() {
        for (text, records) in [
            ("", &[][..]),
            ("\u{feff}", &[]),
            ("[]", &[]),
            (" [\n]\n", &[]),
            // One record per line, and several.
            ("\u{feff}{\"a\":1}\n{}", &[(0, "{\"a\":1}"), (1, "{}")]),
            ("\n  {\"a\":[1]}\r\n\n{}\n", &[(1, "{\"a\":[1]}"), (3, "{}")]),
            ("{}{} {},\n{}", &[(0, "{}"), (0, "{}"), (0, "{}"), (1, "{}")]),
            ("\u{1e}{}\n\u{1e}{}\n", &[(0, "{}"), (1, "{}")]),
            // Records over several lines.
            ("{\n \"a\": [[1]]\n}\n{\n}", &[(0, "{  \"a\": [[1]] }"), (3, "{ }")]),
            (
                "{\n\"a\":\n{\n\"b\":[\n[\n],\n[]]}}\n{}",
                &[(0, "{ \"a\": { \"b\":[ [ ], []]}}"), (7, "{}")],
            ),
            // Arrays of records, and braces in strings.
            (
                "[{\"a\":1},{\"b\":\"x]},{\\\"\"}]",
                &[(0, "{\"a\":1}"), (0, "{\"b\":\"x]},{\\\"\"}")],
            ),
            ("[\n  {\n \"a\": 1\n},\n\n{}\n]\n", &[(1, "{  \"a\": 1 }"), (5, "{}")]),
            ("[{}][{}]\n[[{}],[]]", &[(0, "{}"), (0, "{}"), (1, "{}")]),
            // Messages, one per line and in arrays.
            ("[ \"EVENT\",{}]\n[\"EOSE\"]\n", &[(0, "[\"EVENT\",{}]"), (1, "[\"EOSE\"]")]),
            (
                "[[\"EVENT\",\"]\",{}],\n [\"EOSE\"]]",
                &[(0, "[\"EVENT\",\"]\",{}]"), (1, "[\"EOSE\"]")],
            ),
            // Objects around an array.
            ("{\"events\":[{\"a\":1},{}]}", &[(0, "{\"a\":1}"), (0, "{}")]),
            (
                "{\"id\":\"{[\",\n\"n\":[1,\"]\"],\"o\":{\"list\":\n[\n{\"a\":[]},\n{}]},\"z\":true}\n{}",
                &[(3, "{\"a\":[]}"), (4, "{}"), (5, "{}")],
            ),
            ("{\"m\":[{}]}\n{\"m\":[{}],\"n\":[{}]}", &[(0, "{}"), (1, "{}"), (1, "{}")]),
            ("[{\"m\":[{}]},{\"m\":[{}]}]", &[(0, "{}"), (0, "{}")]),
            (
                "{\"m\":[[\"EVENT\",{\"a\":1}],[\"EVENT\",{}]]}",
                &[(0, "{\"a\":1}"), (0, "[\"EVENT\",{}]")],
            ),
            // Text that is not JSON, line by line.
            ("text\n{}\nmore", &[(0, "text"), (1, "{}"), (2, "more")]),
            ("{\"a\":\"cut\n{}\n", &[(0, "{\"a\":\"cut"), (1, "{}")]),
            (
                "{\"a\":1\n{}\n[\"x\",1\n[\"y\"]",
                &[(0, "{\"a\":1"), (1, "{}"), (2, "[\"x\",1"), (3, "[\"y\"]")],
            ),
            ("{\"a\":1,\n{}\n", &[(0, "{\"a\":1,"), (1, "{}")]),
            ("[\n{\"a\":1\n{},\n{}]", &[(1, "{\"a\":1"), (2, "{}"), (3, "{}")]),
            ("{}}\n{}", &[(0, "{}"), (0, "}"), (1, "{}")]),
            // An object around an array that is cut off.
            (
                "{\"m\":[{\"a\":1}],\"n\":\"cut\n{}\n{\"b\":\"{\"}",
                &[(0, "{\"a\":1}"), (0, "{"), (1, "{}"), (2, "{\"b\":\"{\"}")],
            ),
            ("{\"m\":[{}],\"n\":\"cut\\\n[\"x\"]", &[(0, "{}"), (0, "{"), (1, "[\"x\"]")]),
            ("{\"m\":[{}]\n{}\n{}", &[(0, "{}"), (1, "{"), (1, "{}"), (2, "{}")]),
            ("{\"m\":[{}],\n\n[\"x\"]\n{}", &[(0, "{}"), (2, "{"), (2, "[\"x\"]"), (3, "{}")]),
            ("{\"m\":[{}],\"n\":1\n{}", &[(0, "{}"), (1, "{"), (1, "{}")]),
            ("{\"m\":[{}],\"n\":\n{\"o\":[\n{}]}}\n{}", &[(0, "{}"), (2, "{}"), (3, "{}")]),
            ("[{},7]", &[(0, "{}"), (0, "7")]),
            ("[2]", &[(0, "2")]),
            ("[", &[(0, "[")]),
            ("[{\"a\"", &[(0, "{\"a\"")]),
        ] {
            assert_records(text, records);
        }
        assert_eq!(read("\u{fe}x").0, "\u{fe}x");
    }

    #[test]
    fn little_is_held_back() {
        // The records in an object's array are found only if the array begins within the limit.
        let long = "x".repeat(HELD_BYTES_MAX);
        let (near, far) = (
            format!("{{\"a\":\"{}\",\"m\":[{{}}]}}", &long[40..]),
            format!("{{\"a\":\"{long}\",\"m\":[{{}}]}}"),
        );
        assert_records(&near, &[(0, "{}")]);
        assert_records(&far, &[(0, far.as_str())]);
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        assert_records(&format!("{deep}\n{{}}"), &[(1, "{}")]);
        let mut lines = RecordLines::new(Drip(b"[{\"a\":\"1\"},{\"a\":", 1 << 20));
        let mut got = [0; 100];
        let size = lines.read(&mut got).unwrap();
        assert_eq!(&got[..size], b"{\"a\":\"1\"}\x1e ", "what is whole comes at once");
    }
}
