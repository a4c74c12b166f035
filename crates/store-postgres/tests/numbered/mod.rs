//! Records with numbers, and stores that keep such records.

use hark_archive::RecordHeader;
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::postgres::Database;
use hark_testkit::random::encode;

pub(crate) fn record(number: u32, kind: u32, author: u8, time: u64) -> Box<[u8]> {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let head = RecordHeader { id, time, author: Some([author; 32]), kind, expires: None };
    encode(&head, &[(b't', b"a".to_vec())])
}

pub(crate) fn open(database: &Database<'_>) -> PostgresStore {
    let (rules, options) = (Box::new(NostrRules), PostgresOptions::default());
    PostgresStore::open(&database.url, "nostr", rules, &options).expect("opens")
}
