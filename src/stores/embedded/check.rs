//! The check of a shelf in files.

use serde_json::json;

use super::shelf::FileShelf;
use crate::print;
use crate::stores::{ArchiveCheck, CheckMeter};

/// Checks a shelf, and changes nothing.
pub(super) fn check(shelf: &FileShelf<'_>, steps: CheckMeter<'_>) -> anyhow::Result<ArchiveCheck> {
    let report = hark_store_embedded::check(&shelf.dir(), &shelf.options(), &mut |progress| {
        steps(progress.done, progress.total, progress.what);
    })
    .map_err(|error| {
        shelf.not_opened(error, |_| {
            "the archive could not be checked to its end; nothing was changed".into()
        })
    })?;
    let network = shelf.place.network;
    let fields = json!({
        "records": report.records,
        "dead": report.dead,
        "segments": report.segments,
        "logs": report.logs,
        "torn_bytes": report.torn_bytes,
    });
    let mut notes = Vec::new();
    if report.torn_bytes > 0 {
        notes.push(format!(
            "the last log ends in {} of an incomplete batch, which the next start cuts off. After a \
             crash or a power cut, nothing in this batch was acknowledged. Otherwise the disk has \
             damaged acknowledged {}: before the next start or `hark rebuild`, run `hark salvage`, \
             which copies all records that are whole",
            print::bytes(report.torn_bytes),
            network.records()
        ));
    }
    let is_mendable = report.faults.iter().all(|fault| fault.mendable);
    let advice = if is_mendable && report.torn_bytes > 0 {
        "All other records are whole; `hark rebuild` rebuilds the rest, with the server stopped"
    } else if is_mendable {
        "The records are whole; `hark rebuild` rebuilds the rest, with the server stopped"
    } else {
        "Records are damaged: restore the archive from a backup with `hark restore --move-aside`, \
         or copy all whole records into a new archive with `hark salvage`"
    };
    Ok(ArchiveCheck {
        compared: vec![
            print::count(report.records, network.record()),
            format!("{} deleted", print::number(report.dead)),
            print::count(report.segments, "segment"),
            print::count(report.logs, "log"),
        ],
        fields: fields.as_object().cloned().unwrap_or_default(),
        faults: report.faults.len() as u64,
        sorts: Vec::new(),
        listed: report.faults.iter().map(ToString::to_string).collect(),
        notes,
        advice: advice.into(),
    })
}
