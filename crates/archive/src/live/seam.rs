//! Joins the stored answer and the live feed of a subscription without a gap or a duplicate.
//!
//! The subscription is in the live index before its searches are opened, so nothing is missed. Each
//! search reports the last sequence number that its snapshot sees, so a record's number shows
//! whether the search saw the record. The searches of several queries have different snapshots. A
//! record that matches a query must still be sent if the query's search did not see the record and
//! no answer to another query included the record. No list of sent records is needed: an answer
//! goes through its matches in order, so the end of the answer ([`AnswerReach`]) shows which
//! records were sent.

use hark_codec::record::Record;

use super::held::HeldRecords;
use super::news::NewRecord;
use crate::query::{ComparedRecord, Position, Query, SearchRank};

/// How far the stored answer to a query went through the matching records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerReach {
    /// The answer sent no record.
    #[default]
    Nothing,
    /// The answer went up to this position, inclusive.
    UpTo(Position),
    /// The answer went up to this rank, inclusive.
    UpToRank(SearchRank),
    /// The answer went to the end.
    All,
}

impl AnswerReach {
    /// Returns whether the answer to one of these queries has passed `record`; `reached` shows how
    /// far each answer went. If so, the answer to a later query leaves the record out.
    pub fn any(reached: &[Self], queries: &[Query], record: &Record<'_>) -> bool {
        let record = ComparedRecord::new(*record);
        let mut all = reached.iter().zip(queries);
        all.any(|(reach, query)| reach.passed(query, &record))
    }

    /// Returns whether the record matches the query and the answer went as far as the record.
    fn passed(self, query: &Query, record: &ComparedRecord<'_>) -> bool {
        self.covers(query, record) && record.matches(query)
    }

    /// Returns whether the answer went as far as this record. The record must match the query.
    fn covers(self, query: &Query, compared: &ComparedRecord<'_>) -> bool {
        let record = compared.record();
        match self {
            Self::Nothing => false,
            Self::UpTo(last) => query.order.compare(&Position::of(record), &last).is_le(),
            Self::UpToRank(last) => {
                let rank =
                    query.words.as_ref().and_then(|asked| asked.rank_with(record, &compared.words));
                rank.is_some_and(|rank| rank <= last)
            }
            Self::All => true,
        }
    }
}

/// Number of records that are released each time that the seam is locked. In between, the writer
/// can offer a record, so the writer need not wait until all records are released.
const RELEASED_AT_ONCE: usize = 16;

pub(super) struct Seam {
    /// For each query, the last sequence number that its search sees. `None` until the search is
    /// opened.
    snapshots: Vec<Option<u64>>,
    stage: DeliveryStage,
}

enum DeliveryStage {
    /// The stored answer is being sent.
    Stored(HeldRecords),
    /// Records are delivered live, but some records that the snapshots saw are not published yet.
    /// Such a record is delivered only if the answer did not include it already.
    Late { reached: Vec<AnswerReach> },
    /// Every record is delivered as it comes.
    Live,
    /// Ended: the held-back records exceeded their bound.
    Over,
}

/// The result of offering a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeliveryAction {
    Deliver,
    Nothing,
    /// The record is held back.
    Held,
    /// The held-back records would exceed the bound.
    Overflow,
}

impl Seam {
    pub(super) fn new(queries: usize, held_bytes_max: usize) -> Self {
        let stage = DeliveryStage::Stored(HeldRecords::new(held_bytes_max));
        Self { snapshots: vec![None; queries], stage }
    }

    pub(super) fn opened(&mut self, index: usize, seq: u64) {
        if let Some(snapshot) = self.snapshots.get_mut(index) {
            *snapshot = Some(seq);
        }
    }

