//! The stores that `hark bench` queries within its own process.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use hark_archive::{Store, Write};
use hark_codec::nostr::{Arena, Encoder, Event};
use hark_networks::nostr::Nostr;
use hark_networks::nostr::admit::{OwnUrls, Private};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresStore, is_database};

use crate::cli::PlaceArgs;
use crate::place::{Owned, Place};
use crate::question::{self, Answer};

/// Connections for queries: more than any bench runs at once.
const CONNECTIONS: usize = 32;

/// Opens the store at an address for `hark bench`.
pub(crate) fn open(address: &str) -> anyhow::Result<Box<dyn hark_bench::Store>> {
    if is_database(address) {
        let options = hark_store_postgres::Options { pool_max: CONNECTIONS, ..Default::default() };
        let store = PostgresStore::open(address, "nostr", Box::new(NostrRules), &options)
            .with_context(|| "the database could not be opened")?;
        return Ok(Box::new(Lent { store: Arc::new(store), _held: None }));
    }
    let place = Place::new(PlaceArgs { data: Some(PathBuf::from(address)), ..Default::default() })?;
    let owned = place.own()?;
    Ok(Box::new(Lent { store: Arc::clone(&owned.store) as _, _held: Some(owned) }))
}

struct Lent {
    store: Arc<dyn Store>,
    // Dropped after the store.
    _held: Option<Owned>,
}

impl hark_bench::Store for Lent {
    fn put(&self, events: &[Vec<u8>]) -> anyhow::Result<()> {
        let (mut arena, mut encoder) = (Arena::new(), Encoder::default());
        let own_urls = OwnUrls::new([]);
        let mut writes = Vec::with_capacity(events.len());
        for event in events {
            let event = Event::parse(event, &mut arena).context("an event of the bench")?;
            let mut record = Vec::new();
            encoder.encode(&event, Private::of(&event, &own_urls).labels(), &mut record);
            writes.push(Write::Put(record.into_boxed_slice()));
        }
        self.store.commit(&writes)?;
        Ok(())
    }

    fn ask(&self, filter: &str) -> anyhow::Result<u64> {
        let queries = question::read(&Nostr, &[filter.to_owned()], 0)?;
        let mut answer = Answer::new(&*self.store, &queries)?.with_lines(&Nostr);
        let mut events = 0;
        while answer.next()?.is_some() {
            events += 1;
        }
        Ok(events)
    }
}
