//! The layout for one server: a shelf's tables are partitioned by time. Each part has its own
//! indices.
//!
//! Each statement has one plan only: a few index ranges, read in order up to a limit. Hark chooses
//! the ranges. The sessions' settings make PostgreSQL read them regardless of its statistics.

use hark_archive::Order;

use super::words::DELETE_WORDS;
use super::{LOCK_TIMEOUT_MS, Layout, MigrationText, StatementForm};

/// The layout of the tables that `migrations/` creates.
pub(crate) struct PlainLayout;

/// The end of [`StatementForm::Delete`].
const COUNT_GONE: &str = " SELECT count(*) FROM gone";
/// Lowers the numbers of records of values by those in `lost`. Values without records are deleted.
const LOWER_VALUES: &str = "ended AS (DELETE FROM label_value v USING lost l \
    WHERE v.term = l.term AND v.records <= l.records), \
    lowered AS (UPDATE label_value v SET records = v.records - l.records FROM lost l \
    WHERE v.term = l.term AND v.records > l.records)";

/// The mark of a record, of class 0: the first 62 bits of its id, with the first bit inverted.
const MARK: &str = "((('x' || encode(substr(r.id, 1, 8), 'hex'))::bit(64)::bigint | 3) - 3) \
    # (-9223372036854775808)";

