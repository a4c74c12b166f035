//! MANIFEST: the file that names the logs and segments of a shelf. MANIFEST has a few lines of text
//! and their checksum. It is always replaced as a whole: MANIFEST.new is written, synced and
//! renamed, and the directory is synced.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::disk::Disk;
use crate::log::{self, Log};
use crate::segment;
use crate::segment::sidecar::SidecarKind;
use crate::term::SECRET;

/// The format that this version writes.
pub const VERSION: u32 = 4;
/// The formats that this version reads. Earlier formats differ only in segments: segments of format
/// 1 listed no labels, and segments of formats 1 and 2 had no ids.
const KNOWN: [u32; 4] = [1, 2, 3, VERSION];
const NAME: &str = "MANIFEST";
const ASIDE: &str = "MANIFEST.new";

/// A log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The log's number. Logs are ordered by number. The last log is the active log.
    pub number: u32,
    /// Number of times that the log was rewritten.
    pub generation: u32,
    /// All deletions in logs below this number have been applied to this file, so it no longer has
    /// the deleted records.
    pub purged: u32,
    /// Number of bytes of dead records and of deletions in the log when the manifest was written.
    /// From this number, maintenance decides when to rewrite the log.
    pub dead_bytes: u64,
    /// Number of dead records in the log when the manifest was written.
    pub dead_records: u64,
}

impl LogEntry {
    /// A new log without dead records.
    pub fn new(number: u32) -> Self {
        Self { number, generation: 0, purged: 0, dead_bytes: 0, dead_records: 0 }
    }

    /// Notes the dead bytes and dead records of the log.
    pub fn note_dead(&mut self, log: &Log) {
        self.dead_bytes = log.dead_bytes.load(Ordering::Relaxed);
        self.dead_records = log.dead_records.load(Ordering::Relaxed);
    }
}

/// A segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// The segment's number.
    pub number: u32,
    /// First log that the segment covers.
    pub first_log: u32,
    /// Last log that the segment covers.
    pub last_log: u32,
    /// Generation of the segment's file of addresses.
    pub addresses: u32,
    /// Generation of the segment's file of dead rows.
    pub dead: u32,
}

/// The content of MANIFEST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The shelf's secret, the key of its hash functions.
    pub secret: [u8; SECRET],
    /// The logs, ascending by number.
    pub logs: Vec<LogEntry>,
    /// The segments, ordered by the logs that they cover.
    pub segments: Vec<SegmentEntry>,
    /// The number of the next new segment.
    pub next_segment: u32,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The manifest could not be read.
    #[error("MANIFEST could not be read: {0}")]
    Io(#[from] io::Error),
    /// The manifest has a later format.
    #[error("MANIFEST has format {0}, this Hark knows {VERSION}: use a newer Hark")]
    Version(u32),
    /// The manifest is damaged.
    #[error(
        "MANIFEST is damaged ({0}): restore the archive from a backup, or move MANIFEST away and run \
         `hark rebuild`"
    )]
    Damaged(&'static str),
}

