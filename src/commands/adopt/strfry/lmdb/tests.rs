//! Tests on files in LMDB's format that are built page by page. tests/moving/relays.rs reads a file
//! that LMDB has written.

use std::fs::OpenOptions;
use std::ops::ControlFlow;

use hark_testkit::disk::scratch;

use super::*;

const PAGE: usize = 512;
/// The root of an empty table.
const NONE: u64 = u64::MAX;

/// The pages of a file.
struct Pages {
    pages: Vec<[u8; PAGE]>,
    path: PathBuf,
}

impl Pages {
    fn new(test: &str) -> Self {
        let dir = scratch(test);
        std::fs::create_dir_all(&dir).unwrap();
        Self { pages: vec![[0; PAGE]; 2], path: dir.join("data.mdb") }
    }

    /// Adds a tree page, and returns its number. A node is three numbers, a key and a value.
    fn tree(&mut self, form: u16, nodes: &[([u16; 3], Vec<u8>, Vec<u8>)]) -> u64 {
        let (number, mut page) = (self.pages.len() as u64, [0; PAGE]);
        let mut upper = PAGE;
        for (index, (numbers, key, value)) in nodes.iter().enumerate() {
            let [low, high, flags] = numbers.map(u16::to_le_bytes);
            let len = (key.len() as u16).to_le_bytes();
            let node = [&low[..], &high, &flags, &len, key, value].concat();
            upper = (upper - node.len()) & !1;
            page[upper..upper + node.len()].copy_from_slice(&node);
            page[16 + 2 * index..18 + 2 * index].copy_from_slice(&(upper as u16).to_le_bytes());
        }
        let lower = 16 + 2 * nodes.len();
        assert!(lower <= upper, "the nodes fit into a page");
        page[..8].copy_from_slice(&number.to_le_bytes());
        page[10..12].copy_from_slice(&form.to_le_bytes());
        page[12..14].copy_from_slice(&(lower as u16).to_le_bytes());
        page[14..16].copy_from_slice(&(upper as u16).to_le_bytes());
        self.pages.push(page);
        number
    }

    fn leaf(&mut self, entries: &[(u64, Vec<u8>)]) -> u64 {
        let nodes: Vec<_> = entries
            .iter()
            .map(|(key, value)| {
                let len = value.len() as u16;
                if value.len() < 100 {
                    return ([len, 0, 0], key.to_le_bytes().to_vec(), value.clone());
                }
                let page = self.overflow(value).to_le_bytes().to_vec();
                ([len, 0, 1], key.to_le_bytes().to_vec(), page)
            })
            .collect();
        self.tree(2, &nodes)
    }

    fn overflow(&mut self, value: &[u8]) -> u64 {
        let number = self.pages.len() as u64;
        let mut bytes = [&number.to_le_bytes()[..], &[0, 0, 4, 0, 0, 0, 0, 0], value].concat();
        let count = bytes.len().div_ceil(PAGE);
        bytes[12..16].copy_from_slice(&(count as u32).to_le_bytes());
        bytes.resize(count * PAGE, 0);
        self.pages.extend(bytes.as_chunks::<PAGE>().0);
        number
    }

    fn branch(&mut self, children: &[(u64, u64)]) -> u64 {
        let node = |(key, page): &(u64, u64)| {
            let numbers = [*page as u16, (page >> 16) as u16, (page >> 32) as u16];
            (numbers, key.to_le_bytes().to_vec(), Vec::new())
        };
        self.tree(1, &children.iter().map(node).collect::<Vec<_>>())
    }

