//! What a worker does with a chunk: reads each line into a record, as its network has them, and counts
//! those that have none by the reason.

use hark_archive::{Id, Store};
use hark_networks::{Network, ReadLine, ReadTerms};

use super::source::Chunk;
use super::tally::Tally;
use crate::commands::refusal::Reason;

/// What holds for all lines of an import.
pub(super) struct Terms<'a> {
    /// Where known ids are looked up.
    pub(super) store: Option<&'a dyn Store>,
    pub(super) network: &'static dyn Network,
    pub(super) read: ReadTerms,
}

/// A chunk, done.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Records, in the order of their lines.
    pub(super) records: Vec<Box<[u8]>>,
    /// Line of each, counted from the chunk's first.
    pub(super) lines: Vec<u64>,
    pub(super) tally: Tally,
    /// Bytes of the source read by then.
    pub(super) read_to: u64,
}

/// One worker's reused buffers.
pub(super) struct Worker<'a> {
    terms: &'a Terms<'a>,
    reader: Box<dyn ReadLine>,
    record: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(terms: &'a Terms<'a>) -> Self {
        let reader = terms.network.lines().reader(&terms.read);
        Self { terms, reader, record: Vec::new() }
    }

    pub(super) fn check(&mut self, chunk: &Chunk) -> Checked {
        // Where it cannot be looked up, the store itself says so later.
        let store = self.terms.store;
        let is_kept = |id: &Id| store.is_some_and(|store| store.knows(id).unwrap_or(false));
        let mut done = Checked { read_to: chunk.read_to, ..Checked::default() };
        for line in chunk.bytes.split_inclusive(|&byte| byte == b'\n') {
            let text = line.trim_ascii();
            if !text.is_empty() {
                done.tally.records += 1;
                match self.reader.read(text, &is_kept, &mut self.record) {
                    Ok(()) => {
                        done.records.push(self.record.as_slice().into());
                        done.lines.push(done.tally.lines);
                    }
                    Err(fault) => {
                        let (reason, words) = Reason::of_line(fault);
                        done.tally.refuse(reason, done.tally.lines, &words);
                    }
                }
            }
            done.tally.lines += 1;
        }
        if chunk.overlong {
            done.tally.records += 1;
            done.tally.refuse(Reason::TooLarge, done.tally.lines, "");
            done.tally.lines += 1;
        }
        done
    }
}
