//! The archives of events that the bench opens and queries itself, without a server.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use hark::{ArchiveLocation, OwnedStore};
use hark_archive::resumed::ResumedSearch;
use hark_archive::{Query, Record, SearchProgress, Store, TextSource, Write};
use hark_codec::nostr::{ClientMessage, Event, EventArena, EventEncoder, MessageBuffers};
use hark_networks::Network as _;
use hark_networks::nostr::Nostr;
use hark_networks::nostr::admit::{OwnUrls, PrivateLabels};
use hark_networks::nostr::query;

use super::own::own_alone;
use crate::openers::CONNECTIONS;
use crate::store::{BenchArchive, BenchQuestion, BenchStore};

/// Maximum number of filters in a REQ, and of rows that a search visits in one time slice. Both are
/// more than any benchmark needs.
const FILTERS_MAX: usize = 64;
const SLICE_ROWS: u64 = 1 << 20;
/// Number of rows that a search visits in one time slice when the events are only counted.
const GATHER_ROWS: u64 = 4096;

/// Opens the store of events at an address.
pub(super) fn open(address: &str) -> anyhow::Result<Box<dyn BenchStore>> {
    Ok(Box::new(LentStore { owned: own_alone(address, &Nostr)? }))
}

/// Opens an archive of events for reading.
pub(super) fn open_to_read(directory: &Path) -> anyhow::Result<Box<dyn BenchArchive>> {
    let directory = directory.to_str().context("the archive's directory has a name in UTF-8")?;
    let location = ArchiveLocation::at(directory, &Nostr, CONNECTIONS)?;
    Ok(Box::new(ReadArchive { store: location.read()?, texts: location.texts() }))
}

struct ReadArchive {
    store: Arc<dyn Store>,
    texts: Option<Arc<dyn TextSource>>,
}

impl BenchArchive for ReadArchive {
    fn question(&self, filters: &str) -> anyhow::Result<BenchQuestion<'_>> {
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

impl BenchStore for LentStore {
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
        let query = Nostr.filters().query(filter, &mut |_| Some(Vec::new()));
        let Some(query) = query? else { return Ok(0) };
        let mut search = ResumedSearch::new(&*self.owned.store, query)?;
        let (mut line, mut ready, mut events) = (Vec::new(), VecDeque::<(_, Box<[u8]>)>::new(), 0);
        loop {
            let progress = search.gather(GATHER_ROWS, &mut ready, &mut |record| {
                line.clear();
                Nostr.lines().write(record, &mut line);
                (line.as_slice().into(), ControlFlow::Continue(()))
            })?;
            events += ready.len() as u64;
            ready.clear();
            if progress != SearchProgress::Paused {
                return Ok(events);
            }
        }
    }
}
