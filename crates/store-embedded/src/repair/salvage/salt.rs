//! Calculates the salt of a log from its frames, for a log with a damaged header.
//!
//! The salt is the initial state of a frame's checksum, and CRC32C can be calculated backwards. So
//! the bytes and the stored checksum of a whole frame determine the salt. From each sequence of
//! bytes that looks like a frame, a proposed salt is calculated. The salt with the most bytes in
//! its frames is accepted.
//!
//! The author of a message can hide bytes in the message that look like frames, and so propose a
//! wrong salt any number of times. Therefore salts are compared by the number of bytes in their
//! frames, and not by the number of frames. Bytes of overlapping frames do not count twice. Hidden
//! frames lie within a message. The message itself is in a frame with the right salt, and this
//! frame covers more bytes than the hidden frames.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::scan::{ScannedPart, plausible_frame, scan};
use crate::log::{self, FRAME, HEADER, LogFrame};

/// Number of bytes at the start of a log that are searched for proposed salts.
const SEARCHED_BYTES: usize = 64 << 20;
/// The log is divided into windows of this length, and the proposals of each window are bounded. So
/// a message full of hidden frames displaces only few real frames.
const WINDOW_BYTES: usize = 1 << 20;
/// Maximum number of a window's frames from which salts are calculated, and maximum number of their
/// bytes.
const WINDOW_PROPOSALS: usize = 16 << 10;
const WINDOW_SUMMED: usize = 8 << 20;
/// Maximum length of a frame from which a salt is calculated. Most messages are much smaller, but a
/// hidden frame may claim any length.
const PROPOSING_BYTES: usize = 1 << 20;
/// Number of proposed salts that are tried, beginning with the salts that cover the most bytes.
const TRIED: usize = 8;

/// The number and the bytes of the frames from which the same salt was calculated.
#[derive(Default)]
struct SaltProposal {
    frames: u32,
    /// Total length of these frames; of overlapping frames only the first counts.
    bytes: u64,
    /// The end of the last counted frame.
    end: usize,
}

/// Returns the salt of a log from its header, or else from its frames; `None` if fewer than two
/// frames agree.
pub(crate) fn salt_of(bytes: &[u8], number: u32, generation: u32) -> Option<u32> {
    if let Some(salt) = log::salt(bytes, number, generation) {
        return Some(salt);
    }
    // A damaged frame also yields a salt, but no other frame yields the same salt.
    let agreed = proposals(bytes).into_iter().filter(|(_, proposal)| proposal.frames > 1);
    let mut agreed: Vec<(u64, u32)> =
        agreed.map(|(salt, proposal)| (proposal.bytes, salt)).collect();
    agreed.sort_unstable_by(|a, b| b.cmp(a));
    let covered = |salt: u32| {
        let mut covered = 0;
        scan(bytes, salt, &mut |part| match part {
            ScannedPart::Frame(_, LogFrame::Put(record)) => covered += record.len(),
            ScannedPart::Frame(..) => covered += 1,
            ScannedPart::Lost(_) => {}
        });
        covered
    };
    let tried = agreed.into_iter().take(TRIED).map(|(_, salt)| (covered(salt), salt));
    tried.max().map(|(_, salt)| salt)
}

/// Returns the salts that are calculated from plausible frames.
fn proposals(bytes: &[u8]) -> HashMap<u32, SaltProposal> {
    let mut proposed: HashMap<u32, SaltProposal> = HashMap::new();
    let end = bytes.len().min(HEADER as usize + SEARCHED_BYTES);
    for start in (HEADER as usize..end).step_by(WINDOW_BYTES) {
        let (mut frames, mut summed) = (0, 0);
        for at in start..(start + WINDOW_BYTES).min(end) {
            let frame = plausible_frame(&bytes[at..]);
            let Some(frame) = frame.filter(|frame| frame.len() <= PROPOSING_BYTES) else {
                continue;
            };
            frames += 1;
            summed += frame.len();
            if frames > WINDOW_PROPOSALS || summed > WINDOW_SUMMED {
                break;
            }
            let proposal = proposed.entry(salt_that_fits(frame)).or_default();
            proposal.frames += 1;
            if at >= proposal.end {
                proposal.bytes += frame.len() as u64;
                proposal.end = at + frame.len();
            }
        }
    }
    proposed
}