    /// Offers a record. `is_early` decides whether a record that is held back is among those that
    /// [`Seam::release_early`] delivers.
    pub(super) fn offer(
        &mut self,
        news: &NewRecord,
        queries: &[Query],
        is_early: impl Fn(&Record<'_>) -> bool,
    ) -> DeliveryAction {
        match &mut self.stage {
            DeliveryStage::Stored(held) => {
                if seen_by_all(&self.snapshots, news) {
                    return DeliveryAction::Nothing;
                }
                let is_early = news.record().is_some_and(|record| is_early(&record));
                let is_held = held.push(news, is_early);
                if is_held { DeliveryAction::Held } else { DeliveryAction::Overflow }
            }
            DeliveryStage::Late { reached } => {
                let new = is_new(&self.snapshots, reached, news, queries);
                if news.seq.is_some_and(|seq| seq >= last(&self.snapshots)) {
                    self.stage = DeliveryStage::Live;
                }
                if new { DeliveryAction::Deliver } else { DeliveryAction::Nothing }
            }
            DeliveryStage::Live => DeliveryAction::Deliver,
            DeliveryStage::Over => DeliveryAction::Nothing,
        }
    }

    /// Removes some of the held-back records, and delivers those that were not sent yet and were
    /// not hidden in the meantime. The subscription is live once no record is held back.
    /// `published` is the number up to which all records have been offered. Returns the number of
    /// removed records, and whether no held-back record remains.
    pub(super) fn release(
        &mut self,
        reached: &mut Vec<AnswerReach>,
        published: u64,
        queries: &[Query],
        mut deliver: impl FnMut(NewRecord),
    ) -> (usize, bool) {
        let DeliveryStage::Stored(held) = &mut self.stage else { return (0, true) };
        let before = held.len();
        for news in std::iter::from_fn(|| held.pop()).take(RELEASED_AT_ONCE) {
            if !is_hidden(&news, queries) && is_new(&self.snapshots, reached, &news, queries) {
                deliver(news);
            }
        }
        let (some, are_all) = (before - held.len(), held.len() == 0);
        if are_all {
            let settled = published >= last(&self.snapshots);
            let reached = std::mem::take(reached);
            self.stage =
                if settled { DeliveryStage::Live } else { DeliveryStage::Late { reached } };
        }
        (some, are_all)
    }

    /// Whether records are held back.
    pub(super) fn holds_back(&self) -> bool {
        matches!(&self.stage, DeliveryStage::Stored(held) if held.len() > 0)
    }

    /// See [`HeldRecords::bytes_by_holder`].
    pub(super) fn bytes_by_holder(&self) -> usize {
        match &self.stage {
            DeliveryStage::Stored(held) => held.bytes_by_holder(),
            _ => 0,
        }
    }

    /// Number of held-back records that [`Seam::release_early`] delivers.
    pub(super) fn early_len(&self) -> usize {
        match &self.stage {
            DeliveryStage::Stored(held) => held.early_len(),
            _ => 0,
        }
    }

    /// Removes at most `max` of the held-back records that are to be delivered early, and only some
    /// of them at once. Delivers those that were not sent yet and were not hidden in the meantime.
    /// Returns the number of removed records.
    pub(super) fn release_early(
        &mut self,
        reached: &[AnswerReach],
        queries: &[Query],
        max: usize,
        mut deliver: impl FnMut(NewRecord),
    ) -> usize {
        let DeliveryStage::Stored(held) = &mut self.stage else { return 0 };
        let before = held.len();
        let some = std::iter::from_fn(|| held.pop_early()).take(max.min(RELEASED_AT_ONCE));
        for news in some {
            if !is_hidden(&news, queries) && is_new(&self.snapshots, reached, &news, queries) {
                deliver(news);
            }
        }
        before - held.len()
    }

    /// Drops the held-back records and ends all delivery. Returns the number of dropped records.
    pub(super) fn end(&mut self) -> usize {
        match std::mem::replace(&mut self.stage, DeliveryStage::Over) {
            DeliveryStage::Stored(held) => held.len(),
            _ => 0,
        }
    }
}

/// Returns the highest sequence number that any search sees.
fn last(snapshots: &[Option<u64>]) -> u64 {
    snapshots.iter().flatten().max().copied().unwrap_or(0)
}

/// Returns whether every search is open and saw the record, so that the record need not be held
/// back.
fn seen_by_all(snapshots: &[Option<u64>], news: &NewRecord) -> bool {
    news.seq.is_some_and(|seq| snapshots.iter().all(|snapshot| snapshot.is_some_and(|s| seq <= s)))
}

/// Returns whether the record is hidden from the reader of these queries.
fn is_hidden(news: &NewRecord, queries: &[Query]) -> bool {
    let mut hidden = queries.iter().filter_map(|query| query.hidden.as_ref()).peekable();
    hidden.peek().is_some()
        && news.record().is_some_and(|record| hidden.any(|hidden| hidden.have(&record)))
}

fn is_new(
    snapshots: &[Option<u64>],
    reached: &[AnswerReach],
    news: &NewRecord,
    queries: &[Query],
) -> bool {
    let Some(seq) = news.seq else { return true };
    if let [snapshot] = snapshots {
        // A record is offered only if it matches a query, so this record matches the only query.
        return snapshot.is_none_or(|seen| seq > seen);
    }
    let Some(record) = news.record() else { return false };
    let record = ComparedRecord::new(record);
    let unseen = |(snapshot, query): (&Option<u64>, &Query)| {
        snapshot.is_none_or(|seen| seq > seen) && record.matches(query)
    };
    if !snapshots.iter().zip(queries).any(unseen) {
        return false;
    }
    // If the answers to several queries passed the record, only the first answer could send the
    // record, because [`AnswerReach::any`] keeps the record out of later answers. The first answer
    // sent the record if its search saw the record.
    let mut all = reached.iter().zip(queries).zip(snapshots);
    let first = all.find(|((reach, query), _)| reach.passed(query, &record));
    !first.is_some_and(|(_, snapshot)| snapshot.is_some_and(|seen| seq <= seen))
}

#[cfg(test)]
impl Seam {
    /// Returns whether further records are delivered without a check.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.stage, DeliveryStage::Live)
    }
}
