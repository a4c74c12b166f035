//! Reads the events of a file one after the other, and loads them into a store of Hark.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use hark_codec::nostr::{Event, EventArena};

use crate::meter::ProgressMeter;
use crate::store::BenchStore;

/// Number of bytes read from a file at once.
const READ_BYTES: usize = 1 << 20;
/// The magic number at the start of zstd data.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Number of events that are stored in one batch.
const BATCH: usize = 4_096;

/// A reader of the events of a file, one after the other.
pub(crate) struct EventFile {
    path: PathBuf,
    file: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    arena: EventArena,
    read: u64,
}

impl EventFile {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = open(path, "hark bench gen")?;
        Ok(Self { path: path.into(), file, line: Vec::new(), arena: EventArena::new(), read: 0 })
    }

    /// Returns the next line that is not blank, without leading and trailing white space.
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

    /// Returns the next event.
    pub(crate) fn event(&mut self) -> anyhow::Result<Option<Event<'_>>> {
        if self.line()?.is_none() {
            return Ok(None);
        }
        let event = Event::parse(self.line.trim_ascii(), &mut self.arena);
        let event = event
            .with_context(|| format!("{}, line {}: no event", self.path.display(), self.read))?;
        Ok(Some(event))
    }

    /// Counts the events of the file.
    pub(crate) fn count(mut self) -> anyhow::Result<u64> {
        while self.line()?.is_some() {}
        Ok(self.read)
    }

    /// Skips to the position after the file's first `events` events.
    pub(crate) fn skip(&mut self, events: u64) -> anyhow::Result<()> {
        while self.read < events && self.line()?.is_some() {}
        Ok(())
    }
}

/// Opens a file, plain or compressed with zstd. `made_by` is the command that writes such files.
pub(crate) fn open(path: &Path, made_by: &str) -> anyhow::Result<Box<dyn BufRead + Send>> {
    let open = || -> std::io::Result<Box<dyn BufRead + Send>> {
        let mut file = BufReader::with_capacity(READ_BYTES, File::open(path)?);
        if !file.fill_buf()?.starts_with(&ZSTD) {
            return Ok(Box::new(file));
        }
        let text = zstd::Decoder::with_buffer(file)?;
        Ok(Box::new(BufReader::with_capacity(READ_BYTES, text)))
    };
    open().with_context(|| {
        format!("{}; make it with `{made_by} {}`", unreadable(path), path.display())
    })
}

pub(crate) fn unreadable(path: &Path) -> String {
    format!("{} could not be read", path.display())
}

/// Stores a range of the file's events in a store of Hark.
pub(crate) fn put(store: &dyn BenchStore, path: &Path, range: Range<u64>) -> anyhow::Result<()> {
    let mut lines = EventFile::open(path)?;
    lines.skip(range.start)?;
    let mut meter = ProgressMeter::start("Hark's store", range.end - range.start);
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
