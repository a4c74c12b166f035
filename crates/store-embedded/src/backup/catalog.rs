//! The catalog of a backup: a text file that lists the shelves, the copies of their logs, and the
//! small files. docs/format.md describes the format.

use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::BackupError;
use crate::disk::Disk;
use crate::manifest::{LogEntry, Manifest};

/// Version of the catalog's format that this program writes.
const VERSION: u32 = 1;
/// The format of a catalog with lists of puts. Earlier versions of Hark cannot update such a
/// backup.
const VERSION_PUTS: u32 = 2;
const NAME: &str = "BACKUP";
/// The name of a new catalog until it is durable and replaces the old catalog.
pub const CATALOG_ASIDE: &str = "BACKUP.new";

/// A copy of a log, or of the first bytes of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogCopy {
    /// The log's number.
    pub number: u32,
    /// The log's generation.
    pub generation: u32,
    /// The log's salt. A log with the same number and generation but another salt is a different
    /// log.
    pub salt: u32,
    /// Number of bytes that were copied. The file of the copy may be longer; the bytes after this
    /// length are ignored.
    pub bytes: u64,
    /// CRC32C of these bytes.
    pub crc: u32,
    /// A number that distinguishes the copy's file from the files of earlier copies of the same
    /// log.
    pub copy: u32,
}

impl LogCopy {
    /// The name of the copy's file, without its directory.
    pub(super) fn name(&self) -> String {
        format!("{:08}-{}-{}.log", self.number, self.generation, self.copy)
    }

    /// The path of the copy's file. `shelf` is the shelf's directory in the backup.
    pub fn path(&self, shelf: &Path) -> PathBuf {
        shelf.join("log").join(self.name())
    }

    pub(super) fn is_of(&self, log: &LogEntry) -> bool {
        (self.number, self.generation) == (log.number, log.generation)
    }
}

/// The list of the puts in the backup of a shelf whose store has no logs; see
/// [`PutSource`](super::PutSource). A later backup compares the list with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutListCopy {
    /// The number of the list's file. Each backup writes a new file.
    pub file: u32,
    /// Number of puts in the list.
    pub puts: u64,
    /// CRC32C of the list.
    pub crc: u32,
    /// The store's name for the shelf, without blanks. Another shelf has another name.
    pub origin: String,
    /// The state that was backed up, as the store's text; see `PutSource::position`.
    pub position: String,
}

impl PutListCopy {
    /// The path of the list's file in the backup's directory of a shelf.
    pub(super) fn path(&self, shelf: &Path) -> PathBuf {
        list_path(shelf, self.file)
    }
}

/// The path of the list of puts with the number `file` in the backup's directory of a shelf.
pub(super) fn list_path(shelf: &Path, file: u32) -> PathBuf {
    shelf.join(format!("{file:08}.puts"))
}

/// The backup of a shelf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShelfBackup {
    /// The shelf's directory in the archive, and in the backup.
    pub name: String,
    /// The shelf's manifest at the time when the logs were copied. The segments were not copied.
    pub manifest: Manifest,
    /// A copy of each log that the manifest names.
    pub copies: Vec<LogCopy>,
    /// The list of puts; `None` if the logs were copied from an archive in files, or if the backup
    /// is one file.
    pub puts: Option<PutListCopy>,
}

impl ShelfBackup {
    /// Returns the copy of `log`, if the backup has this copy.
    pub(super) fn copy_of(&self, log: &LogEntry) -> Option<&LogCopy> {
        self.copies.iter().find(|copy| copy.is_of(log))
    }
}

/// A small file of the archive's directory that belongs to no shelf, for example a node's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedFile {
    /// The file's name.
    pub name: String,
    /// The file's content.
    pub content: Vec<u8>,
}

/// The contents of a backup: its shelves, and the copied bytes of their logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupCatalog {
    /// When the backup was taken, in seconds since 1970; 0 before the first backup is complete.
    pub time_s: u64,
    /// All shelves of the archive.
    pub shelves: Vec<ShelfBackup>,
    /// The archive's small files.
    pub files: Vec<SavedFile>,
}

/// The extension of a small file with the time up to which the history of a shelf is held. The name
/// of the file without the extension is the name of the shelf.
const HELD: &str = ".held";

