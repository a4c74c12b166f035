//! The query of a request, and its pages.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use hark_archive::{Order, Position, Query, Record};
use hark_codec::record::{self, Id, RecordHeader};
use hark_codec::waku::MessageRecord;

use super::error::HistoryError;
use super::page::{HistoryPage, PAGE_BYTES_MAX, RecordBytes};
use super::request::MessageRequest;
use crate::search::BoundedSearch;

/// Number of rows after which a search checks again whether the client still waits.
const SLICE_ROWS: u64 = 4_096;

/// The query of a request.
#[derive(Clone, Debug)]
pub struct HistoryQuery {
    request_id: String,
    /// The query for the messages of all pages. The direction is added later.
    query: Query,
    /// The hash of the message after which the page begins.
    cursor: Option<Id>,
    is_forward: bool,
    /// Maximum number of messages on the page.
    limit: usize,
    /// Whether the answer has the messages (otherwise only their hashes).
    include_data: bool,
}

impl HistoryQuery {
    /// Makes the query of a request. Returns the reason if the request is invalid.
    pub fn new(request: MessageRequest) -> Result<Self, HistoryError> {
        Ok(Self {
            query: request.query()?,
            cursor: request.cursor()?,
            is_forward: request.forward,
            limit: request.page_limit(),
            include_data: request.include_data,
            request_id: request.id,
        })
    }

    /// The hash of the message after which the page begins.
    pub fn cursor(&self) -> Option<Id> {
        self.cursor
    }

    /// The query for the messages of one page, without its direction and its cursor.
    pub fn query(&self) -> Query {
        Query { limit: self.limit, ..self.query.clone() }
    }

    /// Returns the page after the message at `after`.
    pub fn page(
        &self,
        search: &mut BoundedSearch<'_>,
        after: Option<Position>,
    ) -> Result<HistoryPage, HistoryError> {
        let found = if self.is_forward {
            self.forward(search, after)?
        } else {
            self.backward(search, after)?
        };
        let (mut records, mut more) = found;
        let (mut bytes, mut fit) = (0, records.len());
        if self.include_data {
            fit = 0;
            for record in &records {
                // The first message is always included, whatever its length.
                if fit > 0 && bytes + record.len() > PAGE_BYTES_MAX {
                    more = true;
                    break;
                }
                bytes += record.len();
                fit += 1;
            }
        }
        records.truncate(fit);
        let last = records.last().filter(|_| more);
        let end = last.and_then(|last| Some(Position::of(&Record::new(last).ok()?)));
        if !self.is_forward {
            records.reverse();
        }
        Ok(HistoryPage {
            request_id: self.request_id.clone(),
            include_data: self.include_data,
            records,
            end,
            bytes,
            damaged: search.is_damaged(),
        })
    }

