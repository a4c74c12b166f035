//! Reads the JSON of events from strfry's database, in the order of strfry's event numbers.
//!
//! Three tables are read: Meta has the database's version, EventPayload the events, and
//! CompressionDictionary the dictionaries of compressed events. The indices and the trees for
//! comparisons are not read.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use zstd::bulk::Decompressor;

use super::lmdb::{DamagedPages, LmdbFault, LmdbFile, LmdbSnapshot, LmdbTable, LmdbValue};
use super::record;
use crate::commands::adopt::events::EventRowFault;
use crate::commands::adopt::relay::source::{BATCH_BYTES_MAX, RelayRow, RelaySource};
use crate::commands::adopt::source_file::FileIdentity;
use crate::commands::refusal::RefusalReason;

/// The supported database version.
const DATABASE_VERSION: u64 = 3;
/// The only key of the table Meta, and the fields of its record.
const META_KEY: u64 = 1;
const META_VERSION: usize = 0;
const META_ENDIANNESS: usize = 1;
/// The value of [`META_ENDIANNESS`] if the file has this machine's byte order.
const SAME_ENDIANNESS: u64 = 1;
/// The field of the table CompressionDictionary.
const DICTIONARY: usize = 0;

const META: &str = "rasgueadb_defaultDb__Meta";
const PAYLOADS: &str = "rasgueadb_defaultDb__EventPayload";
const DICTIONARIES: &str = "rasgueadb_defaultDb__CompressionDictionary";

/// Maximum length of a dictionary, in bytes. strfry's dictionaries have 100,000 bytes by default.
const DICTIONARY_BYTES_MAX: usize = 16 << 20;
/// Maximum number of dictionaries in memory.
const DICTIONARIES_MAX: usize = 16;
/// Maximum length of a record of the table Meta, in bytes.
const META_BYTES_MAX: usize = 4096;

/// Values of a payload's first byte, and the length of the header before a compressed event.
const PLAIN: u8 = 0;
const COMPRESSED: u8 = 1;
const COMPRESSED_HEADER: usize = 5;

/// A strfry database.
pub(super) struct StrfrySource {
    file: LmdbFile,
    /// The file that was opened.
    opened: Option<FileIdentity>,
    path: PathBuf,
    event_bytes_max: usize,
    /// Decompressors by dictionary number; `None` if the dictionary is missing or damaged.
    decompressors: HashMap<u32, Option<Decompressor<'static>>>,
    /// Buffer for a decompressed event.
    event: Vec<u8>,
    damaged: DamagedPages,
}

impl StrfrySource {
    /// Opens a database directory or a copied file, and checks that it is a strfry database of a
    /// supported version. Events longer than `event_bytes_max` bytes are not read.
    pub(super) fn open(from: &Path, event_bytes_max: usize) -> anyhow::Result<Self> {
        let path = if from.is_dir() { from.join("data.mdb") } else { from.into() };
        let path = path.canonicalize().with_context(|| {
            format!(
                "{} cannot be read; nothing was done. Name the directory that `db` has in strfry.conf",
                path.display()
            )
        })?;
        if !path.is_file() {
            bail!("{} is no file. Nothing was done", path.display());
        }
        let opened = FileIdentity::at(&path)?;
        let file = LmdbFile::open(&path)?;
        let meta = file.read(|snapshot, _| {
            let Some(meta) = snapshot.table(META)? else { return Ok(None) };
            if snapshot.table(PAYLOADS)?.is_none() {
                return Ok(None);
            }
            snapshot.value(meta, META_KEY, META_BYTES_MAX)
        })?;
        let shown = path.display();
        let meta = match meta {
            Some(LmdbValue::Bytes(meta)) => meta,
            None => {
                bail!(
                    "{shown} is no database of strfry: strfry's tables are missing. Nothing was \
                     done"
                )
            }
            Some(_) => bail!("{shown} is damaged: its version cannot be read. Nothing was done"),
        };
        let (Some(version), Some(endianness)) =
            (record::number(&meta, META_VERSION), record::number(&meta, META_ENDIANNESS))
        else {
            bail!("{shown} is damaged: its version cannot be read. Nothing was done")
        };
        let way_out = "Nothing was done. Let strfry write its events for an import: strfry export | \
                       hark import -";
        if version != DATABASE_VERSION {
            bail!(
                "{shown} is a strfry database of version {version}, and {DATABASE_VERSION} is read. \
                 {way_out}"
            );
        }
        if endianness != SAME_ENDIANNESS {
            bail!("{shown} is a strfry database of a machine with another byte order. {way_out}");
        }
        Ok(Self {
            file,
            opened,
            path,
            event_bytes_max,
            decompressors: HashMap::new(),
            event: Vec::new(),
            damaged: DamagedPages::default(),
        })
    }

    /// Opens the database again if another file has taken its place.
    fn follow_path(&mut self) -> anyhow::Result<()> {
        if FileIdentity::is_replaced(&self.path, self.opened)? {
            let damaged = std::mem::take(&mut self.damaged);
            *self = Self { damaged, ..Self::open(&self.path.clone(), self.event_bytes_max)? };
        }
        Ok(())
    }

