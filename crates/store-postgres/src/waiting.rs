//! The runtime of a connection. The thread that waits for an answer drives this runtime itself.
//!
//! tokio panics if a thread drives or drops a runtime while it polls the tasks of another runtime.
//! This module prevents the panic: for such a thread, a separate thread waits for the answer. This
//! is slow and blocks the other tasks of the thread, so it is logged once.

use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Once;
use std::thread::{Builder, scope};
use std::time::Duration;

use hark_archive::blocking;
use tokio::runtime::{Handle, Runtime};

use crate::error::StatementError;

/// The runtime on which one connection runs.
pub(crate) struct ConnectionRuntime(Option<Runtime>);

impl ConnectionRuntime {
    pub(crate) fn new() -> Result<Self, StatementError> {
        let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
        built.map(|runtime| Self(Some(runtime))).map_err(|error| unable(&error))
    }

    /// Waits for the result of `work`.
    pub(crate) fn wait<T: Send>(
        &self,
        work: impl Future<Output = T> + Send,
    ) -> Result<T, StatementError> {
        let mut result = None;
        if let Some(runtime) = &self.0 {
            drive(runtime, pin!(async { result = Some(work.await) }))?;
        }
        result.ok_or_else(|| StatementError::Away("the connection is closed".into()))
    }

    /// Waits for the result of `work`, and calls `look` at intervals while waiting. Returns `None`
    /// if `look` returns false.
    pub(crate) fn watch<T: Send>(
        &self,
        work: impl Future<Output = T> + Send,
        every: Duration,
        look: &mut dyn FnMut() -> bool,
    ) -> Result<Option<T>, StatementError> {
        let mut work = pin!(work);
        loop {
            let slice = async { tokio::time::timeout(every, work.as_mut()).await };
            match self.wait(slice)? {
                Ok(done) => return Ok(Some(done)),
                Err(_) if look() => {}
                Err(_) => return Ok(None),
            }
        }
    }
}

impl Drop for ConnectionRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Returns without waiting for the connection, the only task. The connection ends with
            // the runtime.
            runtime.shutdown_background();
        }
    }
}

/// Runs `work` to its end. This function serves work of all types, so the loops of the runtime are
/// compiled only once.
fn drive(
    runtime: &Runtime,
    work: Pin<&mut (dyn Future<Output = ()> + Send)>,
) -> Result<(), StatementError> {
    if Handle::try_current().is_err() || blocking::is_allowed() {
        runtime.block_on(work);
        return Ok(());
    }
    report();
    scope(|scope| {
        let waiting = Builder::new().spawn_scoped(scope, || runtime.block_on(work));
        let waiting = waiting.map_err(|error| unable(&error))?;
        waiting.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok(())
    })
}

fn unable(error: &std::io::Error) -> StatementError {
    StatementError::Away(format!("the system does not let Hark wait for its answers: {error}"))
}

/// Logs once that a wait blocks a thread that other tasks need.
fn report() {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        tracing::error!(
            "a thread that serves connections waited for the database, and all of them with it (a \
             bug; please report it)"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(runtime: &ConnectionRuntime) -> u8 {
        runtime.wait(async { tokio::task::spawn(async { 7 }).await.unwrap_or(0) }).unwrap()
    }

    #[test]
    fn any_thread_may_wait_for_a_connection_and_drop_it() {
        let new = || ConnectionRuntime::new().unwrap();
        assert_eq!(answer(&new()), 7, "outside of any runtime");
        let builders = [
            tokio::runtime::Builder::new_current_thread,
            tokio::runtime::Builder::new_multi_thread,
        ];
        for mut builder in builders.map(|builder| builder()) {
            let outer = builder.build().unwrap();
            let inside = outer.block_on(async move {
                let polled = tokio::spawn(async move { answer(&new()) }).await.unwrap();
                let local = tokio::task::LocalSet::new();
                let of_a_set = local.run_until(async { answer(&new()) }).await;
                let allowed = move || blocking::may_block(|| answer(&new()));
                let blocking = tokio::task::spawn_blocking(allowed).await.unwrap();
                let unnamed = tokio::task::spawn_blocking(move || answer(&new())).await.unwrap();
                [polled, of_a_set, blocking, unnamed, answer(&new())]
            });
            assert_eq!(inside, [7; 5]);
            let _entered = outer.enter();
            assert_eq!(answer(&new()), 7);
        }
    }
}
