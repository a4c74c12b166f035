//! The log of slow questions: what was asked, by which plan it went, how much it visited and how long
//! that took. Bounded, since whoever asks slow questions asks many.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hark_archive::Query;
use hark_codec::hex;

use crate::metrics::{Label, Plan};

/// Lines in a window of time; the others are only counted.
const LINES_MAX: u64 = 20;
const WINDOW: Duration = Duration::from_secs(10);
/// Characters of the filters that a line has.
const FILTERS_MAX: usize = 4_000;

/// What is slow, and what was logged of late.
#[derive(Debug)]
pub(crate) struct SlowLog {
    from: Option<Duration>,
    window: Mutex<Window>,
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
    /// Logs what takes at least `from`, or nothing.
    pub(crate) fn new(from: Option<Duration>) -> Self {
        Self { from, window: Mutex::new(Window { began: Instant::now(), lines: 0 }) }
    }

    /// Logs a question if it was slow. `filters` is made only then.
    pub(super) fn note(&self, verb: &str, spent: &Spent, filters: impl FnOnce() -> String) {
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
            filters = filters(),
            "a slow question"
        );
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
            let query = super::super::query::of(&parsed);
            assert_eq!(filters([(&query, query.limit)].into_iter()), json);
        }
        let many = Query { ids: Some(vec![[1; 32]; 1_000]), ..Query::default() };
        let said = filters([(&many, 5)].into_iter());
        assert!(said.len() < FILTERS_MAX + 50 && said.ends_with("bytes in all)"), "{said}");
    }

    #[test]
    fn many_slow_questions_are_a_few_lines() {
        let log = SlowLog::new(Some(Duration::ZERO));
        let lines = (0..1_000).filter(|_| log.has_room()).count();
        assert_eq!(lines as u64, LINES_MAX);
    }
}
