//! A runtime with threads for one door.

use crate::ServeError;

/// The threads of one door. A question may wait for the disk on these threads without delaying
/// other doors.
pub(crate) struct DoorRuntime(Option<tokio::runtime::Runtime>);

impl DoorRuntime {
    /// Starts one thread per core, with this name.
    pub(crate) fn start(name: &str) -> Result<Self, ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name(name)
            .enable_all()
            .build()
            .map_err(ServeError::Thread)?;
        Ok(Self(Some(runtime)))
    }

    /// Runs `work` and returns its result. `None` if `work` panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.0.as_ref()?.spawn(work).await.ok()
    }
}

impl Drop for DoorRuntime {
    fn drop(&mut self) {
        // Does not wait, because the current thread may belong to another runtime.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
