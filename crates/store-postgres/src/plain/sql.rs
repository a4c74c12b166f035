//! The texts of the statements of the layout for one server. The tables of a shelf are partitioned
//! by time. Each part has its own indices.
//!
//! Each statement has only one possible plan: it reads a few index ranges in order, up to a limit.
//! Hark chooses the ranges. Because of the settings of the sessions, PostgreSQL reads exactly these
//! ranges, regardless of its statistics.

use super::check::sql as check_sql;
use super::range_sql::{few, few_but, keys, kinds, of_part, page, size, term_window, time_keys};
use super::statement::PlainStatement;
use super::word_sql::{self, DELETE_WORDS};
use crate::layout::LOWER_VALUES;

/// The end of [`PlainStatement::Delete`].
const COUNT_GONE: &str = " SELECT count(*) FROM gone";
/// The columns of a page of records.
const RECORD: &str = "r.time, r.id, r.body";
/// The condition that a record's term is one of the given terms. PostgreSQL makes a hash table of
/// the terms, so the cost per record does not depend on the number of terms. A record with several
/// terms always meets the condition, and Hark then compares the record's terms.
const ANY_TERM: &str = "(r.terms[1] IN (SELECT unnest($7::bigint[])) OR cardinality(r.terms) > 1)";
/// The condition that excludes records stored after the query began.
const SEEN: &str = " AND r.seq <= $6";

