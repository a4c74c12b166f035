//! The statements of full-text search, for the layout for one server. The records of a word are an
//! ordered range of an index, like the records of a label (`migrations/0004_words.sql`).

use hark_archive::Order;

use super::range_sql::{behind, of_part, sorted};

/// Maximum number of records that a row of a word stands for: records of the same time whose ids
/// have the same first 62 bits. Such records occur only if an author makes them on purpose, with
/// billions of attempts.
const SAME_MARK_MAX: u32 = 16;

/// The text of `WordState`.
pub(super) const STATE: &str = "SELECT texts, words_seq, seq FROM state";
/// The text of `WordsFrom`.
pub(super) const FROM: &str = "WITH RECURSIVE k AS ((SELECT r.word FROM word r \
        WHERE r.word >= $1::bytea AND r.word < $2::bytea ORDER BY r.word LIMIT 1) UNION ALL \
        SELECT (SELECT r.word FROM word r WHERE r.word > k.word AND r.word < $2::bytea \
        ORDER BY r.word LIMIT 1) FROM k WHERE k.word IS NOT NULL) \
        SELECT word FROM k WHERE word IS NOT NULL LIMIT $3";
/// The text of `WordSize`.
pub(super) const SIZE: &str = "SELECT count(*) FROM (SELECT 1 FROM unnest($1::bytea[]) AS v(word) \
        CROSS JOIN unnest($3::int[]) AS k(kind) CROSS JOIN LATERAL (SELECT 1 FROM word r \
        WHERE r.word = v.word AND r.kind = k.kind LIMIT $2) r LIMIT $2) r";
/// The text of `CopyWords`.
pub(super) const COPY_WORDS: &str = "COPY word (time, mark, kind, word) FROM STDIN BINARY";
/// The text of `CopyWorded`.
pub(super) const COPY_WORDED: &str = "COPY worded (time, mark, kind, words) FROM STDIN BINARY";
/// The text of `AdvanceWords`.
pub(super) const ADVANCE: &str = "UPDATE state SET words_seq = $1";
/// The text of `StillThere`.
pub(super) const STILL_THERE: &str = "SELECT v.seq FROM unnest($1::bigint[]) AS v(seq) \
        CROSS JOIN LATERAL (SELECT FROM record r WHERE r.seq = v.seq LIMIT 1) r";

/// Returns the text of `WordBodies`.
pub(super) fn bodies(part: Option<i64>) -> String {
    let record = of_part("record", part);
    format!(
        "SELECT v.n, b.time, b.id, b.body FROM unnest($1::bigint[], $2::bytea[], $3::bytea[]) \
         WITH ORDINALITY AS v(time, low, high, n) CROSS JOIN LATERAL (SELECT r.time, r.id, \
         r.seq, r.terms, r.body FROM {record} r WHERE r.time = v.time AND r.id >= v.low \
         AND r.id <= v.high ORDER BY r.time DESC, r.id LIMIT {SAME_MARK_MAX}) b \
         WHERE b.seq <= $4 AND ($5::bigint[] IS NULL OR b.terms && $5)"
    )
}

/// Returns the text of `WordedBodies`.
pub(super) fn worded_bodies(part: Option<i64>) -> String {
    let record = of_part("record", part);
    format!(
        "SELECT v.n, b.body FROM unnest($1::bigint[], $2::bytea[], $5::bigint[]) \
         WITH ORDINALITY AS v(time, id, mark, n) CROSS JOIN LATERAL (SELECT r.id, r.seq, \
         r.kind, r.terms, r.body FROM {record} r WHERE r.time = v.time AND r.id >= v.id \
         ORDER BY r.time DESC, r.id LIMIT 1) b \
         WHERE b.id = v.id AND b.seq <= $3 AND ($4::bigint[] IS NULL OR b.terms && $4) \
         AND (SELECT count(*) FROM unnest($6::bytea[]) AS o(word) CROSS JOIN LATERAL \
         (SELECT FROM word w WHERE w.word = o.word AND w.kind = b.kind AND w.time = v.time \
         AND w.mark >= v.mark AND w.mark <= v.mark + 3 LIMIT 1) w) = cardinality($6::bytea[])"
    )
}

/// The clauses of the statement `Delete` that delete the words of the records in `gone`.
pub(super) const DELETE_WORDS: &str = "listed AS (DELETE FROM worded w USING gone g \
    WHERE w.time = g.time AND w.mark = g.mark AND w.kind = g.kind \
    RETURNING w.time, w.mark, w.kind, w.words), words AS (DELETE FROM word w USING \
    (SELECT l.time, l.mark, l.kind, unnest(l.words) AS word FROM listed l) l \
    WHERE w.word = l.word AND w.kind = l.kind AND w.time = l.time \
    AND w.mark >= l.mark AND w.mark <= l.mark + 3)";

/// Returns a statement for the next rows of each range of a word and kind, in order. For each row,
/// it also returns the classes that the words in $8 have in the same record. A class is NULL if the
/// record lacks the word.
pub(super) fn keys(order: Order) -> String {
    let sorted = sorted(order).replace("r.id", "r.mark");
    let rows = "SELECT r.time, r.mark FROM word r WHERE r.word = v.word AND r.kind = v.kind \
        AND r.time >= $5 AND r.time <= $6";
    let end = format!("ORDER BY {sorted} LIMIT v.most");
    let arms = behind(order, rows, ("v.time", "r.mark >= v.mark"), &end).join(" UNION ALL ");
    format!(
        "SELECT v.n, r.time, r.mark, ARRAY(SELECT (SELECT (w.mark & 3)::int FROM word w \
         WHERE w.word = o.word AND w.kind = v.kind AND w.time = r.time \
         AND w.mark >= (r.mark | 3) - 3 AND w.mark <= (r.mark | 3) LIMIT 1) \
         FROM unnest($8::bytea[]) AS o(word)) \
         FROM unnest($1::bytea[], $2::int[], $3::bigint[], $4::bigint[], $7::bigint[]) \
         WITH ORDINALITY AS v(word, kind, time, mark, most, n) CROSS JOIN LATERAL (SELECT * FROM ({arms}) r \
         {end}) r"
    )
}
