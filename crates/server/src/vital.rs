//! Tasks that others wait for; see [`hark_archive::vital`].

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hark_archive::vital::end;

/// Runs work that other tasks wait for. If the work panics, the process ends.
pub fn vital<T>(name: &str, work: impl Future<Output = T>) -> impl Future<Output = T> {
    let mut work = Box::pin(work);
    poll_fn(move |context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|_| end(name))
    })
}
