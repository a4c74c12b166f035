//! The log of slow questions: what was asked, by which plan it went, how much it visited and how long
//! that took; and, asked for aside, how the archive explains it. Bounded, since whoever asks slow
//! questions asks many.

use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::{Query, Store};
use hark_codec::hex;

use crate::metrics::{Label, Plan};

/// Lines in a window of time; the others are only counted.
const LINES_MAX: u64 = 20;
const WINDOW: Duration = Duration::from_secs(10);
/// Characters of the filters that a line has.
const FILTERS_MAX: usize = 4_000;
/// Questions that wait to be explained, at most, and how many of one REQ's filters are.
const ASIDE_MAX: usize = 2;
const EXPLAINED_MAX: usize = 4;

/// What is slow, and what was logged of late.
#[derive(Debug)]
pub(crate) struct SlowLog {
    from: Option<Duration>,
    window: Mutex<Window>,
    aside: Option<(SyncSender<Aside>, JoinHandle<()>)>,
}

/// A question that is to be explained.
#[derive(Debug)]
struct Aside {
    queries: Vec<Query>,
    counted: bool,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    lines: u64,
}

/// What a question has cost.
pub(super) struct Spent {
    /// Time of its searches together.
    pub(super) time: Duration,
    /// Time until the first of them began.
    pub(super) waited: Duration,
    pub(super) rows: u64,
    /// The plan of the slowest of them.
    pub(super) plan: Plan,
}

impl SlowLog {
    /// Logs what takes at least `from`, or nothing, and how `store` explains it.
    pub(crate) fn new(from: Option<Duration>, store: &Arc<dyn Store>) -> Self {
        let aside = from.and_then(|_| {
            let (aside, due) = sync_channel(ASIDE_MAX);
            let store = Arc::downgrade(store);
            let thread = std::thread::Builder::new().name("hark-slow".into());
            match thread.spawn(move || explain_all(&store, &due)) {
                Ok(thread) => Some((aside, thread)),
                Err(error) => {
                    tracing::warn!(%error, "slow questions are not explained: no thread");
                    None
                }
            }
        });
        Self { from, window: Mutex::new(Window { began: Instant::now(), lines: 0 }), aside }
    }

    /// Logs a question if it was slow.
    pub(super) fn note<'a>(
        &self,
        verb: &str,
        spent: &Spent,
        asked: impl Iterator<Item = (&'a Query, usize)> + Clone,
    ) {
        if self.from.is_none_or(|from| spent.time < from) || !self.has_room() {
            return;
        }
        let (_, plan) = Plan::ALL[spent.plan.number()];
        tracing::warn!(
            verb,
            ms = spent.time.as_millis() as u64,
            waited_ms = spent.waited.as_millis() as u64,
            rows = spent.rows,
            plan,
            filters = filters(asked.clone()),
            "a slow question"
        );
        if let Some((aside, _)) = &self.aside {
            let queries = asked.take(EXPLAINED_MAX);
            let queries = queries.map(|(query, limit)| Query { limit, ..query.clone() }).collect();
            // Where many wait already, this one goes without.
            let _ = aside.try_send(Aside { queries, counted: spent.plan == Plan::Count });
        }
    }

    fn has_room(&self) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.began.elapsed() >= WINDOW {
            let left_out = window.lines.saturating_sub(LINES_MAX);
            if left_out > 0 {
                tracing::warn!(left_out, "more slow questions were not logged one by one");
            }
            *window = Window { began: Instant::now(), lines: 0 };
        }
        window.lines += 1;
        window.lines <= LINES_MAX
    }
}

impl Drop for SlowLog {
    fn drop(&mut self) {
        // Nothing may use the archive any more once it is to be closed.
        if let Some((aside, thread)) = self.aside.take() {
            drop(aside);
            let _ = thread.join();
        }
    }
}

