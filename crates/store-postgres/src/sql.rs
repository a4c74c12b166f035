//! The statements that questions are made of. Each has one plan only: a few index ranges, read in
//! order up to a limit. What is to be read is Hark's choice, and sessions (see [`super::session`]) are
//! set so that PostgreSQL keeps to it, whatever its statistics say.

use hark_archive::Order;

/// A statement, prepared once a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// Keys of runs of (term, kind), each behind a place of its own.
    TermKeys(Order),
    /// Keys of runs of (author, kind).
    AuthorKeys(Order),
    /// Keys and authors of runs of a kind.
    KindKeys(Order),
    /// Keys and authors of everything.
    TimeKeys(Order),
    /// The same but for some kinds.
    TimeKeysBut(Order),
    /// A page of so many runs of (term, kind), in order, with its records: of all parts, or of one.
    TermPage(Order, usize, Option<i64>),
    /// A page of runs of (author, kind).
    AuthorPage(Order, usize),
    /// A page of runs of a kind.
    KindPage(Order, usize),
    /// A page of everything.
    TimePage(Order),
    /// A page of everything but some kinds.
    TimePageBut(Order),
    /// Keys of ids, with their records if `whole`.
    Ids { whole: bool },
    /// The first few keys of terms, in no order.
    TermFew,
    /// The first few keys of authors, in no order.
    AuthorFew,
    /// The first few keys of terms, in ranges of kinds.
    TermFewBut,
    /// The first few keys of authors, in ranges of kinds.
    AuthorFewBut,
    /// Which kinds terms have.
    TermKinds,
    /// Which kinds authors have.
    AuthorKinds,
    /// How many rows terms have, up to a bound.
    TermSize,
    /// How many rows authors have, up to a bound.
    AuthorSize,
    /// How many rows terms have in ranges of kinds, each up to a bound.
    TermSizeBut,
    /// How many rows authors have in ranges of kinds, each up to a bound.
    AuthorSizeBut,
    /// Bodies of keys: of all parts, or of one.
    Bodies(Option<i64>),
    /// Begins a transaction.
    Begin,
    /// Locks the shelf and says where it stands.
    Lock,
    /// Which of these keys are there.
    Known,
    /// Records that forbid, the newest of each key.
    Forbids,
    /// Keys of what authors have of a kind.
    Slots,
    /// Keys of what has a term and a kind.
    TermSlots,
    /// Deletes records and their tags.
    Delete,
    /// Deletes what says that they forbid.
    DeleteForbids,
    /// Takes records in.
    CopyRecords,
    /// Takes tags in.
    CopyTags,
    /// Notes what forbids.
    AddForbids,
    /// Notes where the shelf stands, and wakes other nodes.
    Advance,
    /// Where the shelf stands, and records by number.
    News,
    /// Records that have expired.
    Expired,
    /// The parts.
    Parts,
}

