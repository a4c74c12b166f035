//! Marks work that may block its thread, although the thread belongs to an async runtime.
//!
//! A runtime polls many tasks on few threads, so none of these threads may wait for a disk or a
//! database. A runtime also has threads that may block, but a store cannot tell which kind of
//! thread it runs on. So the code that starts work on such a thread wraps the work in
//! [`may_block`].

use std::cell::Cell;

thread_local! {
    static ALLOWED: Cell<bool> = const { Cell::new(false) };
}

/// Restores the previous permission when dropped, even by a panic, because the thread later does
/// other work.
struct Permission(bool);

impl Drop for Permission {
    fn drop(&mut self) {
        ALLOWED.set(self.0);
    }
}

/// Runs `work` on this thread. [`is_allowed`] returns true during the work, so the work may block.
pub fn may_block<T>(work: impl FnOnce() -> T) -> T {
    let _before = Permission(ALLOWED.replace(true));
    work()
}

/// Returns whether this thread runs inside [`may_block`].
pub fn is_allowed() -> bool {
    ALLOWED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permission_ends_with_the_work_that_it_was_given_to() {
        assert!(!is_allowed());
        assert!(may_block(|| may_block(is_allowed) && is_allowed()));
        let panicked = std::panic::catch_unwind(|| may_block(|| panic!("a bug")));
        assert!(panicked.is_err() && !is_allowed());
    }
}
