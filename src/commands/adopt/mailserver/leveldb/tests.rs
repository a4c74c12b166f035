//! Tests on a directory that goleveldb has written. tests/moving/goleveldb/README.md describes its
//! content.

use std::collections::BTreeMap;

use hark_codec::whisper::{Envelope, HistoryCursor};
use hark_testkit::disk::scratch;

use super::*;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/moving/goleveldb")
}

/// The key and the bytes of an envelope.
fn row(n: u8, is_long: bool) -> (Vec<u8>, Vec<u8>) {
    let data = vec![n; 40 + usize::from(n)];
    let envelope = Envelope {
        expiry: 1_554_076_850 + u32::from(n) * 10,
        ttl: 50,
        topic: [n, n % 7, 3, 4],
        data: &data,
        nonce: n.into(),
    };
    let place = HistoryCursor { sent: envelope.sent(), hash: envelope.hash() };
    let mut rlp = Vec::new();
    envelope.write(&mut rlp);
    let topic = if is_long { &envelope.topic[..] } else { &[] };
    ([&place.bytes(), topic].concat(), rlp)
}

/// The rows that goleveldb returns for the directory.
fn expected() -> BTreeMap<Vec<u8>, Vec<u8>> {
    let deleted = [0, 1, 2, 3, 7, 37, 65];
    let kept = (0..100).filter(|n| !deleted.contains(n));
    let mut rows: BTreeMap<_, _> = kept.map(|n| row(n, n >= 30)).collect();
    rows.extend([row(20, true)]);
    rows.insert(row(50, true).0, b"no envelope".to_vec());
    rows.insert(row(51, true).0, row(52, true).1);
    rows.insert(b"version".to_vec(), b"1".to_vec());
    rows.insert(b"\x5c\xa1\xb2\x00 some other key of a program".to_vec(), vec![1, 2, 3]);
    assert_eq!(rows.len(), 96);
    rows
}

type Rows = Vec<LevelDbRow>;

fn rest(opened: &mut LevelDb) -> anyhow::Result<Rows> {
    let mut rows = Vec::new();
    while let Some(row) = opened.next()? {
        rows.push(row);
    }
    Ok(rows)
}

/// A copy of the directory that is removed on drop.
struct CopiedDir(PathBuf);

impl CopiedDir {
    fn new(test: &str) -> Self {
        let dir = scratch(test);
        fs::create_dir_all(&dir).unwrap();
        for file in fs::read_dir(fixture()).unwrap() {
            let path = file.unwrap().path();
            fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
        }
        Self(dir)
    }
}

impl Drop for CopiedDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn keys_and_values_are_those_that_goleveldb_reads() {
    let mut opened = LevelDb::open(&fixture(), &[]).unwrap();
    assert_eq!(rest(&mut opened).unwrap(), expected().into_iter().collect::<Rows>());
    assert_eq!(opened.damage(), (0, ""));
    let (done, total) = opened.progress();
    assert!(done > total / 2 && done <= total, "{done} of {total}");
}

#[test]
fn a_scan_begins_behind_any_key() {
    let all: Rows = expected().into_iter().collect();
    for at in 0..all.len() {
        let mut opened = LevelDb::open(&fixture(), &all[at].0).unwrap();
        assert_eq!(rest(&mut opened).unwrap(), all[at + 1..], "{at}");
        // A key between two existing keys.
        let before = [&all[at].0[..], &[0]].concat();
        let mut opened = LevelDb::open(&fixture(), &before).unwrap();
        assert_eq!(rest(&mut opened).unwrap(), all[at + 1..], "{at}");
    }
}

/// Appends a number in LevelDB's variable-length encoding.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    put_number(out, string.len() as u64);
    out.extend_from_slice(string);
}

