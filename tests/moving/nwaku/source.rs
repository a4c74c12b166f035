//! Databases of nwaku, made with the statements of each schema version.

use std::fmt::Write as _;

use hark_codec::waku::Message;
use hark_testkit::digits::digits;
use hark_testkit::postgres::{Cluster, Database};
use rusqlite::{Connection, params};

use crate::cli::support::Place;

/// The time of message 0, which is the beginning of an hour, and the time between two messages.
const FIRST_NS: i64 = 1_700_002_800_000_000_000;
const STEP_NS: i64 = 15_000_000_000;
pub(super) const HOUR_NS: i64 = 3_600_000_000_000;

/// A message as a test writes it to nwaku's database.
pub(super) struct StoredMessage {
    pub(super) pubsub_topic: String,
    pub(super) content_topic: String,
    pub(super) payload: Vec<u8>,
    pub(super) version: u32,
    pub(super) timestamp: i64,
    pub(super) meta: Vec<u8>,
}

impl StoredMessage {
    /// Message `n`. Schemas up to PostgreSQL's 3 and SQLite's 8 have no meta.
    pub(super) fn new(n: u32, has_meta: bool) -> Self {
        Self {
            pubsub_topic: format!("/waku/2/rs/1/{}", n % 3),
            content_topic: format!("/app/1/chat-{}/proto", n % 5),
            payload: format!("message {n} {}", "é".repeat(n as usize % 50)).into_bytes(),
            version: n % 2,
            timestamp: FIRST_NS + i64::from(n) * STEP_NS,
            meta: if has_meta && n.is_multiple_of(3) { vec![n as u8; 8] } else { Vec::new() },
        }
    }

    /// The hash of RFC 14, in hex digits.
    pub(super) fn hash(&self) -> String {
        let message = Message {
            payload: &self.payload,
            content_topic: &self.content_topic,
            timestamp: Some(self.timestamp),
            meta: Some(&self.meta[..]),
            ..Message::default()
        };
        digits(&message.hash(&self.pubsub_topic))
    }
}

/// nwaku's migrations of its PostgreSQL database. The first makes version 1.
pub(super) const MIGRATIONS: [&str; 8] = [
    "CREATE TABLE messages (pubsubTopic VARCHAR NOT NULL, contentTopic VARCHAR NOT NULL,
        payload VARCHAR, version INTEGER NOT NULL, timestamp BIGINT NOT NULL, id VARCHAR NOT NULL,
        messageHash VARCHAR NOT NULL, storedAt BIGINT NOT NULL,
        CONSTRAINT messageIndex PRIMARY KEY (messageHash));
     CREATE TABLE version (version INTEGER NOT NULL); INSERT INTO version VALUES (1);",
    "ALTER TABLE messages RENAME TO messages_backup;
     ALTER TABLE messages_backup DROP CONSTRAINT messageIndex;
     CREATE TABLE messages (pubsubTopic VARCHAR NOT NULL, contentTopic VARCHAR NOT NULL,
        payload VARCHAR, version INTEGER NOT NULL, timestamp BIGINT NOT NULL, id VARCHAR NOT NULL,
        messageHash VARCHAR NOT NULL, storedAt BIGINT NOT NULL,
        CONSTRAINT messageIndex PRIMARY KEY (messageHash, storedAt))
        PARTITION BY RANGE (storedAt);
     DROP TABLE messages_backup; UPDATE version SET version = 2;",
    "CREATE INDEX i_query ON messages (contentTopic, pubsubTopic, storedAt, id);
     UPDATE version SET version = 3;",
    "ALTER TABLE messages ADD meta VARCHAR default null; UPDATE version SET version = 4;",
    "CREATE INDEX i_query_storedAt ON messages (storedAt, id); UPDATE version SET version = 5;",
    "ALTER TABLE messages DROP COLUMN timestamp;
     ALTER TABLE messages RENAME COLUMN storedAt TO timestamp; UPDATE version SET version = 6;",
    "CREATE TABLE messages_lookup (timestamp BIGINT NOT NULL, messageHash VARCHAR NOT NULL);
     INSERT INTO messages_lookup (messageHash, timestamp) SELECT messageHash, timestamp FROM messages;
     ALTER TABLE messages_lookup
        ADD CONSTRAINT messageIndexLookupTable PRIMARY KEY (messageHash, timestamp);
     CREATE INDEX idx_messages_messagehash ON messages (messagehash);
     CREATE INDEX idx_messages_timestamp ON messages (timestamp);
     DROP INDEX i_query_storedat; DROP INDEX i_query;
     CREATE INDEX idx_query_pubsubtopic ON messages (pubsubTopic);
     CREATE INDEX idx_query_contenttopic ON messages (contentTopic);
     UPDATE version SET version = 7;",
    "DROP TABLE messages_lookup;
     CREATE TABLE messages_lookup (timestamp BIGINT NOT NULL, messageHash VARCHAR NOT NULL,
        CONSTRAINT messageIndexLookupTable PRIMARY KEY (messageHash, timestamp))
        PARTITION BY RANGE (timestamp);
     UPDATE version SET version = 8;",
];

/// A PostgreSQL database of nwaku with this schema version, and hourly partitions from version 2.
pub(super) fn nwaku_database(test: &str, version: usize, hours: i64) -> Database<'static> {
    let database = Cluster::shared().database(test);
    for migration in &MIGRATIONS[..version] {
        database.sql(migration);
    }
    if version > 1 {
        for hour in 0..hours {
            database.sql(&format!(
                "CREATE TABLE {} PARTITION OF messages FOR VALUES FROM ({}) TO ({})",
                partition(hour),
                FIRST_NS + hour * HOUR_NS,
                FIRST_NS + (hour + 1) * HOUR_NS
            ));
        }
    }
    database
}

