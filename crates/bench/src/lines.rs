//! The events of a file, read one after the other, and given to a store of Hark.

use std::io::BufRead as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use hark_codec::nostr::{Arena, Event};

use crate::meter::Meter;
use crate::sample::{self, unreadable};
use crate::store::Store;

/// Events that a store is given at once.
const BATCH: usize = 4_096;

/// The events of a file, one after the other.
pub(crate) struct Lines {
    path: PathBuf,
    file: sample::Lines,
    line: Vec<u8>,
    arena: Arena,
    read: u64,
}

impl Lines {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = sample::open(path)?;
        Ok(Self { path: path.into(), file, line: Vec::new(), arena: Arena::new(), read: 0 })
    }

    /// The next line that holds anything.
    pub(crate) fn line(&mut self) -> anyhow::Result<Option<&[u8]>> {
        loop {
            self.line.clear();
            let read = self.file.read_until(b'\n', &mut self.line);
            if read.with_context(|| unreadable(&self.path))? == 0 {
                return Ok(None);
            }
            if !self.line.trim_ascii().is_empty() {
                self.read += 1;
                return Ok(Some(self.line.trim_ascii()));
            }
        }
    }

    /// The next event.
    pub(crate) fn event(&mut self) -> anyhow::Result<Option<Event<'_>>> {
        if self.line()?.is_none() {
            return Ok(None);
        }
        let event = Event::parse(self.line.trim_ascii(), &mut self.arena);
        let event = event
            .with_context(|| format!("{}, line {}: no event", self.path.display(), self.read))?;
        Ok(Some(event))
    }

    /// How many there are.
    pub(crate) fn count(mut self) -> anyhow::Result<u64> {
        while self.line()?.is_some() {}
        Ok(self.read)
    }

    /// Goes past so many events.
    pub(crate) fn skip(&mut self, events: u64) -> anyhow::Result<()> {
        while self.read < events && self.line()?.is_some() {}
        Ok(())
    }
}

/// Gives these events of the file to a store of Hark.
pub(crate) fn put(store: &dyn Store, path: &Path, range: Range<u64>) -> anyhow::Result<()> {
    let mut lines = Lines::open(path)?;
    lines.skip(range.start)?;
    let mut meter = Meter::start("Hark's store", range.end - range.start);
    let mut batch = Vec::with_capacity(BATCH);
    for at in range.clone() {
        let Some(line) = lines.line()? else { break };
        batch.push(line.to_vec());
        if batch.len() == BATCH {
            store.put(&batch)?;
            batch.clear();
            meter.at(at - range.start);
        }
    }
    meter.finish();
    store.put(&batch)
}