#[test]
fn a_table_that_a_running_server_has_replaced_is_found_again() {
    let copied = CopiedDir::new("leveldb-running");
    let dir = &*copied.0;
    let mut opened = LevelDb::open(dir, &[]).unwrap();
    let mut rows: Rows = (0..5).map(|_| opened.next().unwrap().unwrap()).collect();
    let (_, manifest) = read_manifest(dir).unwrap().unwrap();
    let mut version = DatabaseVersion::read(&manifest).unwrap();
    // The scan has not opened the second table of level 1 yet.
    fs::rename(dir.join("000005.ldb"), dir.join("000021.sst")).unwrap();
    for tables in version.levels.values_mut() {
        if let Some(table) = tables.remove(&5) {
            tables.insert(21, manifest::TableFile { number: 21, ..table });
        }
    }
    let mut record = Vec::new();
    put_number(&mut record, 2);
    put_number(&mut record, version.log);
    for (level, tables) in &version.levels {
        for table in tables.values() {
            for number in [7, *level, table.number, table.bytes] {
                put_number(&mut record, number);
            }
            put_string(&mut record, &table.first);
            put_string(&mut record, &table.last);
        }
    }
    let mut log = Vec::new();
    log::append(&mut log, &record);
    fs::write(dir.join("MANIFEST-000022"), log).unwrap();
    fs::write(dir.join("CURRENT"), "MANIFEST-000022\n").unwrap();
    rows.extend(rest(&mut opened).unwrap());
    assert_eq!(rows, expected().into_iter().collect::<Rows>());

    fs::remove_file(dir.join("000021.sst")).unwrap();
    let mut opened = LevelDb::open(dir, &[]).unwrap();
    assert!(rest(&mut opened).unwrap().len() < rows.len());
    assert_eq!(opened.damage(), (1, "000021.ldb: it is missing"));
}

#[test]
fn a_directory_that_is_none_or_whose_manifest_is_damaged_is_refused() {
    let copied = CopiedDir::new("leveldb-manifest");
    let dir = &*copied.0;
    let said = |dir: &Path| format!("{:#}", LevelDb::open(dir, &[]).err().unwrap());
    let manifest = dir.join("MANIFEST-000008");
    let mut bytes = fs::read(&manifest).unwrap();
    bytes[30] ^= 1;
    fs::write(&manifest, bytes).unwrap();
    assert!(said(dir).contains("RecoverFile"), "{}", said(dir));
    for name in ["../MANIFEST-000008", "MANIFEST-../../x", "000004.ldb", ""] {
        fs::write(dir.join("CURRENT"), name).unwrap();
        assert!(said(dir).contains("does not name a MANIFEST"), "{}", said(dir));
    }
    fs::write(dir.join("CURRENT"), "MANIFEST-000007\n").unwrap();
    assert!(said(dir).contains("MANIFEST-000007, which is not there"), "{}", said(dir));
    fs::remove_file(dir.join("CURRENT")).unwrap();
    assert!(said(dir).contains("is no LevelDB directory"), "{}", said(dir));
}

/// Checks that damage to any byte never causes a panic, that the remaining rows are read, and that
/// the damage is almost always reported.
#[test]
fn damage_anywhere_is_counted_and_the_rest_is_read() {
    let copied = CopiedDir::new("leveldb-damage");
    let dir = &*copied.0;
    let all = expected();
    for name in ["000004.ldb", "000006.ldb", "000007.log"] {
        let file = dir.join(name);
        let good = fs::read(&file).unwrap();
        let (mut said, mut unread) = (0, 0);
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 0x41;
            fs::write(&file, &bad).unwrap();
            let mut opened = LevelDb::open(dir, &[]).unwrap();
            let rows = rest(&mut opened).unwrap();
            let is_intact = rows.iter().map(|row| (&row.0, &row.1)).eq(&all);
            match (is_intact, opened.damage().0) {
                (false, 1..) => said += 1,
                // Damage to a block that is not needed, or to a length in a log so that the log
                // seems to be cut off.
                (_, 0) => unread += 1,
                (true, _) => panic!("{name} {at}: {:?}", opened.damage()),
            }
            assert!(rows.len() > all.len() / 4, "{name} {at}: {}", rows.len());
            assert!(rows.is_sorted_by(|a, b| a.0 < b.0), "{name} {at}");
        }
        assert!(said > unread * 20, "{name}: {said}, {unread}");
        let cut = &good[..good.len() - 20];
        fs::write(&file, cut).unwrap();
        let mut opened = LevelDb::open(dir, &[]).unwrap();
        let rows = rest(&mut opened).unwrap();
        assert!(!rows.iter().map(|row| (&row.0, &row.1)).eq(&all), "{name}");
        // A log that is cut off does not count as damaged: its server was killed.
        assert_eq!(opened.damage().0 > 0, name.ends_with("ldb"), "{name}");
        fs::write(&file, &good).unwrap();
    }
}

#[test]
fn nothing_is_written() {
    let state = |dir: &Path| {
        let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap());
        let of = |file: fs::DirEntry| {
            let changed = file.metadata().unwrap().modified().unwrap();
            (file.file_name(), (changed, fs::read(file.path()).unwrap()))
        };
        files.map(of).collect::<BTreeMap<_, _>>()
    };
    let copied = CopiedDir::new("leveldb-unwritten");
    let before = state(&copied.0);
    rest(&mut LevelDb::open(&copied.0, &[]).unwrap()).unwrap();
    assert!(state(&copied.0) == before);
}