/// Returns the text of a statement.
pub(crate) fn text(statement: PlainStatement) -> String {
    match statement {
        PlainStatement::TermKeys(order) => keys("term bigint", "tag", "", order),
        PlainStatement::AuthorKeys(order) => keys("author bytea", "record", "", order),
        PlainStatement::KindKeys(order) => keys("", "record", ", r.author", order),
        PlainStatement::TimeKeys(order) => time_keys(order, ""),
        PlainStatement::TimeKeysBut(order) => time_keys(order, " AND r.kind <> ALL($6::int[])"),
        PlainStatement::TermPage(order, ranges, rows) => {
            let term = Some(("term", "bigint"));
            let keys = page(term, ranges, order, ("tag", rows), "r.time, r.id", "");
            let record = of_part("record", rows.part());
            format!(
                "SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL \
                 OR b.terms && $9) THEN b.body END FROM ({keys}) t \
                 LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM {record} r \
                 WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 \
                 ORDER BY r.time DESC, r.id LIMIT 1) b ON true"
            )
        }
        PlainStatement::AuthorPage(order, ranges, rows) => {
            page(Some(("author", "bytea")), ranges, order, ("record", rows), RECORD, SEEN)
        }
        PlainStatement::KindPage(order, ranges, rows) => {
            page(None, ranges, order, ("record", rows), RECORD, SEEN)
        }
        PlainStatement::TimePage(order, rows) => {
            page(None, 0, order, ("record", rows), RECORD, SEEN)
        }
        PlainStatement::TimePageBut(order, rows) => {
            let more = format!("{SEEN} AND r.kind <> ALL($7::int[])");
            page(None, 0, order, ("record", rows), RECORD, &more)
        }
        PlainStatement::TermTimePage(order, rows) => {
            let more = format!("{SEEN} AND {ANY_TERM}");
            page(None, 0, order, ("record", rows), RECORD, &more)
        }
        PlainStatement::SlimWindow(order, part, wanted) => {
            let record = of_part("record", part);
            let rows = format!(
                "SELECT {RECORD} FROM {record} r WHERE r.terms[1] = v.term AND r.kind = $6::int \
                 AND r.seq <= $4"
            );
            term_window(order, (RECORD, &rows), wanted)
        }
        PlainStatement::Ids { whole } => {
            let columns = if whole { RECORD } else { "r.time, r.id" };
            format!(
                "SELECT {columns} FROM unnest($1::bytea[]) AS v(id) CROSS JOIN LATERAL \
                 (SELECT {columns} FROM record r WHERE r.id = v.id AND r.seq <= $2 OFFSET 0) r"
            )
        }
        PlainStatement::TermFew => few("term bigint", "tag"),
        PlainStatement::AuthorFew => few("author bytea", "record"),
        PlainStatement::TermFewBut => few_but("term bigint", "tag"),
        PlainStatement::AuthorFewBut => few_but("author bytea", "record"),
        PlainStatement::ListedSize => "SELECT (SELECT coalesce(sum(v.records), 0)::bigint \
            FROM label_value v WHERE v.term = ANY($1::bigint[])), s.records FROM state s"
            .into(),
        PlainStatement::TermKinds => kinds("term bigint", "tag"),
        PlainStatement::AuthorKinds => kinds("author bytea", "record"),
        PlainStatement::TermSize => size("term bigint", "tag", false),
        PlainStatement::AuthorSize => size("author bytea", "record", false),
        PlainStatement::TermSizeBut => size("term bigint", "tag", true),
        PlainStatement::AuthorSizeBut => size("author bytea", "record", true),
        // Records are looked up by time and not by id, because the records of an answer are close
        // together in time. A look-up in the tables of all parts would take twice the time.
        PlainStatement::Bodies(part) => {
            let record = of_part("record", part);
            format!(
                "SELECT v.n, b.body, b.seq FROM unnest($1::bigint[], $2::bytea[]) \
                 WITH ORDINALITY AS v(time, id, n) CROSS JOIN LATERAL (SELECT r.id, r.seq, \
                 r.terms, r.body FROM {record} r WHERE r.time = v.time AND r.id >= v.id \
                 ORDER BY r.time DESC, r.id LIMIT 1) b \
                 WHERE b.id = v.id AND b.seq <= $3 AND ($4::bigint[] IS NULL OR b.terms && $4)"
            )
        }
        PlainStatement::Lock => "SELECT seq, records, parts, line, texts, words_seq, \
            current_setting('hark.session', true) FROM state FOR UPDATE"
            .into(),
        PlainStatement::Known => "SELECT v.n FROM unnest($1::bigint[], $2::bytea[]) \
            WITH ORDINALITY AS v(time, id, n) CROSS JOIN LATERAL (SELECT r.id FROM record r \
            WHERE r.time = v.time AND r.id >= v.id ORDER BY r.time DESC, r.id LIMIT 1) b \
            WHERE b.id = v.id"
            .into(),
        PlainStatement::Forbids => "SELECT f.key, r.body FROM unnest($1::bigint[]) AS v(key) \
            CROSS JOIN LATERAL (SELECT f.key, f.time, f.id FROM forbid f WHERE f.key = v.key \
            ORDER BY f.time DESC, f.id LIMIT 1) f CROSS JOIN LATERAL (SELECT r.body \
            FROM record r WHERE r.time = f.time AND r.id = f.id LIMIT 1) r"
            .into(),
        PlainStatement::Slots => "SELECT v.n, r.time, r.id, octet_length(r.body) \
            FROM unnest($1::bytea[], $2::int[]) WITH ORDINALITY AS v(author, kind, n) \
            CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record r WHERE r.author = v.author AND r.kind = v.kind OFFSET 0) r"
            .into(),
        // A record of another author may have the same term, so authors are compared, too.
        PlainStatement::TermSlots => "SELECT v.n, t.time, t.id, octet_length(r.body) \
            FROM unnest($1::bigint[], $2::int[], $3::bytea[]) \
            WITH ORDINALITY AS v(term, kind, author, n) CROSS JOIN LATERAL (SELECT t.time, t.id \
            FROM tag t WHERE t.term = v.term AND t.kind = v.kind OFFSET 0) t \
            CROSS JOIN LATERAL (SELECT r.author, r.body FROM record r WHERE r.time = t.time \
            AND r.id = t.id LIMIT 1) r WHERE r.author = v.author"
            .into(),
        PlainStatement::NamedRecords => "SELECT r.time, r.id, octet_length(r.body), r.author, \
            r.kind, CASE WHEN r.kind = ANY($2::int[]) THEN ARRAY(SELECT t.term \
            FROM unnest(r.terms) AS t(term) WHERE t.term = ANY($3::bigint[])) \
            ELSE '{}'::bigint[] END FROM unnest($1::bytea[]) AS v(id) CROSS JOIN LATERAL \
            (SELECT r.time, r.id, r.author, r.kind, r.terms, r.body FROM record r \
            WHERE r.id = v.id OFFSET 0) r"
            .into(),
        PlainStatement::Delete => format!(
            "WITH gone AS (DELETE FROM record r USING \
             unnest($1::bigint[], $2::bytea[], $3::bigint[]) AS v(time, id, mark) \
             WHERE r.time = v.time AND r.id = v.id \
             RETURNING r.time, r.id, r.kind, r.terms, v.mark), tags AS (DELETE FROM tag t USING \
             (SELECT g.time, g.id, g.kind, unnest(g.terms) AS term FROM gone g) g \
             WHERE t.term = g.term AND t.kind = g.kind AND t.time = g.time AND t.id = g.id), \
             {DELETE_WORDS}{COUNT_GONE}"
        ),
        PlainStatement::DeleteListed => {
            let delete = text(PlainStatement::Delete);
            let (delete, count) = delete.split_at(delete.len() - COUNT_GONE.len());
            debug_assert_eq!(count, COUNT_GONE);
            format!(
                "{delete}, lost AS (SELECT t.term, count(*) AS records FROM gone g \
                 CROSS JOIN LATERAL unnest(g.terms) AS t(term) GROUP BY t.term), \
                 {LOWER_VALUES}{count}"
            )
        }
        PlainStatement::CopyRecords => {
            "COPY record (seq, time, expires, kind, id, author, terms, body) FROM STDIN BINARY"
                .into()
        }
        PlainStatement::CopyTags => "COPY tag (term, time, kind, id) FROM STDIN BINARY".into(),
        PlainStatement::AddForbids => "INSERT INTO forbid SELECT * FROM \
            unnest($1::bigint[], $2::bigint[], $3::bytea[])"
            .into(),
        PlainStatement::Advance => "WITH s AS (UPDATE state SET seq = $1, records = $2, \
            words_seq = $4 RETURNING seq, parts, line) SELECT pg_notify(current_schema(), \
            seq || ' ' || $3::int || ' ' || parts || ' ' || line) FROM s"
            .into(),
        // If there are no records, the statement still returns one row, with the timeline and the
        // number.
        PlainStatement::News => {
            "SELECT s.line, s.seq, r.seq, r.body FROM state s LEFT JOIN LATERAL \
            (SELECT r.seq, r.body FROM record r WHERE r.seq > $1 AND r.seq <= $2 \
            ORDER BY r.seq LIMIT $3) r ON true"
                .into()
        }
        PlainStatement::Newest => "SELECT line, seq FROM state".into(),
        PlainStatement::WordState => word_sql::STATE.into(),
        PlainStatement::WordKeys(order) => word_sql::keys(order),
        PlainStatement::WordsFrom => word_sql::FROM.into(),
        PlainStatement::WordSize => word_sql::SIZE.into(),
        PlainStatement::WordBodies(part) => word_sql::bodies(part),
        PlainStatement::WordedBodies(part) => word_sql::worded_bodies(part),
        PlainStatement::CopyWords => word_sql::COPY_WORDS.into(),
        PlainStatement::CopyWorded => word_sql::COPY_WORDED.into(),
        PlainStatement::AdvanceWords => word_sql::ADVANCE.into(),
        PlainStatement::StillThere => word_sql::STILL_THERE.into(),
        PlainStatement::LabelCounts => check_sql::LABEL_COUNTS.into(),
        PlainStatement::WordLists => check_sql::WORD_LISTS.into(),
        PlainStatement::WordCounts => check_sql::WORD_COUNTS.into(),
        PlainStatement::RepairColumns => check_sql::REPAIR_COLUMNS.into(),
    }
}
