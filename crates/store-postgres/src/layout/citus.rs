//! The layout for a Citus cluster. Records are in the shard of their author, tags in the shard of
//! their term, and the rows of a look-up table of ids in the shard of the id.
//!
//! The layout for one server reads many index ranges at once with a lateral subquery that has a
//! limit over a list of values. Citus refuses such subqueries. So only a condition of one value and
//! one kind is read as an ordered index range of one shard. Any other condition is read in windows
//! of time: all rows of a window that meet the condition, sorted by each shard. Searches choose the
//! windows (`search/windows.rs`).

use hark_archive::Order;

use super::{
    Layout, MigrationText, PlainLayout, StatementForm, ValueCount, WindowForm, WindowTable,
};

/// The layout of the tables that `migrations/citus/` creates.
pub(crate) struct CitusLayout;

/// The shelf's advisory lock. A commit holds this lock until all workers have committed; the lock
/// of `state` is released when the coordinator has.
const SHELF: &str = "hashtextextended(current_schema(), 7235419860234518)";

impl Layout for CitusLayout {
    fn text(&self, form: StatementForm) -> String {
        match form {
            StatementForm::Known => "SELECT array_position($2::bytea[], p.id)::bigint \
                FROM id_place p WHERE p.id = ANY($2) AND cardinality($1::bigint[]) >= 0"
                .into(),
            StatementForm::Forbids => {
                "SELECT f.key, f.id, f.place FROM unnest($1::bigint[]) AS v(key) \
                CROSS JOIN LATERAL (SELECT f.key, f.id, f.place FROM forbid f WHERE f.key = v.key \
                ORDER BY f.time DESC, f.id LIMIT 1) f"
                    .into()
            }
            StatementForm::Slots => "SELECT r.author, r.kind, r.time, r.id FROM record r \
                WHERE r.place = ANY($1::bytea[]) AND r.kind = ANY($2::int[]) AND r.author IS NOT NULL"
                .into(),
            StatementForm::TermSlots => "SELECT t.term, t.kind, t.id, t.place FROM tag t \
                WHERE t.term = ANY($1::bigint[]) AND t.kind = ANY($2::int[])"
                .into(),
            StatementForm::Delete | StatementForm::DeleteListed => "DELETE FROM record \
                WHERE place = ANY($1::bytea[]) AND id = ANY($2::bytea[]) \
                AND id_head = ANY($3::bigint[]) RETURNING time, id, kind, terms"
                .into(),
            StatementForm::CopyRecords => {
                "COPY record (place, id_head, seq, time, expires, kind, id, author, \
                terms, body) FROM STDIN BINARY"
                    .into()
            }
            StatementForm::CopyTags => {
                "COPY tag (term, time, kind, id, place) FROM STDIN BINARY".into()
            }
            StatementForm::AddForbids => "INSERT INTO forbid SELECT * FROM \
                unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[])"
                .into(),
            // Other processes are notified after the workers have committed (`LeaveTelling`).
            StatementForm::Advance => "UPDATE state SET seq = $1, records = $2 \
                WHERE $3::int IS NOT NULL AND $4::bigint IS NOT NULL"
                .into(),
            // Words are not indexed on a cluster.
            StatementForm::Lock => "SELECT seq, records, parts, line, NULL::bigint, 0::bigint, \
                current_setting('hark.session', true) FROM state FOR UPDATE"
                .into(),
            StatementForm::News => "SELECT r.seq, r.body FROM record r WHERE r.seq > $1 \
                AND r.seq <= $2 ORDER BY r.seq LIMIT $3"
                .into(),
            form => PlainLayout.text(form),
        }
    }