impl SavedFile {
    /// Makes a file for the time up to which the history of a shelf is held.
    pub(super) fn held(shelf: &str, until: u64) -> Self {
        Self { name: format!("{shelf}{HELD}"), content: format!("{until}\n").into_bytes() }
    }

    /// Returns the shelf whose history is held, and the time.
    fn as_held(&self) -> Option<(&str, u64)> {
        let until = std::str::from_utf8(&self.content).ok()?.trim_end().parse().ok()?;
        Some((self.name.strip_suffix(HELD)?, until))
    }
}

impl BackupCatalog {
    /// The archive's small files that belong to no shelf.
    pub fn root_files(&self) -> impl Iterator<Item = &SavedFile> {
        self.files.iter().filter(|file| file.as_held().is_none())
    }

    /// Returns the time up to which the history of a shelf is held, in units of the shelf.
    pub fn held_until(&self, shelf: &str) -> Option<u64> {
        let mut held = self.files.iter().filter_map(SavedFile::as_held);
        held.find(|(name, _)| *name == shelf).map(|(_, until)| until)
    }

    /// The path of the catalog in a backup's directory.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(NAME)
    }

    /// Reads the catalog of a backup; `None` if the directory has none.
    pub fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, BackupError> {
        let path = Self::path(dir);
        let mut text = Vec::new();
        let read = disk.read(&path).and_then(|mut file| file.read_to_end(&mut text));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(BackupError::Io { path, cause }),
        }
        Self::of_text(&text, path).map(Some)
    }

    /// Parses the text of a catalog. Errors name `path` as the source.
    pub(super) fn of_text(text: &[u8], path: PathBuf) -> Result<Self, BackupError> {
        let version = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let version = std::str::from_utf8(version).ok();
        let version = version.and_then(|line| line.strip_prefix("hark-backup ")?.parse().ok());
        match version {
            Some(VERSION | VERSION_PUTS) => {}
            Some(version) => return Err(BackupError::Version { path, version }),
            None => return Err(BackupError::Catalog(path)),
        }
        Self::parse(text).ok_or(BackupError::Catalog(path))
    }

    /// Replaces the catalog of a backup by this catalog. On return the new catalog is durable.
    pub(super) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let aside = dir.join(CATALOG_ASIDE);
        let mut file = disk.create(&aside)?;
        file.write_all(self.text().as_bytes())?;
        file.sync()?;
        disk.replace(&aside, &dir.join(NAME))
    }

    pub(super) fn text(&self) -> String {
        let has_puts = self.shelves.iter().any(|shelf| shelf.puts.is_some());
        let version = if has_puts { VERSION_PUTS } else { VERSION };
        let mut text = format!("hark-backup {version}\ntime {}\n", self.time_s);
        let add = |text: &mut String, line: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = text.write_fmt(line);
        };
        for file in &self.files {
            add(&mut text, format_args!("file {} ", file.name));
            for byte in &file.content {
                add(&mut text, format_args!("{byte:02x}"));
            }
            text.push('\n');
        }
        for shelf in &self.shelves {
            add(&mut text, format_args!("shelf {}\n", shelf.name));
            shelf.manifest.write_lines(&mut text);
            for copy in &shelf.copies {
                let LogCopy { number, generation, salt, bytes, crc, copy } = copy;
                add(
                    &mut text,
                    format_args!("copy {number} {generation} {salt} {bytes} {crc:08x} {copy}\n"),
                );
            }
            if let Some(PutListCopy { file, puts, crc, origin, position }) = &shelf.puts {
                add(&mut text, format_args!("puts {file} {puts} {crc:08x} {origin} {position}\n"));
            }
        }
        let sum = crc32c::crc32c(text.as_bytes());
        format!("{text}crc32c {sum:08x}\n")
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let at = text.rfind("crc32c ")?;
        let sum = crc32c::crc32c(&bytes[..at]);
        if text[at..] != format!("crc32c {sum:08x}\n") {
            return None;
        }
        let mut catalog = Self::default();
        for line in text[..at].lines().skip(1) {
            catalog.line(line)?;
        }
        // A catalog that lacks the copy of a log is invalid.
        let is_whole = |shelf: &ShelfBackup| {
            shelf.manifest.logs.iter().all(|log| shelf.copy_of(log).is_some())
        };
        catalog.shelves.iter().all(is_whole).then_some(catalog)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (name, rest) = line.split_once(' ')?;
        match name {
            "time" => self.time_s = rest.parse().ok()?,
            "file" => {
                let (name, content) = rest.split_once(' ')?;
                self.files.push(SavedFile { name: file_name(name)?, content: unhex(content)? });
            }
            "shelf" => {
                let (name, manifest) = (file_name(rest)?, Manifest::empty());
                self.shelves.push(ShelfBackup { name, manifest, copies: Vec::new(), puts: None });
            }
            "copy" => {
                let mut words = rest.split(' ');
                let mut word = || words.next();
                let copy = LogCopy {
                    number: word()?.parse().ok()?,
                    generation: word()?.parse().ok()?,
                    salt: word()?.parse().ok()?,
                    bytes: word()?.parse().ok()?,
                    crc: u32::from_str_radix(word()?, 16).ok()?,
                    copy: word()?.parse().ok()?,
                };
                self.shelves.last_mut()?.copies.push(copy);
            }
            "puts" => {
                let mut words = rest.splitn(5, ' ');
                let mut word = || words.next();
                let puts = PutListCopy {
                    file: word()?.parse().ok()?,
                    puts: word()?.parse().ok()?,
                    crc: u32::from_str_radix(word()?, 16).ok()?,
                    origin: word()?.into(),
                    position: word()?.into(),
                };
                self.shelves.last_mut()?.puts = Some(puts);
            }
            _ => self.shelves.last_mut()?.manifest.line(line)?,
        }
        Some(())
    }
}

