//! Reports tests that cannot run on this machine because something is missing.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::Write as _;
use std::sync::LazyLock;

use parking_lot::Mutex;

/// Reports that the running test, or a part of it, cannot run here. `scripts/test` counts the test
/// as skipped instead of passed.
pub fn skip(reason: impl Display) {
    static REPORTED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    // The test harness names each thread after its test.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    if REPORTED.lock().insert(test.clone()) {
        // The line goes directly to stderr, because the test harness hides the output of `print!`
        // if the test passes. A single write keeps the line whole, even when other tests write at
        // the same time.
        let line = format!("SKIPPED: {test}: {reason}\n");
        std::io::stderr().write_all(line.as_bytes()).expect("stderr takes a line");
    }
}
