//! Reads a damaged log: every whole frame, and the lost parts between frames.

use std::ops::Range;

use hark_archive::Record;

use crate::log::{BODY_MAX, FRAME, HEADER, LogFrame, frame};

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScannedPart<'a> {
    /// A whole frame, and its offset.
    Frame(u64, LogFrame<'a>),
    /// Bytes without a whole frame.
    Lost(Range<u64>),
}

/// Maximum number of bytes in which one step looks for the next whole frame.
const STEP_BYTES: usize = 256 << 10;
/// Maximum number of bytes that one step reads to calculate checksums. A damaged message may
/// contain many byte sequences that look like frames.
const SUMMED_BYTES: usize = 64 << 20;

/// Passes all parts of a log to `each`, from front to back; two lost parts are never adjacent. Each
/// whole frame is trusted, even if its batch is damaged, because nobody can forge a frame without
/// the salt.
pub(crate) fn scan(bytes: &[u8], salt: u32, each: &mut dyn FnMut(ScannedPart<'_>)) {
    let mut at = HEADER as usize;
    let mut lost: Option<Range<u64>> = None;
    while at < bytes.len() {
        let (part, next) = scan_part(bytes, at, salt);
        match part {
            ScannedPart::Lost(more) => {
                let start = lost.take().map_or(more.start, |lost| lost.start);
                lost = Some(start..more.end);
            }
            frame @ ScannedPart::Frame(..) => {
                if let Some(lost) = lost.take() {
                    each(ScannedPart::Lost(lost));
                }
                each(frame);
            }
        }
        at = next;
    }
    if let Some(lost) = lost {
        each(ScannedPart::Lost(lost));
    }
}

/// Returns the part of a log that begins at `at`, and the start of the next part. A long lost part
/// is returned in pieces by several calls, so that one call reads little more than the largest
/// frame.
pub(crate) fn scan_part(bytes: &[u8], at: usize, salt: u32) -> (ScannedPart<'_>, usize) {
    let rest = bytes.get(at..).unwrap_or_default();
    if let Some((found, size)) = frame(rest, salt) {
        return (ScannedPart::Frame(at as u64, found), at + size);
    }
    let end = rest.len().min(STEP_BYTES);
    let mut summed = 0;
    let next = (1..end).find(|&next| {
        let Some(maybe) = plausible_frame(&rest[next..]) else { return false };
        summed += maybe.len();
        // The next step begins with this frame, whether it is whole or not.
        summed > SUMMED_BYTES || frame(maybe, salt).is_some()
    });
    let next = at + next.unwrap_or(end).max(1);
    (ScannedPart::Lost(at as u64..next as u64), next)
}

/// If the start of `bytes` may be a frame, returns the bytes of the frame. The test uses no
/// checksum, because calculating a checksum at every byte of a damaged part would take hours.
pub(super) fn plausible_frame(bytes: &[u8]) -> Option<&[u8]> {
    let head = bytes.first_chunk::<FRAME>()?;
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let body = bytes.get(FRAME..)?.get(..len)?;
    let may_be = match head[8] {
        LogFrame::BATCH => len == 4,
        LogFrame::PUT => len <= BODY_MAX && Record::new(body).is_ok(),
        LogFrame::DELETE => len == 36,
        _ => false,
    };
    if may_be { bytes.get(..FRAME + len) } else { None }
}

/// Decides which deletions of a log count. If the last batch of the last log is torn, there are two
/// possible causes: a crash interrupted the batch before it was acknowledged, or the batch was
/// damaged later. The log does not show the cause, so a deletion in such a batch counts only if the
/// record that caused the deletion follows in the same batch.
pub(crate) struct DeletionsOfBatch<T> {
    /// Deletions of the current batch of which it is not known yet whether they count.
    waiting: Vec<T>,
    /// The end of the current batch.
    end: u64,
    /// Whether the current batch has a damaged part.
    torn: bool,
}

impl<T> Default for DeletionsOfBatch<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), end: 0, torn: false }
    }
}

impl<T> DeletionsOfBatch<T> {
    /// Processes the next part of the log, and passes each deletion that certainly counts to
    /// `each`.
    pub(crate) fn next(
        &mut self,
        part: &ScannedPart<'_>,
        deletion: Option<T>,
        each: &mut dyn FnMut(T),
    ) {
        match part {
            ScannedPart::Frame(at, LogFrame::Batch(bytes)) => {
                // Another batch follows, so the previous batch was acknowledged.
                self.run_due_maintenance(each);
                self.end = at + LogFrame::BATCH_BYTES as u64 + u64::from(*bytes);
                self.torn = false;
            }
            ScannedPart::Frame(_, LogFrame::Put(_)) => self.run_due_maintenance(each),
            ScannedPart::Frame(at, LogFrame::Delete { .. }) => {
                self.waiting.extend(deletion);
                let end = at + (FRAME + 36) as u64;
                if end == self.end && !self.torn {
                    self.run_due_maintenance(each);
                }
            }
            ScannedPart::Lost(_) => self.torn = true,
        }
    }

