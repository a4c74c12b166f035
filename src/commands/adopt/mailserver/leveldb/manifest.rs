//! MANIFEST: a log of changes to the set of files that make up a LevelDB.
//!
//! A record is a sequence of fields. Each field is a tag and a value. Tag 1 is the name of the key
//! order, and 2 the first log with entries that are not in a table. Tag 3 is the number of the next
//! file, and 4 the last sequence number. Tag 5 is the position at which merging continues, 6 a
//! table that is no longer used, 7 a new table, and 9 the previous log. See db/version_edit.cc of
//! LevelDB.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};

use super::bytes::ByteReader;
use super::log;

/// The name of the bytewise key order.
const BYTEWISE: &[u8] = b"leveldb.BytewiseComparator";

/// A file of sorted keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableFile {
    pub(super) number: u64,
    /// Length of the file, in bytes.
    pub(super) bytes: u64,
    /// The first key and the last, with their sequence numbers.
    pub(super) first: Vec<u8>,
    pub(super) last: Vec<u8>,
}

/// The files of a LevelDB at one time.
#[derive(Debug, Default)]
pub(super) struct DatabaseVersion {
    /// Tables by level and number. Tables of one level do not overlap, except on level 0.
    pub(super) levels: BTreeMap<u64, BTreeMap<u64, TableFile>>,
    /// The first log with entries that are not in a table. The entries of all later logs and of
    /// `previous_log` are not in tables either.
    pub(super) log: u64,
    pub(super) previous_log: u64,
}

impl DatabaseVersion {
    /// Reads MANIFEST.
    pub(super) fn read(manifest: &[u8]) -> anyhow::Result<Self> {
        let mut version = Self::default();
        let mut fault = None;
        let damaged = log::read(manifest, &mut |record| {
            if fault.is_none() {
                fault = version.apply(record).err();
            }
        });
        match fault {
            Some(fault) => Err(fault),
            None if damaged > 0 => bail!("its checksums do not match its bytes"),
            None => Ok(version),
        }
    }

    fn apply(&mut self, record: &[u8]) -> anyhow::Result<()> {
        let mut fields = ByteReader(record);
        while !fields.is_empty() {
            self.apply_field(&mut fields)?;
        }
        Ok(())
    }

    fn apply_field(&mut self, fields: &mut ByteReader<'_>) -> anyhow::Result<()> {
        const SHORT: &str = "one of its records is cut off";
        match fields.number().context(SHORT)? {
            1 => {
                let order = fields.string().context(SHORT)?;
                if order != BYTEWISE {
                    let order = String::from_utf8_lossy(order);
                    bail!("its keys are not in the order of their bytes ({order})");
                }
            }
            2 => self.log = fields.number().context(SHORT)?,
            3 | 4 => _ = fields.number().context(SHORT)?,
            5 => {
                fields.number().context(SHORT)?;
                fields.string().context(SHORT)?;
            }
            6 => {
                let level = fields.number().context(SHORT)?;
                let number = fields.number().context(SHORT)?;
                self.levels.entry(level).or_default().remove(&number);
            }
            7 => {
                let level = fields.number().context(SHORT)?;
                let number = fields.number().context(SHORT)?;
                let table = TableFile {
                    number,
                    bytes: fields.number().context(SHORT)?,
                    first: fields.string().context(SHORT)?.to_vec(),
                    last: fields.string().context(SHORT)?.to_vec(),
                };
                self.levels.entry(level).or_default().insert(number, table);
            }
            9 => self.previous_log = fields.number().context(SHORT)?,
            other => bail!("it has a field that is not known ({other})"),
        }
        Ok(())
    }

    /// Removes and returns the tables for which `is_lost` is true.
    pub(super) fn without(&mut self, is_lost: impl Fn(&TableFile) -> bool) -> Vec<TableFile> {
        let mut lost = Vec::new();
        for tables in self.levels.values_mut() {
            lost.extend(tables.extract_if(.., |_, table| is_lost(table)).map(|(_, table)| table));
        }
        lost
    }

    /// Whether a log has entries that are not in a table.
    pub(super) fn has_log(&self, number: u64) -> bool {
        number >= self.log || (number == self.previous_log && number != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(records: &[&[u8]]) -> Vec<u8> {
        let mut log = Vec::new();
        for record in records {
            log::append(&mut log, record);
        }
        log
    }

    #[test]
    fn changes_are_applied_in_their_order() {
        let order = [&[1, 26], BYTEWISE].concat();
        let version = DatabaseVersion::read(&manifest(&[
            &order,
            &[7, 0, 5, 0x80, 1, 1, b'a', 1, b'b', 7, 1, 6, 9, 0, 0, 2, 8, 3, 9, 4, 77],
            &[6, 0, 5, 2, 12, 9, 10, 5, 1, 1, b'c'],
        ]))
        .unwrap();
        let tables: Vec<_> = version.levels.values().map(BTreeMap::len).collect();
        assert_eq!(tables, [0, 1]);
        let logs: Vec<u64> = (0..15).filter(|number| version.has_log(*number)).collect();
        assert_eq!(logs, [10, 12, 13, 14]);
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (record, words) in [
            (&[1, 3, b'a', b'b', b'c'][..], "not in the order of their bytes (abc)"),
            (&[7, 0, 5], "cut off"),
            (&[8, 1], "not known (8)"),
        ] {
            let said = DatabaseVersion::read(&manifest(&[record])).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
        let mut damaged = manifest(&[&[2, 8]]);
        damaged[7] ^= 1;
        let said = DatabaseVersion::read(&damaged).unwrap_err().to_string();
        assert!(said.contains("checksums"), "{said}");
    }
}
