//! Converted rows, and the reading and writing of their records.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;

use anyhow::Context as _;
use hark_archive::resumed::ResumedSearch;
use hark_archive::{Id, Query, Record, SearchError, SearchProgress, Store};

use super::tally::AdoptTally;
use crate::commands::refusal::RefusalReason;
use crate::writer::HistoryWriter;

/// The result of converting rows.
#[derive(Debug, Default)]
pub(super) struct ConvertedRows {
    pub(super) records: Vec<Box<[u8]>>,
    /// The id of each record, as text.
    pub(super) ids: Vec<String>,
    pub(super) refused: Vec<(RefusalReason, String, String)>,
}

/// Returns, for each record that a query finds, the result of `keep`. If a part of the archive
/// cannot be read, the records of this part are left out.
pub(super) fn find<T>(
    archive: &dyn Store,
    query: Query,
    keep: impl Fn(&Record<'_>) -> T,
) -> Result<HashMap<Id, T>, SearchError> {
    let (mut search, mut found) = (ResumedSearch::new(archive, query)?, VecDeque::new());
    while search.gather(u64::MAX, &mut found, &mut |record| {
        ((*record.id(), keep(record)), ControlFlow::Continue(()))
    })? == SearchProgress::Paused
    {}
    Ok(found.into_iter().map(|(_, found)| found).collect())
}

/// Makes records durable, and counts the outcomes and the refusals.
pub(super) fn put(
    writer: &mut HistoryWriter,
    converted: ConvertedRows,
    tally: &mut AdoptTally,
) -> anyhow::Result<()> {
    let ConvertedRows { records, ids, refused } = converted;
    for (reason, id, words) in refused {
        tally.refuse(reason, &id, &words);
    }
    if !records.is_empty() {
        for (outcome, id) in writer.put(records)?.into_iter().zip(ids) {
            let outcome = outcome.map_err(anyhow::Error::msg).context(
                "the server could not store what it was given; look at its log, then run the \
                 adoption again to continue",
            )?;
            tally.outcome(outcome, &id);
        }
    }
    Ok(())
}

/// Returns an id as hex digits.
pub(super) fn text(id: &[u8]) -> String {
    let mut out = Vec::with_capacity(64);
    hark_codec::hex::encode_into(id, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}
