//! The statistics of a shelf for `hark stats`.

use hark_archive::store::{MirrorLag, ScrubStats};
use serde_json::{Map, Value, json};

use super::process::ProcessStats;
use crate::shelf::Shelf;

/// Returns the statistics common to shelves of all networks.
pub(super) fn stats(shelf: &Shelf) -> Map<String, Value> {
    let (stats, counters) = (shelf.store().stats(), shelf.writer().counters());
    let more = [
        ("damaged_files", json!(stats.damaged_files)),
        ("maintenance_failed", json!(stats.maintenance_failed)),
        ("scrub", json!(stats.scrub.as_ref().map(scrub))),
        ("written_bytes", json!(stats.written_bytes)),
        ("mirror", json!(stats.mirror.as_ref().map(mirror))),
        ("batches", json!(counters.batches.read().count())),
        ("writes", json!(counters.writes.get())),
        ("resident_bytes", json!(ProcessStats::now().resident_bytes)),
        ("since", json!(shelf.since_s())),
        ("trouble", json!(shelf.trouble())),
    ];
    let mut fields = super::control::fields(&stats);
    fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
    fields
}

fn scrub(scrub: &ScrubStats) -> Value {
    json!({
        "read_bytes": scrub.read_bytes,
        "pass_bytes": scrub.pass_bytes,
        "total_bytes": scrub.total_bytes,
        "passes": scrub.passes,
        "last_pass_s": scrub.last_pass_age.map(|age| age.as_secs()),
        "last_faults": scrub.last_faults,
        "repaired": scrub.repaired,
    })
}

fn mirror(lag: &MirrorLag) -> Value {
    json!({
        "in_step": lag.in_step,
        "behind_ms": lag.behind_ms,
        "queued": lag.queued,
        "queued_bytes": lag.queued_bytes,
        "copied": lag.copied,
        "extra": lag.extra,
        "refused": lag.refused,
        "trouble": lag.trouble,
        "idle_ms": lag.idle_ms,
    })
}