impl Form {
    /// What it is called in metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TermKeys(_) => "term_keys",
            Self::AuthorKeys(_) => "author_keys",
            Self::KindKeys(_) => "kind_keys",
            Self::TimeKeys(_) => "time_keys",
            Self::TimeKeysBut(_) => "time_keys_but",
            Self::TermPage(..) => "term_page",
            Self::AuthorPage(..) => "author_page",
            Self::KindPage(..) => "kind_page",
            Self::TimePage(_) => "time_page",
            Self::TimePageBut(_) => "time_page_but",
            Self::Ids { .. } => "ids",
            Self::TermFew => "term_few",
            Self::AuthorFew => "author_few",
            Self::TermFewBut => "term_few_but",
            Self::AuthorFewBut => "author_few_but",
            Self::TermKinds => "term_kinds",
            Self::AuthorKinds => "author_kinds",
            Self::TermSize => "term_size",
            Self::AuthorSize => "author_size",
            Self::TermSizeBut => "term_size_but",
            Self::AuthorSizeBut => "author_size_but",
            Self::Bodies(None) => "bodies",
            Self::Bodies(Some(_)) => "part_bodies",
            Self::Begin => "begin",
            Self::Lock => "lock",
            Self::Known => "known",
            Self::Forbids => "forbids",
            Self::Slots => "slots",
            Self::TermSlots => "term_slots",
            Self::Delete => "delete",
            Self::DeleteForbids => "delete_forbids",
            Self::CopyRecords => "copy_records",
            Self::CopyTags => "copy_tags",
            Self::AddForbids => "add_forbids",
            Self::Advance => "advance",
            Self::News => "news",
            Self::Expired => "expired",
            Self::Parts => "parts",
        }
    }

    /// Its text. Table names are found through the session's search path.
    pub(crate) fn text(self) -> String {
        match self {
            Self::TermKeys(order) => keys("term bigint", "tag", "", order),
            Self::AuthorKeys(order) => keys("author bytea", "record", "", order),
            Self::KindKeys(order) => keys("", "record", ", r.author", order),
            Self::TimeKeys(order) => time_keys(order, ""),
            Self::TimeKeysBut(order) => time_keys(order, " AND r.kind <> ALL($6::int[])"),
            Self::TermPage(order, runs, part) => {
                let (term, tag) = (Some(("term", "bigint")), of_part("tag", part));
                let (keys, record) =
                    (page(term, runs, order, &tag, "r.time, r.id", ""), of_part("record", part));
                format!(
                    "SELECT t.time, t.id, CASE WHEN b.id = t.id THEN b.body END FROM ({keys}) t \
                     LEFT JOIN LATERAL (SELECT r.id, r.body FROM {record} r WHERE r.time = t.time \
                     AND r.id >= t.id AND r.seq <= $6 ORDER BY r.time DESC, r.id LIMIT 1) b ON true"
                )
            }
            Self::AuthorPage(order, runs) => {
                page(Some(("author", "bytea")), runs, order, "record", RECORD, SEEN)
            }
            Self::KindPage(order, runs) => page(None, runs, order, "record", RECORD, SEEN),
            Self::TimePage(order) => page(None, 0, order, "record", RECORD, SEEN),
            Self::TimePageBut(order) => {
                let more = format!("{SEEN} AND r.kind <> ALL($7::int[])");
                page(None, 0, order, "record", RECORD, &more)
            }
            Self::Ids { whole } => {
                let columns = if whole { RECORD } else { "r.time, r.id" };
                format!(
                    "SELECT {columns} FROM unnest($1::bytea[]) AS v(id) CROSS JOIN LATERAL \
                     (SELECT {columns} FROM record r WHERE r.id = v.id AND r.seq <= $2 OFFSET 0) r"
                )
            }
            Self::TermFew => few("term bigint", "tag"),
            Self::AuthorFew => few("author bytea", "record"),
            Self::TermFewBut => few_but("term bigint", "tag"),
            Self::AuthorFewBut => few_but("author bytea", "record"),
            Self::TermKinds => kinds("term bigint", "tag"),
            Self::AuthorKinds => kinds("author bytea", "record"),
            Self::TermSize => size("term bigint", "tag", false),
            Self::AuthorSize => size("author bytea", "record", false),
            Self::TermSizeBut => size("term bigint", "tag", true),
            Self::AuthorSizeBut => size("author bytea", "record", true),
            // Found by their times: those of an answer lie close together there, and not by id. To
            // go through the table of all parts takes as long again as to find the record.
            Self::Bodies(part) => {
                let record = of_part("record", part);
                format!(
                    "SELECT v.n, b.body FROM unnest($1::bigint[], $2::bytea[]) \
                     WITH ORDINALITY AS v(time, id, n) CROSS JOIN LATERAL (SELECT r.id, r.seq, \
                     r.terms, r.body FROM {record} r WHERE r.time = v.time AND r.id >= v.id \
                     ORDER BY r.time DESC, r.id LIMIT 1) b \
                     WHERE b.id = v.id AND b.seq <= $3 AND ($4::bigint[] IS NULL OR b.terms && $4)"
                )
            }
            Self::Begin => "BEGIN".into(),
            Self::Lock => "SELECT seq, records, parts, line FROM state FOR UPDATE".into(),
            Self::Known => "SELECT v.n FROM unnest($1::bigint[], $2::bytea[]) \
                WITH ORDINALITY AS v(time, id, n) CROSS JOIN LATERAL (SELECT r.id FROM record r \
                WHERE r.time = v.time AND r.id >= v.id ORDER BY r.time DESC, r.id LIMIT 1) b \
                WHERE b.id = v.id"
                .into(),
            Self::Forbids => "SELECT f.key, r.body FROM unnest($1::bigint[]) AS v(key) \
                CROSS JOIN LATERAL (SELECT f.key, f.time, f.id FROM forbid f WHERE f.key = v.key \
                ORDER BY f.time DESC, f.id LIMIT 1) f CROSS JOIN LATERAL (SELECT r.body \
                FROM record r WHERE r.time = f.time AND r.id = f.id LIMIT 1) r"
                .into(),
            Self::Slots => "SELECT v.n, r.time, r.id FROM unnest($1::bytea[], $2::int[]) \
                WITH ORDINALITY AS v(author, kind, n) CROSS JOIN LATERAL (SELECT r.time, r.id \
                FROM record r WHERE r.author = v.author AND r.kind = v.kind OFFSET 0) r"
                .into(),
            Self::TermSlots => "SELECT v.n, t.time, t.id, r.body \
                FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY AS v(term, kind, n) \
                CROSS JOIN LATERAL (SELECT t.time, t.id FROM tag t WHERE t.term = v.term \
                AND t.kind = v.kind OFFSET 0) t CROSS JOIN LATERAL (SELECT r.body FROM record r \
                WHERE r.time = t.time AND r.id = t.id LIMIT 1) r"
                .into(),
            Self::Delete => "WITH gone AS (DELETE FROM record r USING \
                unnest($1::bigint[], $2::bytea[]) AS v(time, id) WHERE r.time = v.time AND r.id = v.id \
                RETURNING r.time, r.id, r.kind, r.terms), tags AS (DELETE FROM tag t USING \
                (SELECT g.time, g.id, g.kind, unnest(g.terms) AS term FROM gone g) g \
                WHERE t.term = g.term AND t.kind = g.kind AND t.time = g.time AND t.id = g.id) \
                SELECT count(*) FROM gone"
                .into(),
            Self::DeleteForbids => "DELETE FROM forbid WHERE id = ANY($1::bytea[])".into(),
            Self::CopyRecords => {
                "COPY record (seq, time, expires, kind, id, author, terms, body) FROM STDIN BINARY"
                    .into()
            }
            Self::CopyTags => "COPY tag (term, time, kind, id) FROM STDIN BINARY".into(),
            Self::AddForbids => "INSERT INTO forbid SELECT * FROM \
                unnest($1::bigint[], $2::bigint[], $3::bytea[])"
                .into(),
            Self::Advance => "WITH s AS (UPDATE state SET seq = $1, records = $2 \
                RETURNING seq, parts, line) SELECT pg_notify(current_schema(), \
                seq || ' ' || $3::int || ' ' || parts || ' ' || line) FROM s"
                .into(),
            // One row without a record where there is none, as the line is always told.
            Self::News => "SELECT s.line, s.seq, r.seq, r.body FROM state s LEFT JOIN LATERAL \
                (SELECT r.seq, r.body FROM record r WHERE r.seq > $1 AND r.seq <= $2 \
                ORDER BY r.seq LIMIT $3) r ON true"
                .into(),
            Self::Expired => "SELECT id FROM record WHERE expires <= $1 LIMIT $2".into(),
            Self::Parts => "SELECT start, stop, number FROM part ORDER BY start".into(),
        }
    }
}

