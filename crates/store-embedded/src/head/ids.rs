//! The id index of a head.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::size::ROWS_MAX;

/// Number of tables. Together they have space for all rows of a head.
const ID_TABLES: usize = 14;

/// Number of low bits of a slot that hold the row plus one; 0 means a free slot.
const ROW_BITS: u32 = ROWS_MAX.trailing_zeros() + 1;

/// Finds rows by the hash of their id. This is a hash table with open addressing, in several
/// tables; only the last table takes new rows. The high bits of a slot hold the highest bits of the
/// hash, so the slot of another id is nearly always recognised without reading its row.
pub(super) struct Ids {
    /// Number of slots of the first table, a power of two. Each table has twice as many slots as
    /// the previous table.
    slots: usize,
    tables: [OnceLock<Box<[AtomicU32]>>; ID_TABLES],
}

impl Ids {
    /// Makes an empty index, sized for about `rows` rows. The index can grow.
    pub(super) fn new(rows: u32) -> Self {
        let slots = (rows.clamp(512, ROWS_MAX as u32) * 2).next_power_of_two() as usize;
        Self { slots, tables: [const { OnceLock::new() }; ID_TABLES] }
    }

    /// Memory of the first table in bytes.
    pub(super) fn table_bytes(&self) -> u64 {
        self.slots as u64 * 4
    }

    /// Rows whose id may have this hash; rows of the latest table come first.
    pub(super) fn rows(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let tables = self.tables.iter().rev().filter_map(OnceLock::get);
        tables.flat_map(move |slots| {
            let slots = from(slots, hash).map(|slot| slot.load(Ordering::Acquire));
            let alike = slots
                .take_while(|slot| *slot > 0)
                .filter(move |slot| *slot ^ pack(hash, 0) < 1 << ROW_BITS);
            alike.map(|slot| (slot & ((1 << ROW_BITS) - 1)) - 1)
        })
    }

    /// Adds a row. The caller must already have added all lower rows.
    pub(super) fn insert(&self, hash: u64, row: u32) {
        let full = |at: usize| row as usize >= ((self.slots << (at + 1)) - self.slots) / 8 * 5;
        let at = (0..ID_TABLES - 1).take_while(|&at| full(at)).count();
        let slots = self.tables[at]
            .get_or_init(|| (0..self.slots << at).map(|_| AtomicU32::new(0)).collect());
        let free = from(slots, hash).find(|slot| slot.load(Ordering::Relaxed) == 0);
        if let Some(slot) = free {
            slot.store(pack(hash, row + 1), Ordering::Release);
        }
    }
}

fn pack(hash: u64, row: u32) -> u32 {
    ((hash >> (32 + ROW_BITS)) as u32) << ROW_BITS | row
}

/// Returns all slots, beginning with the slot to which the hash belongs.
fn from(slots: &[AtomicU32], hash: u64) -> impl Iterator<Item = &AtomicU32> {
    let last = slots.len() - 1;
    (0..slots.len()).map(move |at| &slots[(hash as usize).wrapping_add(at) & last])
}
