//! Faults of each sort, for a shelf of Nostr with the events of `checked::events`.

use hark_testkit::postgres::Database;

/// Makes a copy of a database to which nobody is connected.
pub(crate) fn copied<'a>(database: &Database<'a>, number: usize) -> Database<'a> {
    let name = format!("{}_{number}", database.name);
    database.cluster.sql("postgres", &format!("CREATE DATABASE {name} TEMPLATE {}", database.name));
    Database { url: database.cluster.url(&name), name, cluster: database.cluster }
}

/// Selects one row of a table: the first that meets a condition, in a fixed order.
pub(crate) fn one(table: &str, condition: &str) -> String {
    format!(
        "(tableoid, ctid) = (SELECT tableoid, ctid FROM {table} WHERE {condition} \
         ORDER BY tableoid, ctid LIMIT 1)"
    )
}

/// The condition that a record is a note with the word `about`.
const NOTE: &str = "kind = 1 AND position('\\x61626f7574'::bytea in body) > 0";

/// The statements that plant a fault, each with the name of the fault's sort.
pub(crate) fn faults() -> Vec<(&'static str, String)> {
    let note = one("record", NOTE);
    vec![
        ("label_missing", format!("DELETE FROM tag WHERE {}", one("tag", "true"))),
        (
            "label_missing",
            "DELETE FROM tag t USING (SELECT id, terms FROM record WHERE kind = 30023 LIMIT 1) r \
             WHERE t.id = r.id AND t.term = r.terms[1]"
                .into(),
        ),
        (
            "label_orphan",
            "INSERT INTO tag SELECT term, time, kind, decode(repeat('ab', 32), 'hex') \
             FROM tag LIMIT 1"
                .into(),
        ),
        ("label_double", "INSERT INTO tag SELECT * FROM tag LIMIT 1".into()),
        ("column", format!("UPDATE record SET time = time + 1 WHERE {note}")),
        ("column", format!("UPDATE record SET kind = 7 WHERE {note}")),
        ("column", format!("UPDATE record SET terms = terms[2:] WHERE {note}")),
        (
            "message",
            format!(
                "UPDATE record SET body = set_byte(body, \
                 position('\\x61626f7574'::bytea in body) - 1, 65) WHERE {note}"
            ),
        ),
        ("unreadable", format!("UPDATE record SET body = substr(body, 1, 60) WHERE {note}")),
        ("forbid_missing", format!("DELETE FROM forbid WHERE {}", one("forbid", "true"))),
        (
            "forbid_orphan",
            "INSERT INTO forbid SELECT key, time, decode(repeat('ab', 32), 'hex') \
             FROM forbid LIMIT 1"
                .into(),
        ),
        ("word_missing", format!("DELETE FROM word WHERE {}", one("word", "true"))),
        ("word_missing", format!("DELETE FROM worded WHERE {}", one("worded", "true"))),
        (
            "word_orphan",
            "INSERT INTO word SELECT time, mark, kind, '\\x7a7a7a7a' FROM word LIMIT 1".into(),
        ),
        (
            "word_orphan",
            "INSERT INTO worded SELECT time, mark + 4, kind, words FROM worded LIMIT 1".into(),
        ),
        ("counter", "UPDATE state SET records = records + 1".into()),
        ("number", "UPDATE state SET seq = seq - 1".into()),
        (
            "number",
            "UPDATE record SET seq = (SELECT min(seq) FROM record) \
             WHERE seq = (SELECT max(seq) FROM record)"
                .into(),
        ),
    ]
}

/// Plants a fault.
pub(crate) fn plant(database: &Database<'_>, sql: &str) {
    database.sql(&format!("SET search_path = hark_nostr; SET hark.writes_words = on; {sql}"));
}
