//! nostream's tables and indices, in the form that its migrations create. Names and columns are
//! from nostream's documentation, and the rest is written for this bench. Indices are created after
//! the rows are loaded, so they are smaller and faster than those of a relay that has been running
//! for a long time.

use tokio_postgres::Client;

const EVENTS: &str = "
CREATE TABLE events (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    event_id bytea NOT NULL,
    event_pubkey bytea NOT NULL,
    event_kind integer NOT NULL,
    event_created_at integer NOT NULL,
    event_content text NOT NULL,
    event_tags jsonb,
    event_signature bytea NOT NULL,
    first_seen timestamp DEFAULT now(),
    deleted_at timestamp,
    event_deduplication jsonb,
    remote_address inet,
    expires_at integer
)";
const EVENT_TAGS: &str = "
CREATE TABLE event_tags (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    event_id bytea NOT NULL,
    tag_name text NOT NULL,
    tag_value text NOT NULL
)";
/// The indices of the table `events`. nostream has two indices on event_id alone.
const INDICES: [(&str, &str); 11] = [
    ("events_event_id_unique", "UNIQUE INDEX events_event_id_unique ON events (event_id)"),
    ("events_event_id_index", "INDEX events_event_id_index ON events (event_id)"),
    ("events_event_pubkey_index", "INDEX events_event_pubkey_index ON events (event_pubkey)"),
    ("events_event_kind_index", "INDEX events_event_kind_index ON events (event_kind)"),
    (
        "events_event_created_at_index",
        "INDEX events_event_created_at_index ON events (event_created_at)",
    ),
    ("events_expires_at_index", "INDEX events_expires_at_index ON events (expires_at)"),
    ("event_tags_idx", "INDEX event_tags_idx ON events USING gin (event_tags)"),
    (
        "kind_tags_created_at_idx",
        "INDEX kind_tags_created_at_idx ON events USING gin (event_kind, event_tags, event_created_at)",
    ),
    (
        "replaceable_events_idx",
        "UNIQUE INDEX replaceable_events_idx ON events (event_pubkey, event_kind, event_deduplication) \
         WHERE event_kind IN (0, 3, 41) OR event_kind BETWEEN 10000 AND 19999 \
         OR event_kind BETWEEN 30000 AND 39999",
    ),
    (
        "events_active_pubkey_kind_created_at_idx",
        "INDEX events_active_pubkey_kind_created_at_idx \
         ON events (event_pubkey, event_kind, event_created_at DESC, event_id)",
    ),
    (
        "events_deleted_at_partial_idx",
        "INDEX events_deleted_at_partial_idx ON events (deleted_at) WHERE deleted_at IS NOT NULL",
    ),
];
const TAG_INDICES: [(&str, &str); 2] = [
    ("event_tags_event_id_index", "INDEX event_tags_event_id_index ON event_tags (event_id)"),
    (
        "event_tags_tag_name_tag_value_index",
        "INDEX event_tags_tag_name_tag_value_index ON event_tags (tag_name, tag_value)",
    ),
];

/// Creates the tables.
pub(super) async fn tables(client: &Client, event_tags: bool) -> anyhow::Result<()> {
    client.batch_execute("CREATE EXTENSION IF NOT EXISTS btree_gin").await?;
    client.batch_execute(EVENTS).await?;
    if event_tags {
        client.batch_execute(EVENT_TAGS).await?;
    }
    Ok(())
}

pub(super) async fn version(client: &Client) -> anyhow::Result<String> {
    Ok(client.query_one("SHOW server_version", &[]).await?.get(0))
}

/// Rebuilds `event_tags` with the rows that its trigger would have inserted: JSON text that keeps
/// its escapes but not its outer quotes.
pub(super) async fn event_tags(client: &Client) -> anyhow::Result<()> {
    client
        .batch_execute(
            "TRUNCATE event_tags;
             INSERT INTO event_tags (event_id, tag_name, tag_value)
             SELECT event_id, trim((tag->0)::text, '\"'), trim((tag->1)::text, '\"')
             FROM events, jsonb_array_elements(event_tags) tag
             WHERE length(trim((tag->0)::text, '\"')) = 1 AND trim((tag->1)::text, '\"') <> ''",
        )
        .await?;
    Ok(())
}

/// Creates the indices, and updates the planner's statistics.
pub(super) async fn indices(client: &Client, event_tags: bool) -> anyhow::Result<()> {
    let more = if event_tags { &TAG_INDICES[..] } else { &[] };
    // More memory than the default makes building the indices faster.
    client.batch_execute("SET maintenance_work_mem = '256MB'").await?;
    for (_, index) in INDICES.iter().chain(more) {
        client.batch_execute(&format!("CREATE {index}")).await?;
    }
    Ok(client.batch_execute("VACUUM ANALYZE").await?)
}

/// Drops the indices before more rows are loaded.
pub(super) async fn no_indices(client: &Client) -> anyhow::Result<()> {
    for (name, _) in INDICES.iter().chain(&TAG_INDICES) {
        client.batch_execute(&format!("DROP INDEX IF EXISTS {name}")).await?;
    }
    Ok(())
}
