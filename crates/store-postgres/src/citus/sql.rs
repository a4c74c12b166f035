//! The texts of the statements of the layout for a Citus cluster. A record is in the shard of its
//! author, a tag is in the shard of its term, and a row of a look-up table of ids is in the shard
//! of its id.
//!
//! The layout for one server reads many index ranges at once: a lateral subquery with a limit runs
//! for each of a list of values. Citus refuses such subqueries. So only a condition with one value
//! and one kind is read as an ordered index range, in one shard. Any other condition is read window
//! by window: a statement returns the rows of a window of time that meet the condition, and each
//! shard sorts its rows. `windows.rs` chooses the windows.

use hark_archive::Order;

use super::statement::{CitusStatement, ValueCount, WindowForm, WindowTable};

/// The key of the shelf's advisory lock. A transaction holds this lock until all workers have
/// committed. The row in `state` is free earlier, when the coordinator has committed.
const SHELF: &str = "hashtextextended(current_schema(), 7235419860234518)";

/// Publishes number $1, unless a later number is published. Later commits may publish first.
const PUBLISH: &str = "INSERT INTO published (line, seq) SELECT s.line, $1::bigint FROM state s \
    ON CONFLICT (one) DO UPDATE SET line = excluded.line, seq = excluded.seq \
    WHERE published.line <> excluded.line OR published.seq < excluded.seq";