/// Returns `name` if it is a file name that cannot leave its directory, and otherwise `None`.
pub(super) fn file_name(name: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_name = !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain);
    is_name.then(|| name.to_owned())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.len().is_multiple_of(2).then(|| text.as_bytes().chunks(2).map(pair).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::SegmentEntry;

    fn catalog() -> BackupCatalog {
        let log =
            |number| LogEntry { generation: 1, purged: 3, dead_bytes: 9, ..LogEntry::new(number) };
        let copy = |number| LogCopy {
            number,
            generation: 1,
            salt: u32::MAX,
            bytes: 1 << 33,
            crc: 0xab,
            copy: 2,
        };
        let manifest = Manifest {
            secret: [7; 16],
            logs: vec![log(4), log(6)],
            segments: vec![SegmentEntry {
                number: 1,
                first_log: 4,
                last_log: 4,
                addresses: 0,
                dead: 2,
            }],
            next_segment: 2,
        };
        let shelf = |name: &str| ShelfBackup {
            name: name.into(),
            manifest: manifest.clone(),
            copies: vec![copy(4), copy(6)],
            puts: (name == "two").then(|| PutListCopy {
                file: 3,
                puts: 1 << 40,
                crc: 0xcd,
                origin: "postgres-ab".into(),
                position: "12 0:0 7:10".into(),
            }),
        };
        let files = vec![
            SavedFile { name: "node.key".into(), content: vec![0, 255, 16] },
            SavedFile { name: "empty".into(), content: Vec::new() },
        ];
        BackupCatalog { time_s: 1_700_000_000, shelves: vec![shelf("one"), shelf("two")], files }
    }

    #[test]
    fn what_was_written_is_read_and_every_flipped_bit_is_noticed() {
        let catalog = catalog();
        let text = catalog.text().into_bytes();
        assert_eq!(BackupCatalog::parse(&text), Some(catalog));
        for bit in 0..text.len() * 8 {
            let mut bad = text.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BackupCatalog::parse(&bad), None, "bit {bit}");
        }
        for cut in 0..text.len() {
            assert_eq!(BackupCatalog::parse(&text[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_catalog_that_lacks_a_log_or_leads_elsewhere_is_none() {
        let mut lacking = catalog();
        lacking.shelves[1].copies.pop();
        assert_eq!(BackupCatalog::parse(lacking.text().as_bytes()), None);
        for name in ["../x", "a/b", ".x", ""] {
            let mut leading = catalog();
            leading.files[0].name = name.into();
            assert_eq!(BackupCatalog::parse(leading.text().as_bytes()), None, "{name}");
        }
    }
}