/// Has slow questions explained, where the archive has something to say for itself. That may take as
/// long as they took.
fn explain_all(store: &Weak<dyn Store>, due: &Receiver<Aside>) {
    for Aside { queries, counted } in due {
        for query in queries {
            let Some(store) = store.upgrade() else { return };
            let explained =
                if counted { store.explain_count(&query) } else { store.explain(&query) };
            let filter = filters([(&query, query.limit)].into_iter());
            match explained {
                Ok(explained) if explained.details.is_empty() => {}
                Ok(explained) => {
                    tracing::warn!(filter, "how it was answered: {}", explained.to_string().trim());
                }
                Err(error) => tracing::warn!(filter, %error, "a slow question is not explained"),
            }
        }
    }
}

/// Questions as the filters that ask them, ready for `hark explain`; cut if they are long.
pub(super) fn filters<'a>(queries: impl Iterator<Item = (&'a Query, usize)>) -> String {
    let mut out = String::new();
    for (query, limit) in queries {
        if !out.is_empty() {
            out.push(' ');
        }
        filter(&mut out, query, limit);
    }
    let chars = out.len();
    if let Some((cut, _)) = out.char_indices().nth(FILTERS_MAX) {
        out.truncate(cut);
        let _ = write!(out, "... ({chars} bytes in all)");
    }
    out
}

fn filter(out: &mut String, query: &Query, limit: usize) {
    let mut fields = Vec::new();
    let keys = |keys: &[[u8; 32]]| {
        list(keys.iter().map(|key| String::from_utf8_lossy(&hex::encode_32(key)).into_owned()))
    };
    if let Some(ids) = &query.ids {
        fields.push(format!("\"ids\":{}", keys(ids)));
    }
    if let Some(authors) = &query.authors {
        fields.push(format!("\"authors\":{}", keys(authors)));
    }
    if let Some(kinds) = &query.kinds {
        fields.push(format!("\"kinds\":{kinds:?}").replace(", ", ","));
    }
    for label in &query.labels {
        let values = label.values.iter().map(|value| String::from_utf8_lossy(value).into_owned());
        fields.push(format!("\"#{}\":{}", char::from(label.name), list(values)));
    }
    if query.from > 0 {
        fields.push(format!("\"since\":{}", query.from));
    }
    if query.to < u64::MAX {
        fields.push(format!("\"until\":{}", query.to));
    }
    if limit < usize::MAX {
        fields.push(format!("\"limit\":{limit}"));
    }
    let _ = write!(out, "{{{}}}", fields.join(","));
}

fn list(values: impl Iterator<Item = String>) -> String {
    values.collect::<serde_json::Value>().to_string()
}

#[cfg(test)]
mod tests {
    use hark_archive::admission::KeepAll;
    use hark_archive::store::memory::MemoryStore;
    use hark_codec::nostr::Filter;

    use super::*;

    #[test]
    fn a_question_is_logged_as_the_filter_that_asks_it() {
        let key = "ab".repeat(32);
        for json in [
            "{}".to_owned(),
            format!(r#"{{"ids":["{key}"],"kinds":[1,7],"since":3,"until":9,"limit":20}}"#),
            format!(r##"{{"authors":["{key}"],"#t":["\\","a\"b"],"limit":0}}"##),
        ] {
            let mut parsed = Filter::default();
            parsed.parse(json.as_bytes()).unwrap();
            let query = hark_networks::nostr::query::of(&parsed);
            assert_eq!(filters([(&query, query.limit)].into_iter()), json);
        }
        let many = Query { ids: Some(vec![[1; 32]; 1_000]), ..Query::default() };
        let said = filters([(&many, 5)].into_iter());
        assert!(said.len() < FILTERS_MAX + 50 && said.ends_with("bytes in all)"), "{said}");
    }

    #[test]
    fn many_slow_questions_are_a_few_lines() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(KeepAll));
        let log = SlowLog::new(Some(Duration::ZERO), &store);
        let lines = (0..1_000).filter(|_| log.has_room()).count();
        assert_eq!(lines as u64, LINES_MAX);
    }
}