    /// Ends the log. If this log is the last log, drops the deletions that are not decided yet.
    pub(crate) fn end(mut self, is_last: bool, each: &mut dyn FnMut(T)) {
        if !is_last {
            self.run_due_maintenance(each);
        }
    }

    fn run_due_maintenance(&mut self, each: &mut dyn FnMut(T)) {
        self.waiting.drain(..).for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use hark_archive::RecordHeader;

    use super::*;
    use crate::log::header;

    const SALT: u32 = 77;

    fn record(n: u8) -> Vec<u8> {
        let id = [n; 32];
        let head = RecordHeader { id, time: 1, author: None, kind: 1, expires: None };
        hark_testkit::random::encode(&head, &[]).into()
    }

    fn log(batches: &[&[LogFrame<'_>]]) -> Vec<u8> {
        let mut out = header(1, 0, SALT).to_vec();
        for frames in batches {
            let mut inner = Vec::new();
            frames.iter().for_each(|frame| frame.write(SALT, &mut inner));
            LogFrame::Batch(inner.len() as u32).write(SALT, &mut out);
            out.append(&mut inner);
        }
        out
    }

    fn scanned(bytes: &[u8]) -> (usize, u64) {
        let (mut frames, mut lost) = (0, 0);
        scan(bytes, SALT, &mut |part| match part {
            ScannedPart::Frame(..) => frames += 1,
            ScannedPart::Lost(range) => lost += range.end - range.start,
        });
        (frames, lost)
    }

    #[test]
    fn a_flipped_byte_costs_the_frame_that_it_is_in_and_no_other() {
        let records = [record(1), record(2), record(3)];
        let [a, b, c] = records.each_ref().map(|record| LogFrame::Put(record));
        let delete = LogFrame::Delete { id: [9; 32], log: 1 };
        let whole = log(&[&[a, delete], &[b], &[delete, c]]);
        assert_eq!(scanned(&whole), (8, 0));
        for at in HEADER as usize..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            assert_eq!(scanned(&bad).0, 7, "byte {at}");
        }
        for cut in HEADER as usize..whole.len() {
            let mut zeros = whole.clone();
            zeros[cut..(cut + 30).min(whole.len())].fill(0);
            assert!(scanned(&zeros).0 >= 4, "zeros from {cut}");
        }
    }

    #[test]
    fn a_step_is_short_and_lost_parts_are_joined() {
        let record = record(1);
        let mut bytes = log(&[&[LogFrame::Put(&record)]]);
        let (start, gap) = (bytes.len(), 5 * STEP_BYTES);
        bytes.resize(start + gap, 0);
        LogFrame::Put(&record).write(SALT, &mut bytes);
        let (_, next) = scan_part(&bytes, start, SALT);
        assert_eq!(next, start + STEP_BYTES);
        let mut lost = Vec::new();
        scan(&bytes, SALT, &mut |part| {
            if let ScannedPart::Lost(range) = part {
                lost.push(range);
            }
        });
        let [lost] = &lost[..] else { panic!("{lost:?}") };
        assert_eq!((lost, scanned(&bytes).0), (&(start as u64..(start + gap) as u64), 3));
        // These bytes have damaged frames within frames. A step must not calculate a checksum for
        // each of these frames.
        let mut hostile = log(&[]);
        let begin = hostile.len();
        for left in (0..STEP_BYTES / 60).rev() {
            let at = hostile.len();
            LogFrame::Put(&record).write(SALT ^ 1, &mut hostile);
            let len = (left * (hostile.len() - at)) + record.len();
            hostile[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        }
        let (_, next) = scan_part(&hostile, begin, SALT);
        assert!(next > begin && next <= begin + STEP_BYTES);
        assert_eq!(scanned(&hostile).0, 0);
    }

    #[test]
    fn deletions_of_a_torn_batch_count_with_the_record_that_follows_them() {
        let records = [record(1), record(2)];
        let [a, b] = records.each_ref().map(|record| LogFrame::Put(record));
        let delete = |id| LogFrame::Delete { id: [id; 32], log: 1 };
        let whole = log(&[&[delete(1), a], &[delete(2), a, delete(3), b]]);
        let counted = |bytes: &[u8], is_last| {
            let (mut batch, mut ids) = (DeletionsOfBatch::default(), Vec::new());
            scan(bytes, SALT, &mut |part| {
                let id = match &part {
                    ScannedPart::Frame(_, LogFrame::Delete { id, .. }) => Some(id[0]),
                    _ => None,
                };
                batch.next(&part, id, &mut |id| ids.push(id));
            });
            batch.end(is_last, &mut |id| ids.push(id));
            ids
        };
        assert_eq!(counted(&whole, true), [1, 2, 3]);
        let torn = &whole[..whole.len() - 3];
        assert_eq!((counted(torn, true), counted(torn, false)), (vec![1, 2], vec![1, 2, 3]));
    }
}