impl Layout for PlainLayout {
    fn text(&self, form: StatementForm) -> String {
        match form {
            StatementForm::TermKeys(order) => keys("term bigint", "tag", "", order),
            StatementForm::AuthorKeys(order) => keys("author bytea", "record", "", order),
            StatementForm::KindKeys(order) => keys("", "record", ", r.author", order),
            StatementForm::TimeKeys(order) => time_keys(order, ""),
            StatementForm::TimeKeysBut(order) => time_keys(order, " AND r.kind <> ALL($6::int[])"),
            StatementForm::TermPage(order, ranges, part) => {
                let term = Some(("term", "bigint"));
                let keys = page(term, ranges, order, ("tag", part), "r.time, r.id", "");
                let record = of_part("record", part);
                format!(
                    "SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL \
                     OR b.terms && $9) THEN b.body END FROM ({keys}) t \
                     LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM {record} r \
                     WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 \
                     ORDER BY r.time DESC, r.id LIMIT 1) b ON true"
                )
            }
            StatementForm::AuthorPage(order, ranges, part) => {
                page(Some(("author", "bytea")), ranges, order, ("record", part), RECORD, SEEN)
            }
            StatementForm::KindPage(order, ranges, part) => {
                page(None, ranges, order, ("record", part), RECORD, SEEN)
            }
            StatementForm::TimePage(order, part) => {
                page(None, 0, order, ("record", part), RECORD, SEEN)
            }
            StatementForm::TimePageBut(order, part) => {
                let more = format!("{SEEN} AND r.kind <> ALL($7::int[])");
                page(None, 0, order, ("record", part), RECORD, &more)
            }
            StatementForm::TermTimePage(order, part) => {
                let more = format!("{SEEN} AND {ANY_TERM}");
                page(None, 0, order, ("record", part), RECORD, &more)
            }
            StatementForm::Ids { whole } => {
                let columns = if whole { RECORD } else { "r.time, r.id" };
                format!(
                    "SELECT {columns} FROM unnest($1::bytea[]) AS v(id) CROSS JOIN LATERAL \
                     (SELECT {columns} FROM record r WHERE r.id = v.id AND r.seq <= $2 OFFSET 0) r"
                )
            }
            StatementForm::TermFew => few("term bigint", "tag"),
            StatementForm::AuthorFew => few("author bytea", "record"),
            StatementForm::TermFewBut => few_but("term bigint", "tag"),
            StatementForm::AuthorFewBut => few_but("author bytea", "record"),
            StatementForm::ListedSize => "SELECT (SELECT coalesce(sum(v.records), 0)::bigint \
                FROM label_value v WHERE v.term = ANY($1::bigint[])), s.records FROM state s"
                .into(),
            StatementForm::TermKinds => kinds("term bigint", "tag"),
            StatementForm::AuthorKinds => kinds("author bytea", "record"),
            StatementForm::TermSize => size("term bigint", "tag", false),
            StatementForm::AuthorSize => size("author bytea", "record", false),
            StatementForm::TermSizeBut => size("term bigint", "tag", true),
            StatementForm::AuthorSizeBut => size("author bytea", "record", true),
            // Records are found by time, not by id: the records of an answer lie close together in
            // time. A look-up in the tables of all parts would double the time.
            StatementForm::Bodies(part) => {
                let record = of_part("record", part);
                format!(
                    "SELECT v.n, b.body, b.seq FROM unnest($1::bigint[], $2::bytea[]) \
                     WITH ORDINALITY AS v(time, id, n) CROSS JOIN LATERAL (SELECT r.id, r.seq, \
                     r.terms, r.body FROM {record} r WHERE r.time = v.time AND r.id >= v.id \
                     ORDER BY r.time DESC, r.id LIMIT 1) b \
                     WHERE b.id = v.id AND b.seq <= $3 AND ($4::bigint[] IS NULL OR b.terms && $4)"
                )
            }
            StatementForm::Begin => "BEGIN".into(),
            StatementForm::Lock => "SELECT seq, records, parts, line, texts, words_seq, \
                current_setting('hark.session', true) FROM state FOR UPDATE"
                .into(),
            StatementForm::Known => "SELECT v.n FROM unnest($1::bigint[], $2::bytea[]) \
                WITH ORDINALITY AS v(time, id, n) CROSS JOIN LATERAL (SELECT r.id FROM record r \
                WHERE r.time = v.time AND r.id >= v.id ORDER BY r.time DESC, r.id LIMIT 1) b \
                WHERE b.id = v.id"
                .into(),
            StatementForm::Forbids => "SELECT f.key, r.body FROM unnest($1::bigint[]) AS v(key) \
                CROSS JOIN LATERAL (SELECT f.key, f.time, f.id FROM forbid f WHERE f.key = v.key \
                ORDER BY f.time DESC, f.id LIMIT 1) f CROSS JOIN LATERAL (SELECT r.body \
                FROM record r WHERE r.time = f.time AND r.id = f.id LIMIT 1) r"
                .into(),
            StatementForm::Slots => "SELECT v.n, r.time, r.id, octet_length(r.body) \
                FROM unnest($1::bytea[], $2::int[]) WITH ORDINALITY AS v(author, kind, n) \
                CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record r WHERE r.author = v.author AND r.kind = v.kind OFFSET 0) r"
                .into(),
            // A record of another author may have the same term.
            StatementForm::TermSlots => "SELECT v.n, t.time, t.id, octet_length(r.body) \
                FROM unnest($1::bigint[], $2::int[], $3::bytea[]) \
                WITH ORDINALITY AS v(term, kind, author, n) CROSS JOIN LATERAL (SELECT t.time, t.id \
                FROM tag t WHERE t.term = v.term AND t.kind = v.kind OFFSET 0) t \
                CROSS JOIN LATERAL (SELECT r.author, r.body FROM record r WHERE r.time = t.time \
                AND r.id = t.id LIMIT 1) r WHERE r.author = v.author"
                .into(),
            StatementForm::NamedRecords => "SELECT r.time, r.id, octet_length(r.body), r.author, \
                r.kind, CASE WHEN r.kind = ANY($2::int[]) THEN ARRAY(SELECT t.term \
                FROM unnest(r.terms) AS t(term) WHERE t.term = ANY($3::bigint[])) \
                ELSE '{}'::bigint[] END FROM unnest($1::bytea[]) AS v(id) CROSS JOIN LATERAL \
                (SELECT r.time, r.id, r.author, r.kind, r.terms, r.body FROM record r \
                WHERE r.id = v.id OFFSET 0) r"
                .into(),
            StatementForm::Delete => format!(
                "WITH gone AS (DELETE FROM record r USING \
                 unnest($1::bigint[], $2::bytea[], $3::bigint[]) AS v(time, id, mark) \
                 WHERE r.time = v.time AND r.id = v.id \
                 RETURNING r.time, r.id, r.kind, r.terms, v.mark), tags AS (DELETE FROM tag t USING \
                 (SELECT g.time, g.id, g.kind, unnest(g.terms) AS term FROM gone g) g \
                 WHERE t.term = g.term AND t.kind = g.kind AND t.time = g.time AND t.id = g.id), \
                 {DELETE_WORDS}{COUNT_GONE}"
            ),
            StatementForm::DeleteListed => {
                let delete = self.text(StatementForm::Delete);
                let (delete, count) = delete.split_at(delete.len() - COUNT_GONE.len());
                debug_assert_eq!(count, COUNT_GONE);
                format!(
                    "{delete}, lost AS (SELECT t.term, count(*) AS records FROM gone g \
                     CROSS JOIN LATERAL unnest(g.terms) AS t(term) GROUP BY t.term), \
                     {LOWER_VALUES}{count}"
                )
            }
            StatementForm::DeleteForbids => "DELETE FROM forbid WHERE id = ANY($1::bytea[])".into(),
            StatementForm::CopyRecords => {
                "COPY record (seq, time, expires, kind, id, author, terms, body) FROM STDIN BINARY"
                    .into()
            }
            StatementForm::CopyTags => "COPY tag (term, time, kind, id) FROM STDIN BINARY".into(),
            StatementForm::AddForbids => "INSERT INTO forbid SELECT * FROM \
                unnest($1::bigint[], $2::bigint[], $3::bytea[])"
                .into(),
            StatementForm::AddValues => "INSERT INTO label_value SELECT * FROM \
                unnest($1::bigint[], $2::smallint[], $3::bytea[], $4::bigint[]) \
                ON CONFLICT (term) DO UPDATE SET records = label_value.records + excluded.records"
                .into(),
            StatementForm::Values => "SELECT term, value, records FROM label_value \
                WHERE name = $1 AND term > $2 ORDER BY term LIMIT $3"
                .into(),
            StatementForm::Advance => "WITH s AS (UPDATE state SET seq = $1, records = $2, \
                words_seq = $4 RETURNING seq, parts, line) SELECT pg_notify(current_schema(), \
                seq || ' ' || $3::int || ' ' || parts || ' ' || line) FROM s"
                .into(),
            // Without records, one row with the timeline and its number is still returned.
            StatementForm::News => {
                "SELECT s.line, s.seq, r.seq, r.body FROM state s LEFT JOIN LATERAL \
                (SELECT r.seq, r.body FROM record r WHERE r.seq > $1 AND r.seq <= $2 \
                ORDER BY r.seq LIMIT $3) r ON true"
                    .into()
            }
            StatementForm::Newest => "SELECT line, seq FROM state".into(),
            StatementForm::Expired => "SELECT id FROM record WHERE expires <= $1 LIMIT $2".into(),
            StatementForm::Parts => "SELECT start, stop, number FROM part ORDER BY start".into(),
            form => super::words::text(form).unwrap_or_else(|| super::citus::text(form)),
        }
    }

