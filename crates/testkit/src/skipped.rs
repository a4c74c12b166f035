//! Tests that lack something on this machine.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::Write as _;
use std::sync::LazyLock;

use parking_lot::Mutex;

/// Reports that the running test, or a part of it, cannot run here. `scripts/test` counts the test as
/// skipped instead of passed.
pub fn skip(reason: impl Display) {
    static REPORTED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    // The test harness names each thread after its test.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    if REPORTED.lock().insert(test.clone()) {
        // The harness captures what `print!` writes, and shows none of it for a test that passes.
        writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}").expect("stderr takes a line");
    }
}
