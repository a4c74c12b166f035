//! The responder: the side that answers.

use super::VERSION;
use super::error::NegentropyError;
use super::pass::AnswerPass;
use super::read::check_message;
use super::set::NegentropySet;

/// The answer to one message of an initiator, computed in steps.
#[derive(Debug)]
pub struct NegentropyResponder {
    /// `None` if the message has another version.
    pass: Option<AnswerPass<Vec<u8>>>,
}

impl NegentropyResponder {
    /// Checks the whole `message` ([`check_message`]). The answer to a message of another version
    /// is only the byte of this version. Otherwise the answer has at most `frame_bytes_max` bytes,
    /// or at most [`FRAME_BYTES_MIN`](super::FRAME_BYTES_MIN) bytes if `frame_bytes_max` is lower.
    pub fn new(message: Vec<u8>, frame_bytes_max: usize) -> Result<Self, NegentropyError> {
        let is_ours = check_message(&message)?;
        Ok(Self { pass: is_ours.then(|| AnswerPass::new(message, frame_bytes_max)) })
    }

    /// Answers the next `ranges_max` ranges. `set` must be the same in every step. Returns whether
    /// more ranges are left.
    pub fn step(&mut self, set: &impl NegentropySet, ranges_max: usize) -> bool {
        let Some(pass) = &mut self.pass else { return false };
        (0..ranges_max).all(|_| {
            // `new` has checked all ranges.
            let more =
                pass.step(set, |writer, range, bound, _| writer.ids_that_fit(set, range, bound));
            more.unwrap_or(false)
        })
    }

    /// The answer.
    pub fn finish(self) -> Vec<u8> {
        self.pass.map_or_else(|| vec![VERSION], |pass| pass.finish().0)
    }
}
