//! Reads the envelopes that other servers of a database have stored, before the topics of a bloom
//! filter are looked up: only envelopes that this process knows have added their topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hark_networks::whisper::history::MailError;
use tokio::sync::Mutex;

use crate::shelf::{JobNotRun, Shelf};

/// Reads the news for all requests, once for requests that come at the same time.
#[derive(Debug, Default)]
pub(super) struct NewsReader {
    /// Number of readings that have begun.
    begun: AtomicU64,
    /// The number of the last reading that has succeeded.
    succeeded: Mutex<u64>,
}

impl NewsReader {
    /// Returns when this process knows all envelopes that were stored before this call.
    pub(super) async fn read(&self, shelf: &Arc<Shelf>) -> Result<(), MailError> {
        if !shelf.store().has_other_writers() {
            return Ok(());
        }
        let before = self.begun.load(Ordering::Acquire);
        let mut succeeded = self.succeeded.lock().await;
        if *succeeded > before {
            // This reading has begun after this call.
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let shelf = Arc::clone(shelf);
        let read = crate::blocking::run(move || shelf.learn_news()).await;
        read.map_err(|_| MailError::Down)?.map_err(|JobNotRun| MailError::Busy)?;
        *succeeded = number;
        Ok(())
    }
}
