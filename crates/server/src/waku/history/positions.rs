//! Positions of the last messages of recent pages. The hash of such a message is the cursor of the
//! next page. With a cached position, the archive need not look up the message, which may even have
//! been deleted.

use hark_archive::Position;
use hark_codec::record::Id;
use parking_lot::Mutex;

/// Number of slots. Each message maps to one slot; a later message may overwrite the slot.
const SLOTS: usize = 4_096;

/// Positions of messages, in slots indexed by hash.
#[derive(Debug)]
pub struct PositionCache(Mutex<Box<[Position]>>);

impl Default for PositionCache {
    fn default() -> Self {
        Self(Mutex::new(vec![Position { time: 0, id: [0; 32] }; SLOTS].into()))
    }
}

impl PositionCache {
    pub(super) fn note(&self, at: Position) {
        self.0.lock()[slot(&at.id)] = at;
    }

    pub(super) fn get(&self, hash: &Id) -> Option<Position> {
        let there = self.0.lock()[slot(hash)];
        (there.id == *hash).then_some(there)
    }
}

fn slot(hash: &Id) -> usize {
    usize::from(u16::from_le_bytes([hash[0], hash[1]])) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_takes_the_place_of_another_is_not_taken_for_it() {
        let (positions, first, second) =
            (PositionCache::default(), [7; 32], [[7; 16], [8; 16]].concat());
        let second: Id = second.try_into().unwrap();
        assert_eq!(slot(&first), slot(&second));
        assert_eq!(positions.get(&first), None);
        let at = |time, id| Position { time, id };
        positions.note(at(1, first));
        assert_eq!((positions.get(&first), positions.get(&second)), (Some(at(1, first)), None));
        positions.note(at(2, second));
        assert_eq!((positions.get(&first), positions.get(&second)), (None, Some(at(2, second))));
    }
}
