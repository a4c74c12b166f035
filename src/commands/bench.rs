//! The stores that `hark bench` queries in its own process.

mod envelopes;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use hark_archive::{Query, Record, SearchProgress, Store, TextSource, Write};
use hark_bench::BenchOpeners;
use hark_codec::nostr::{ClientMessage, Event, EventArena, EventEncoder, MessageBuffers};
use hark_networks::Network;
use hark_networks::nostr::Nostr;
use hark_networks::nostr::admit::{OwnUrls, PrivateLabels};
use hark_networks::nostr::query;

use crate::location::{ArchiveLocation, LocationArgs};
use crate::question::MergedAnswer;
use crate::writer::OwnedStore;

/// Connections for queries: more than any benchmark uses at once.
const CONNECTIONS: usize = 32;

/// Maximum filters of a question, and rows that a search visits in one time slice: more than any
/// benchmark needs.
const FILTERS_MAX: usize = 64;
const SLICE_ROWS: u64 = 1 << 20;

/// Opens the stores of `hark bench`.
pub(crate) const OPENERS: BenchOpeners<'static> =
    BenchOpeners { events: &open, archive: &open_to_read, envelopes: &envelopes::open };

/// Returns the location of a shelf at an address, with enough connections to a database.
fn measured(address: &str, network: &'static dyn Network) -> anyhow::Result<ArchiveLocation> {
    let location = ArchiveLocation::new(LocationArgs::default())?.of(network);
    let mut location = location.other(address)?;
    location.config.postgres.connections_max = CONNECTIONS;
    Ok(location)
}

/// Opens the store of events at an address.
fn open(address: &str) -> anyhow::Result<Box<dyn hark_bench::BenchStore>> {
    Ok(Box::new(LentStore { owned: measured(address, &Nostr)?.own()? }))
}

/// Opens an archive of events for reading.
fn open_to_read(directory: &Path) -> anyhow::Result<Box<dyn hark_bench::BenchArchive>> {
    let location = ArchiveLocation::new(LocationArgs::default())?.of(&Nostr);
    let location = location.in_directory(directory);
    Ok(Box::new(ReadArchive { store: location.read()?, texts: location.texts() }))
}

struct ReadArchive {
    store: Arc<dyn Store>,
    texts: Option<Arc<dyn TextSource>>,
}

impl hark_bench::BenchArchive for ReadArchive {
    fn question(&self, filters: &str) -> anyhow::Result<hark_bench::BenchQuestion<'_>> {
        let text = format!("[\"REQ\",\"s\",{filters}]");
        let mut buffers = MessageBuffers::new(FILTERS_MAX);
        let Ok(ClientMessage::Req { filters, .. }) =
            ClientMessage::parse(text.as_bytes(), &mut buffers)
        else {
            bail!("{text} is no REQ");
        };
        let queries = filters.iter().map(|filter| query::of(filter, self.texts.as_ref()));
        let queries = queries.collect::<Result<Vec<Query>, _>>()?;
        Ok(Box::new(move |answer| {
            for query in &queries {
                let mut search = self.store.search(query)?;
                let mut append = |record: &Record<'_>| {
                    answer.extend_from_slice(record.wire());
                    ControlFlow::Continue(())
                };
                while search.slice(SLICE_ROWS, &mut append)? == SearchProgress::Paused {}
            }
            Ok(())
        }))
    }
}

struct LentStore {
    owned: OwnedStore,
}

impl hark_bench::BenchStore for LentStore {
    fn put(&self, events: &[Vec<u8>]) -> anyhow::Result<()> {
        let (mut arena, mut encoder) = (EventArena::new(), EventEncoder::default());
        let own_urls = OwnUrls::new([]);
        let mut writes = Vec::with_capacity(events.len());
        for event in events {
            let event = Event::parse(event, &mut arena).context("an event of the bench")?;
            let mut record = Vec::new();
            encoder.encode(&event, PrivateLabels::of(&event, &own_urls).labels(), &mut record);
            writes.push(Write::Put(record.into_boxed_slice()));
        }
        self.owned.store.commit(&writes)?;
        Ok(())
    }

    fn ask(&self, filter: &str) -> anyhow::Result<u64> {
        let query = Nostr.filters().query(filter, &mut |_| Ok(Vec::new()));
        let queries: Vec<Query> = query.map_err(anyhow::Error::msg)?.into_iter().collect();
        let mut answer = MergedAnswer::new(&*self.owned.store, &queries)?.with_lines(&Nostr);
        let mut events = 0;
        while answer.next()?.is_some() {
            events += 1;
        }
        Ok(events)
    }
}
