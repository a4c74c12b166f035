//! Failing stores, and the messages that clients then receive.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::query::explain::Explanation;
use hark_archive::query::plan::Set;
use hark_archive::store::StoreStats;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{
    CommitError, CommitResult, Id, Query, Record, Search, SearchError, SearchProgress, Store, Write,
};
use hark_networks::nostr::rules::NostrRules;
use hark_testkit::nostr::{event, note};
use serde_json::json;

use crate::kit::{NOW_S, Relay, http};

/// Kinds for which searches or writes fail.
const TIRES: u32 = 1;
const FAILS: u32 = 2;
const PANICS: u32 = 3;
const UNWRITABLE: u32 = 4;

struct Trouble(MemoryStore);

/// A search that exhausts its budget at once.
struct Tired;

impl Search for Tired {
    fn slice(
        &mut self,
        _: u64,
        _: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError> {
        Ok(SearchProgress::Exhausted)
    }

    fn seq(&self) -> u64 {
        0
    }

    fn visited(&self) -> u64 {
        1
    }

    fn driver(&self) -> Option<Set> {
        None
    }
}

fn asks_for(query: &Query, kind: u32) -> bool {
    query.kinds.as_ref().is_some_and(|kinds| kinds.contains(&kind))
}

impl Store for Trouble {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        let bad = |write: &Write| {
            matches!(write, Write::Put(bytes)
                if Record::new(bytes).is_ok_and(|record| record.kind() == UNWRITABLE))
        };
        if writes.iter().any(bad) {
            return Err(CommitError::Stopped("the disk is full".into()));
        }
        self.0.commit(writes)
    }

    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        self.0.knows(id)
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        assert!(!asks_for(query, PANICS), "this test wants a panic here");
        if asks_for(query, FAILS) {
            return Err(SearchError::Failed("the disk is gone".into()));
        }
        if asks_for(query, TIRES) { Ok(Box::new(Tired)) } else { self.0.search(query) }
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        if asks_for(query, TIRES) { Ok(None) } else { self.0.count_visiting(query, visited) }
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        self.0.label_values(name, each)
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        self.0.expired(now, limit)
    }

    fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.0.explain(query)
    }

    fn stats(&self) -> StoreStats {
        self.0.stats()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_cannot_do_is_said_and_the_relay_goes_on() {
    let store = Arc::new(Trouble(MemoryStore::new(NostrRules)));
    let relay = Relay::on(store, |config| config.relay.threads.read = 1).await;
    let mut client = relay.client().await;
    let cases = [
        (json!(["REQ", "s", {"kinds": [TIRES]}]), "too much to read"),
        (json!(["REQ", "s", {"kinds": [FAILS]}]), "the disk is gone"),
        (json!(["REQ", "s", {"kinds": [9]}, {"kinds": [PANICS]}]), "the relay failed"),
        (json!(["COUNT", "s", {"kinds": [TIRES]}]), "too much to read"),
        (json!(["COUNT", "s", {}, {"kinds": [PANICS]}]), "the relay failed"),
    ];
    for (said, reason) in cases {
        client.send_text(&said).await;
        let received = client.receive().await;
        assert_eq!(
            (&received[0], &received[1]),
            (&json!("CLOSED"), &json!("s")),
            "{said}: {received}"
        );
        let text = received[2].as_str().unwrap();
        assert!(text.starts_with("error: ") && text.contains(reason), "{said}: {received}");
    }
    let lost = event(1, NOW_S, UNWRITABLE as u16, &[], "");
    let (accepted, reason) = client.publish(&lost).await;
    assert!(!accepted && reason.starts_with("error: ") && reason.contains("full"), "{reason}");
    let (status, reason) = http(&relay.url, "/healthz", "").await;
    assert!(status == 503 && reason.contains("no more writes: the disk is full"), "{reason}");
    assert!(http(&relay.url, "/metrics", "").await.1.contains("\nhark_store_writing 0\n"));
    // A subscription that was closed gets no live events.
    assert_eq!(client.publish(&note(1, NOW_S, "a")).await.1, "");
    assert_eq!(client.count(&[json!({})]).await, 1);
    relay.stop().await;
}
