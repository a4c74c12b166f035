//! Backups of a store in memory that puts, deletes, goes back, and fails at random.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hark_archive::effects::KeepAll;
use hark_archive::store::NumberedRecord;
use hark_archive::{Id, Record, Store as _};
use hark_testkit::folder::Folder;
use hark_testkit::generator::Random;
use hark_testkit::random::encode;
use hark_testkit::runs::seed_or;

use super::{PutSource, SourceError, back_up_puts, pack_puts};
use crate::EmbeddedStore;
use crate::backup::catalog::BackupCatalog;
use crate::backup::shelf_copy::{BackupSource, PutTotals};
use crate::backup::take::BackupTask;
use crate::backup::{BackupError, LogFolder, backed_up_records, restore, unpack, verify_records};
use crate::disk::RealDisk;
use crate::options::EmbeddedOptions;

/// A shelf in memory: its records by the number of their put.
#[derive(Clone, Default)]
struct MemoryShelf {
    puts: BTreeMap<u64, Box<[u8]>>,
    newest: u64,
    /// For each timeline, its id and the number of the put at which it began.
    lines: Vec<(u64, u64)>,
    /// Number of calls until a call fails.
    fails_in: Option<u32>,
}

impl MemoryShelf {
    fn called(&mut self) -> Result<(), SourceError> {
        let Some(left) = &mut self.fails_in else { return Ok(()) };
        *left = left.checked_sub(1).ok_or("the store is away")?;
        Ok(())
    }

    fn put(&mut self, random: &mut Random) {
        self.newest += 1;
        let header = hark_codec::record::RecordHeader {
            id: random.bytes(),
            time: random.below(1000) as u64,
            author: Some(random.bytes()),
            kind: 1,
            expires: None,
        };
        let record = encode(&header, &[(b't', vec![b'x'; random.below(300)])]);
        self.puts.insert(self.newest, record);
    }

    fn ids(&self) -> Vec<Id> {
        let mut ids: Vec<Id> = self.puts.values().map(|record| id(record)).collect();
        ids.sort_unstable();
        ids
    }
}

fn id(record: &[u8]) -> Id {
    *Record::new(record).expect("is a record").id()
}

impl PutSource for MemoryShelf {
    fn origin(&self) -> String {
        "memory".into()
    }

    fn records(&self) -> u64 {
        self.puts.len() as u64
    }

    fn position(&self, number: Option<u64>) -> String {
        let lines: Vec<String> =
            self.lines.iter().map(|(id, since)| format!(" {id}:{since}")).collect();
        format!("{}{}", number.unwrap_or(self.newest), lines.concat())
    }

    fn common(&self, position: &str) -> Option<u64> {
        let mut words = position.split(' ');
        let newest: u64 = words.next()?.parse().ok()?;
        let lines: Vec<(u64, u64)> = words
            .map(|word| word.split_once(':').expect("a line"))
            .map(|(id, since)| (id.parse().expect("a number"), since.parse().expect("a number")))
            .collect();
        let same = lines.iter().zip(&self.lines).take_while(|(one, two)| one == two).count();
        let apart = lines[same..].iter().chain(&self.lines[same..]).map(|line| line.1).min();
        Some(apart.unwrap_or(u64::MAX).min(newest).min(self.newest))
    }

    fn puts(&mut self, after: u64) -> Result<Vec<NumberedRecord>, SourceError> {
        self.called()?;
        let later = self.puts.range(after + 1..).take(37);
        Ok(later.map(|(number, record)| (*number, record.clone())).collect())
    }

    fn numbers(&mut self, after: u64, to: u64) -> Result<Vec<u64>, SourceError> {
        self.called()?;
        Ok(self.puts.range(after + 1..=to).map(|(number, _)| *number).collect())
    }
}

fn task<'a>(data: &'a Path, dir: &'a Path, verify: bool) -> BackupTask<'a> {
    let from = BackupSource { data, shelves: &["one"], disk: Arc::new(RealDisk), now_s: 7 };
    BackupTask { from, dir, to: Arc::new(RealDisk), verify }
}

/// Backs up, and returns the figures of the shelf.
fn back_up(shelf: &MemoryShelf, task: &BackupTask<'_>) -> Result<PutTotals, BackupError> {
    let open = &mut |_: &str| Ok(Some(Box::new(shelf.clone()) as Box<dyn PutSource>));
    let done = back_up_puts(task, open, &mut |_, _| {})?;
    Ok(done.shelves[0].puts.expect("was read"))
}

/// The ids of the records in a backup, sorted; `None` if no backup is complete.
fn ids(catalog: &BackupCatalog, shelf: &Path, unpacked: bool) -> Option<Vec<Id>> {
    if catalog.time_s == 0 {
        return None;
    }
    let backup = &catalog.shelves[0];
    let folder = LogFolder { disk: &RealDisk, shelf, is_unpacked: unpacked };
    let verified = verify_records(backup, folder, &mut |_| {}).expect("is whole");
    let mut ids = Vec::new();
    let each = &mut |record: &[u8]| {
        ids.push(id(record));
        Ok::<_, BackupError>(())
    };
    backed_up_records(backup, folder, &verified, each).expect("is whole");
    ids.sort_unstable();
    Some(ids)
}

