//! Reads records from JSON in forms other than one record per line. These forms are arrays of
//! records, objects that contain such arrays, and records over several lines. A byte order mark
//! before the text is skipped.

mod brackets;
mod field;
#[cfg(test)]
mod tests;

use std::io::{self, Read};

use self::brackets::OpenBrackets;
use self::field::has_field;

/// Maximum number of bytes per read.
const READ_BYTES: usize = 128 << 10;
/// The mark that some programs write before UTF-8 text.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// The end of a record that has no line break in the source. The byte is from RFC 7464 and cannot
/// occur in JSON.
pub(super) const RECORD_END: u8 = 0x1e;
/// An object without [`RECORD_FIELD`] may contain records, as in `{"events":[…]}`, if at most this number of bytes precede
/// its array. Otherwise the object itself counts as a record.
const HELD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of line breaks in a record. A record with more line breaks counts as cut off. The
/// line breaks of a record are written after the record.
const BREAKS_MAX: usize = 64 << 10;

/// An object with this field is a record, although it may contain an array of objects.
const RECORD_FIELD: &[u8] = b"sig";

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
            && let Some(held) = state.held.take()
            && !has_field(&self.lines[held..], RECORD_FIELD)
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