    /// Adds the table of tables, which names one table, and the meta page of a transaction.
    fn commit(&mut self, transaction: u64, root: u64, entries: u64) {
        let table = |page: u64, entries: u64| {
            let mut table = vec![0; 48];
            table[32..40].copy_from_slice(&entries.to_le_bytes());
            table[40..].copy_from_slice(&page.to_le_bytes());
            table
        };
        let named = ([48, 0, 2], b"events".to_vec(), table(root, entries));
        let empty = ([48, 0, 2], b"none".to_vec(), table(NONE, 0));
        let no_table = ([1, 0, 0], b"other".to_vec(), vec![1]);
        let tables = self.tree(2, &[named, empty, no_table]);
        let mut free = table(NONE, 0);
        free[..4].copy_from_slice(&(PAGE as u32).to_le_bytes());
        let mut meta = vec![0; 16];
        meta[..8].copy_from_slice(&(transaction % 2).to_le_bytes());
        meta[10] = 8;
        meta.extend(0xbeef_c0de_u32.to_le_bytes());
        meta.extend(1_u32.to_le_bytes());
        meta.extend([0; 16]);
        meta.extend(free);
        meta.extend(table(tables, 3));
        meta.extend((self.pages.len() as u64 - 1).to_le_bytes());
        meta.extend(transaction.to_le_bytes());
        self.pages[(transaction % 2) as usize][..meta.len()].copy_from_slice(&meta);
        if transaction == 0 {
            self.pages[1] = self.pages[0];
        }
    }

    fn write(&self) -> LmdbFile {
        std::fs::write(&self.path, self.pages.as_flattened()).unwrap();
        LmdbFile::open(&self.path).unwrap()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.path.parent().unwrap());
    }
}

/// Returns the value of an entry. Most values are short; the value of a key that is a multiple of
/// seven is on overflow pages.
fn value(key: u64) -> Vec<u8> {
    let len = if key.is_multiple_of(7) { 100 + key as usize % 1500 } else { key as usize % 40 };
    vec![key as u8; len]
}

/// A table of the keys 10, 20, ... 10 * count, in a tree of three levels.
fn filled(test: &str, count: u64) -> Pages {
    let mut pages = Pages::new(test);
    let keys: Vec<u64> = (1..=count).map(|n| n * 10).collect();
    let leaf = |pages: &mut Pages, keys: &[u64]| {
        let entries: Vec<_> = keys.iter().map(|key| (*key, value(*key))).collect();
        (keys[0], pages.leaf(&entries))
    };
    let leaves: Vec<_> = keys.chunks(5).map(|keys| leaf(&mut pages, keys)).collect();
    let branches: Vec<_> =
        leaves.chunks(4).map(|leaves| (leaves[0].0, pages.branch(leaves))).collect();
    let root = pages.branch(&branches);
    pages.commit(0, root, count);
    pages
}

/// The entries after a key.
type Entries = Vec<(u64, LmdbValue)>;