    // Plans are Hark's choice: every statement is a nested loop over ordered index ranges.
    fn settings(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("plan_cache_mode", "force_generic_plan"),
            ("jit", "off"),
            ("enable_seqscan", "off"),
            ("enable_bitmapscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("enable_sort", "off"),
            ("enable_material", "off"),
            ("enable_memoize", "off"),
            ("max_parallel_workers_per_gather", "0"),
            ("default_transaction_isolation", "read committed"),
            ("synchronous_commit", "on"),
            ("client_min_messages", "warning"),
            ("idle_in_transaction_session_timeout", "30s"),
            // Without this setting, commits are refused: see migrations/0004_words.sql.
            ("hark.writes_words", "on"),
        ]
    }

    fn migrations(&self) -> &'static [MigrationText] {
        &[
            (1, "shelf", include_str!("../../migrations/0001_shelf.sql")),
            (2, "line", include_str!("../../migrations/0002_line.sql")),
            (3, "label_values", include_str!("../../migrations/0003_label_values.sql")),
            (4, "words", include_str!("../../migrations/0004_words.sql")),
        ]
    }

    fn make_part(&self, number: u64, start: i64, stop: i64) -> Vec<String> {
        let make = |table| {
            let (filled, attached) = make_table(table, number, start, stop);
            format!("CREATE TABLE {table}_{number} (LIKE {table});{filled};{attached}")
        };
        let mut texts: Vec<String> = ["record", "tag"].map(make).into();
        texts.extend(self.make_word_tables(number, start, stop));
        texts.push(format!("INSERT INTO part VALUES ({number}, {start}, {stop})"));
        texts
    }

    // A version without tables of words may have dropped the part, but not its tables of words.
    fn make_word_tables(&self, number: u64, start: i64, stop: i64) -> Vec<String> {
        let make = |table| {
            let (filled, attached) = make_table(table, number, start, stop);
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

    fn count_spared(&self, number: i64) -> String {
        format!(
            "SELECT count(*), coalesce(sum(1 + cardinality(r.terms) + coalesce((SELECT \
             sum(1 + cardinality(w.words)) FROM worded w WHERE w.time = r.time AND w.mark = {MARK} \
             AND w.kind = r.kind), 0)), 0)::bigint FROM (SELECT time, id, kind, terms \
             FROM record_{number} WHERE kind = ANY($1) LIMIT $2) r"
        )
    }

    fn count_part(&self, number: i64, retired: bool) -> String {
        let table = if retired { "retired_record" } else { "record" };
        format!(
            "SELECT count(*), max(seq) FROM (SELECT seq FROM {table}_{number} WHERE seq > $1 ORDER BY seq LIMIT $2) r"
        )
    }

    fn retire_part(&self, number: i64, spared: &[i32], records: i64, moved: i64) -> String {
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
         ALTER TABLE tag DETACH PARTITION tag_{number};
         ALTER TABLE word DETACH PARTITION word_{number};
         ALTER TABLE worded DETACH PARTITION worded_{number};
         ALTER TABLE record_{number} RENAME TO retired_record_{number};
         ALTER TABLE tag_{number} RENAME TO retired_tag_{number};
         DROP TABLE word_{number}, worded_{number};
         INSERT INTO record SELECT * FROM spared_record;
         INSERT INTO tag SELECT * FROM spared_tag;
         INSERT INTO word SELECT * FROM spared_word;
         INSERT INTO worded SELECT * FROM spared_worded;
         DELETE FROM part WHERE number = {number};
         INSERT INTO retired VALUES ({number}, {records});
         UPDATE state SET parts = parts + 1, records = records + {moved} - {records};
         SELECT pg_notify(current_schema(), seq || ' 1 ' || parts || ' ' || line) FROM state"
        )
    }

    fn drop_part(&self, number: i64, counted: i64, records: i64) -> String {
        format!(
            "SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS};
         DROP TABLE retired_record_{number}, retired_tag_{number};
         UPDATE state SET records = records + {counted} - {records};
         COMMIT"
        )
    }

    fn keep_spared_values(&self) -> &'static str {
        "UPDATE label_value v SET records = v.records + s.records FROM (SELECT term, \
            count(*) AS records FROM spared_tag GROUP BY term) s WHERE v.term = s.term"
    }

    fn count_values(&self, number: i64) -> String {
        format!(
            "WITH r AS MATERIALIZED (SELECT seq, terms FROM retired_record_{number} \
             WHERE seq > $1 ORDER BY seq LIMIT $2) SELECT l.seq, c.term, c.records FROM \
             (SELECT max(seq) AS seq FROM r) l LEFT JOIN LATERAL (SELECT v.term, \
             count(*) AS records FROM r CROSS JOIN LATERAL unnest(r.terms) AS t(term) \
             JOIN label_value v ON v.term = t.term GROUP BY v.term) c ON true"
        )
    }

    fn lower_values(&self) -> String {
        format!(
            "WITH lost AS (SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS l(term, records)), \
             {LOWER_VALUES} SELECT count(*) FROM lost"
        )
    }

    fn sizes(&self) -> &'static str {
        "SELECT (SELECT records FROM state), \
            coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint, \
            coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint, \
            coalesce(sum(pg_stat_get_dead_tuples(c.oid)) FILTER (WHERE c.relname LIKE 'record%'), \
            0)::bigint, \
            (SELECT min(time) FROM record), (SELECT max(time) FROM record), \
            (SELECT seq FROM state) \
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
            WHERE n.nspname = $1::text AND c.relkind = 'r'"
    }
}

