//! The ids of a head.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::ROWS_MAX;

/// Tables of ids: together they take all rows that a head can have.
const ID_TABLES: usize = 14;

/// Rows by the hash of their id: open addressing, in tables of which only the last one is filled. A
/// slot is a row and one, or 0.
pub(super) struct Ids {
    /// Slots of the first table, a power of two; each next one has twice as many.
    slots: usize,
    tables: [OnceLock<Box<[AtomicU32]>>; ID_TABLES],
}

impl Ids {
    /// For so many rows, or more.
    pub(super) fn new(rows: u32) -> Self {
        let slots = (rows.clamp(512, ROWS_MAX as u32) * 2).next_power_of_two() as usize;
        Self { slots, tables: [const { OnceLock::new() }; ID_TABLES] }
    }

    /// Rows that may have this hash, the latest table's first.
    pub(super) fn rows(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let tables = self.tables.iter().rev().filter_map(OnceLock::get);
        tables.flat_map(move |slots| {
            let start = hash as usize & (slots.len() - 1);
            let (before, behind) = slots.split_at(start);
            let slots = behind.iter().chain(before);
            let rows = slots.map(|slot| slot.load(Ordering::Acquire));
            rows.take_while(|row| *row > 0).map(|row| row - 1)
        })
    }

    /// Notes a row; `row` rows are there before it.
    pub(super) fn insert(&self, hash: u64, row: u32) {
        let full = |at: usize| row as usize >= ((self.slots << (at + 1)) - self.slots) / 8 * 5;
        let at = (0..ID_TABLES - 1).take_while(|&at| full(at)).count();
        let slots = self.tables[at]
            .get_or_init(|| (0..self.slots << at).map(|_| AtomicU32::new(0)).collect());
        let start = hash as usize & (slots.len() - 1);
        let (before, behind) = slots.split_at(start);
        let free = behind.iter().chain(before).find(|slot| slot.load(Ordering::Relaxed) == 0);
        if let Some(slot) = free {
            slot.store(row + 1, Ordering::Release);
        }
    }
}
