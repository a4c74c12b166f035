//! Tasks that others wait for; see [`hark_archive::vital`].

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;

use hark_archive::vital::end;

/// Runs work that other tasks wait for. If the work panics, the process ends.
pub fn vital<T: 'static>(
    name: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send + 'static {
    guarded(name, Box::pin(work))
}

/// Work of all types becomes one type of task, so that the runtime's code for tasks is compiled
/// only once per type of result.
fn guarded<T: 'static>(
    name: &'static str,
    mut work: Pin<Box<dyn Future<Output = T> + Send>>,
) -> impl Future<Output = T> + Send + 'static {
    poll_fn(move |context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|_| end(name))
    })
}
