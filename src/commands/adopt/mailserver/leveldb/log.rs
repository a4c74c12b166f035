//! A log: records in the order in which they were written. MANIFEST has the same format.
//!
//! A log consists of blocks of 32 KiB. A record is one chunk in a block, or several chunks in
//! adjacent blocks. The format of a chunk:
//!
//! ```text
//! 0  checksum of the bytes from 6 on, 4 bytes
//! 4  length of the data, 2 bytes
//! 6  1: a whole record; 2, 3, 4: the first, a middle, the last part of a record
//! 7  data
//! ```
//!
//! Numbers are little endian. A block whose end has no space for a chunk's head is filled with
//! zeros. See doc/log_format.md of LevelDB.

use super::bytes::{ByteReader, checksum};

const BLOCK_BYTES: usize = 32 << 10;
const HEAD_BYTES: usize = 7;
const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Passes each record of a log to `each`, in order, and returns the number of damaged parts. The
/// rest of a block after a damaged part is skipped. A record that is cut off by the end of the file
/// does not count as damaged: the writer was killed, or is still writing the record.
pub(super) fn read(log: &[u8], each: &mut dyn FnMut(&[u8])) -> u64 {
    let mut damaged = 0;
    // The data read so far of a record with several chunks.
    let mut parts: Option<Vec<u8>> = None;
    for block in log.chunks(BLOCK_BYTES) {
        let mut rest = block;
        loop {
            match chunk(rest) {
                Chunk::Good { kind, data, len } => {
                    rest = rest.get(len..).unwrap_or_default();
                    // The writer may have started the next record without finishing the previous
                    // record.
                    match (kind, parts.take()) {
                        (WHOLE, _) => each(data),
                        (FIRST, _) => parts = Some(data.to_vec()),
                        (MIDDLE, Some(mut record)) => {
                            record.extend_from_slice(data);
                            parts = Some(record);
                        }
                        (LAST, Some(mut record)) => {
                            record.extend_from_slice(data);
                            each(&record);
                        }
                        // This chunk continues a record whose damaged beginning was already
                        // counted.
                        (MIDDLE | LAST, None) => {}
                        _ => damaged += 1,
                    }
                }
                Chunk::End => break,
                Chunk::Short if block.len() < BLOCK_BYTES => break,
                Chunk::Short | Chunk::Damaged => {
                    damaged += 1;
                    parts = None;
                    break;
                }
            }
        }
    }
    damaged
}

/// The next item in a block.
enum Chunk<'a> {
    /// A whole chunk. `len` includes the head.
    Good { kind: u8, data: &'a [u8], len: usize },
    /// The end of the block's chunks.
    End,
    /// A chunk that reaches beyond the block.
    Short,
    /// A chunk with a wrong checksum.
    Damaged,
}

fn chunk(rest: &[u8]) -> Chunk<'_> {
    let mut reader = ByteReader(rest);
    let (Some(sum), Some(len), Some([kind])) = (reader.array(), reader.array(), reader.array())
    else {
        return Chunk::End;
    };
    let (sum, len) = (u32::from_le_bytes(sum), usize::from(u16::from_le_bytes(len)));
    // Reserved space that was never written.
    if (sum, len, kind) == (0, 0, 0) {
        return Chunk::End;
    }
    let Some(data) = reader.read_bytes(len) else { return Chunk::Short };
    let len = HEAD_BYTES + len;
    let is_equal = rest.get(HEAD_BYTES - 1..len).is_some_and(|covered| checksum(covered) == sum);
    if is_equal { Chunk::Good { kind, data, len } } else { Chunk::Damaged }
}

/// Appends a record to a log, for tests.
#[cfg(test)]
pub(super) fn append(log: &mut Vec<u8>, mut record: &[u8]) {
    let mut is_first = true;
    loop {
        let left = BLOCK_BYTES - log.len() % BLOCK_BYTES;
        if left < HEAD_BYTES {
            log.resize(log.len() + left, 0);
            continue;
        }
        let (data, rest) = record.split_at(record.len().min(left - HEAD_BYTES));
        record = rest;
        let kind = match (is_first, rest.is_empty()) {
            (true, true) => WHOLE,
            (true, false) => FIRST,
            (false, false) => MIDDLE,
            (false, true) => LAST,
        };
        let covered = [&[kind], data].concat();
        log.extend_from_slice(&checksum(&covered).to_le_bytes());
        log.extend_from_slice(&(data.len() as u16).to_le_bytes());
        log.extend_from_slice(&covered);
        is_first = false;
        if rest.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Vec<u8>> {
        // The second record ends six bytes before the end of its block. The fourth record takes
        // four blocks.
        let lens = [0, BLOCK_BYTES - 7 - 7 - 6, 10, 3 * BLOCK_BYTES, 1, 40_000];
        lens.iter().enumerate().map(|(n, len)| vec![n as u8; *len]).collect()
    }

    fn log() -> Vec<u8> {
        let mut log = Vec::new();
        for record in records() {
            append(&mut log, &record);
        }
        log
    }

    fn all(log: &[u8]) -> (Vec<Vec<u8>>, u64) {
        let mut found = Vec::new();
        let damaged = read(log, &mut |record| found.push(record.to_vec()));
        (found, damaged)
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        assert_eq!(all(&log()), (records(), 0));
        assert_eq!(all(&[]), (vec![], 0));
    }

    #[test]
    fn a_log_that_ends_early_has_the_records_before() {
        let (log, records) = (log(), records());
        for len in (0..log.len()).step_by(997).chain(log.len() - 9..log.len()) {
            let (found, damaged) = all(&log[..len]);
            assert!(records.starts_with(&found), "{len}");
            assert_eq!(damaged, 0, "{len}");
        }
        // Reserved space.
        let filled = [&log[..], &[0; 100]].concat();
        assert_eq!(all(&filled), (records, 0));
    }

    #[test]
    fn a_damaged_record_is_counted_and_later_blocks_are_read() {
        let mut log = log();
        log[BLOCK_BYTES + 9] ^= 1;
        let (found, damaged) = all(&log);
        let records = records();
        assert_eq!(damaged, 1);
        assert_eq!(found, [&records[..2], &records[4..]].concat());
    }
}
