//! The hash functions by which Citus divides values among shards: PostgreSQL's `hash_bytes` and
//! `hash_bytes_uint32` (`src/common/hashfn.c`) on a little-endian machine. The map of shards is
//! used only if the coordinator finds the same shards for some sample values.

/// The initial state of a hash.
fn start(bytes: u32) -> [u32; 3] {
    [0x9e37_79b9_u32.wrapping_add(bytes).wrapping_add(3_923_095); 3]
}

/// Mixes three words so that the next words can be added.
fn mix([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
    let turn = |x: u32, y: u32, bits: u32| x.wrapping_sub(y) ^ y.rotate_left(bits);
    a = turn(a, c, 4);
    c = c.wrapping_add(b);
    b = turn(b, a, 6);
    a = a.wrapping_add(c);
    c = turn(c, b, 8);
    b = b.wrapping_add(a);
    a = turn(a, c, 16);
    c = c.wrapping_add(b);
    b = turn(b, a, 19);
    a = a.wrapping_add(c);
    c = turn(c, b, 4);
    b = b.wrapping_add(a);
    [a, b, c]
}

/// Mixes three words for the last time, and returns the hash.
fn end([mut a, mut b, mut c]: [u32; 3]) -> i32 {
    let turn = |x: u32, y: u32, bits: u32| (x ^ y).wrapping_sub(y.rotate_left(bits));
    c = turn(c, b, 14);
    a = turn(a, c, 11);
    b = turn(b, a, 25);
    c = turn(c, b, 16);
    a = turn(a, c, 4);
    b = turn(b, a, 14);
    turn(c, b, 24).cast_signed()
}

/// Returns the hash of a `bytea`.
pub(super) fn of_bytes(bytes: &[u8]) -> i32 {
    let mut state = start(bytes.len() as u32);
    let mut blocks = bytes.chunks_exact(12);
    for block in &mut blocks {
        state = mix(add(state, block));
    }
    // The lowest byte of the last word stays 0, because `start` has already added the length there.
    let mut last = [0; 12];
    let rest = blocks.remainder();
    let (first, third) = rest.split_at(rest.len().min(8));
    last[..first.len()].copy_from_slice(first);
    last[9..9 + third.len()].copy_from_slice(third);
    end(add(state, &last))
}

/// Adds three words.
fn add(mut state: [u32; 3], block: &[u8]) -> [u32; 3] {
    for (word, bytes) in state.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = word.wrapping_add(u32::from_le_bytes(*bytes));
    }
    state
}

/// Returns the hash of a `bigint`. Equal numbers of smaller types have the same hash.
pub(super) fn of_bigint(value: i64) -> i32 {
    let bits = value.cast_unsigned();
    let high = (bits >> 32) as u32;
    let low = bits as u32 ^ if value < 0 { !high } else { high };
    let [a, b, c] = start(4);
    end([a.wrapping_add(low), b, c])
}

#[cfg(test)]
mod tests {
    use hark_testkit::citus::{CitusCluster, is_installed};
    use hark_testkit::digits::digits;
    use hark_testkit::generator::Random;
    use hark_testkit::postgres::Cluster;

    use super::*;

    /// Returns byte strings of all lengths and numbers of both signs, from a seed.
    fn values() -> (Vec<Vec<u8>>, Vec<i64>) {
        let mut random = Random::new(20_261_128);
        let bytes = (0..400).map(|at| (0..at % 50).map(|_| random.bits() as u8).collect());
        let bytes = bytes.collect();
        let mut numbers =
            vec![0, 1, -1, i64::MIN, i64::MAX, i64::from(i32::MIN), 1 << 32, -(1 << 32)];
        numbers.extend((0..400).map(|at| random.bits().cast_signed() >> (at % 64)));
        (bytes, numbers)
    }

    fn joined<T: ToString>(values: impl Iterator<Item = T>) -> String {
        values.map(|value| value.to_string()).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn hashes_are_those_of_postgresql() {
        let (_, numbers) = values();
        let database = Cluster::shared().database("hashes");
        let found = database.sql(&format!(
            "SELECT string_agg(hashint8(v)::text, ',' ORDER BY n) FROM \
             unnest(ARRAY[{}]::bigint[]) WITH ORDINALITY AS t(v, n)",
            joined(numbers.iter())
        ));
        assert_eq!(found, joined(numbers.iter().map(|number| of_bigint(*number))));
        // Texts of ASCII have the same hash as their bytes.
        let words: Vec<String> =
            (0..60).map(|length| "abcdefghij".repeat(6)[..length].into()).collect();
        let found = database.sql(&format!(
            "SELECT string_agg(hashtext(v)::text, ',' ORDER BY n) FROM \
             unnest(ARRAY['{}']::text[]) WITH ORDINALITY AS t(v, n)",
            words.join("','")
        ));
        assert_eq!(found, joined(words.iter().map(|word| of_bytes(word.as_bytes()))));
    }

    #[test]
    fn each_value_is_in_the_shard_that_citus_names() {
        if !is_installed() {
            return;
        }
        let (bytes, numbers) = values();
        let texts = joined(bytes.iter().map(|one| format!("'\\x{}'::bytea", digits(one))));
        let cluster = CitusCluster::shared();
        let database = cluster.database("hash shards");
        database.sql(
            "SET citus.shard_count = 32; CREATE TABLE b (v bytea); CREATE TABLE n (v bigint);
             SELECT create_distributed_table('b', 'v'); SELECT create_distributed_table('n', 'v')",
        );
        for (table, list, hashes) in [
            ("b", texts, bytes.iter().map(|one| of_bytes(one)).collect::<Vec<i32>>()),
            ("n", joined(numbers.iter()), numbers.iter().map(|one| of_bigint(*one)).collect()),
        ] {
            let of = if table == "b" { "bytea" } else { "bigint" };
            let wrong = database.sql(&format!(
                "SELECT count(*), count(s.shardid) FROM unnest(ARRAY[{list}]::{of}[], ARRAY[{}]::int[]) \
                 AS t(v, h) LEFT JOIN pg_dist_shard s ON s.logicalrelid = '{table}'::regclass \
                 AND t.h BETWEEN s.shardminvalue::int AND s.shardmaxvalue::int \
                 AND s.shardid = get_shard_id_for_distribution_column('{table}', t.v)",
                joined(hashes.iter())
            ));
            assert_eq!(wrong, format!("{0}|{0}", hashes.len()), "{table}");
        }
    }
}