/// The entries after the key `after`, at most `limit`, and the damaged pages.
fn walk(
    snapshot: &LmdbSnapshot<'_>,
    after: u64,
    limit: usize,
) -> Result<(Entries, DamagedPages), LmdbFault> {
    let Some(table) = snapshot.table("events")? else { return Ok(Default::default()) };
    let mut entries = Vec::new();
    let damaged = snapshot.walk(table, after, 1_000, &mut |key, value| {
        entries.push((key, value));
        if entries.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok((entries, damaged))
}

fn keys(file: &LmdbFile, after: u64, limit: usize) -> Vec<u64> {
    let (entries, damaged) = file.read(|snapshot, _| walk(snapshot, after, limit)).unwrap();
    assert_eq!(damaged.count(), 0, "{damaged:?}");
    entries.into_iter().map(|(key, _)| key).collect()
}

#[test]
fn entries_come_in_order_behind_any_key() {
    let pages = filled("lmdb-order", 70);
    let file = pages.write();
    let all: Vec<u64> = (1..=70).map(|n| n * 10).collect();
    for after in [0, 1, 9, 10, 11, 49, 50, 51, 250, 499, 695, 700, u64::MAX] {
        let expected: Vec<u64> = all.iter().copied().filter(|key| *key > after).collect();
        assert_eq!(keys(&file, after, usize::MAX), expected, "after {after}");
        assert_eq!(keys(&file, after, 3), expected[..expected.len().min(3)], "after {after}");
    }
    let (entries, _) = file.read(|snapshot, _| walk(snapshot, 0, usize::MAX)).unwrap();
    for (key, found) in entries {
        let expected = value(key);
        let bytes = || LmdbValue::Bytes(expected.clone());
        let expected =
            if expected.len() > 1_000 { LmdbValue::TooLong(expected.len()) } else { bytes() };
        assert_eq!(found, expected, "{key}");
    }
    let of = |key: u64| {
        file.read(|snapshot, _| snapshot.value(snapshot.table("events")?.unwrap(), key, 5_000))
    };
    for key in [10, 70, 350, 700] {
        assert_eq!(of(key).unwrap(), Some(LmdbValue::Bytes(value(key))));
    }
    for key in [0, 15, 701] {
        assert_eq!(of(key).unwrap(), None);
    }
    let last = file.read(|snapshot, _| snapshot.last_key(snapshot.table("events")?.unwrap()));
    assert_eq!(last.unwrap(), 700);
}

#[test]
fn tables_are_found_by_name_and_may_be_empty_or_missing() {
    let pages = filled("lmdb-tables", 6);
    let file = pages.write();
    let empty = file.read(|snapshot, _| {
        let table = snapshot.table("none")?.unwrap();
        Ok((table.entries(), snapshot.last_key(table)?, snapshot.value(table, 1, 10)?))
    });
    assert_eq!(empty.unwrap(), (0, 0, None));
    assert!(file.read(|snapshot, _| snapshot.table("event")).unwrap().is_none());
    let error = file.read(|snapshot, _| snapshot.table("other")).unwrap_err();
    assert!(error.to_string().contains("is damaged: `other` is no table"), "{error}");
}

#[test]
fn what_is_overwritten_while_it_is_read_is_read_again() {
    let mut pages = filled("lmdb-again", 20);
    let file = pages.write();
    let mut all_tries = Vec::new();
    let found = file.read(|snapshot, tries| {
        all_tries.push(tries);
        if tries < 2 {
            // Two transactions: the second overwrites the meta page of the snapshot that is being
            // read.
            for more in 1..=2 {
                let transaction = u64::from(tries) * 2 + more;
                let leaf = pages.leaf(&[(transaction, vec![1])]);
                pages.commit(transaction, leaf, 1);
            }
            std::fs::write(&pages.path, pages.pages.as_flattened()).unwrap();
        }
        walk(snapshot, 0, usize::MAX)
    });
    let found: Vec<u64> = found.unwrap().0.into_iter().map(|(key, _)| key).collect();
    assert_eq!((found, all_tries), (vec![4], vec![0, 1, 2]));

    // A single transaction does not change the previous snapshot.
    let (mut tries, before) = (0, 4);
    let found = file.read(|snapshot, _| {
        tries += 1;
        let leaf = pages.leaf(&[(99, vec![1])]);
        pages.commit(before + 1, leaf, 1);
        std::fs::write(&pages.path, pages.pages.as_flattened()).unwrap();
        walk(snapshot, 0, usize::MAX)
    });
    assert_eq!((found.unwrap().0[0].0, tries), (before, 1));

    let mut transaction = before + 1;
    let error = file.read(|_, _| {
        for _ in 0..2 {
            transaction += 1;
            pages.commit(transaction, NONE, 0);
        }
        std::fs::write(&pages.path, pages.pages.as_flattened()).unwrap();
        Ok(())
    });
    assert!(error.unwrap_err().to_string().contains("changes faster than it can be read"));
}

#[test]
fn damaged_pages_are_passed_over_and_each_is_counted_once() {
    let mut pages = filled("lmdb-damaged", 70);
    // Page 2, the first after the meta pages, is the leaf with keys 10 to 50: values on overflow
    // pages begin at key 70.
    assert_eq!(pages.pages[2][10], 2);
    pages.pages[2][0] ^= 1;
    let file = pages.write();
    let mut all = DamagedPages::default();
    for _ in 0..2 {
        let (entries, damaged) = file.read(|snapshot, _| walk(snapshot, 0, usize::MAX)).unwrap();
        assert_eq!((entries[0].0, entries.len()), (60, 65));
        all.append(damaged);
    }
    assert_eq!((all.count(), all.first()), (1, "page 2 is no page of a tree"));

    // A tree with a cycle of branches, and a tree that names pages beyond the end of the file.
    for child in [2, 3, 1_000, 1] {
        let mut pages = Pages::new("lmdb-circle");
        let nodes: Vec<_> = (0..20).map(|n| (n * 10, child)).collect();
        pages.branch(&nodes);
        let root = pages.branch(&[(0, 2), (500, 2)]);
        pages.commit(0, root, 1);
        let file = pages.write();
        let (entries, damaged) = file.read(|snapshot, _| walk(snapshot, 0, usize::MAX)).unwrap();
        assert!(entries.is_empty() && damaged.count() > 0, "{damaged:?}");
    }
}

#[test]
fn no_byte_of_a_file_makes_a_read_panic_or_go_on_for_ever() {
    let pages = filled("lmdb-bytes", 30);
    let whole = pages.pages.as_flattened().to_vec();
    let file = pages.write();
    let written = OpenOptions::new().write(true).open(&pages.path).unwrap();
    let (mut read, mut refused, mut damaged_pages) = (0, 0, 0);
    for at in 0..whole.len() {
        for value in [whole[at] ^ 1, whole[at] ^ 0x80, 0xff] {
            written.write_all_at(&[value], at as u64).unwrap();
            // Opening a file reads the meta pages, so the file is opened again if the damage is in
            // these pages.
            let opened = if at < 2 * PAGE {
                LmdbFile::open(&pages.path)
            } else {
                LmdbFile::open(&file.path)
            };
            match opened.and_then(|file| file.read(|snapshot, _| walk(snapshot, 0, 100))) {
                Ok((entries, damaged)) => {
                    assert!(entries.len() <= 100);
                    assert!(entries.is_sorted_by_key(|(key, _)| *key));
                    damaged_pages += damaged.count();
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
        written.write_all_at(&whole[at..=at], at as u64).unwrap();
    }
    assert!(read > 0 && refused > 0 && damaged_pages > 0, "{read} {refused} {damaged_pages}");
    // The same for a file that is cut off at any length.
    for len in (0..whole.len()).rev().step_by(100) {
        written.set_len(len as u64).unwrap();
        let _ = LmdbFile::open(&pages.path).and_then(|file| {
            file.read(|snapshot, _| walk(snapshot, 0, 100).map(|(entries, _)| entries.len()))
        });
    }
}

/// A function that changes the bytes of a file.
type ByteChange = fn(&mut Vec<u8>);

#[test]
fn what_is_no_lmdb_file_is_told() {
    let pages = filled("lmdb-other", 6);
    pages.write();
    let cases: [(ByteChange, &str); 5] = [
        (|bytes| bytes.clear(), "data.mdb: no LMDB file. Nothing was done"),
        (|bytes| bytes[16] = 0, "no LMDB file"),
        (|bytes| bytes[16..20].reverse(), "of a machine that writes the high byte first"),
        (|bytes| bytes[20] = 2, "an LMDB file of format 2; 1 is read"),
        (|bytes| bytes[40] = 1, "with pages of 513 bytes, so it is damaged"),
    ];
    for (change, words) in cases {
        let mut bytes = pages.pages.as_flattened().to_vec();
        change(&mut bytes);
        std::fs::write(&pages.path, bytes).unwrap();
        let error = LmdbFile::open(&pages.path).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
