//! The position of a string that was read. A span takes eight bytes and borrows nothing.

/// The range of a string. If the high bit of `at` is set, the range is in the scratch string,
/// otherwise in the text. If the high bit of `len` is set, the string consists of 64 lowercase hex
/// digits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    at: u32,
    len: u32,
}

const IN_SCRATCH: u32 = 1 << 31;
const HEX_64: u32 = 1 << 31;

impl Span {
    #[inline]
    pub(crate) fn of_text(from: usize, to: usize) -> Self {
        Self { at: from as u32, len: (to - from) as u32 }
    }

    /// The span of 64 lowercase hex digits of the text.
    #[inline]
    pub(crate) fn of_hex_64(from: usize) -> Self {
        Self { at: from as u32, len: 64 | HEX_64 }
    }

    /// Whether the string is known to consist of 64 lowercase hex digits.
    #[inline]
    pub(crate) fn is_hex_64(self) -> bool {
        self.len & HEX_64 != 0
    }

    /// The span of the string that was just appended to `scratch` at `from`.
    pub(crate) fn of_scratch(scratch: &str, from: usize) -> Self {
        Self { at: from as u32 | IN_SCRATCH, len: (scratch.len() - from) as u32 }
    }

    #[inline]
    pub(crate) fn get<'a>(self, text: &'a str, scratch: &'a str) -> &'a str {
        let from = (self.at & !IN_SCRATCH) as usize;
        let source = if self.is_scratch() { scratch } else { text };
        source.get(from..from + self.len()).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn bytes<'a>(self, text: &'a str, scratch: &'a str) -> &'a [u8] {
        let from = (self.at & !IN_SCRATCH) as usize;
        let source = if self.is_scratch() { scratch } else { text };
        source.as_bytes().get(from..from + self.len()).unwrap_or_default()
    }

    /// The string's offset in the text; `None` if the string has escapes in the text.
    #[inline]
    pub(crate) fn text_at(self) -> Option<usize> {
        (!self.is_scratch()).then_some(self.at as usize)
    }

    #[inline]
    pub(crate) fn is_scratch(self) -> bool {
        self.at & IN_SCRATCH != 0
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.len & !HEX_64) as usize
    }
}