    // Each statement is planned for its values, which determine its shards. Workers make their own
    // plans.
    fn settings(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("jit", "off"),
            ("max_parallel_workers_per_gather", "0"),
            ("default_transaction_isolation", "read committed"),
            ("synchronous_commit", "on"),
            ("client_min_messages", "warning"),
            ("idle_in_transaction_session_timeout", "30s"),
            // One permanent connection to each worker. Citus would open more connections for a
            // query that takes some milliseconds, and close them afterwards. That costs more than
            // they gain.
            ("citus.max_adaptive_executor_pool_size", "1"),
        ]
    }

    fn migrations(&self) -> &'static [MigrationText] {
        &[(1, "shelf", include_str!("../../migrations/citus/0001_shelf.sql"))]
    }

    fn is_distributed(&self) -> bool {
        true
    }

    fn make_part(&self, _: u64, _: i64, _: i64) -> Vec<String> {
        Vec::new()
    }

    fn make_word_tables(&self, _: u64, _: i64, _: i64) -> Vec<String> {
        Vec::new()
    }

    fn count_spared(&self, number: i64) -> String {
        PlainLayout.count_spared(number)
    }

    fn count_part(&self, number: i64, retired: bool) -> String {
        PlainLayout.count_part(number, retired)
    }

    fn retire_part(&self, number: i64, spared: &[i32], records: i64, moved: i64) -> String {
        PlainLayout.retire_part(number, spared, records, moved)
    }

    fn drop_part(&self, number: i64, counted: i64, records: i64) -> String {
        PlainLayout.drop_part(number, counted, records)
    }

    fn keep_spared_values(&self) -> &'static str {
        PlainLayout.keep_spared_values()
    }

    fn count_values(&self, number: i64) -> String {
        PlainLayout.count_values(number)
    }

    fn lower_values(&self) -> String {
        PlainLayout.lower_values()
    }

    fn sizes(&self) -> &'static str {
        "SELECT s.records, d.bytes, d.bytes - d.tables, 0::bigint, r.oldest, r.newest, s.seq \
            FROM state s, (SELECT min(time) AS oldest, max(time) AS newest FROM record) r, \
            (SELECT sum(citus_total_relation_size(c.oid))::bigint AS bytes, \
            sum(citus_table_size(c.oid))::bigint AS tables FROM pg_class c \
            JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1::text \
            AND c.relname IN ('record', 'tag', 'id_place')) d"
    }
}

/// Returns the text of a statement that only distributed tables need.
pub(super) fn text(form: StatementForm) -> String {
    match form {
        StatementForm::Window(form) => window(form),
        StatementForm::Few(form) => few(form),
        StatementForm::Places(count) => {
            let id = same("p.id", "bytea", count, "$1");
            format!("SELECT p.id, p.place FROM id_place p WHERE {id}")
        }
        StatementForm::PlacedBodies(count) => {
            let place = same("r.place", "bytea", count, "$4");
            // `+ 0` keeps the index of numbers out here, too: see `conditions`.
            let head = if count == ValueCount::One { ValueCount::One } else { ValueCount::Many };
            let head = same("r.id_head", "bigint", head, "$1");
            format!(
                "SELECT r.time, r.id, r.body FROM record r WHERE {head} AND r.seq + 0 <= $2 \
                 AND ($3::bigint[] IS NULL OR r.terms && $3) AND {place}"
            )
        }
        StatementForm::NewestTimes => "SELECT r.time FROM record r \
            ORDER BY r.time DESC, r.id LIMIT $1"
            .into(),
        StatementForm::OldestTime => "SELECT r.time FROM record r ORDER BY r.time LIMIT 1".into(),
        StatementForm::CopyPlaces => "COPY id_place (id, place) FROM STDIN BINARY".into(),
        StatementForm::DeleteTags => "DELETE FROM tag t USING unnest($1::bigint[], $2::int[], \
            $3::bigint[], $4::bytea[]) AS v(term, kind, time, id) WHERE t.term = v.term \
            AND t.kind = v.kind AND t.time = v.time AND t.id = v.id"
            .into(),
        StatementForm::DeletePlaces => "DELETE FROM id_place WHERE id = ANY($1::bytea[])".into(),
        StatementForm::Enter => format!("SELECT pg_advisory_lock({SHELF})"),
        StatementForm::Leave => format!("SELECT pg_advisory_unlock({SHELF})"),
        StatementForm::LeaveTelling => format!(
            "SELECT pg_notify(current_schema(), seq || ' ' || $1::int || ' ' || parts || ' ' || line), \
             pg_advisory_unlock({SHELF}) FROM state"
        ),
        // Waits until the workers have committed the coordinator's last transaction.
        StatementForm::WholeState => format!(
            "SELECT s.line, s.seq FROM (SELECT pg_advisory_lock_shared({SHELF}), \
             pg_advisory_unlock_shared({SHELF})) l, LATERAL (SELECT line, seq FROM state \
             WHERE l IS NOT NULL) s"
        ),
        _ => String::new(),
    }
}