/// Returns the statements that fill a part's table with the rows outside of all parts, and the
/// statement that attaches the table.
fn make_table(table: &str, number: u64, start: i64, stop: i64) -> (String, String) {
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

/// Returns the sort columns of an order.
pub(super) fn sorted(order: Order) -> &'static str {
    match order {
        Order::NewestFirst => "r.time DESC, r.id",
        Order::OldestFirst => "r.time, r.id",
    }
}

/// Returns two queries for the first rows behind a given row, in an order. The first one is for
/// rows of the same time, with the condition `rest`; the second one is for later times. Each query
/// starts at the given row. A single query with both conditions would first read all rows of that
/// time.
pub(super) fn behind(
    order: Order,
    rows: &str,
    (time, rest): (&str, &str),
    end: &str,
) -> [String; 2] {
    let further = if order == Order::NewestFirst { '<' } else { '>' };
    [format!("r.time = {time} AND {rest}"), format!("r.time {further} {time}")]
        .map(|behind| format!("({rows} AND {behind} {end})"))
}

/// The columns of a page of records.
const RECORD: &str = "r.time, r.id, r.body";
/// The condition that a record's term is among the given terms. The terms become a hash table, so
/// the cost per record does not depend on their number. Records with several terms always pass, and
/// Hark compares their terms.
const ANY_TERM: &str = "(r.terms[1] IN (SELECT unnest($7::bigint[])) OR cardinality(r.terms) > 1)";
/// The condition that excludes records stored after the query began.
const SEEN: &str = " AND r.seq <= $6";

