//! Detects whether a thread that reads mapped files has waited for the disk.

use std::cell::Cell;
use std::fs;

thread_local! {
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Whether this thread has waited for a page of a file since it last called this function. Takes
/// some microseconds. Always true on a system that does not report page faults.
pub(crate) fn has_waited_for_disk() -> bool {
    let Some(faults) = major_faults() else { return true };
    SEEN.replace(faults) != faults
}

fn major_faults() -> Option<u64> {
    let stat = fs::read_to_string("/proc/thread-self/stat").ok()?;
    // The second field is a name in brackets, which may contain spaces; the twelfth is the number
    // of major page faults (proc(5)).
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_reads_nothing_does_not_wait() {
        // The kernel may have evicted pages of the program itself, so a single call may detect a
        // fault.
        let has_read_nothing = (0..1_000).any(|_| !has_waited_for_disk());
        assert!(has_read_nothing || major_faults().is_none());
    }
}
