//! Live records: every record that is stored is passed to the clients that wait for records.

use std::sync::Arc;

use hark_archive::{Query, Record};
use tokio::sync::broadcast;

use crate::shelf::Subscribers;

/// Maximum number of records that wait for a client. A client that falls further behind gets no
/// more records.
const WAITING_MAX: usize = 1_024;

/// The clients that wait for new records.
#[derive(Clone, Debug)]
pub struct LiveRecords(broadcast::Sender<Arc<[u8]>>);

/// The new records that match the query of one client.
pub struct LiveReceiver {
    records: broadcast::Receiver<Arc<[u8]>>,
    query: Query,
}

impl Default for LiveRecords {
    fn default() -> Self {
        Self(broadcast::Sender::new(WAITING_MAX))
    }
}

impl LiveRecords {
    /// Subscribes to the records that match a query from now on.
    pub fn subscribe(&self, query: Query) -> LiveReceiver {
        LiveReceiver { records: self.0.subscribe(), query }
    }
}

impl Subscribers for LiveRecords {
    fn publish(&self, _: Option<u64>, record: &Record<'_>) {
        if self.0.receiver_count() > 0 {
            // A failure means that the last client has just left.
            let _ = self.0.send(record.bytes().into());
        }
    }
}

impl LiveReceiver {
    /// Waits for the next record, and returns the record in the form of its network. `None` if the
    /// client reads too slowly, or if the shelf closes.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let bytes = self.records.recv().await.ok()?;
            let record = Record::new(&bytes).ok()?;
            if self.query.matches(&record) {
                return Some(record.wire().to_owned());
            }
        }
    }
}
