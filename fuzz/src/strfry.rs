//! A database of strfry. Any file is read without a panic and in bounded memory. A walk visits the
//! keys in order, and a walk that ends early visits the first keys.

use std::ops::ControlFlow;

use self::lmdb::{DamagedPages, LmdbFault, LmdbFile, LmdbSnapshot, LmdbTable, LmdbValue};

#[path = "../../src/commands/adopt/strfry/lmdb/mod.rs"]
mod lmdb;
#[path = "../../src/commands/adopt/strfry/record.rs"]
mod record;

/// The longest value that is read, in bytes.
const VALUE_BYTES_MAX: usize = 1000;
const TABLE: &str = "events";

/// Panics if a property does not hold.
///
/// The first byte selects the meaning of the other bytes. With 0, they are a record of a small
/// table. Otherwise, they are a whole file.
pub fn check(bytes: &[u8]) {
    match bytes.split_first() {
        None => {}
        Some((0, buffer)) => fields(buffer),
        Some((_, file)) => entries(file),
    }
}

fn fields(buffer: &[u8]) {
    for field in [0, 1, 2, 300] {
        let _ = record::number(buffer, field);
        let bytes = record::bytes(buffer, field);
        assert!(bytes.is_none_or(|bytes| bytes.len() <= buffer.len()));
    }
}

fn entries(bytes: &[u8]) {
    let path = super::scratch("strfry");
    std::fs::write(&path, bytes).expect("a temporary file");
    let file = LmdbFile::open(&path);
    std::fs::remove_file(&path).expect("ours");
    let Ok(file) = file else { return };
    let all = |after, limit| file.read(|snapshot, _| walk(snapshot, after, limit)).ok().flatten();
    let Some((whole, damaged)) = all(0, usize::MAX) else { return };
    assert!(whole.is_sorted_by(|one, next| one.0 < next.0), "each key comes once, in order");
    assert_eq!(damaged.count() == 0, damaged.first().is_empty());
    for limit in [1, whole.len() / 2 + 1] {
        let Some((some, _)) = all(0, limit) else { panic!("it was read before") };
        assert_eq!(
            some,
            whole[..limit.min(whole.len())],
            "a walk that ends early is its beginning"
        );
    }
    for (key, value) in &whole {
        if let LmdbValue::Bytes(bytes) = value {
            assert!(bytes.len() <= VALUE_BYTES_MAX);
        }
        let Some((behind, more)) = all(*key, usize::MAX) else { panic!("it was read before") };
        assert!(behind.iter().all(|(next, _)| next > key));
        let (mut both, count) = (DamagedPages::default(), more.count());
        both.append(more);
        assert_eq!(both.count(), count);
    }
}

type Entries = Vec<(u64, LmdbValue)>;

/// Returns up to `limit` entries after a key, and the damaged pages. Returns `None` if the table is
/// missing.
fn walk(
    snapshot: &LmdbSnapshot<'_>,
    after: u64,
    limit: usize,
) -> Result<Option<(Entries, DamagedPages)>, LmdbFault> {
    let table = snapshot.table(TABLE)?;
    table.map(|table| walk_table(snapshot, table, after, limit)).transpose()
}

fn walk_table(
    snapshot: &LmdbSnapshot<'_>,
    table: LmdbTable,
    after: u64,
    limit: usize,
) -> Result<(Entries, DamagedPages), LmdbFault> {
    // These calls may return anything for a damaged file, but must not panic.
    let _ = (snapshot.last_key(table).is_ok(), table.entries());
    let _ = snapshot.value(table, after, VALUE_BYTES_MAX).is_ok();
    let mut found = Vec::new();
    let damaged = snapshot.walk(table, after, VALUE_BYTES_MAX, &mut |key, value| {
        found.push((key, value));
        if found.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok((found, damaged))
}