/// Returns a statement for the next rows of `ranges` index ranges together, in order. Each range is
/// one or two arms of a union, and is read only as far as the page needs. At most $5 rows are
/// returned, with times from $1 to $2, behind ($3, $4). The arrays $7 and $8 have each range's kind
/// and value.
///
/// A page of all parts has one arm per range, because each arm takes a plan of all tables. Searches
/// do not continue within such a page (`TimeWindows::narrow`), so its rows begin at the edge of its
/// times.
fn page(
    value: Option<(&str, &str)>,
    ranges: usize,
    order: Order,
    (table, part): (&str, Option<i64>),
    columns: &str,
    more: &str,
) -> String {
    let (sorted, table) = (sorted(order), of_part(table, part));
    let arms = |range: usize| {
        let value = value.map_or(String::new(), |(column, of)| {
            format!("r.{column} = ($8::{of}[])[{range}] AND ")
        });
        let kind =
            if range == 0 { String::new() } else { format!("r.kind = ($7::int[])[{range}] AND ") };
        let rows = format!(
            "SELECT {columns} FROM {table} r WHERE {value}{kind}r.time >= $1 AND r.time <= $2{more}"
        );
        let end = format!("ORDER BY {sorted} LIMIT $5");
        if part.is_some() {
            return behind(order, &rows, ("$3::bigint", "r.id > $4::bytea"), &end).to_vec();
        }
        let further = if order == Order::NewestFirst { '<' } else { '>' };
        vec![format!(
            "({rows} AND (r.time {further} $3::bigint OR r.time = $3 AND r.id > $4::bytea) {end})"
        )]
    };
    let arms: Vec<String> = match ranges {
        0 => arms(0),
        _ => (1..=ranges).flat_map(arms).collect(),
    };
    format!("SELECT {columns} FROM ({}) r ORDER BY {sorted} LIMIT $5", arms.join(" UNION ALL "))
}

/// Returns the name of a table: of all parts, or of one part.
pub(super) fn of_part(table: &str, part: Option<i64>) -> String {
    part.map_or_else(|| table.into(), |number| format!("{table}_{number}"))
}

