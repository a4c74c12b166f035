//! The texts of the statements of a check. Each looks up the rows of many records at once.

/// The text of `LabelCounts`.
pub(in crate::plain) const LABEL_COUNTS: &str = "SELECT v.n, c.count FROM \
    unnest($1::bigint[], $2::int[], $3::bigint[], $4::bytea[]) \
    WITH ORDINALITY AS v(term, kind, time, id, n) CROSS JOIN LATERAL \
    (SELECT count(*) AS count FROM tag t WHERE t.term = v.term AND t.kind = v.kind \
    AND t.time = v.time AND t.id = v.id) c WHERE c.count <> 1";
/// The text of `WordLists`.
pub(in crate::plain) const WORD_LISTS: &str = "SELECT v.n, w.words FROM \
    unnest($1::bigint[], $2::bigint[], $3::int[]) \
    WITH ORDINALITY AS v(time, mark, kind, n) CROSS JOIN LATERAL (SELECT w.words FROM worded w \
    WHERE w.time = v.time AND w.mark = v.mark AND w.kind = v.kind OFFSET 0) w";
/// The text of `WordCounts`.
pub(in crate::plain) const WORD_COUNTS: &str = "SELECT v.n, c.count FROM \
    unnest($1::bytea[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[]) \
    WITH ORDINALITY AS v(word, kind, time, mark, class, n) CROSS JOIN LATERAL \
    (SELECT count(*) AS count, min(w.mark) AS mark FROM word w WHERE w.word = v.word \
    AND w.kind = v.kind AND w.time = v.time AND w.mark >= v.mark AND w.mark <= v.mark + 3) c \
    WHERE c.count <> 1 OR v.class >= 0 AND c.mark <> v.mark + v.class";
/// The text of `RepairColumns`. The values $1 and $2 are the key that the row has now.
pub(in crate::plain) const REPAIR_COLUMNS: &str = "UPDATE record SET time = $3, expires = $4, \
    kind = $5, id = $6, author = $7, terms = $8 WHERE time = $1 AND id = $2";