    /// Extracts the event from a payload.
    fn event(&mut self, payload: LmdbValue) -> anyhow::Result<Result<Vec<u8>, EventRowFault>> {
        let malformed = |words: &str| Ok(Err((RefusalReason::Malformed, words.to_owned())));
        let payload = match payload {
            LmdbValue::Bytes(payload) => payload,
            LmdbValue::TooLong(len) => return Ok(Err(self.too_large(len as u64))),
            LmdbValue::Damaged(words) => return malformed(&words),
        };
        match payload.split_first() {
            Some((&PLAIN, event)) => Ok(Ok(event.to_vec())),
            Some((&COMPRESSED, _)) => {
                let Some((header, compressed)) = payload.split_first_chunk::<COMPRESSED_HEADER>()
                else {
                    return malformed("it ends before its dictionary's number");
                };
                let [_, a, b, c, d] = *header;
                self.decompress(u32::from_le_bytes([a, b, c, d]), compressed)
            }
            Some((form, _)) => malformed(&format!("its form {form} is unknown")),
            None => malformed("it is empty"),
        }
    }

    fn decompress(
        &mut self,
        number: u32,
        compressed: &[u8],
    ) -> anyhow::Result<Result<Vec<u8>, EventRowFault>> {
        if let Ok(Some(len)) = zstd::zstd_safe::get_frame_content_size(compressed)
            && len > self.event_bytes_max as u64
        {
            return Ok(Err(self.too_large(len)));
        }
        let is_known = self.decompressors.contains_key(&number);
        if !is_known && self.decompressors.len() == DICTIONARIES_MAX {
            self.decompressors.clear();
        }
        let decompressor = match self.decompressors.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(read_decompressor(&self.file, number)?),
        };
        let Some(decompressor) = decompressor else {
            let words = format!("its dictionary {number} is missing or damaged");
            return Ok(Err((RefusalReason::Malformed, words)));
        };
        self.event.clear();
        self.event.reserve(self.event_bytes_max);
        Ok(decompressor
            .decompress_to_buffer(compressed, &mut self.event)
            .map(|_| self.event.clone())
            .map_err(|error| {
                (RefusalReason::Malformed, format!("it cannot be decompressed: {error}"))
            }))
    }

    fn too_large(&self, len: u64) -> EventRowFault {
        let words = format!("{len} bytes; limits.event_bytes_max is {}", self.event_bytes_max);
        (RefusalReason::TooLarge, words)
    }
}

/// Reads a dictionary; `None` if it is missing or damaged.
fn read_decompressor(
    file: &LmdbFile,
    number: u32,
) -> anyhow::Result<Option<Decompressor<'static>>> {
    let found = file.read(|snapshot, _| {
        let found = snapshot.table(DICTIONARIES).and_then(|table| match table {
            Some(table) => snapshot.value(table, number.into(), DICTIONARY_BYTES_MAX),
            None => Ok(None),
        });
        match found {
            Err(LmdbFault::Damage(_)) => Ok(None),
            found => found,
        }
    })?;
    let Some(LmdbValue::Bytes(found)) = found else { return Ok(None) };
    // The error is dropped, because zstd reports a damaged dictionary as a lack of memory.
    let dictionary = record::bytes(&found, DICTIONARY);
    Ok(dictionary.and_then(|dictionary| Decompressor::with_dictionary(dictionary).ok()))
}

/// The table of events.
fn payloads(snapshot: &LmdbSnapshot<'_>) -> Result<LmdbTable, LmdbFault> {
    let gone = || LmdbFault::Damage("its table of events is missing".into());
    snapshot.table(PAYLOADS)?.ok_or_else(gone)
}

impl RelaySource for StrfrySource {
    fn name(&self) -> String {
        format!("strfry in {}", self.path.display())
    }

    fn file(&self) -> Option<FileIdentity> {
        self.opened
    }

    fn batch(&mut self, after: u64, limit: u32) -> anyhow::Result<Vec<RelayRow>> {
        self.follow_path()?;
        let bytes_max = self.event_bytes_max.saturating_add(COMPRESSED_HEADER);
        let (payloads, damaged) = self.file.read(|snapshot, tries| {
            let limit = (limit >> tries.min(31)).max(1) as usize;
            let (mut found, mut bytes) = (Vec::new(), 0);
            let table = payloads(snapshot)?;
            let damaged = snapshot.walk(table, after, bytes_max, &mut |number, payload| {
                if let LmdbValue::Bytes(payload) = &payload {
                    bytes += payload.len();
                }
                found.push((number, payload));
                if found.len() >= limit || bytes >= BATCH_BYTES_MAX {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            Ok((found, damaged))
        })?;
        self.damaged.append(damaged);
        let (mut rows, mut bytes) = (Vec::with_capacity(payloads.len()), 0);
        for (number, payload) in payloads {
            let event = self.event(payload)?;
            bytes += event.as_ref().map_or(0, Vec::len);
            rows.push(RelayRow { number, event });
            // Decompressed events may be much longer than their payloads, so the batch may end
            // here. The next batch reads the remaining rows again.
            if bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        Ok(rows)
    }

    fn last(&mut self) -> anyhow::Result<u64> {
        self.follow_path()?;
        self.file.read(|snapshot, _| {
            let table = payloads(snapshot)?;
            // If the last page is damaged, the number of entries is the best estimate.
            match snapshot.last_key(table) {
                Err(LmdbFault::Damage(_)) => Ok(table.entries()),
                last => last,
            }
        })
    }

    fn damage(&self) -> (u64, &str) {
        (self.damaged.count(), self.damaged.first())
    }
}