/// The name of a partition.
pub(super) fn partition(hour: i64) -> String {
    let begin = (FIRST_NS + hour * HOUR_NS) / 1_000_000_000;
    format!("messages_{begin}_{}", begin + 3_600)
}

/// Inserts messages as nwaku does. `hash` returns the stored hash of a message.
pub(super) fn insert(
    database: &Database<'_>,
    version: usize,
    numbers: impl Iterator<Item = u32>,
    hash: impl Fn(u32, &StoredMessage) -> String,
) {
    let numbers: Vec<u32> = numbers.collect();
    // Each INSERT has as many messages as fit into an argument of psql.
    for some in numbers.chunks(200) {
        let columns = match version {
            1..=3 => "timestamp, storedAt",
            4..=5 => "timestamp, meta, storedAt",
            _ => "meta, timestamp",
        };
        let mut sql = format!(
            "INSERT INTO messages (id, messageHash, pubsubTopic, contentTopic, payload, version, \
             {columns}) VALUES "
        );
        for n in some {
            let message = StoredMessage::new(*n, version >= 4);
            let meta = if message.meta.is_empty() {
                "NULL".into()
            } else {
                format!("'{}'", digits(&message.meta))
            };
            // The node receives a message a little after it was sent.
            let (sent, stored) = (message.timestamp, message.timestamp + 5_000_000);
            let times = match version {
                1..=3 => format!("{sent}, {stored}"),
                4..=5 => format!("{sent}, {meta}, {stored}"),
                _ => format!("{meta}, {sent}"),
            };
            let comma = if sql.ends_with(')') { "," } else { "" };
            let (hash, payload) = (hash(*n, &message), digits(&message.payload));
            let (pubsub, content) = (&message.pubsub_topic, &message.content_topic);
            write!(
                sql,
                "{comma}('0', '{hash}', '{pubsub}', '{content}', '{payload}', {}, {times})",
                message.version
            )
            .unwrap();
        }
        database.sql(&sql);
    }
}

/// nwaku's migrations of its SQLite database from version 7. The first makes version 7.
pub(super) const FILE_MIGRATIONS: [&str; 4] = [
    "PRAGMA journal_mode = WAL;
     CREATE TABLE message (pubsubTopic BLOB NOT NULL, contentTopic BLOB NOT NULL, payload BLOB,
        version INTEGER NOT NULL, timestamp INTEGER NOT NULL, id BLOB, storedAt INTEGER NOT NULL,
        CONSTRAINT messageIndex PRIMARY KEY (storedAt, id, pubsubTopic)) WITHOUT ROWID;
     PRAGMA user_version = 7;",
    "ALTER TABLE message RENAME TO message_backup;
     CREATE TABLE message (pubsubTopic BLOB NOT NULL, contentTopic BLOB NOT NULL, payload BLOB,
        version INTEGER NOT NULL, timestamp INTEGER NOT NULL, id BLOB, messageHash BLOB,
        storedAt INTEGER NOT NULL, CONSTRAINT messageIndex PRIMARY KEY (messageHash))
        WITHOUT ROWID;
     INSERT INTO message SELECT pubsubTopic, contentTopic, payload, version, timestamp, id,
        randomblob(32), storedAt FROM message_backup;
     DROP TABLE message_backup; CREATE INDEX i_ts ON message (storedAt);
     PRAGMA user_version = 8;",
    "ALTER TABLE message ADD COLUMN meta BLOB; PRAGMA user_version = 9;",
    "ALTER TABLE message DROP COLUMN timestamp;
     ALTER TABLE message RENAME COLUMN storedAt TO timestamp; PRAGMA user_version = 10;",
];

/// An SQLite database of nwaku with this schema version. Returns the file's path as well.
pub(super) fn nwaku_file(place: &Place, version: usize) -> (Connection, String) {
    let path = place.path(&format!("store{version}.sqlite3"));
    let database = Connection::open(&path).unwrap();
    for sql in &FILE_MIGRATIONS[..version - 6] {
        database.execute_batch(sql).unwrap();
    }
    (database, path)
}

/// Inserts a message as nwaku does, with this stored hash.
pub(super) fn insert_into_file(
    database: &Connection,
    version: usize,
    message: &StoredMessage,
    hash: &str,
) {
    let StoredMessage { pubsub_topic, content_topic, payload, meta, timestamp, .. } = message;
    let mut key = Vec::new();
    assert!(hark_codec::hex::decode_into(hash.as_bytes(), &mut key));
    let columns = match version {
        7 => "id, timestamp, storedAt",
        8 => "messageHash, timestamp, storedAt",
        9 => "messageHash, timestamp, storedAt, meta",
        _ => "messageHash, timestamp, meta",
    };
    let values = match version {
        7 | 8 => "?6, ?7",
        9 => "?6, ?7, ?8",
        _ => "?6, ?8",
    };
    // Statements name only the parameters that their schema has.
    let sql = format!(
        "INSERT INTO message (pubsubTopic, contentTopic, payload, version, {columns})
         SELECT ?1, ?2, ?3, ?4, ?5, {values} WHERE ?7 IS NOT NULL AND ?8 IS NOT NULL"
    );
    let values = params![
        pubsub_topic.as_bytes(),
        content_topic.as_bytes(),
        payload,
        message.version,
        key,
        timestamp,
        timestamp + 5_000_000,
        meta
    ];
    database.execute(&sql, values).unwrap();
}
