//! Limits the number of values of a filter while the filter is read.

use super::filter_error::FilterError;

/// The number of values that may still be read, out of `max`.
pub(super) struct ValueBound {
    left: usize,
    max: usize,
}

impl ValueBound {
    pub(super) fn new(max: usize) -> Self {
        Self { left: max, max }
    }

    /// Counts a value that is about to be read.
    pub(super) fn charge(&mut self) -> Result<(), FilterError> {
        self.left = self.left.checked_sub(1).ok_or(FilterError::TooManyValues(self.max))?;
        Ok(())
    }
}
