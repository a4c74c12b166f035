//! Loads the events of a file into nostream's tables.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::ops::Range;
use std::path::Path;

use bytes::BytesMut;
use hark_codec::nostr::{Event, json};
use hark_codec::record::{Id, Key};
use tokio_postgres::Client;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::lines::EventFile;
use crate::meter::ProgressMeter;
use crate::text::hex;

/// Number of events between two updates of the meter.
const LOOK_EVERY: u64 = 1_024;

const COPY: &str = "COPY events (event_id, event_pubkey, event_kind, event_created_at, event_content, \
                    event_tags, event_signature, event_deduplication) FROM STDIN (FORMAT binary)";
const TYPES: [Type; 8] = [
    Type::BYTEA,
    Type::BYTEA,
    Type::INT4,
    Type::INT4,
    Type::TEXT,
    Type::JSONB,
    Type::BYTEA,
    Type::JSONB,
];

/// JSON to be copied into a jsonb column.
#[derive(Debug)]
struct JsonbInput<'a>(&'a [u8]);

impl ToSql for JsonbInput<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        // The binary format of jsonb begins with a version number.
        out.extend_from_slice(&[1]);
        out.extend_from_slice(self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSONB
    }

    to_sql_checked!();
}

/// The author, kind and `d` that all versions of a replaceable event share. Only the newest version
/// is kept.
type ReplaceableKey = (Key, u16, String);

fn slot(event: &Event<'_>) -> Option<ReplaceableKey> {
    let d = match event.kind() {
        0 | 3 | 10_000..20_000 => "",
        30_000..40_000 => event.d(),
        _ => return None,
    };
    Some((*event.pubkey(), event.kind(), d.to_owned()))
}

/// Returns the ids of the superseded events among the first `events` events of the file. A
/// superseded event has a newer version among the same events.
fn superseded(path: &Path, events: u64) -> anyhow::Result<HashSet<Id>> {
    let mut newest: HashMap<ReplaceableKey, (u64, Id)> = HashMap::new();
    let mut superseded = HashSet::new();
    let mut lines = EventFile::open(path)?;
    for _ in 0..events {
        let Some(event) = lines.event()? else { break };
        let Some(slot) = slot(&event) else { continue };
        let found = (event.created_at(), *event.id());
        let kept = newest.entry(slot).or_insert(found);
        if kept.1 == found.1 {
            continue;
        }
        // Of versions from the same second, the version with the lower id is kept.
        let is_newer = found.0 > kept.0 || found.0 == kept.0 && found.1 < kept.1;
        let older = if is_newer { std::mem::replace(kept, found) } else { found };
        superseded.insert(older.1);
    }
    Ok(superseded)
}

/// Copies the file's events in `range` into the table `events`, which keeps only the newest
/// versions, as in nostream. Returns the number of rows copied.
pub(super) async fn fill(client: &Client, path: &Path, range: Range<u64>) -> anyhow::Result<u64> {
    let superseded = superseded(path, range.end)?;
    let older: Vec<&[u8]> = superseded.iter().map(|id| &id[..]).collect();
    client.execute("DELETE FROM events WHERE event_id = ANY($1)", &[&older]).await?;
    let writer = BinaryCopyInWriter::new(client.copy_in(COPY).await?, &TYPES);
    let mut writer = Box::pin(writer);
    let mut lines = EventFile::open(path)?;
    lines.skip(range.start)?;
    let mut meter = ProgressMeter::start("nostream's tables", 0);
    let (mut tags, mut slot_json) = (Vec::new(), Vec::new());
    for at in range {
        let Some(event) = lines.event()? else { break };
        if superseded.contains(event.id()) {
            continue;
        }
        tags.clear();
        put_tags(&event, &mut tags);
        let of = slot(&event).map(|slot| JsonbInput(deduplication(&slot, &mut slot_json)));
        let (kind, time) = (i32::from(event.kind()), i32::try_from(event.created_at())?);
        let row: [&(dyn ToSql + Sync); 8] = [
            &&event.id()[..],
            &&event.pubkey()[..],
            &kind,
            &time,
            &event.content(),
            &JsonbInput(&tags),
            &&event.signature()[..],
            &of,
        ];
        writer.as_mut().write(&row).await?;
        if at.is_multiple_of(LOOK_EVERY) {
            meter.at(at);
        }
    }
    meter.finish();
    Ok(writer.as_mut().finish().await?)
}

fn put_tags(event: &Event<'_>, out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, tag) in event.tags().enumerate() {
        out.extend_from_slice(if at == 0 { b"[" } else { b",[" });
        for (at, value) in tag.iter().enumerate() {
            out.extend_from_slice(if at == 0 { b"" } else { b"," });
            json::write_string(out, value);
        }
        out.push(b']');
    }
    out.push(b']');
}

/// Writes nostream's deduplication key, which all versions of an event share.
fn deduplication<'o>((author, kind, d): &ReplaceableKey, out: &'o mut Vec<u8>) -> &'o [u8] {
    out.clear();
    out.push(b'[');
    if matches!(kind, 30_000..40_000) {
        json::write_string(out, d);
    } else {
        json::write_string(out, &hex(author));
        out.push(b',');
        json::write_u64(out, u64::from(*kind));
    }
    out.push(b']');
    out
}
