//! The list of maps, in which a signal handler looks up an address. A lookup neither takes a lock
//! nor allocates.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// Number of maps in each chunk of the list.
const CHUNK: usize = 128;

/// An entry of the list: a map's range of memory, and its number of failed reads.
pub(crate) struct MapSlot {
    /// A sequence number. It is odd while the other fields are being changed.
    version: AtomicUsize,
    /// First address of the map; 0 if the slot is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Number of failed reads of the map.
    faults: AtomicU32,
    /// Maximum number of the map's pages that are replaced individually.
    pages_max: AtomicU32,
}

/// Maximum number of pages that are replaced one by one in a map, unless
/// [`MapSlot::replace_one_by_one`] raises this limit.
pub(crate) const PAGES_EACH: u32 = 16;

/// A part of the list. Chunks are never removed from the list, so a signal handler can read each
/// chunk at any time.
struct MapSlotChunk {
    slots: [MapSlot; CHUNK],
    next: OnceLock<Box<MapSlotChunk>>,
}

static FIRST: MapSlotChunk = MapSlotChunk::new();

impl MapSlot {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            faults: AtomicU32::new(0),
            pages_max: AtomicU32::new(PAGES_EACH),
        }
    }

    /// Claims the slot for a map; returns false if the slot is not free.
    fn try_claim(&self, part: &Range<usize>) -> bool {
        let version = self.version.load(Ordering::SeqCst);
        let is_free = version.is_multiple_of(2) && self.start.load(Ordering::SeqCst) == 0;
        let (seq, changing) = (Ordering::SeqCst, version + 1);
        if !is_free || self.version.compare_exchange(version, changing, seq, seq).is_err() {
            return false;
        }
        self.faults.store(0, seq);
        self.pages_max.store(PAGES_EACH, seq);
        self.end.store(part.end, seq);
        self.start.store(part.start, seq);
        self.version.store(version + 2, seq);
        true
    }

    /// Returns the map's range of memory; `None` if the slot is free or being changed.
    fn part(&self) -> Option<Range<usize>> {
        let version = self.version.load(Ordering::SeqCst);
        let part = self.start.load(Ordering::SeqCst)..self.end.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let is_stable = version.is_multiple_of(2) && self.version.load(Ordering::SeqCst) == version;
        (is_stable && part.start != 0).then_some(part)
    }

    /// Counts a failed read and returns the number of earlier failed reads.
    pub(crate) fn note_fault(&self) -> u32 {
        self.faults.fetch_add(1, Ordering::SeqCst)
    }

    /// Lets the handler replace up to `pages` pages of the map one by one, before it replaces the
    /// whole map.
    pub(crate) fn replace_one_by_one(&self, pages: u32) {
        self.pages_max.store(pages, Ordering::SeqCst);
    }

    /// Maximum number of the map's pages that are replaced individually.
    pub(crate) fn pages_max(&self) -> u32 {
        self.pages_max.load(Ordering::SeqCst)
    }

    /// Number of failed reads of the map.
    pub(crate) fn faults(&self) -> u32 {
        self.faults.load(Ordering::Acquire)
    }
}

impl MapSlotChunk {
    const fn new() -> Self {
        Self { slots: [const { MapSlot::new() }; CHUNK], next: OnceLock::new() }
    }
}

/// The registration of a map. A lookup finds the map until the registration is dropped.
pub(crate) struct MapRegistration(&'static MapSlot);

impl MapRegistration {
    /// Registers the map of a range of memory.
    pub(crate) fn new(part: &Range<usize>) -> Self {
        let mut chunk = &FIRST;
        loop {
            if let Some(slot) = chunk.slots.iter().find(|slot| slot.try_claim(part)) {
                return Self(slot);
            }
            chunk = chunk.next.get_or_init(|| Box::new(MapSlotChunk::new()));
        }
    }

    /// The map's entry in the list.
    pub(crate) fn slot(&self) -> &MapSlot {
        self.0
    }
}

impl Drop for MapRegistration {
    fn drop(&mut self) {
        let slot = self.0;
        slot.version.fetch_add(1, Ordering::SeqCst);
        slot.start.store(0, Ordering::SeqCst);
        slot.version.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the map that contains an address, and the map's range of memory. The registration of the
/// map cannot change during the call, because the reader that caused the fault has the map open.
pub(crate) fn find(address: usize) -> Option<(&'static MapSlot, Range<usize>)> {
    let mut chunk = Some(&FIRST);
    while let Some(here) = chunk {
        for slot in &here.slots {
            if let Some(part) = slot.part().filter(|part| part.contains(&address)) {
                return Some((slot, part));
            }
        }
        chunk = here.next.get().map(|next| &**next);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::array;

    use super::*;

    #[test]
    fn maps_are_found_while_they_are_there_and_no_longer() {
        // No map of another test is near these addresses.
        let part = |at: usize| (at + 1) << 8..((at + 1) << 8) + 100;
        let maps: [_; CHUNK * 3] = array::from_fn(|at| MapRegistration::new(&part(at)));
        for at in 0..maps.len() {
            assert_eq!(find(part(at).start + 99).map(|(_, found)| found), Some(part(at)));
            assert!(find(part(at).end).is_none());
        }
        maps[7].slot().note_fault();
        assert!(find(part(7).start).is_some_and(|(slot, _)| slot.faults() == 1));
        drop(maps);
        assert!(find(part(7).start).is_none());
        let again = MapRegistration::new(&part(7));
        assert_eq!(again.slot().faults(), 0, "what another map had is forgotten");
    }
}
