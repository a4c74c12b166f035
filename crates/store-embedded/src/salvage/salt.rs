//! The salt of a log whose header is damaged, from the frames themselves.
//!
//! A frame's checksum begins with the salt, and a checksum is linear: from a frame that is whole,
//! its stored checksum gives the one salt that fits. So whatever looks like a frame proposes a salt,
//! and the salt that makes most of the file into frames is taken. The bytes of a message can propose
//! one as well; but its frames would all lie within that message, which is a frame of the right
//! salt.

use std::collections::HashMap;

use super::scan::{ScannedPart, plausible_frame, scan};
use crate::log::{self, HEADER, LogFrame};

/// Bytes from the front of a log that are searched for proposals.
const SEARCHED_BYTES: usize = 64 << 20;
/// Frames that propose a salt.
const PROPOSALS_MAX: usize = 100_000;
/// Proposals that are tried, those of most frames first.
const TRIED: usize = 8;

/// Returns the salt of a log: from its header, else the one that its frames have. `None` if fewer
/// than two frames agree.
pub(crate) fn salt_of(bytes: &[u8], number: u32, generation: u32) -> Option<u32> {
    if let Some(salt) = log::salt(bytes, number, generation) {
        return Some(salt);
    }
    let mut proposed: HashMap<u32, u32> = HashMap::new();
    let searched = bytes.get(HEADER as usize..).unwrap_or_default();
    let searched = &searched[..searched.len().min(SEARCHED_BYTES)];
    let frames = (0..searched.len()).filter_map(|at| plausible_frame(&searched[at..]));
    for frame in frames.take(PROPOSALS_MAX) {
        *proposed.entry(salt_that_fits(frame)).or_default() += 1;
    }
    // A damaged frame proposes a salt too, but alone.
    let agreed = proposed.into_iter().filter(|(_, frames)| *frames > 1);
    let mut proposed: Vec<(u32, u32)> = agreed.map(|(salt, frames)| (frames, salt)).collect();
    proposed.sort_unstable_by(|a, b| b.cmp(a));
    let covered = |salt: u32| {
        let mut bytes_of_frames = 0;
        scan(bytes, salt, &mut |part| match part {
            ScannedPart::Frame(_, LogFrame::Put(record)) => bytes_of_frames += record.len(),
            ScannedPart::Frame(..) => bytes_of_frames += 1,
            ScannedPart::Lost(_) => {}
        });
        bytes_of_frames
    };
    let tried = proposed.into_iter().take(TRIED).map(|(_, salt)| (covered(salt), salt));
    tried.max().map(|(_, salt)| salt)
}

/// The salt with which this frame has its checksum.
fn salt_that_fits(frame: &[u8]) -> u32 {
    let sum = |salt| log::checksum(frame, salt);
    let base = sum(0);
    let stored = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
    // The effect of each bit of the salt on the checksum, reduced so that each has a leading bit of
    // its own: (effect, the bits of the salt that have it).
    let mut basis = [(0u32, 0u32); 32];
    for bit in 0..32 {
        let (mut effect, mut bits) = (sum(1 << bit) ^ base, 1u32 << bit);
        while effect != 0 {
            let place = &mut basis[effect.leading_zeros() as usize];
            if place.0 == 0 {
                *place = (effect, bits);
                break;
            }
            (effect, bits) = (effect ^ place.0, bits ^ place.1);
        }
    }
    let (mut left, mut salt) = (stored ^ base, 0);
    while left != 0 {
        let (effect, bits) = basis[left.leading_zeros() as usize];
        if effect == 0 {
            // Cannot be: different salts give different checksums.
            break;
        }
        (left, salt) = (left ^ effect, salt ^ bits);
    }
    salt
}

#[cfg(test)]
mod tests {
    use super::*;

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
            // Another salt's batches in a message propose theirs in vain.
            let mut hidden = Vec::new();
            (0..9).for_each(|_| LogFrame::Batch(0).write(99, &mut hidden));
            LogFrame::Put(&hidden).write(salt, &mut bytes);
            assert_eq!(salt_of(&bytes, 1, 0), Some(salt));
        }
        assert_eq!(salt_of(&[0; 500], 1, 0), None);
    }
}
