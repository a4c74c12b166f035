//! An allocator that counts the allocations of each thread.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Returns how many times this thread has allocated or reallocated memory.
pub fn of_this_thread() -> usize {
    COUNT.with(Cell::get)
}

/// Returns the bytes that this thread has allocated minus the bytes that it has freed.
pub fn bytes_of_this_thread() -> isize {
    BYTES.with(Cell::get)
}

/// Runs `work`. Returns its result, and the maximum growth of this thread's memory during the call,
/// in bytes.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = bytes_of_this_thread();
    PEAK.with(|peak| peak.set(before));
    let done = work();
    (done, usize::try_from(PEAK.with(Cell::get) - before).unwrap_or(0))
}

/// An allocator that counts the calls and forwards them to another allocator. Tests use it as
/// `#[global_allocator]`.
pub struct Counting<A>(pub A);

fn count(bytes: isize) {
    // When a thread ends, its counter may already be gone.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
    add(bytes);
}

fn add(bytes: isize) {
    let _ = BYTES.try_with(|all| {
        all.set(all.get().wrapping_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(all.get())));
    });
}

// SAFETY: every call is passed unchanged to the other allocator.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        unsafe { self.0.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        unsafe { self.0.dealloc(at, layout) }
    }
}
