//! The initiator: the side that begins a comparison, and the only side that learns the differences.

use super::bound::RangeBound;
use super::error::NegentropyError;
use super::pass::AnswerPass;
use super::read::is_ours;
use super::set::NegentropySet;
use super::write::MessageWriter;
use crate::record::Id;

/// An item that only one side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NegentropyDifference {
    /// Only the initiator has this item.
    Have(Id),
    /// Only the responder has this item.
    Need(Id),
}

/// A comparison of `set` with a responder's set.
#[derive(Debug)]
pub struct NegentropyInitiator<'a, S> {
    set: &'a S,
    frame_bytes_max: usize,
    /// The responder's ids in one range, sorted. `shared` has a flag for each of these ids: whether
    /// the initiator has the id, too.
    theirs: Vec<Id>,
    shared: Vec<bool>,
}

impl<'a, S: NegentropySet> NegentropyInitiator<'a, S> {
    /// Makes a comparison. Its messages have at most `frame_bytes_max` bytes, or at most
    /// [`FRAME_BYTES_MIN`](super::FRAME_BYTES_MIN) bytes if `frame_bytes_max` is lower.
    pub fn new(set: &'a S, frame_bytes_max: usize) -> Self {
        Self { set, frame_bytes_max, theirs: Vec::new(), shared: Vec::new() }
    }

    /// The first message.
    pub fn open(&self) -> Vec<u8> {
        let mut writer = MessageWriter::new(self.frame_bytes_max);
        // The first range always fits into a message.
        let _ = writer.split(self.set, 0..self.set.size(), RangeBound::INFINITE);
        writer.finish().0
    }

    /// Reads an answer, passes the differences to `found`, and returns the next message. Returns
    /// `None` once the comparison is complete. A later answer may repeat a difference: an answer
    /// that reaches its maximum length ends with a fingerprint of all remaining items, and some of
    /// these items may have been compared already.
    pub fn answer(
        &mut self,
        message: &[u8],
        found: &mut dyn FnMut(NegentropyDifference),
    ) -> Result<Option<Vec<u8>>, NegentropyError> {
        if !is_ours(message)? {
            return Err(NegentropyError::Version(message[0]));
        }
        let Self { set, theirs, shared, .. } = self;
        let mut pass = AnswerPass::new(message, self.frame_bytes_max);
        while pass.step(*set, |writer, range, bound, ids| {
            writer.skip(bound);
            theirs.clear();
            theirs.extend_from_slice(ids);
            theirs.sort_unstable();
            theirs.dedup();
            shared.clear();
            shared.resize(theirs.len(), false);
            for item in range.clone().filter_map(|index| set.item(index)) {
                match theirs.binary_search(&item.id).ok().and_then(|at| shared.get_mut(at)) {
                    Some(shared) => *shared = true,
                    None => found(NegentropyDifference::Have(item.id)),
                }
            }
            let needed = theirs.iter().zip(&*shared).filter(|(_, shared)| !**shared);
            needed.for_each(|(id, _)| found(NegentropyDifference::Need(*id)));
            Ok(range.end)
        })? {}
        let (message, says) = pass.finish();
        Ok(says.then_some(message))
    }
}
