//! The statements that make, count and drop the tables of parts.

use super::label_storage::LabelStorage;
use crate::layout::LOCK_TIMEOUT_MS;

/// The mark of a record, with class 0: the first 62 bits of the record's id, with the first bit
/// inverted.
pub(super) const MARK: &str = "((('x' || encode(substr(r.id, 1, 8), 'hex'))::bit(64)::bigint | 3) - 3) \
    # (-9223372036854775808)";

/// For each value of a label, adds the number of spared records (those that stay when their part is
/// dropped), within the transaction of [`retire_part`]. Until the part is dropped, the numbers also
/// include all its records.
pub(crate) const KEEP_SPARED_VALUES: &str = "UPDATE label_value v SET records = v.records + s.records FROM (SELECT term, \
        count(*) AS records FROM spared_tag GROUP BY term) s WHERE v.term = s.term";

/// Returns the statements that make the tables of a part, for times from `start` (inclusive) to
/// `stop` (exclusive). A commit executes the statements in this order.
pub(crate) fn make_part(number: u64, start: i64, stop: i64, labels: LabelStorage) -> Vec<String> {
    let make = |table| make_table(table, number, start, stop);
    let mut texts = vec![make("record")];
    texts.push(match labels {
        LabelStorage::Rows => make("tag"),
        LabelStorage::Records => make_label_view(number),
    });
    texts.extend(make_word_tables(number, start, stop));
    texts.push(format!("INSERT INTO part VALUES ({number}, {start}, {stop})"));
    texts
}

/// Returns those statements of [`make_part`] that make a table of records or of labels.
pub(crate) fn make_table(table: &str, number: u64, start: i64, stop: i64) -> String {
    let (filled, attached) = table_texts(table, number, start, stop);
    format!(
        "CREATE TABLE {table}_{number} (LIKE {table} INCLUDING CONSTRAINTS);{filled};{attached}"
    )
}

/// Returns the statement of [`make_part`] that makes the view of the labels of a slim part.
pub(crate) fn make_label_view(number: u64) -> String {
    format!(
        "CREATE OR REPLACE VIEW tag_{number} AS SELECT terms[1] AS term, time, kind, id \
         FROM record_{number}"
    )
}

/// Returns those statements of [`make_part`] that make tables of words, for tables that do not
/// exist. A version of Hark without these tables may have dropped the part, but not its tables of
/// words.
pub(crate) fn make_word_tables(number: u64, start: i64, stop: i64) -> Vec<String> {
    let make = |table| {
        let (filled, attached) = table_texts(table, number, start, stop);
        format!(
            "CREATE TABLE IF NOT EXISTS {table}_{number} (LIKE {table});{filled};
                     DO $$ BEGIN
                         IF NOT (SELECT relispartition FROM pg_class
                                 WHERE oid = '{table}_{number}'::regclass) THEN{attached};
                         END IF;
                     END $$"
        )
    };
    ["word", "worded"].map(make).into()
}

/// Returns a statement that counts the records of a part whose kinds are in $1, at most $2 records.
/// It also counts the rows of these records, including the rows of their labels and words.
pub(crate) fn count_spared(number: i64) -> String {
    format!(
        "SELECT count(*), coalesce(sum(1 + cardinality(r.terms) + coalesce((SELECT \
         sum(1 + cardinality(w.words)) FROM worded w WHERE w.time = r.time AND w.mark = {MARK} \
         AND w.kind = r.kind), 0)), 0)::bigint FROM (SELECT time, id, kind, terms \
         FROM record_{number} WHERE kind = ANY($1) LIMIT $2) r"
    )
}

/// Returns a statement that counts records with numbers above $1, in a part or in a retired part.
/// It counts at most $2 records. The statement also returns the number of the last counted record.
pub(crate) fn count_part(number: i64, retired: bool) -> String {
    let table = if retired { "retired_record" } else { "record" };
    format!(
        "SELECT count(*), max(seq) FROM (SELECT seq FROM {table}_{number} WHERE seq > $1 ORDER BY seq LIMIT $2) r"
    )
}

