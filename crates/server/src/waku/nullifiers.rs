//! The nullifiers of recent rate-limit proofs. A sender that respects the rate limit uses each
//! nullifier for one message only.

use std::collections::{HashMap, VecDeque};

use hark_codec::record::Id;
use parking_lot::Mutex;

/// Maximum number of remembered nullifiers, of some 150 bytes each. Above this number the oldest
/// nullifiers are forgotten.
const NULLIFIERS_MAX: usize = 100_000;

/// A nullifier and its epoch.
type EpochNullifier = (u64, [u8; 32]);

/// Nullifiers, each with the hash of its message.
#[derive(Debug, Default)]
pub(super) struct NullifierLog(Mutex<Nullifiers>);

#[derive(Debug, Default)]
struct Nullifiers {
    hashes: HashMap<EpochNullifier, Id>,
    /// The nullifiers in the order of arrival.
    order: VecDeque<EpochNullifier>,
}

impl NullifierLog {
    /// Stores the nullifier of a message. Returns false if another message has the same nullifier.
    pub(super) fn note(&self, nullifier: EpochNullifier, hash: &Id) -> bool {
        let Nullifiers { hashes, order } = &mut *self.0.lock();
        if let Some(noted) = hashes.get(&nullifier) {
            return noted == hash;
        }
        if order.len() >= NULLIFIERS_MAX
            && let Some(oldest) = order.pop_front()
        {
            hashes.remove(&oldest);
        }
        hashes.insert(nullifier, *hash);
        order.push_back(nullifier);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nullifier_is_for_one_message_of_its_epoch() {
        let log = NullifierLog::default();
        for (epoch, nullifier, hash, is_taken) in
            [(1, 1, 1, true), (1, 1, 1, true), (1, 1, 2, false), (1, 2, 2, true), (2, 1, 3, true)]
        {
            let noted = log.note((epoch, [nullifier; 32]), &[hash; 32]);
            assert_eq!(noted, is_taken, "{nullifier} of {epoch} for {hash}");
        }
        for epoch in 0..NULLIFIERS_MAX as u64 {
            log.note((epoch, [9; 32]), &[9; 32]);
        }
        assert_eq!(log.0.lock().hashes.len(), NULLIFIERS_MAX);
        assert!(log.note((1, [1; 32]), &[2; 32]), "the oldest was forgotten");
    }
}
