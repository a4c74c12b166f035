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

use super::statement::{
    CitusStatement, ShardForm, ShardedTable, ValueCount, WindowForm, WindowTable,
};

/// The key of the shelf's advisory lock. A transaction holds this lock until all workers have
/// committed. The lock of the row in `state` ends earlier, when the coordinator has committed.
const SHELF: &str = "hashtextextended(current_schema(), 7235419860234518)";

/// Publishes number $1, unless a later number is published. Later commits may publish first.
const PUBLISH: &str = "INSERT INTO published (line, seq) SELECT s.line, $1::bigint FROM state s \
    ON CONFLICT (one) DO UPDATE SET line = excluded.line, seq = excluded.seq \
    WHERE published.line <> excluded.line OR published.seq < excluded.seq";

/// A column expression: a hash of the addresses of all primary nodes.
///
/// A new node may have replaced a node of the map, and may have stored records since then. A
/// question must not miss these records. So every source of the newest put's number also returns
/// this hash.
pub(crate) const NODES: &str = "(SELECT coalesce(hashtextextended(string_agg(n.groupid || ' ' || \
    n.nodename || ' ' || n.nodeport, ',' ORDER BY n.groupid), 0), 0) FROM pg_dist_node n \
    WHERE n.noderole = 'primary')";

/// Returns the text of a statement.
pub(crate) fn text(statement: CitusStatement) -> String {
    match statement {
        CitusStatement::Known => "SELECT array_position($1::bytea[], p.id)::bigint \
            FROM id_place p WHERE p.id = ANY($1)"
            .into(),
        CitusStatement::KnownRecords => "SELECT r.id FROM record r \
            WHERE r.place = ANY($1::bytea[]) AND r.id_head = ANY($2::bigint[])"
            .into(),
        CitusStatement::RecordPlaces => {
            "SELECT r.id, r.place FROM record r WHERE r.id_head = ANY($1::bigint[])".into()
        }
        CitusStatement::RecordTimes => "SELECT r.time, r.id FROM record r \
            WHERE r.id_head = ANY($1::bigint[]) AND r.seq + 0 <= $2"
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
        // Questions do not see the new `seq` yet: `Publish` publishes it after the workers have
        // committed.
        CitusStatement::Advance => "UPDATE state SET seq = $1, records = $2".into(),
        // A cluster has no index of words.
        CitusStatement::Lock => "SELECT seq, records, parts, line, NULL::bigint, 0::bigint, \
            current_setting('hark.session', true) FROM state FOR UPDATE"
            .into(),
        CitusStatement::News => "SELECT r.seq, r.body FROM record r WHERE r.seq > $1 \
            AND r.seq <= $2 ORDER BY r.seq LIMIT $3"
            .into(),
        CitusStatement::Window(form) => window(form, form.table.sharded().name()),
        CitusStatement::Few(form) => few(form, form.table.sharded().name()),
        CitusStatement::Places(count) => places(count, ShardedTable::Place.name()),
        CitusStatement::PlacedBodies(count) => {
            let place = same("r.place", "bytea", count, "$4");
            let head = if count == ValueCount::One { ValueCount::One } else { ValueCount::Many };
            format!("{} AND {place}", bodies(head, ShardedTable::Record.name()))
        }
        CitusStatement::OnShard(form, shard) => on_shard(form, shard),
        CitusStatement::OnShards(form, shards) => on_shards(form, shards.ids()),
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
        CitusStatement::Publish => format!("WITH done AS ({PUBLISH}) SELECT {NODES}"),
        CitusStatement::PublishTelling => format!(
            "WITH done AS ({PUBLISH}) SELECT {NODES}, pg_notify(current_schema(), \
             $1::bigint || ' ' || $2::int || ' ' || s.parts || ' ' || s.line) FROM state s"
        ),
        // A published number of an earlier timeline is ignored.
        CitusStatement::Newest => format!(
            "SELECT p.line, p.seq, {NODES} FROM published p JOIN state s ON s.line = p.line"
        ),
        // Waits until the workers have committed the last transaction that the coordinator has
        // committed.
        CitusStatement::WholeState => format!(
            "SELECT s.line, s.seq, {NODES} FROM (SELECT pg_advisory_lock_shared({SHELF}), \
             pg_advisory_unlock_shared({SHELF})) l, LATERAL (SELECT line, seq FROM state \
             WHERE l IS NOT NULL) s"
        ),
    }
}