/// Returns a statement for the next keys of each index range, in order.
fn keys(value: &str, table: &str, more: &str, order: Order) -> String {
    let sorted = sorted(order);
    let (array, column, same) = match value.split_once(' ') {
        Some((column, kind)) => (
            format!("$6::{kind}[], "),
            format!("{column}, "),
            format!("r.{column} = v.{column} AND "),
        ),
        None => Default::default(),
    };
    let rows = format!(
        "SELECT r.time, r.id{more} FROM {table} r WHERE {same}r.kind = v.kind \
         AND r.time >= $4 AND r.time <= $5"
    );
    let end = format!("ORDER BY {sorted} LIMIT {}", if value.is_empty() { "$6" } else { "$7" });
    let arms = behind(order, &rows, ("v.time", "r.id > v.id"), &end).join(" UNION ALL ");
    format!(
        "SELECT v.n, r.time, r.id{more} FROM unnest({array}$1::int[], $2::bigint[], $3::bytea[]) \
         WITH ORDINALITY AS v({column}kind, time, id, n) CROSS JOIN LATERAL (SELECT * FROM ({arms}) r \
         {end}) r"
    )
}

/// Returns a statement for the first few keys of each value, with times from $3 to $4.
fn few(value: &str, table: &str) -> String {
    let (column, kind) = value.split_once(' ').unwrap_or_default();
    format!(
        "SELECT v.n, r.time, r.id, r.kind FROM unnest($1::{kind}[]) WITH ORDINALITY AS v({column}, n) \
         CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM {table} r \
         WHERE r.{column} = v.{column} AND r.time >= $3 AND r.time <= $4 LIMIT $2) r"
    )
}

/// Returns a statement that skips from kind to kind. It needs two index lookups per kind,
/// regardless of the kind's number of rows.
fn kinds(value: &str, table: &str) -> String {
    let (column, kind) = value.split_once(' ').unwrap_or_default();
    format!(
        "SELECT v.n, k.kind FROM unnest($1::{kind}[]) WITH ORDINALITY AS v({column}, n) \
         CROSS JOIN LATERAL (WITH RECURSIVE k AS ((SELECT r.kind FROM {table} r \
         WHERE r.{column} = v.{column} AND r.time >= $2 AND r.time <= $3 ORDER BY r.kind LIMIT 1) \
         UNION ALL SELECT (SELECT r.kind FROM {table} r WHERE r.{column} = v.{column} \
         AND r.kind > k.kind AND r.time >= $2 AND r.time <= $3 ORDER BY r.kind LIMIT 1) \
         FROM k WHERE k.kind IS NOT NULL) SELECT kind FROM k WHERE kind IS NOT NULL) k"
    )
}

/// Returns a statement for the first few keys of each value in ranges of kinds: one index lookup
/// per range. Rows between the ranges are not read.
fn few_but(value: &str, table: &str) -> String {
    let (column, kind) = value.split_once(' ').unwrap_or_default();
    format!(
        "SELECT v.n, r.time, r.id, r.kind FROM unnest($1::{kind}[]) WITH ORDINALITY AS v({column}, n) \
         CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM unnest($3::int[], $4::int[]) \
         AS k(first, last) CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM {table} r \
         WHERE r.{column} = v.{column} AND r.kind >= k.first AND r.kind <= k.last \
         AND r.time >= $5 AND r.time <= $6 LIMIT $2) r \
         LIMIT $2) r"
    )
}

fn time_keys(order: Order, more: &str) -> String {
    let rows = format!(
        "SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4{more}"
    );
    let end = format!("ORDER BY {} LIMIT $5", sorted(order));
    let arms = behind(order, &rows, ("$1::bigint", "r.id > $2::bytea"), &end).join(" UNION ALL ");
    format!("SELECT * FROM ({arms}) r {end}")
}

/// Returns a statement that counts the rows of values: all rows, or only those in ranges of kinds.
fn size(value: &str, table: &str, in_ranges: bool) -> String {
    let (column, kind) = value.split_once(' ').unwrap_or_default();
    let (ranges, within) = if in_ranges {
        (
            " CROSS JOIN unnest($3::int[], $4::int[]) AS k(first, last)",
            " AND r.kind >= k.first AND r.kind <= k.last AND r.time >= $5 AND r.time <= $6",
        )
    } else {
        ("", " AND r.time >= $3 AND r.time <= $4")
    };
    format!(
        "SELECT coalesce(sum(r.rows), 0)::bigint FROM unnest($1::{kind}[]) AS v({column}){ranges} \
         CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (SELECT 1 FROM {table} r \
         WHERE r.{column} = v.{column}{within} LIMIT $2) r) r"
    )
}
