//! A long posting list. The cost of an insert hardly depends on the length of the list.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use arc_swap::ArcSwapOption;

use super::table::RowTable;
use crate::segment::file::partition;

/// Maximum number of rows in the tail. The tail is sorted: a row is inserted at its place.
const TAIL: usize = 28;
/// Number of rows at which the middle is merged into the oldest rows.
const MIDDLE: usize = 1024;

/// Immutable rows, oldest first.
pub type SharedRows = Arc<[u32]>;

/// A long posting list. One thread inserts. Readers copy the tail, and copy it again if its rows
/// moved during the copy.
#[derive(Default)]
pub(super) struct LongList {
    /// A sequence number. It is odd while rows of the tail move.
    turn: AtomicU32,
    len: AtomicU32,
    tail: [AtomicU32; TAIL],
    /// The two sorted parts before the tail: the middle, which receives the rows of a full tail,
    /// and all older rows.
    older: ArcSwapOption<[SharedRows; 2]>,
}

/// Returns the position at which a row belongs among `len` other rows. The search starts at the
/// end, since the row is usually among the newest.
fn index_of(row: u32, len: usize, nth: impl Fn(usize) -> u32, table: &RowTable) -> usize {
    let sort_key = table.sort_key(row);
    let is_newer = |index: usize| table.sort_key(nth(index)) < sort_key;
    let mut ahead = 1;
    while ahead <= len && is_newer(len - ahead) {
        ahead *= 2;
    }
    let near = len.saturating_sub(ahead);
    near + partition((len - near) as u32, |i| !is_newer(near + i as usize)) as usize
}

fn merge(newer: &[u32], older: &[u32], table: &RowTable) -> SharedRows {
    // Records that arrive later are usually newer, so few `older` rows belong after the first
    // `newer` row.
    let first = newer.first().map(|&row| index_of(row, older.len(), |at| older[at], table));
    let (before, mut behind) = older.split_at(first.unwrap_or(older.len()));
    let mut mixed = Vec::with_capacity(newer.len() + behind.len());
    for &row in newer {
        if !behind.is_empty() {
            let at = index_of(row, behind.len(), |at| behind[at], table);
            mixed.extend_from_slice(&behind[..at]);
            behind = &behind[at..];
        }
        mixed.push(row);
    }
    mixed.extend_from_slice(behind);
    before.iter().chain(&mixed).copied().collect()
}

impl LongList {
    fn tail(&self, len: usize) -> impl Iterator<Item = u32> + '_ {
        self.tail[..len].iter().map(|row| row.load(Ordering::Relaxed))
    }

    /// Number of rows in the tail.
    pub(super) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// Inserts a row. `is_newest` means that the row belongs at the end.
    pub(super) fn insert(&self, row: u32, is_newest: bool, table: &RowTable) {
        let mut len = self.len.load(Ordering::Relaxed) as usize;
        if len == TAIL {
            self.pass_on(table);
            len = 0;
        }
        let nth = |at: usize| self.tail[at].load(Ordering::Relaxed);
        let at = if is_newest { len } else { index_of(row, len, nth, table) };
        if at == len {
            self.tail[at].store(row, Ordering::Relaxed);
            self.len.store(len as u32 + 1, Ordering::Release);
            return;
        }
        self.moving(|| {
            for at in (at..len).rev() {
                self.tail[at + 1].store(nth(at), Ordering::Relaxed);
            }
            self.tail[at].store(row, Ordering::Relaxed);
            self.len.store(len as u32 + 1, Ordering::Relaxed);
        });
    }

    /// Merges the full tail into the older rows.
    fn pass_on(&self, table: &RowTable) {
        let [mut middle, mut rest] =
            self.older.load_full().map_or_else(Default::default, |older| (*older).clone());
        let tail: [u32; TAIL] = std::array::from_fn(|at| self.tail[at].load(Ordering::Relaxed));
        middle = merge(&tail, &middle, table);
        if middle.len() >= MIDDLE {
            rest = merge(&middle, &rest, table);
            middle = SharedRows::default();
        }
        let older = Some(Arc::new([middle, rest]));
        self.moving(|| {
            self.older.store(older);
            self.len.store(0, Ordering::Relaxed);
        });
    }

    /// Runs `change`. Readers discard rows that they read during the change.
    fn moving(&self, change: impl FnOnce()) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// Passes all rows to `each`, in up to three sorted parts.
    pub(super) fn postings(&self, mut each: impl FnMut(SharedRows)) {
        let (tail, older) = loop {
            let turn = self.turn.load(Ordering::Acquire);
            if turn.is_multiple_of(2) {
                let older = self.older.load();
                let len = self.len.load(Ordering::Acquire) as usize;
                let tail: SharedRows = self.tail(len).collect();
                fence(Ordering::Acquire);
                if self.turn.load(Ordering::Relaxed) == turn {
                    break (tail, older);
                }
            }
            std::hint::spin_loop();
        };
        let older = older.iter().flat_map(|older| older.iter());
        std::iter::once(&tail)
            .chain(older)
            .filter(|rows| !rows.is_empty())
            .cloned()
            .for_each(&mut each);
    }
}