/// Returns the statements that detach a part with `records` records, and keep those `moved` records
/// that have `spared` kinds.
pub(crate) fn retire_part(
    number: i64,
    (spared, records, moved): (&[i32], i64, i64),
    labels: LabelStorage,
) -> String {
    let labels = match labels {
        LabelStorage::Rows => format!(
            "ALTER TABLE tag DETACH PARTITION tag_{number};
         ALTER TABLE tag_{number} RENAME TO retired_tag_{number}"
        ),
        LabelStorage::Records => format!("DROP VIEW tag_{number}"),
    };
    let kinds: Vec<String> = spared.iter().map(i32::to_string).collect();
    let kinds = format!("kind = ANY('{{{}}}'::int[])", kinds.join(","));
    format!(
    "CREATE TEMP TABLE spared_record ON COMMIT DROP AS SELECT * FROM record_{number} WHERE {kinds};
         CREATE TEMP TABLE spared_tag ON COMMIT DROP AS SELECT t.* FROM spared_record r \
             CROSS JOIN LATERAL (SELECT DISTINCT unnest(r.terms) AS term) v \
             CROSS JOIN LATERAL (SELECT t.* FROM tag_{number} t WHERE t.term = v.term \
                 AND t.kind = r.kind AND t.time = r.time AND t.id = r.id OFFSET 0) t;
         CREATE TEMP TABLE spared_worded ON COMMIT DROP AS SELECT w.* FROM spared_record r \
             CROSS JOIN LATERAL (SELECT w.* FROM worded_{number} w WHERE w.time = r.time \
                 AND w.mark = {MARK} AND w.kind = r.kind OFFSET 0) w;
         CREATE TEMP TABLE spared_word ON COMMIT DROP AS SELECT w.* FROM spared_worded l \
             CROSS JOIN LATERAL (SELECT unnest(l.words) AS word) v \
             CROSS JOIN LATERAL (SELECT w.* FROM word_{number} w WHERE w.word = v.word \
                 AND w.kind = l.kind AND w.time = l.time AND w.mark >= l.mark \
                 AND w.mark <= l.mark + 3 OFFSET 0) w;
         SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS};
         ALTER TABLE record DETACH PARTITION record_{number};
         {labels};
         ALTER TABLE word DETACH PARTITION word_{number};
         ALTER TABLE worded DETACH PARTITION worded_{number};
         ALTER TABLE record_{number} RENAME TO retired_record_{number};
         DROP TABLE word_{number}, worded_{number};
         INSERT INTO record SELECT * FROM spared_record;
         INSERT INTO tag SELECT * FROM spared_tag;
         INSERT INTO word SELECT * FROM spared_word;
         INSERT INTO worded SELECT * FROM spared_worded;
         DELETE FROM part WHERE number = {number};
         INSERT INTO retired VALUES ({number}, {records});
         UPDATE state SET parts = parts + 1, records = records + {moved} - {records}, \
             seq = seq + 1, words_seq = words_seq + (words_seq = seq)::int;
         SELECT pg_notify(current_schema(), seq || ' 1 ' || parts || ' ' || line) FROM state"
    )
}

/// Returns the statements that drop the tables of a detached part and end the transaction. When the
/// part was detached, `counted` was subtracted from the shelf's number of records, but the part had
/// `records` records.
pub(crate) fn drop_part(number: i64, counted: i64, records: i64) -> String {
    format!(
        "SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS};
         DROP TABLE retired_record_{number};
         DROP TABLE IF EXISTS retired_tag_{number};
         UPDATE state SET records = records + {counted} - {records};
         COMMIT"
    )
}

/// Returns a statement that counts, for each listed value, the records of a retired part with
/// numbers above $1. It counts at most $2 records. The statement also returns the number of the
/// last counted record; NULL if no records are left.
pub(crate) fn count_values(number: i64) -> String {
    format!(
        "WITH r AS MATERIALIZED (SELECT seq, terms FROM retired_record_{number} \
         WHERE seq > $1 ORDER BY seq LIMIT $2) SELECT l.seq, c.term, c.records FROM \
         (SELECT max(seq) AS seq FROM r) l LEFT JOIN LATERAL (SELECT v.term, \
         count(*) AS records FROM r CROSS JOIN LATERAL unnest(r.terms) AS t(term) \
         JOIN label_value v ON v.term = t.term GROUP BY v.term) c ON true"
    )
}

/// Returns two texts for a part's table. The first configures the table and fills it with the rows
/// of the part's times, which are in the table for times outside all parts. The second attaches the
/// table.
fn table_texts(table: &str, number: u64, start: i64, stop: i64) -> (String, String) {
    let filled = format!(
        "
                     ALTER TABLE {table}_{number} SET (autovacuum_vacuum_insert_scale_factor = 0.05,
                         autovacuum_analyze_scale_factor = 0.05);
                     WITH moved AS (DELETE FROM {table}_other WHERE time >= {start} AND time < {stop}
                         RETURNING *)
                     INSERT INTO {table}_{number} SELECT * FROM moved"
    );
    let attached = format!(
        "
                     ALTER TABLE {table} ATTACH PARTITION {table}_{number}
                         FOR VALUES FROM ({start}) TO ({stop})"
    );
    (filled, attached)
}
