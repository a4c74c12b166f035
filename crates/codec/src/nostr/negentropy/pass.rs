//! Answers a message for a set in memory, range by range.

use std::ops::Range;

use super::bound::RangeBound;
use super::error::NegentropyError;
use super::read::{MessageReader, RangeWords};
use super::set::NegentropySet;
use super::write::{MessageFull, MessageWriter};
use crate::record::Id;

/// A message that is being answered.
#[derive(Debug)]
pub(super) struct AnswerPass<M> {
    message: M,
    reader: MessageReader,
    writer: MessageWriter,
    /// Index of the first item of the next range.
    start: usize,
}

impl<M: AsRef<[u8]>> AnswerPass<M> {
    /// Begins an answer that has at most `bytes_max` bytes.
    pub(super) fn new(message: M, bytes_max: usize) -> Self {
        let (reader, writer) = (MessageReader::new(), MessageWriter::new(bytes_max));
        Self { message, reader, writer, start: 0 }
    }

    /// Answers the next range. `answer_ids` answers a range that has ids, and returns the index of
    /// the first item that is not answered yet. Returns false at the end of the message, or when
    /// the answer is full.
    pub(super) fn step<S: NegentropySet>(
        &mut self,
        set: &S,
        answer_ids: impl FnOnce(
            &mut MessageWriter,
            Range<usize>,
            RangeBound,
            &[Id],
        ) -> Result<usize, MessageFull>,
    ) -> Result<bool, NegentropyError> {
        let Some((bound, words)) = self.reader.next(self.message.as_ref())? else {
            return Ok(false);
        };
        let (start, end) = (self.start, set.lower_bound(self.start, &bound.at));
        let reached = match words {
            RangeWords::Ids(theirs) => answer_ids(&mut self.writer, start..end, bound, theirs),
            RangeWords::Fingerprint(theirs) if set.fingerprint(start..end) != *theirs => {
                self.writer.split(set, start..end, bound).map(|()| end)
            }
            RangeWords::Fingerprint(_) | RangeWords::Skip => {
                self.writer.skip(bound);
                Ok(end)
            }
        };
        self.start = end;
        let left = match reached {
            Ok(reached) if reached == end => return Ok(true),
            Ok(reached) => reached,
            Err(MessageFull) => start,
        };
        self.writer.end_with_fingerprint(set, left);
        Ok(false)
    }

    /// The answer, and whether it has any ranges.
    pub(super) fn finish(self) -> (Vec<u8>, bool) {
        self.writer.finish()
    }
}