/// Returns a statement on the own table of a shard. Its last column shows whether the node has the
/// shard. If the node has the shard, but no rows are found, the statement returns one row, in which
/// all other columns are null.
///
/// A shard moves within one transaction, which changes the tables that the condition reads. So a
/// statement finds either all rows of the shard, or that the shard is elsewhere. `OFFSET 0`
/// prevents PostgreSQL from evaluating the condition twice.
fn on_shard(form: ShardForm, shard: i64) -> String {
    let table = format!("{}_{shard}", form.table().name());
    let rows = match form {
        ShardForm::Window(form) => each(form, 5, window(form, &table)),
        ShardForm::Few(form) => each(form, 3, few(form, &table)),
        ShardForm::Places => places(ValueCount::Many, &table),
        ShardForm::Bodies => bodies(ValueCount::Many, &table),
    };
    let here = format!(
        "(SELECT p.groupid FROM pg_dist_placement p WHERE p.shardid = {shard}) = \
         (SELECT l.groupid FROM pg_dist_local_group l)"
    );
    if_here(&here, &rows)
}

/// Returns a statement that executes `rows` only if the node has the shards (the condition `here`).
fn if_here(here: &str, rows: &str) -> String {
    format!(
        "SELECT r.*, g.here FROM (SELECT {here} AS here OFFSET 0) g \
         LEFT JOIN LATERAL ({rows}) r ON g.here"
    )
}

/// If each value of the condition is looked up separately, returns a statement that executes `rows`
/// for each value, so that PostgreSQL chooses the index of the values. Otherwise returns `rows`. If
/// one condition listed all values, PostgreSQL would read the whole window by the index of kinds
/// and times: the plan of a prepared statement assumes few rows in a window, so reading them all
/// looks cheap. `last` is the number of the last value before the values of [`conditions`].
fn each(form: WindowForm, last: u32, rows: String) -> String {
    if form.values != ValueCount::Each {
        return rows;
    }
    let values = last + 1 + u32::from(form.kinds != ValueCount::None);
    let of = if form.table == WindowTable::Tag { "bigint" } else { "bytea" };
    let (columns, order) = if last == 3 {
        (KEY, String::new())
    } else {
        (columns(form.table), format!("ORDER BY {} ", sorted(form.order)))
    };
    format!(
        "SELECT {columns} FROM unnest(${values}::{of}[]) AS v(value) CROSS JOIN LATERAL ({rows}) r \
         {order}LIMIT $3"
    )
}

/// Returns a statement like [`on_shard`] for the next rows of several shards of a node, in order.
/// PostgreSQL reads no more rows of a shard than are needed, because each shard's rows are in
/// order.
fn on_shards(form: WindowForm, shards: &[i64]) -> String {
    let table = form.table.sharded().name();
    let arms = shards.iter().map(|shard| window(form, &format!("{table}_{shard}")));
    let ids: Vec<String> = shards.iter().map(i64::to_string).collect();
    let here = format!(
        "(SELECT count(*) FROM pg_dist_placement p WHERE p.shardid = ANY('{{{}}}'::bigint[]) \
         AND p.groupid = (SELECT l.groupid FROM pg_dist_local_group l)) = {}",
        ids.join(","),
        shards.len(),
    );
    if_here(&here, &union(form, arms))
}