/// Returns the salt with which the checksum of this frame, of at least [`FRAME`] bytes, is right.
fn salt_that_fits(frame: &[u8]) -> u32 {
    debug_assert!(frame.len() >= FRAME);
    let stored = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
    // `log::checksum` processes these bytes in the opposite order.
    let summed = frame[8..].iter().rev().chain(frame[..4].iter().rev());
    let steps = &*STEPS;
    !summed.fold(!stored, |after, &byte| {
        let step = &steps[(after >> 24) as usize];
        (after ^ step.effect) << 8 | u32::from(step.index ^ byte)
    })
}

/// A step of the checksum: the lowest byte of the state, and how this byte changes the other bytes.
#[derive(Clone, Copy, Default)]
struct ChecksumStep {
    index: u8,
    effect: u32,
}

/// The steps of CRC32C, indexed by the highest byte of `effect`, which is different in each step.
static STEPS: LazyLock<[ChecksumStep; 256]> = LazyLock::new(|| {
    /// The polynomial; its lowest power is in the highest bit.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut steps = [ChecksumStep::default(); 256];
    for index in 0..=u8::MAX {
        let effect = (0..8).fold(u32::from(index), |state, _| {
            if state & 1 == 1 { state >> 1 ^ POLYNOMIAL } else { state >> 1 }
        });
        steps[(effect >> 24) as usize] = ChecksumStep { index, effect };
    }
    steps
});

#[cfg(test)]
mod tests {
    use hark_archive::RecordHeader;

    use super::*;

    /// A record with these bytes as its message.
    fn record(n: u8, message: &[u8]) -> Vec<u8> {
        let id = [n; 32];
        let head = RecordHeader { id, time: 1, author: None, kind: 1, expires: None };
        let mut out = Vec::new();
        hark_codec::record::write(&mut out, &head, message, std::iter::empty());
        out
    }

    /// A log of puts, without a header.
    fn log(salt: u32, records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER as usize];
        for record in records {
            let mut inner = Vec::new();
            LogFrame::Put(record).write(salt, &mut inner);
            LogFrame::Batch(inner.len() as u32).write(salt, &mut bytes);
            bytes.append(&mut inner);
        }
        bytes
    }

    #[test]
    fn a_log_without_its_header_gives_its_salt() {
        for salt in [0, 1, 0xffff_ffff, 0x1234_5678] {
            let mut bytes = vec![0; HEADER as usize];
            for _ in 0..3 {
                let mut inner = Vec::new();
                LogFrame::Delete { id: [3; 32], log: 1 }.write(salt, &mut inner);
                LogFrame::Batch(inner.len() as u32).write(salt, &mut bytes);
                bytes.append(&mut inner);
            }
            assert_eq!(salt_of(&bytes, 1, 0), Some(salt));
            // A message with batches that have another salt does not change the result.
            let mut hidden = Vec::new();
            (0..9).for_each(|_| LogFrame::Batch(0).write(99, &mut hidden));
            LogFrame::Put(&record(1, &hidden)).write(salt, &mut bytes);
            assert_eq!(salt_of(&bytes, 1, 0), Some(salt));
        }
        assert_eq!(salt_of(&[0; 500], 1, 0), None);
    }

    #[test]
    fn messages_made_of_frames_do_not_choose_the_salt() {
        const SALT: u32 = 5;
        // A salt is calculated at each byte of each message, so there are more proposed salts than
        // are tried. Each of these salts has many frames, which are together nearly as large as the
        // rest of the log.
        let mut hidden = Vec::new();
        for other in 100..140 {
            (0..400).for_each(|_| LogFrame::Batch(0).write(other, &mut hidden));
        }
        let mut nested = Vec::new();
        for left in (0..4_000usize).rev() {
            let at = nested.len();
            LogFrame::Put(&record(2, b"")).write(99, &mut nested);
            let len = (nested.len() - at) * left + nested.len() - at - FRAME;
            nested[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        }
        let mut records: Vec<_> = (0..50).map(|n| record(n, b"a short message")).collect();
        records.extend([record(60, &hidden), record(61, &nested), record(62, &hidden)]);
        records.extend((70..90).map(|n| record(n, b"a short message")));
        assert_eq!(salt_of(&log(SALT, &records), 1, 0), Some(SALT));
    }
}
