//! The check of a chunk by a worker: each line is read into a record of the network, and refused
//! lines are counted by reason.

use hark_archive::{Id, Store};
use hark_networks::{LineReader, Network, ReadOptions};

use super::json::{RECORD_END, is_end};
use super::message::record_of;
use super::source::LineChunk;
use super::tally::ImportTally;
use crate::commands::refusal::RefusalReason;

/// The options of the check, which are the same for all lines of an import.
pub(super) struct CheckOptions<'a> {
    /// The store in which known ids are looked up.
    pub(super) store: Option<&'a dyn Store>,
    pub(super) network: &'static dyn Network,
    pub(super) read: ReadOptions,
}

/// The result of checking a chunk.
#[derive(Debug, Default)]
pub(super) struct CheckedChunk {
    /// Records, in the order of their lines.
    pub(super) records: Vec<Box<[u8]>>,
    /// The line number of each record, counted from the chunk's first line.
    pub(super) lines: Vec<u64>,
    pub(super) tally: ImportTally,
    /// Number of bytes of the source that were read up to the end of the chunk.
    pub(super) read_to: u64,
}

/// Checks chunks in one thread, with buffers that are reused.
pub(super) struct CheckWorker<'a> {
    options: &'a CheckOptions<'a>,
    reader: Box<dyn LineReader>,
    record: Vec<u8>,
}

impl<'a> CheckWorker<'a> {
    pub(super) fn new(options: &'a CheckOptions<'a>) -> Self {
        let reader = options.network.lines().reader(&options.read);
        Self { options, reader, record: Vec::new() }
    }

    pub(super) fn check(&mut self, chunk: &LineChunk) -> CheckedChunk {
        // If a lookup fails, the store reports the failure later, when records are stored.
        let store = self.options.store;
        let is_kept = |id: &Id| store.is_some_and(|store| store.knows(id).unwrap_or(false));
        let mut done = CheckedChunk { read_to: chunk.read_to, ..CheckedChunk::default() };
        for line in chunk.bytes.split_inclusive(|&byte| is_end(byte)) {
            let text = line.strip_suffix(&[RECORD_END]).unwrap_or(line).trim_ascii();
            if !text.is_empty() {
                done.tally.records += 1;
                match self.reader.read(record_of(text), &is_kept, &mut self.record) {
                    Ok(()) => {
                        done.records.push(self.record.as_slice().into());
                        done.lines.push(done.tally.lines);
                    }
                    Err(fault) => {
                        let (reason, words) = RefusalReason::of_line(fault);
                        done.tally.refuse(reason, done.tally.lines, &words);
                    }
                }
            }
            // A record that ends with `RECORD_END` does not end its line.
            done.tally.lines += u64::from(!line.ends_with(&[RECORD_END]));
        }
        if chunk.overlong {
            done.tally.records += 1;
            done.tally.refuse(RefusalReason::TooLarge, done.tally.lines, "");
        }
        done
    }
}