/// Returns a statement that merges the rows of several statements for windows, in order.
fn union(form: WindowForm, arms: impl Iterator<Item = String>) -> String {
    let arms: Vec<String> = arms.map(|arm| format!("({arm})")).collect();
    let (columns, sorted) = (columns(form.table), sorted(form.order));
    format!("SELECT {columns} FROM ({}) r ORDER BY {sorted} LIMIT $3", arms.join(" UNION ALL "))
}

/// Returns a statement for the places of ids.
fn places(count: ValueCount, table: &str) -> String {
    let id = same("p.id", "bytea", count, "$1");
    format!("SELECT p.id, p.place FROM {table} p WHERE {id}")
}

/// Returns a statement for records with numbers up to $2, by the first 8 bytes of their ids.
fn bodies(count: ValueCount, table: &str) -> String {
    // As in `conditions`, `+ 0` prevents the use of the index of numbers.
    let head = same("r.id_head", "bigint", count, "$1");
    format!(
        "SELECT r.time, r.id, r.body FROM {table} r WHERE {head} AND r.seq + 0 <= $2 \
         AND ($3::bigint[] IS NULL OR r.terms && $3)"
    )
}

/// Returns a statement for the next rows of a window, in order. It returns at most $3 rows with
/// times from $1 to $2 that follow the row with time $4 and id $5. The values of [`conditions`]
/// come next.
fn window(form: WindowForm, table: &str) -> String {
    let (columns, sorted) = (columns(form.table), sorted(form.order));
    let behind = match form.order {
        Order::NewestFirst => "r.time <= $4 AND (r.time < $4 OR r.id > $5)",
        Order::OldestFirst => "r.time >= $4 AND (r.time > $4 OR r.id > $5)",
    };
    let arm = |arm: usize| {
        let conditions = conditions(form, 5, arm);
        format!(
            "SELECT {columns} FROM {table} r WHERE {conditions} AND {behind} ORDER BY {sorted} \
             LIMIT $3"
        )
    };
    let ValueCount::Arms(count) = form.kinds else { return arm(0) };
    union(form, (1..=count).map(arm))
}

/// The columns of a window's rows.
fn columns(table: WindowTable) -> &'static str {
    if table == WindowTable::Tag { KEY } else { "r.time, r.id, r.body" }
}

/// The order of a window's rows.
fn sorted(order: Order) -> &'static str {
    match order {
        Order::NewestFirst => "r.time DESC, r.id",
        Order::OldestFirst => "r.time, r.id",
    }
}

/// Returns a statement for at most $3 keys with times from $1 to $2, in no order.
fn few(form: WindowForm, table: &str) -> String {
    let conditions = conditions(form, 3, 0);
    format!("SELECT {KEY} FROM {table} r WHERE {conditions} LIMIT $3")
}

/// The columns of a key and its place.
const KEY: &str = "r.time, r.id, r.place";

/// Returns the conditions of a window with times from $1 to $2. The values of the conditions have
/// the numbers after `last`: kinds, terms or authors, and excluded kinds. For records, the highest
/// number of a put and the terms to compare follow. In a union with one arm for each kind, `arm` is
/// the number of the arm, from 1 on. In other statements, `arm` is 0.
fn conditions(form: WindowForm, mut last: u32, arm: usize) -> String {
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
    if form.table != WindowTable::Tag {
        // The addition `+ 0` prevents PostgreSQL from using the index of numbers. Without
        // statistics of the shard, PostgreSQL would choose this index and read it completely.
        all.push(format!("r.seq + 0 <= {}", value()));
        let terms = value();
        all.push(format!("({terms}::bigint[] IS NULL OR r.terms && {terms})"));
    }
    all.join(" AND ")
}

/// Returns the condition that a column equals one of `count` values.
fn same(column: &str, of: &str, count: ValueCount, value: &str) -> String {
    match count {
        ValueCount::None => "true".into(),
        ValueCount::One => format!("{column} = {value}::{of}"),
        ValueCount::Each => format!("{column} = v.value"),
        ValueCount::Arms(_) | ValueCount::Many => format!("{column} = ANY({value}::{of}[])"),
    }
}
