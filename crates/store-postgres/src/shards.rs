//! Which shard of a distributed table a record lies in, so that a long list of records is asked of each
//! shard in its part. Citus sends a list whole to every shard that any of its values is in.
//!
//! A wrong guess costs time only: Citus finds the shards of each statement by itself.

use crate::session::{DatabaseSession, StatementError};

/// The shards of the table `record`: the last hash of each, ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardRanges(Vec<i32>);

impl ShardRanges {
    /// Reads the shards from the database.
    pub(crate) fn read(session: &mut DatabaseSession) -> Result<Self, StatementError> {
        let text = "SELECT shardmaxvalue::int FROM pg_dist_shard \
            WHERE logicalrelid = 'record'::regclass ORDER BY 1";
        let rows = session.query_once(text, &[])?;
        Ok(Self(rows.iter().map(|row| row.get(0)).collect()))
    }

    /// The number of the shard that has a place.
    fn of(&self, place: &[u8]) -> usize {
        let hash = hash(place).cast_signed();
        self.0.partition_point(|last| *last < hash)
    }

    /// Returns the items of each shard that has any.
    pub(crate) fn divide<T: Copy>(&self, items: &[T], place: impl Fn(&T) -> &[u8]) -> Vec<Vec<T>> {
        let mut parts = vec![Vec::new(); self.0.len() + 1];
        for item in items {
            if let Some(part) = parts.get_mut(self.of(place(item))) {
                part.push(*item);
            }
        }
        parts.retain(|part| !part.is_empty());
        parts
    }
}

/// PostgreSQL's hash of bytes, by which Citus divides tables: Bob Jenkins' lookup3.
fn hash(bytes: &[u8]) -> u32 {
    let start = 0x9e37_79b9_u32.wrapping_add(bytes.len() as u32).wrapping_add(3_923_095);
    let mut words = [start; 3];
    let blocks = bytes.chunks_exact(12);
    let rest = blocks.remainder();
    for block in blocks {
        add(&mut words, block);
        for (at, turn) in [4, 6, 8, 16, 19, 4].into_iter().enumerate() {
            let (x, y, z) = (at % 3, (at + 1) % 3, (at + 2) % 3);
            words[x] = words[x].wrapping_sub(words[z]) ^ words[z].rotate_left(turn);
            words[z] = words[z].wrapping_add(words[y]);
        }
    }
    let mut last = [0; 12];
    last[..rest.len().min(8)].copy_from_slice(&rest[..rest.len().min(8)]);
    // The lowest byte of the last word is the length's.
    if let Some(end) = rest.get(8..) {
        last[9..9 + end.len()].copy_from_slice(end);
    }
    add(&mut words, &last);
    for (at, turn) in [14, 11, 25, 16, 4, 14, 24].into_iter().enumerate() {
        let (x, z) = ((at + 2) % 3, (at + 1) % 3);
        words[x] = (words[x] ^ words[z]).wrapping_sub(words[z].rotate_left(turn));
    }
    words[2]
}

fn add(words: &mut [u32; 3], block: &[u8]) {
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        let bytes: [u8; 4] = bytes.try_into().unwrap_or_default();
        *word = word.wrapping_add(u32::from_le_bytes(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SELECT worker_hash(…::bytea)` of Citus 13.2.
    #[test]
    fn hashes_are_those_of_the_database() {
        let counted: Vec<u8> = (0..32).collect();
        let signed = |bytes: &[u8]| hash(bytes).cast_signed();
        assert_eq!(signed(&[7; 32]), -240_260_988);
        assert_eq!(signed(&counted), -713_731_329);
        assert_eq!(signed(&[1, 2, 3, 4, 5]), 578_350_048);
        assert_eq!(signed(&[]), -1_477_818_771);
    }

    #[test]
    fn each_item_is_in_the_shard_of_its_place() {
        let ranges = ShardRanges(vec![-1_000_000_000, 0, i32::MAX]);
        let items: Vec<[u8; 1]> = (0..60).map(|byte| [byte]).collect();
        let parts = ranges.divide(&items, |item| &item[..]);
        assert_eq!(parts.len(), 3);
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), items.len());
        for (at, part) in parts.iter().enumerate() {
            assert!(part.iter().all(|item| ranges.of(item) == at));
        }
    }
}
