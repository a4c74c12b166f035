//! Shows how the server uses a store. The writer makes records durable and notifies its listener. A
//! query then finds the records.
//!
//! The store here is the model in memory. Any other store implements `Store` and passes the tests
//! of `hark_testkit::contract`.
//!
//! ```text
//! cargo run -p hark-archive --example store
//! ```

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::effects::KeepAll;
use hark_archive::store::memory::MemoryStore;
use hark_archive::writer::{CommitListener, Writer, WriterOptions};
use hark_archive::{LabelSet, Query, Record, Store, Write};
use hark_codec::record::{LabelPosition, RecordHeader, write};

/// Prints each record that has become durable.
struct Notified;

impl CommitListener for Notified {
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    ) {
        for (number, record) in records {
            println!("durable: number {number}, time {}", record.time());
        }
        // The records are delivered, so the writer may now answer their senders.
        answer();
    }
}

/// A record with a topic as its label.
fn record(number: u8, topic: &str) -> Box<[u8]> {
    let head = RecordHeader {
        id: [number; 32],
        time: number.into(),
        author: None,
        kind: 0,
        expires: None,
    };
    let mut bytes = Vec::new();
    let label = (b't', LabelPosition::Bytes(topic.as_bytes()));
    write(&mut bytes, &head, b"the message as its network sends it", [label].into_iter());
    bytes.into()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(KeepAll));
    let writer = Writer::start(Arc::clone(&store), WriterOptions::default(), Box::new(Notified));
    for number in 1..=6 {
        let topic = if number % 2 == 0 { "even" } else { "odd" };
        println!("{:?}", writer.write(Write::Put(record(number, topic)))?);
    }

    // The query returns at most two records, newest first. A search may stop after any slice of
    // rows and continue later.
    let query = Query { labels: vec![LabelSet::one(b't', b"even")], limit: 2, ..Query::default() };
    let mut found = Vec::new();
    store.search(&query)?.slice(u64::MAX, &mut |record| {
        found.push(record.time());
        ControlFlow::Continue(())
    })?;
    assert_eq!(found, [6, 4]);
    println!("the newest even ones: {found:?}");
    writer.close();
    Ok(())
}
