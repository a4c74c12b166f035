//! Reads the answer to a question: its first page, or page after page by `until`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;

use super::case::{AnswerExtent, CaseQuestion};
use crate::requests::{created_at, event_id, request};
use crate::target::Refusals;
use crate::websocket::{RelayConnection, RelayMessage, fields};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_mins(1);

/// The size of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerSize {
    /// Number of distinct events.
    pub(super) events: u64,
    pub(super) pages: u64,
}

/// Pages and refusals that all connections of a round have received.
#[derive(Default)]
pub(super) struct AskedProgress {
    /// Number of complete pages, including those of unfinished answers.
    pub(super) pages: AtomicU64,
    pub(super) refusals: Mutex<Refusals>,
}

/// Sends a question and reads its answer. Returns `None` if the relay refused the question.
pub(super) async fn ask(
    connection: &mut RelayConnection,
    question: &CaseQuestion,
    extent: AnswerExtent,
    limit: usize,
    progress: &AskedProgress,
) -> anyhow::Result<Option<AnswerSize>> {
    let walk = walk(connection, question, extent, limit, progress);
    tokio::time::timeout(ANSWER, walk).await.context("an answer did not end within a minute")?
}

async fn walk(
    connection: &mut RelayConnection,
    question: &CaseQuestion,
    extent: AnswerExtent,
    limit: usize,
    progress: &AskedProgress,
) -> anyhow::Result<Option<AnswerSize>> {
    let mut size = AnswerSize::default();
    let mut boundary = PageBoundary { time: question.until, ids: Vec::new() };
    loop {
        let request = request(0, &question.filter(boundary.time, limit));
        connection.send(&request.req).await?;
        let (mut read, mut new) = (0, 0);
        let mut next = PageBoundary { time: boundary.time, ids: Vec::new() };
        loop {
            match connection.next().await? {
                RelayMessage::Event(text) => {
                    read += 1;
                    let time = created_at(text).context("the relay sends an event without time")?;
                    let id = event_id(text).context("the relay sends an event without id")?;
                    new += u64::from(time != boundary.time || !boundary.ids.contains(&id));
                    next.add(time, id);
                }
                RelayMessage::Eose(text) if text.starts_with(&request.eose) => break,
                RelayMessage::Closed(text) if fields(text).get(1) == Some(&request.sub) => {
                    progress.refusals.lock().add_message(RelayMessage::Closed(text));
                    return Ok(None);
                }
                notice @ RelayMessage::Notice(_) => {
                    progress.refusals.lock().add_message(notice);
                    return Ok(None);
                }
                _ => {}
            }
        }
        connection.send(&request.close).await?;
        size.pages += 1;
        progress.pages.fetch_add(1, Ordering::Relaxed);
        size.events += new;
        if read < limit || extent == AnswerExtent::FirstPage {
            return Ok(Some(size));
        }
        boundary.follow(next, new);
    }
}

/// The end of a page. The next page repeats the events of this page's last second.
struct PageBoundary {
    /// The time of the oldest event, in seconds.
    time: u64,
    /// The ids of the events of that time.
    ids: Vec<[u8; 64]>,
}

impl PageBoundary {
    fn add(&mut self, time: u64, id: [u8; 64]) {
        if time < self.time {
            self.time = time;
            self.ids.clear();
        }
        if time == self.time {
            self.ids.push(id);
        }
    }

    /// Moves to the end of the `next` page. A page without new events lies within a single second
    /// that has more events than a page. The remaining events of that second cannot be requested.
    fn follow(&mut self, next: Self, new: u64) {
        if new == 0 {
            self.time = self.time.saturating_sub(1);
            self.ids.clear();
        } else {
            *self = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_at_its_oldest_second() {
        let mut at = PageBoundary { time: 10, ids: Vec::new() };
        let mut next = PageBoundary { time: 10, ids: Vec::new() };
        for (time, id) in [(9, 1), (7, 2), (8, 3), (7, 4)] {
            next.add(time, [id; 64]);
        }
        at.follow(next, 4);
        assert_eq!((at.time, at.ids.len()), (7, 2));
        at.follow(PageBoundary { time: 7, ids: vec![[2; 64]] }, 0);
        assert_eq!((at.time, at.ids.len()), (6, 0));
    }
}