impl Manifest {
    /// Reads the manifest of a shelf; `None` if the shelf has no manifest.
    pub fn read(disk: &dyn Disk, shelf: &Path) -> Result<Option<Self>, ManifestError> {
        let mut text = Vec::new();
        match disk.read(&shelf.join(NAME)) {
            Ok(mut file) => file.read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Self::parse(&text).map(Some)
    }

    /// Replaces the manifest of a shelf by this manifest. On return the new manifest is durable.
    pub fn write(&self, disk: &dyn Disk, shelf: &Path) -> io::Result<()> {
        let aside = shelf.join(ASIDE);
        let write = || {
            let mut file = disk.create(&aside)?;
            file.write_all(self.text().as_bytes())?;
            file.sync()
        };
        write().inspect_err(|_| {
            // If the removal fails, too, the next write of a manifest replaces the file.
            let _ = disk.remove(&aside);
        })?;
        disk.replace(&aside, &shelf.join(NAME))
    }

    fn text(&self) -> String {
        let mut text = format!("hark-shelf {VERSION}\n");
        self.write_lines(&mut text);
        let sum = crc32c::crc32c(text.as_bytes());
        format!("{text}crc32c {sum:08x}\n")
    }

    /// Adds all lines except the version and the checksum to `text`.
    pub(crate) fn write_lines(&self, text: &mut String) {
        text.push_str("secret ");
        let mut line = |arguments: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = text.write_fmt(arguments);
        };
        for byte in self.secret {
            line(format_args!("{byte:02x}"));
        }
        line(format_args!("\nnext-segment {}\n", self.next_segment));
        for log in &self.logs {
            line(format_args!(
                "log {} {} {} {} {}\n",
                log.number, log.generation, log.purged, log.dead_bytes, log.dead_records
            ));
        }
        for s in &self.segments {
            line(format_args!(
                "segment {} {} {} {} {}\n",
                s.number, s.first_log, s.last_log, s.addresses, s.dead
            ));
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let damaged = ManifestError::Damaged;
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
        let version = text.lines().next().and_then(|line| line.strip_prefix("hark-shelf "));
        let version = version.and_then(|version| version.parse().ok());
        match version.ok_or(damaged("first line"))? {
            version if KNOWN.contains(&version) => {}
            other => return Err(ManifestError::Version(other)),
        }
        let at = text.rfind("crc32c ").ok_or(damaged("no checksum"))?;
        let sum = crc32c::crc32c(&bytes[..at]);
        if text[at..] != format!("crc32c {sum:08x}\n") {
            return Err(damaged("checksum"));
        }
        let mut manifest = Self::empty();
        for line in text[..at].lines().skip(1) {
            manifest.line(line).ok_or(damaged("a line"))?;
        }
        Ok(manifest)
    }

    /// Makes an empty manifest, to which lines are added.
    pub(crate) fn empty() -> Self {
        Self { secret: [0; SECRET], logs: Vec::new(), segments: Vec::new(), next_segment: 0 }
    }

    /// Adds the content of one line; `None` if the line is invalid.
    pub(crate) fn line(&mut self, line: &str) -> Option<()> {
        let (name, rest) = line.split_once(' ')?;
        if name == "secret" {
            for (at, byte) in self.secret.iter_mut().enumerate() {
                *byte = u8::from_str_radix(rest.get(at * 2..at * 2 + 2)?, 16).ok()?;
            }
            return Some(());
        }
        let mut numbers = rest.split(' ').map(str::parse::<u64>);
        let mut wide = || numbers.next()?.ok();
        let mut next = || u32::try_from(wide()?).ok();
        match name {
            "next-segment" => self.next_segment = next()?,
            "log" => {
                let (number, generation, purged) = (next()?, next()?, next()?);
                let dead_bytes = wide()?;
                // Earlier versions did not write the number of dead records.
                let dead_records = if rest.split(' ').count() > 4 { wide()? } else { 0 };
                self.logs.push(LogEntry { number, generation, purged, dead_bytes, dead_records });
            }
            "segment" => self.segments.push(SegmentEntry {
                number: next()?,
                first_log: next()?,
                last_log: next()?,
                addresses: next()?,
                dead: next()?,
            }),
            _ => return None,
        }
        numbers.next().is_none().then_some(())
    }

    /// The files that the manifest names.
    pub fn files(&self, shelf: &Path) -> impl Iterator<Item = PathBuf> {
        let logs = self.logs.iter().map(move |l| log::path(shelf, l.number, l.generation));
        let segments = self.segments.iter().flat_map(move |s| {
            let dead = (s.dead > 0).then(|| SidecarKind::Dead.path(shelf, s.number, s.dead));
            let addresses = SidecarKind::Addresses.path(shelf, s.number, s.addresses);
            [Some(segment::path(shelf, s.number)), Some(addresses), dead].into_iter().flatten()
        });
        logs.chain(segments)
    }

    /// Notes the dead bytes and dead records of each of these logs.
    pub fn note_dead<'a>(&mut self, logs: impl Iterator<Item = &'a Arc<Log>>) {
        for known in logs {
            if let Some(entry) = self.logs.iter_mut().find(|entry| entry.number == known.number) {
                entry.note_dead(known);
            }
        }
    }

    /// Whether a segment covers the log.
    pub fn is_sealed(&self, log: u32) -> bool {
        self.segments.iter().any(|s| (s.first_log..=s.last_log).contains(&log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_every_flipped_bit_is_noticed() {
        let manifest = Manifest {
            secret: std::array::from_fn(|i| i as u8 * 17),
            logs: vec![
                LogEntry {
                    generation: 2,
                    purged: 3,
                    dead_bytes: 1 << 40,
                    dead_records: 7,
                    ..LogEntry::new(1)
                },
                LogEntry::new(2),
            ],
            segments: vec![SegmentEntry {
                number: 5,
                first_log: 1,
                last_log: 1,
                addresses: 2,
                dead: 4,
            }],
            next_segment: 6,
        };
        let text = manifest.text().into_bytes();
        assert_eq!(Manifest::parse(&text).unwrap(), manifest);
        for bit in 0..text.len() * 8 {
            let mut bad = text.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::parse(&bad).is_err(), "bit {bit}");
        }
        for cut in 0..text.len() {
            assert!(Manifest::parse(&text[..cut]).is_err(), "cut at {cut}");
        }
    }
}
