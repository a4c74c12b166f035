//! The open braces and brackets of JSON that is read byte by byte.

/// The stack of open braces and brackets, outermost first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenBrackets {
    pub(super) depth: usize,
    /// A bit for each of the outermost 64 levels: set for a bracket, clear for a brace.
    arrays: u64,
}

impl OpenBrackets {
    pub(super) fn open(&mut self, byte: u8) {
        if let Some(bit) = Self::bit(self.depth) {
            self.arrays = if byte == b'[' { self.arrays | bit } else { self.arrays & !bit };
        }
        self.depth += 1;
    }

    pub(super) fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// Whether the innermost level is a bracket.
    pub(super) fn is_array(&self) -> bool {
        self.innermost().is_some_and(|bit| self.arrays & bit != 0)
    }

    /// Whether the innermost level is a brace.
    pub(super) fn is_object(&self) -> bool {
        self.innermost().is_some_and(|bit| self.arrays & bit == 0)
    }

    /// Returns the bit of the innermost level; `None` outside, and beyond the outermost 64 levels.
    fn innermost(&self) -> Option<u64> {
        self.depth.checked_sub(1).and_then(Self::bit)
    }

    pub(super) fn bit(level: usize) -> Option<u64> {
        (level < 64).then(|| 1 << level)
    }
}