/// Returns the text of a statement.
pub(crate) fn text(statement: CitusStatement) -> String {
    match statement {
        CitusStatement::Known => "SELECT array_position($1::bytea[], p.id)::bigint \
            FROM id_place p WHERE p.id = ANY($1)"
            .into(),
        CitusStatement::KnownRecords => "SELECT r.id FROM record r \
            WHERE r.place = ANY($1::bytea[]) AND r.id_head = ANY($2::bigint[])"
            .into(),
        CitusStatement::Forbids => {
            "SELECT f.key, f.id, f.place FROM unnest($1::bigint[]) AS v(key) \
            CROSS JOIN LATERAL (SELECT f.key, f.id, f.place FROM forbid f WHERE f.key = v.key \
            ORDER BY f.time DESC, f.id LIMIT 1) f"
                .into()
        }
        CitusStatement::Slots => "SELECT r.author, r.kind, r.time, r.id FROM record r \
            WHERE r.place = ANY($1::bytea[]) AND r.kind = ANY($2::int[]) AND r.author IS NOT NULL"
            .into(),
        CitusStatement::TermSlots => "SELECT t.term, t.kind, t.id, t.place FROM tag t \
            WHERE t.term = ANY($1::bigint[]) AND t.kind = ANY($2::int[])"
            .into(),
        CitusStatement::Delete => "DELETE FROM record \
            WHERE place = ANY($1::bytea[]) AND id = ANY($2::bytea[]) \
            AND id_head = ANY($3::bigint[]) RETURNING time, id, kind, terms"
            .into(),
        CitusStatement::CopyRecords => {
            "COPY record (place, id_head, seq, time, expires, kind, id, author, \
            terms, body) FROM STDIN BINARY"
                .into()
        }
        CitusStatement::CopyTags => {
            "COPY tag (term, time, kind, id, place) FROM STDIN BINARY".into()
        }
        CitusStatement::AddForbids => "INSERT INTO forbid SELECT * FROM \
            unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[])"
            .into(),
        // After the workers have committed, `Publish` publishes the number.
        CitusStatement::Advance => "UPDATE state SET seq = $1, records = $2".into(),
        // A cluster has no index of words.
        CitusStatement::Lock => "SELECT seq, records, parts, line, NULL::bigint, 0::bigint, \
            current_setting('hark.session', true) FROM state FOR UPDATE"
            .into(),
        CitusStatement::News => "SELECT r.seq, r.body FROM record r WHERE r.seq > $1 \
            AND r.seq <= $2 ORDER BY r.seq LIMIT $3"
            .into(),
        CitusStatement::Window(form) => window(form),
        CitusStatement::Few(form) => few(form),
        CitusStatement::Places(count) => {
            let id = same("p.id", "bytea", count, "$1");
            format!("SELECT p.id, p.place FROM id_place p WHERE {id}")
        }
        CitusStatement::PlacedBodies(count) => {
            let place = same("r.place", "bytea", count, "$4");
            // As in `conditions`, `+ 0` prevents the use of the index of numbers.
            let head = if count == ValueCount::One { ValueCount::One } else { ValueCount::Many };
            let head = same("r.id_head", "bigint", head, "$1");
            format!(
                "SELECT r.time, r.id, r.body FROM record r WHERE {head} AND r.seq + 0 <= $2 \
                 AND ($3::bigint[] IS NULL OR r.terms && $3) AND {place}"
            )
        }
        CitusStatement::NewestTimes => "SELECT r.time FROM record r \
            ORDER BY r.time DESC, r.id LIMIT $1"
            .into(),
        CitusStatement::OldestTime => "SELECT r.time FROM record r ORDER BY r.time LIMIT 1".into(),
        CitusStatement::CopyPlaces => "COPY id_place (id, place) FROM STDIN BINARY".into(),
        CitusStatement::DeleteTags => "DELETE FROM tag t USING unnest($1::bigint[], $2::int[], \
            $3::bigint[], $4::bytea[]) AS v(term, kind, time, id) WHERE t.term = v.term \
            AND t.kind = v.kind AND t.time = v.time AND t.id = v.id"
            .into(),
        CitusStatement::DeletePlaces => "DELETE FROM id_place WHERE id = ANY($1::bytea[])".into(),
        CitusStatement::Enter => format!("SELECT pg_advisory_xact_lock({SHELF})"),
        CitusStatement::Publish => PUBLISH.into(),
        CitusStatement::PublishTelling => format!(
            "WITH done AS ({PUBLISH}) SELECT pg_notify(current_schema(), \
             $1::bigint || ' ' || $2::int || ' ' || s.parts || ' ' || s.line) FROM state s"
        ),
        // A published number of an earlier timeline is ignored.
        CitusStatement::Newest => {
            "SELECT p.line, p.seq FROM published p JOIN state s ON s.line = p.line".into()
        }
        // Waits until the workers have committed the last transaction that the coordinator has
        // committed.
        CitusStatement::WholeState => format!(
            "SELECT s.line, s.seq FROM (SELECT pg_advisory_lock_shared({SHELF}), \
             pg_advisory_unlock_shared({SHELF})) l, LATERAL (SELECT line, seq FROM state \
             WHERE l IS NOT NULL) s"
        ),
    }
}

/// Returns a statement for the next rows of a window, in order. It returns at most $3 rows with
/// times from $1 to $2 behind the row ($4, $5). The values of [`conditions`] come next.
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

/// Returns the table of a window, and the conditions with times from $1 to $2. The values of the
/// conditions follow value number `last`: kinds, terms or authors, and excluded kinds. For records,
/// the highest number and the terms to compare come next. Each arm of a union has one kind.
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
            // The place of a record with an author is the author; otherwise the place is the id.
            // Hardly any id equals an author, and Hark compares each record with the query anyway.
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
        // The addition `+ 0` prevents PostgreSQL from using the index of numbers. Without
        // statistics of the shard, PostgreSQL would choose this index and read it completely.
        all.push(format!("r.seq + 0 <= {}", value()));
        let terms = value();
        all.push(format!("({terms}::bigint[] IS NULL OR r.terms && {terms})"));
    }
    (table, all.join(" AND "))
}

/// Returns the condition that a column equals one of `count` values.
fn same(column: &str, of: &str, count: ValueCount, value: &str) -> String {
    match count {
        ValueCount::None => "true".into(),
        ValueCount::One => format!("{column} = {value}::{of}"),
        ValueCount::Arms(_) | ValueCount::Many => format!("{column} = ANY({value}::{of}[])"),
    }
}