    /// Returns the oldest messages after the cursor, oldest first, and whether more follow.
    fn forward(
        &self,
        search: &mut BoundedSearch<'_>,
        after: Option<Position>,
    ) -> Result<(RecordBytes, bool), HistoryError> {
        let (order, limit) = (Order::OldestFirst, self.limit);
        let mut query = Query { order, after, limit, ..self.query.clone() };
        let (include_data, mut records) = (self.include_data, Vec::new());
        let (mut bytes, mut is_full) = (0, false);
        loop {
            let mut last = query.after;
            let more = search.run(&query, SLICE_ROWS, &mut |record| {
                last = Some(Position::of(record));
                if may_be_sent(record) {
                    let copy = copy(record, include_data);
                    bytes += copy.len();
                    records.push(copy);
                    is_full = exceeds_page(records.len(), bytes);
                }
                if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if is_full || !more || records.len() >= limit {
                let more = more || records.len() > limit;
                records.truncate(limit);
                return Ok((records, more));
            }
            // The search skipped messages without a payload, and more messages follow.
            query.after = last;
        }
    }

    /// Returns the newest messages before the cursor, newest first, and whether more follow.
    ///
    /// The archive returns messages with the same timestamp in ascending order of their hashes, but
    /// a page needs the highest hash first.
    fn backward(
        &self,
        search: &mut BoundedSearch<'_>,
        before: Option<Position>,
    ) -> Result<(RecordBytes, bool), HistoryError> {
        let include_data = self.include_data;
        // One message beyond the page shows whether more messages follow.
        let wanted = self.limit + 1;
        let (order, limit) = (Order::NewestFirst, wanted + usize::from(before.is_some()));
        let mut query = Query { order, limit, ..self.query.clone() };
        if let Some(before) = before {
            // The range includes the time of the cursor, so the query also finds the message at the
            // cursor.
            query.to = query.to.min(before.time);
        }
        let mut records = RecordBytes::new();
        loop {
            let (mut same, mut last) = (Vec::new(), None);
            let mut bytes: usize = records.iter().map(|record| record.len()).sum();
            let more = search.run(&query, SLICE_ROWS, &mut |record| {
                let here = Position::of(record);
                if last.is_some_and(|last| last != here.time) {
                    records.extend(same.drain(..).rev());
                }
                last = Some(here.time);
                let is_before =
                    before.is_none_or(|before| (here.time, here.id) < (before.time, before.id));
                if is_before && may_be_sent(record) {
                    let copy = copy(record, include_data);
                    bytes += copy.len();
                    same.push(copy);
                }
                if exceeds_page(records.len() + same.len(), bytes) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            if !more {
                records.extend(same.into_iter().rev());
            }
            // The page is complete if it is full or if no more messages follow.
            let is_open = more && records.len() < self.limit && !is_too_long(&records);
            let Some(time) = last.filter(|_| is_open) else {
                let more = more || records.len() > self.limit;
                records.truncate(self.limit);
                return Ok((records, more));
            };
            // `same` may lack messages with higher hashes, so this nanosecond is read again.
            let below = before.filter(|before| before.time == time).map(|before| before.id);
            let rest = wanted - records.len();
            records.extend(self.nanosecond(search, time, below, rest)?);
            let is_full = is_too_long(&records);
            let is_open = records.len() < wanted && !is_full;
            let earlier = time.checked_sub(1).filter(|to| *to >= query.from && is_open);
            let Some(to) = earlier else {
                let more = is_full || records.len() > self.limit;
                records.truncate(self.limit);
                return Ok((records, more));
            };
            query.to = to;
        }
    }

    /// Returns at most `wanted` messages of one nanosecond, highest hash first, or those that exceed
    /// the size of a page. If `below` is given, only messages with lower hashes are returned.
    ///
    /// The search reads ranges of hashes, the highest range first. A range should have a few times
    /// as many messages as are wanted. A range with more messages is read again with at most a
    /// quarter of its width. So the number of visited rows is bounded even if a sender has chosen
    /// the hashes of its messages.
    fn nanosecond(
        &self,
        search: &mut BoundedSearch<'_>,
        time: u64,
        below: Option<Id>,
        wanted: usize,
    ) -> Result<RecordBytes, HistoryError> {
        let (include_data, rows_max) = (self.include_data, 3 * wanted.max(20));
        let mut query = Query {
            order: Order::NewestFirst,
            from: time,
            to: time,
            limit: rows_max,
            ..self.query.clone()
        };
        let (mut end, mut width, mut found) = (below, u128::MAX, RecordBytes::new());
        loop {
            let start = end.map_or(u128::MAX, |end| half(&end)).saturating_sub(width);
            let before = start.checked_sub(1).map(|before| whole(before, 0xff));
            query.after = before.map(|id| Position { time, id });
            // Within a range, the highest hashes come last.
            let (mut highest, missing) = (VecDeque::new(), wanted - found.len());
            let (mut count, mut last, mut has_passed) = (0, start, false);
            let (mut bytes, mut is_full) = (0, false);
            let more = search.run(&query, SLICE_ROWS, &mut |record| {
                has_passed = end.is_some_and(|end| *record.id() >= end);
                if has_passed {
                    return ControlFlow::Break(());
                }
                (count, last) = (count + 1, half(record.id()));
                if may_be_sent(record) {
                    let copy = copy(record, include_data);
                    bytes += copy.len();
                    highest.push_back(copy);
                    while let Some(lowest) = highest.front() {
                        let (count, rest) = (highest.len() - 1, bytes - lowest.len());
                        let is_beyond = exceeds_page(count, rest);
                        if count < missing && !is_beyond {
                            break;
                        }
                        is_full |= is_beyond;
                        bytes = rest;
                        highest.pop_front();
                    }
                }
                ControlFlow::Continue(())
            })?;
            if more && !has_passed {
                // The new range is half as wide as the part that was read. If hashes are evenly
                // distributed, the new range has half as many rows.
                width = ((last - start) / 2).min(width / 4).max(1);
                continue;
            }
            found.extend(highest.into_iter().rev());
            if start == 0 || found.len() >= wanted || is_full || is_too_long(&found) {
                return Ok(found);
            }
            end = Some(whole(start, 0));
            width = width.saturating_mul((rows_max / 2 / count.max(1)).clamp(1, 16) as u128);
        }
    }
}

/// Whether so many messages with so many bytes do not fit on a page. The last of them shows that
/// more messages follow; a single message fits whatever its length.
fn exceeds_page(messages: usize, bytes: usize) -> bool {
    messages > 1 && bytes > PAGE_BYTES_MAX
}

/// Whether the messages do not fit on a page.
fn is_too_long(records: &RecordBytes) -> bool {
    exceeds_page(records.len(), records.iter().map(|record| record.len()).sum())
}

/// Returns the first half of a hash, as a number.
fn half(hash: &Id) -> u128 {
    let (half, _) = hash.split_at(16);
    u128::from_be_bytes(half.try_into().unwrap_or_default())
}

/// Returns the hash with this first half; each byte of its second half is `rest`.
fn whole(half: u128, rest: u8) -> Id {
    let mut hash = [rest; 32];
    hash[..16].copy_from_slice(&half.to_be_bytes());
    hash
}

/// Copies the part of a record that an answer needs: the whole record, or only its id and time.
fn copy(record: &Record<'_>, include_data: bool) -> Box<[u8]> {
    if include_data {
        return record.bytes().into();
    }
    let (id, time) = (*record.id(), record.time());
    let head = RecordHeader { id, time, author: None, kind: 0, expires: None };
    let mut out = Vec::new();
    record::write(&mut out, &head, &[], std::iter::empty());
    out.into()
}

/// Whether an answer may contain a message. Messages without a payload are left out, because other
/// nodes cannot parse an answer with such a message.
fn may_be_sent(record: &Record<'_>) -> bool {
    MessageRecord::new(*record).has_payload()
}
