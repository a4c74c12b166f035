//! Pages of the entries in force, and of the audit log.

use std::ops::ControlFlow;

use hark_archive::{Position, Query, SearchProgress};
use hark_codec::hex;
use serde_json::Value;

use super::entry::{AuditPage, EntryFilter, EntryPage, RulingEntry};
use super::records::{NS_PER_S, note_of, notes};
use super::state::{Moderation, ModerationError};
use super::subject::{Ruling, RulingSubject, SubjectSort};

/// Maximum number of rows of a page.
const PAGE_ROWS_MAX: usize = 500;
/// Maximum number of bytes of the rows of a page, unless the page has a single row. An answer with
/// the page fits into a frame of the control socket.
const PAGE_BYTES_MAX: usize = 256 << 10;

impl Moderation {
    /// Returns a page of the entries in force, in the order of ruling and subject. `after` is the
    /// cursor of the page before. A page has at most 500 entries, and fewer if they are long.
    pub fn entries(
        &self,
        filter: EntryFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<EntryPage, ModerationError> {
        let after = after.map(|text| {
            let (ruling, subject) = text.split_once(' ').ok_or(ModerationError::Cursor)?;
            let ruling = Ruling::from_name(ruling).ok_or(ModerationError::Cursor)?;
            let subject: RulingSubject = subject.parse().map_err(|_| ModerationError::Cursor)?;
            Ok::<_, ModerationError>((ruling, subject))
        });
        let (after, now_s) = (after.transpose()?, self.now_s());
        let limit = limit.clamp(1, PAGE_ROWS_MAX);
        let book = self.state.book.lock();
        let found = book.after(after.as_ref()).filter(|((ruling, subject), entry)| {
            filter.matches((*ruling, subject)) && entry.is_in_force(now_s)
        });
        let (mut page, mut bytes) = (EntryPage::default(), 0);
        for (_, entry) in found {
            bytes += row_bytes(&entry.row());
            let is_full = page.entries.len() == limit || bytes > PAGE_BYTES_MAX;
            if let Some(last) = page.entries.last().filter(|_| is_full) {
                page.next = Some(format!("{} {}", last.ruling.name(), last.subject));
                break;
            }
            page.entries.push(entry.clone());
        }
        Ok(page)
    }

    /// Returns the entry of a subject, if it is in force.
    pub fn entry(&self, ruling: Ruling, subject: &RulingSubject) -> Option<RulingEntry> {
        let now_s = self.now_s();
        let book = self.state.book.lock();
        let (_, entry) = book.find(&(ruling, subject.clone()))?;
        entry.is_in_force(now_s).then(|| entry.clone())
    }

    /// Number of entries with this ruling and of this sort. An entry counts until it is removed,
    /// which may be some time after its end.
    pub fn count(&self, ruling: Ruling, sort: SubjectSort) -> usize {
        self.state.lists.load().count(ruling, sort)
    }

    /// Returns a page of the audit log, newest first: notes from the time `since_s` on. `after` is
    /// the cursor of the page before. A page has at most 500 notes, and fewer if they are long. The
    /// call waits for the archive, so the caller's thread must be allowed to block.
    pub fn log(
        &self,
        since_s: u64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<AuditPage, ModerationError> {
        let after = after.map(|text| position(text).ok_or(ModerationError::Cursor)).transpose()?;
        let limit = limit.clamp(1, PAGE_ROWS_MAX);
        let query = Query {
            from: since_s.saturating_mul(NS_PER_S),
            after,
            limit: limit + 1,
            now: self.now_s().saturating_mul(NS_PER_S),
            ..notes()
        };
        let mut search = self.shelf()?.store().search(&query)?;
        let (mut page, mut last, mut bytes) = (AuditPage::default(), None, 0);
        while search.slice(u64::MAX, &mut |record| {
            let Some(note) = note_of(record) else { return ControlFlow::Continue(()) };
            bytes += row_bytes(&note.row());
            let is_full = page.notes.len() == limit || bytes > PAGE_BYTES_MAX;
            if let Some(last) = last.as_ref().filter(|_| is_full) {
                page.next = Some(cursor(last));
                return ControlFlow::Break(());
            }
            page.notes.push(note);
            last = Some(Position::of(record));
            ControlFlow::Continue(())
        })? == SearchProgress::Paused
            && page.next.is_none()
        {}
        Ok(page)
    }
}

/// The number of bytes of a row in an answer.
fn row_bytes(row: &Value) -> usize {
    row.to_string().len()
}

fn cursor(at: &Position) -> String {
    format!("{} {}", at.time, hex::text_32(&at.id))
}

fn position(text: &str) -> Option<Position> {
    let (time, id) = text.split_once(' ')?;
    Some(Position { time: time.parse().ok()?, id: hex::decode_32(id.as_bytes())? })
}
