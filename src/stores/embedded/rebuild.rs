//! Rebuilding a shelf in files.

use hark_archive::Store as _;
use hark_store_embedded::DirectoryLock;
use serde_json::json;

use super::shelf::FileShelf;
use crate::interrupt;
use crate::owner;
use crate::print;
use crate::stores::{ArchiveRebuild, CheckMeter};

/// Builds the indices of a shelf anew from its logs. `lock` is the lock of the archive.
pub(super) fn rebuild(
    shelf: &FileShelf<'_>,
    lock: DirectoryLock,
    steps: CheckMeter<'_>,
) -> anyhow::Result<ArchiveRebuild> {
    let network = shelf.place.network;
    interrupt::end_at_signal("the log is untouched. Run the command again".into())?;
    let rebuilt = hark_store_embedded::rebuild(&shelf.dir(), &shelf.options(), &mut |progress| {
        steps(progress.done, progress.total, progress.what);
    })
    .map_err(|error| {
        let words = if error.is_disk_full() {
            format!(
                "the disk is full, so not all indices could be made; the log is untouched. Make \
                     room on the disk of {}, then run the command again",
                shelf.dir().display()
            )
        } else if error.is_denied() {
            owner::denied(&shelf.dir())
        } else {
            let again = if error.is_unexplained() { ". Run it again" } else { "" };
            format!("rebuilding ended early; the log is untouched{again}")
        };
        anyhow::Error::new(error).context(words)
    })?;
    drop(lock);
    // The total includes the records of the last log, which a server continues. These records are
    // not in `rebuilt`, since the last log has no index.
    let in_all = shelf.open_read_only()?.stats().records;
    let (records, segments, doubles) = (rebuilt.records, rebuilt.segments, rebuilt.doubles);
    let fields =
        json!({ "records": records, "segments": segments, "doubles": doubles, "in_all": in_all });
    let twice = match doubles {
        0 => String::new(),
        doubles => format!("; stored twice, and now once: {}", print::number(doubles)),
    };
    let summary = format!(
        "{} in the archive; {} of them in {}, rebuilt from the log{twice}",
        print::count(in_all, network.record()),
        print::number(records),
        print::count(segments, "segment")
    );
    Ok(ArchiveRebuild {
        fields: fields.as_object().cloned().unwrap_or_default(),
        summary,
        ..ArchiveRebuild::default()
    })
}
