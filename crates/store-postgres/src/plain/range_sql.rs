//! Makes the statements that read ordered ranges of an index.

use hark_archive::Order;

use super::statement::{IndexPage, WindowRows};

/// Returns the sort columns of an order.
pub(super) fn sorted(order: Order) -> &'static str {
    match order {
        Order::NewestFirst => "r.time DESC, r.id",
        Order::OldestFirst => "r.time, r.id",
    }
}

/// Returns two queries for the first rows behind a given row, in an order. The first query is for
/// rows of the same time, with the condition `rest`. The second query is for times that come later
/// in the order. So each query starts directly at the given row. A single query with both
/// conditions would first read all rows of the same time.
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

/// Returns a statement for the next rows of `ranges` index ranges, merged in order. Each range is
/// one arm of a union, or two arms, and is read only as far as the page needs. The statement
/// returns at most $5 rows with times from $1 to $2 that follow the row with time $3 and id $4. The
/// arrays $7 and $8 have the kind and the value of each range.
///
/// A range has two arms only if the page begins behind a row. If the page begins at the edge of its
/// times, one arm suffices to start at the right row, and takes half the time. A search never
/// continues within a page of all parts (`TimeWindows::narrow`).
pub(super) fn page(
    value: Option<(&str, &str)>,
    ranges: usize,
    order: Order,
    (table, rows_of): (&str, IndexPage),
    columns: &str,
    more: &str,
) -> String {
    let (sorted, table) = (sorted(order), of_part(table, rows_of.part()));
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
        if let IndexPage::Behind(_) = rows_of {
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

/// Returns a query for at most $3 rows of the terms $5, with times from $1 to $2 and kind $6. For
/// [`WindowRows::Behind`], the rows with time $7 and an id above $8 come first.
///
/// No index has the rows of several terms in order, so they are sorted. Their number is small,
/// because the range of times is short.
pub(super) fn term_window(
    order: Order,
    (columns, rows): (&str, &str),
    wanted: WindowRows,
) -> String {
    let end = format!("ORDER BY {} LIMIT $3", sorted(order));
    let arm = |times: &str, end: &str| {
        format!(
            "SELECT {columns} FROM unnest($5::bigint[]) AS v(term) CROSS JOIN LATERAL \
             ({rows} AND {times} {end}) r"
        )
    };
    let window = "r.time >= $1 AND r.time <= $2";
    let behind = "r.time = $7::bigint AND r.id > $8::bytea";
    let arms = match wanted {
        WindowRows::All => return format!("{} LIMIT $3", arm(window, "OFFSET 0")),
        WindowRows::First => arm(window, &end),
        WindowRows::Behind => format!("{} UNION ALL {}", arm(behind, &end), arm(window, &end)),
    };
    format!("SELECT {columns} FROM ({arms}) r {end}")
}

/// Returns the name of a table for all parts, or for one part.
pub(super) fn of_part(table: &str, part: Option<i64>) -> String {
    part.map_or_else(|| table.into(), |number| format!("{table}_{number}"))
}

/// Returns a statement for the next keys of each index range, in order.
pub(super) fn keys(value: &str, table: &str, more: &str, order: Order) -> String {
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

/// Returns a statement for the first keys of each value, with times from $3 to $4.
pub(super) fn few(value: &str, table: &str) -> String {
    let (column, kind) = value.split_once(' ').unwrap_or_default();
    format!(
        "SELECT v.n, r.time, r.id, r.kind FROM unnest($1::{kind}[]) WITH ORDINALITY AS v({column}, n) \
         CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM {table} r \
         WHERE r.{column} = v.{column} AND r.time >= $3 AND r.time <= $4 LIMIT $2) r"
    )
}

/// Returns a statement that finds the kinds of values by skipping from kind to kind, with one index
/// lookup per kind and part. The times $2 and $3 are bounds of whole parts, so no row that is read
/// has another time.
pub(super) fn kinds(value: &str, table: &str) -> String {
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

/// Returns a statement for the first keys of each value in ranges of kinds, with one index lookup
/// per range. The rows between these ranges are not read.
pub(super) fn few_but(value: &str, table: &str) -> String {
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

pub(super) fn time_keys(order: Order, more: &str) -> String {
    let rows = format!(
        "SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4{more}"
    );
    let end = format!("ORDER BY {} LIMIT $5", sorted(order));
    let arms = behind(order, &rows, ("$1::bigint", "r.id > $2::bytea"), &end).join(" UNION ALL ");
    format!("SELECT * FROM ({arms}) r {end}")
}

/// Returns a statement that counts the rows of values: all rows, or only rows in ranges of kinds.
pub(super) fn size(value: &str, table: &str, in_ranges: bool) -> String {
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