fn catalog(dir: &Path) -> BackupCatalog {
    BackupCatalog::read(&RealDisk, dir).expect("is whole").expect("is there")
}

#[test]
fn a_backup_has_the_records_of_the_store_or_those_of_the_last_complete_backup() {
    let folder = Folder::new("puts");
    let (data, dir) = (folder.join("data"), folder.join("backup"));
    for seed in 0..12 {
        std::fs::create_dir_all(&dir).expect("is made");
        let random = &mut Random::new(seed_or(seed));
        let mut shelf = MemoryShelf { lines: vec![(0, 0)], ..MemoryShelf::default() };
        for _ in 0..random.below(900) {
            shelf.put(random);
        }
        let (mut former, mut old) = (None, shelf.clone());
        let (mut failed, mut anew, mut is_behind) = (0, 0, false);
        for round in 1..60 {
            shelf.fails_in = random.once_in(3).then(|| random.below(12) as u32);
            let task = task(&data, &dir, random.once_in(4));
            match back_up(&shelf, &task) {
                Ok(totals) => {
                    assert_eq!(totals.records, shelf.puts.len() as u64, "{seed} {round}");
                    former = Some(shelf.ids());
                    anew += u64::from(totals.anew);
                }
                Err(BackupError::Source { .. }) => failed += 1,
                Err(other) => panic!("{seed} {round}: {other}"),
            }
            let found = ids(&catalog(&dir), &dir.join("one"), false);
            assert!(found == former, "{seed} {round}");
            if random.once_in(12) {
                // The store goes back to an earlier state. Its next puts get numbers that it gave
                // before, and belong to a new timeline.
                (shelf, is_behind) = (old.clone(), true);
            } else if random.once_in(4) {
                old = shelf.clone();
            }
            let puts = if random.once_in(3) { 0 } else { random.below(120) };
            if (is_behind && puts > 0) || random.once_in(8) {
                shelf.lines.push((random.bits() >> 1, shelf.newest));
                is_behind = false;
            }
            for _ in 0..puts {
                shelf.put(random);
            }
            let numbers: Vec<u64> = shelf.puts.keys().copied().collect();
            for number in numbers.iter().filter(|_| random.once_in(6)) {
                shelf.puts.remove(number);
            }
        }
        assert!(failed > 0 && anew > 0, "{seed}: {failed} {anew}");
        std::fs::remove_dir_all(&dir).expect("is removed");
    }
}

#[test]
fn a_backup_of_records_is_restored_and_is_one_file_too() {
    let folder = Folder::new("puts-restored");
    let (data, dir) = (folder.join("data"), folder.join("backup"));
    std::fs::create_dir_all(&dir).expect("is made");
    let random = &mut Random::new(seed_or(1));
    let mut shelf = MemoryShelf { lines: vec![(0, 0)], ..MemoryShelf::default() };
    for _ in 0..3000 {
        shelf.put(random);
    }
    back_up(&shelf, &task(&data, &dir, false)).expect("is taken");
    shelf.puts.retain(|number, _| number % 7 != 0);
    let totals = back_up(&shelf, &task(&data, &dir, true)).expect("is taken");
    assert_eq!((totals.added, totals.deleted, totals.anew), (0, 428, false));
    let options = EmbeddedOptions::default();
    let restored = folder.join("restored");
    let (found, from) = (catalog(&dir), dir.join("one"));
    assert!(found.shelves[0].copies.len() > 3, "{found:?}");
    restore(&found.shelves[0], &RealDisk, &from, &restored, &options, &mut |_| {})
        .expect("is restored");
    let store = EmbeddedStore::open(&restored, Box::new(KeepAll), options).expect("opens");
    assert_eq!(store.stats().records, shelf.puts.len() as u64);
    assert!(shelf.ids().iter().all(|id| store.knows(id).expect("answers")));

    let (file, unpacked) = (folder.join("one.hark"), folder.join("unpacked"));
    let mut to = std::fs::File::create(&file).expect("is made");
    let open = &mut |_: &str| Ok(Some(Box::new(shelf.clone()) as Box<dyn PutSource>));
    let from = task(&data, &dir, false).from;
    pack_puts(&from, (&mut to, &file), open, &mut |_, _| {}).expect("is taken");
    let mut from = std::fs::File::open(&file).expect("is there");
    let found = unpack(&mut from, &file, (&RealDisk, &unpacked), &mut |_| {}).expect("is whole");
    assert_eq!(ids(&found, &unpacked.join("one"), true), Some(shelf.ids()));
}