/// What lies behind `v` in an order, and how that is sorted.
fn behind(order: Order) -> (&'static str, &'static str) {
    match order {
        Order::NewestFirst => {
            ("r.time <= v.time AND (r.time < v.time OR r.id > v.id)", "r.time DESC, r.id")
        }
        Order::OldestFirst => {
            ("r.time >= v.time AND (r.time > v.time OR r.id > v.id)", "r.time, r.id")
        }
    }
}

/// What a page of records has of each.
const RECORD: &str = "r.time, r.id, r.body";
/// Leaves out what came after the question.
const SEEN: &str = " AND r.seq <= $6";

/// The next of so many runs together, in order: each is an arm that is read no further than the page goes.
/// Times from $1 to $2, behind ($3, $4), $5 of them; kinds and values are arrays, one of each a run.
fn page(
    value: Option<(&str, &str)>,
    runs: usize,
    order: Order,
    table: &str,
    columns: &str,
    more: &str,
) -> String {
    let (behind, sorted) = behind(order);
    let behind = behind.replace("v.time", "$3::bigint").replace("v.id", "$4::bytea");
    let arm = |run: usize| {
        let value = value
            .map_or(String::new(), |(column, of)| format!("r.{column} = ($8::{of}[])[{run}] AND "));
        let kind =
            if run == 0 { String::new() } else { format!("r.kind = ($7::int[])[{run}] AND ") };
        format!(
            "(SELECT {columns} FROM {table} r WHERE {value}{kind}r.time >= $1 AND r.time <= $2 \
             AND {behind}{more} ORDER BY {sorted} LIMIT $5)"
        )
    };
    let arms: Vec<String> = if runs == 0 { vec![arm(0)] } else { (1..=runs).map(arm).collect() };
    format!("SELECT {columns} FROM ({}) r ORDER BY {sorted} LIMIT $5", arms.join(" UNION ALL "))
}

