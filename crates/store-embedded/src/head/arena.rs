//! An arena: items are added one after another and never move.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of items per chunk, of chunks per directory, and of directories. The product of these
/// three numbers is greater than the number of items of any log.
const ITEMS: usize = 1024;

type ArenaChunk<T> = OnceLock<Box<[T]>>;
type Directory<T> = OnceLock<Box<[ArenaChunk<T>]>>;

/// Items that never move. One thread adds items, and any number of threads read items. The items
/// must allow reads during writes, for example by atomic fields.
pub(super) struct Arena<T> {
    directories: Box<[Directory<T>]>,
    len: AtomicU32,
}

fn empty<T>() -> Box<[OnceLock<T>]> {
    (0..ITEMS).map(|_| OnceLock::new()).collect()
}

impl<T: Default> Arena<T> {
    pub(super) fn new() -> Self {
        Self { directories: empty(), len: AtomicU32::new(0) }
    }

    /// Number of items.
    pub(super) fn len(&self) -> u32 {
        self.len.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&T> {
        let at = at as usize;
        let chunks = self.directories.get(at / (ITEMS * ITEMS))?.get()?;
        chunks[at / ITEMS % ITEMS].get().map(|chunk| &chunk[at % ITEMS])
    }

    /// Adds an item and returns it with its number.
    pub(super) fn add(&self) -> (u32, &T) {
        let number = self.len();
        let at = number as usize;
        let chunks = self.directories[at / (ITEMS * ITEMS)].get_or_init(empty);
        let chunk =
            chunks[at / ITEMS % ITEMS].get_or_init(|| (0..ITEMS).map(|_| T::default()).collect());
        self.len.store(number + 1, Ordering::Release);
        (number, &chunk[at % ITEMS])
    }
}