/// Returns a statement for the next rows of a window, in order. At most $3 rows are returned, with
/// times from $1 to $2, behind ($4, $5). The values of [`conditions`] follow these values.
fn window(form: WindowForm) -> String {
    let columns = if form.table == WindowTable::Tag { KEY } else { "r.time, r.id, r.body" };
    let (behind, sorted) = match form.order {
        Order::NewestFirst => ("r.time <= $4 AND (r.time < $4 OR r.id > $5)", "r.time DESC, r.id"),
        Order::OldestFirst => ("r.time >= $4 AND (r.time > $4 OR r.id > $5)", "r.time, r.id"),
    };
    let arm = |arm: usize| {
        let (table, conditions) = conditions(form, 5, arm);
        format!(
            "SELECT {columns} FROM {table} r WHERE {conditions} AND {behind} ORDER BY {sorted} \
             LIMIT $3"
        )
    };
    let ValueCount::Arms(count) = form.kinds else { return arm(0) };
    let arms: Vec<String> = (1..=count).map(|at| format!("({})", arm(at))).collect();
    format!("SELECT {columns} FROM ({}) r ORDER BY {sorted} LIMIT $3", arms.join(" UNION ALL "))
}

/// Returns a statement for at most $3 keys with times from $1 to $2, in no order.
fn few(form: WindowForm) -> String {
    let (table, conditions) = conditions(form, 3, 0);
    format!("SELECT {KEY} FROM {table} r WHERE {conditions} LIMIT $3")
}

/// The columns of a key and its place.
const KEY: &str = "r.time, r.id, r.place";

/// Returns the table of a window and its conditions, with times from $1 to $2. The values that are
/// needed follow value `last`: kinds, terms or authors, and excluded kinds. For records, the
/// highest number and the terms to filter by come next. Each arm of a union has its own kind.
fn conditions(form: WindowForm, mut last: u32, arm: usize) -> (&'static str, String) {
    let mut value = || {
        last += 1;
        format!("${last}")
    };
    let mut all = vec!["r.time >= $1 AND r.time <= $2".to_owned()];
    if form.kinds != ValueCount::None {
        let kind = value();
        all.push(match form.kinds {
            ValueCount::Arms(_) if arm > 0 => format!("r.kind = ({kind}::int[])[{arm}]"),
            kinds => same("r.kind", "int", kinds, &kind),
        });
    }
    match form.table {
        WindowTable::Tag => all.push(same("r.term", "bigint", form.values, &value())),
        WindowTable::Author => {
            // A place is an author, or the id of a record without an author. Hardly any id equals
            // an author, and records are compared with the query anyway.
            all.push(same("r.place", "bytea", form.values, &value()));
        }
        WindowTable::Record => {}
    }
    if form.has_not_kinds {
        all.push(format!("r.kind <> ALL({}::int[])", value()));
    }
    let mut table = "tag";
    if form.table != WindowTable::Tag {
        table = "record";
        // The sum prevents the use of the index of numbers. Without statistics of a shard,
        // PostgreSQL would read that whole index.
        all.push(format!("r.seq + 0 <= {}", value()));
        let terms = value();
        all.push(format!("({terms}::bigint[] IS NULL OR r.terms && {terms})"));
    }
    (table, all.join(" AND "))
}

/// Returns the condition that a column has one of the given values, according to their count.
fn same(column: &str, of: &str, count: ValueCount, value: &str) -> String {
    match count {
        ValueCount::None => "true".into(),
        ValueCount::One => format!("{column} = {value}::{of}"),
        ValueCount::Arms(_) | ValueCount::Many => format!("{column} = ANY({value}::{of}[])"),
    }
}