/// A table of all parts, or of one.
fn of_part(table: &str, part: Option<i64>) -> String {
    part.map_or_else(|| table.into(), |number| format!("{table}_{number}"))
}

/// Of each run, the next keys in order.
fn keys(value: &str, table: &str, more: &str, order: Order) -> String {
    let (behind, sorted) = behind(order);
    let (array, column, same) = match value.split_once(' ') {
        Some((column, kind)) => (
            format!("$6::{kind}[], "),
            format!("{column}, "),
            format!("r.{column} = v.{column} AND "),
        ),
        None => Default::default(),
    };
    format!(
        "SELECT v.n, r.time, r.id{more} FROM unnest({array}$1::int[], $2::bigint[], $3::bytea[]) \
         WITH ORDINALITY AS v({column}kind, time, id, n) CROSS JOIN LATERAL (SELECT r.time, r.id{more} \
         FROM {table} r WHERE {same}r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND {behind} \
         ORDER BY {sorted} LIMIT {limit}) r",
        limit = if value.is_empty() { "$6" } else { "$7" }
    )
}

fn few(value: &str, table: &str) -> String {
    let (column, kind) = value.split_once(' ').unwrap_or_default();
    format!(
        "SELECT v.n, r.time, r.id, r.kind FROM unnest($1::{kind}[]) WITH ORDINALITY AS v({column}, n) \
         CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM {table} r \
         WHERE r.{column} = v.{column} LIMIT $2) r"
    )
}

/// A skip from kind to kind: two looks each, however many rows there are.
fn kinds(value: &str, table: &str) -> String {
    let (column, kind) = value.split_once(' ').unwrap_or_default();
    format!(
        "SELECT v.n, k.kind FROM unnest($1::{kind}[]) WITH ORDINALITY AS v({column}, n) \
         CROSS JOIN LATERAL (WITH RECURSIVE k AS ((SELECT r.kind FROM {table} r \
         WHERE r.{column} = v.{column} ORDER BY r.kind LIMIT 1) UNION ALL SELECT (SELECT r.kind \
         FROM {table} r WHERE r.{column} = v.{column} AND r.kind > k.kind ORDER BY r.kind LIMIT 1) \
         FROM k WHERE k.kind IS NOT NULL) SELECT kind FROM k WHERE kind IS NOT NULL) k"
    )
}

/// Of each value, the first few keys in ranges of kinds: a look for each range, and none at what lies
/// between them.
fn few_but(value: &str, table: &str) -> String {
    let (column, kind) = value.split_once(' ').unwrap_or_default();
    format!(
        "SELECT v.n, r.time, r.id, r.kind FROM unnest($1::{kind}[]) WITH ORDINALITY AS v({column}, n) \
         CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM unnest($3::int[], $4::int[]) \
         AS k(first, last) CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM {table} r \
         WHERE r.{column} = v.{column} AND r.kind >= k.first AND r.kind <= k.last LIMIT $2) r \
         LIMIT $2) r"
    )
}

fn time_keys(order: Order, more: &str) -> String {
    let (behind, sorted) = behind(order);
    let behind = behind.replace("v.time", "$1::bigint").replace("v.id", "$2::bytea");
    format!(
        "SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE {behind} AND r.time >= $3 \
         AND r.time <= $4{more} ORDER BY {sorted} LIMIT $5"
    )
}

/// How many rows values have: all, or those in ranges of kinds.
fn size(value: &str, table: &str, in_ranges: bool) -> String {
    let (column, kind) = value.split_once(' ').unwrap_or_default();
    let (ranges, within) = if in_ranges {
        (
            " CROSS JOIN unnest($3::int[], $4::int[]) AS k(first, last)",
            " AND r.kind >= k.first AND r.kind <= k.last",
        )
    } else {
        Default::default()
    };
    format!(
        "SELECT coalesce(sum(r.rows), 0)::bigint FROM unnest($1::{kind}[]) AS v({column}){ranges} \
         CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (SELECT 1 FROM {table} r \
         WHERE r.{column} = v.{column}{within} LIMIT $2) r) r"
    )
}
