//! The answers that a relay must give to questions, computed from the file of events that the relay
//! holds. The file is read from its start to its end, and memory is bounded by the questions and
//! their limits, so a file may have any number of events.
//!
//! A relay may hide direct messages and gift wraps from readers that have not authenticated. So an
//! answer to a question that names no kinds is also right without these events, as long as all of
//! them are missing.

mod condition;
mod stored;
mod window;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use anyhow::Context as _;
use hark_codec::nostr::Event;

use self::condition::{AnchorKey, FilterCondition};
use self::stored::{CorpusState, EventPresence};
pub(crate) use self::window::AnsweredEvent;
use self::window::{AnswerWindow, Boundary};
use crate::events::WRAP;
use crate::lines::EventFile;
use crate::meter::ProgressMeter;

/// Kind of direct messages (NIP-04).
const DIRECT: u16 = 4;
/// The sets of kinds that a relay may hide.
const HIDDEN: [&[u16]; 3] = [&[], &[WRAP], &[DIRECT, WRAP]];

/// The difference between an answer and the expected answer. The first three are faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerVerdict {
    /// The answer has an event that does not match, that no longer exists, that came twice, or that
    /// is beyond the limit.
    Wrong,
    /// Events are missing.
    Short,
    /// The events are right, but not ordered from new to old.
    Unordered,
    /// Of events with the same time, the answer does not begin with the lowest ids.
    OtherTies,
    Right,
}

/// A filter of a question, and the matching events. There is a window for each set of hidden
/// kinds.
struct ExpectedFilter {
    condition: FilterCondition,
    windows: Vec<AnswerWindow>,
}

/// The expected answers to questions.
pub(crate) struct ExpectedAnswers {
    filters: Vec<ExpectedFilter>,
    /// For each question, the indices of its filters.
    questions: HashMap<String, Vec<usize>>,
}

impl ExpectedAnswers {
    /// Computes the answers to these questions: the filters of a REQ as JSON, separated by commas.
    /// Searches (NIP-50) have no expected answers, and are left out.
    pub(crate) fn read<'a>(
        path: &Path,
        questions: impl Iterator<Item = &'a str>,
    ) -> anyhow::Result<Self> {
        let mut expected = Self::new(questions)?;
        let stored = CorpusState::read(path)?;
        let mut places: HashMap<AnchorKey, Vec<usize>> = HashMap::new();
        for (at, filter) in expected.filters.iter().enumerate() {
            for anchor in filter.condition.anchors() {
                places.entry(anchor).or_default().push(at);
            }
        }
        let (mut lines, mut read) = (EventFile::open(path)?, 0u64);
        let mut candidates: Vec<usize> = Vec::new();
        let mut meter = ProgressMeter::start("expected answers", 0);
        while let Some(event) = lines.event()? {
            read += 1;
            if read.is_multiple_of(4_096) {
                meter.at(read);
            }
            let presence = stored.presence(&event);
            if presence == EventPresence::Absent {
                continue;
            }
            candidates.clear();
            let labels = event.labels().map(|(letter, value)| AnchorKey::label(letter, value));
            let own = [AnchorKey::Id(*event.id()), AnchorKey::Author(*event.pubkey())];
            for anchor in labels.chain(own).chain([AnchorKey::All]) {
                candidates.extend(places.get(&anchor).into_iter().flatten());
            }
            candidates.sort_unstable();
            candidates.dedup();
            for &at in &candidates {
                expected.filters[at].add(&event, presence == EventPresence::Optional);
            }
        }
        meter.finish();
        Ok(expected)
    }

    fn new<'a>(questions: impl Iterator<Item = &'a str>) -> anyhow::Result<Self> {
        let (mut filters, mut known) = (Vec::new(), HashMap::new());
        let mut of_questions: HashMap<String, Vec<usize>> = HashMap::new();
        for question in questions {
            if of_questions.contains_key(question) {
                continue;
            }
            let parsed: Vec<serde_json::Value> = serde_json::from_str(&format!("[{question}]"))
                .with_context(|| format!("no filters: {question}"))?;
            let conditions: Option<Vec<_>> = parsed.iter().map(FilterCondition::new).collect();
            let Some(conditions) = conditions else { continue };
            let mut own = Vec::new();
            for (condition, text) in conditions.into_iter().zip(&parsed) {
                let at = *known.entry(text.to_string()).or_insert(filters.len());
                if at == filters.len() {
                    filters.push(ExpectedFilter::new(condition));
                }
                own.push(at);
            }
            of_questions.insert(question.to_owned(), own);
        }
        Ok(Self { filters, questions: of_questions })
    }

    /// Compares an answer, in the order of its events, with the expected answer. `None` if the
    /// question has no expected answer.
    pub(crate) fn check(&self, question: &str, answer: &[AnsweredEvent]) -> Option<AnswerVerdict> {
        let filters = self.questions.get(question)?;
        // The verdict for the set of hidden kinds that fits the answer best.
        let verdicts = (0..HIDDEN.len()).map(|hidden| self.check_hiding(filters, answer, hidden));
        verdicts.min_by_key(|verdict| match verdict {
            AnswerVerdict::Right => 0,
            AnswerVerdict::OtherTies => 1,
            AnswerVerdict::Unordered => 2,
            AnswerVerdict::Short => 3,
            AnswerVerdict::Wrong => 4,
        })
    }

    fn check_hiding(
        &self,
        filters: &[usize],
        answer: &[AnsweredEvent],
        hidden: usize,
    ) -> AnswerVerdict {
        let ids: BTreeSet<AnsweredEvent> = answer.iter().copied().collect();
        let windows: Vec<Cow<'_, AnswerWindow>> = filters
            .iter()
            .filter_map(|at| {
                let windows = &self.filters.get(*at)?.windows;
                Some(windows.get(hidden).or(windows.first())?.of_answer(&ids))
            })
            .collect();
        let is_expected = |event: &AnsweredEvent| windows.iter().any(|window| window.has(event));
        if ids.len() < answer.len() || !ids.iter().all(is_expected) {
            return AnswerVerdict::Wrong;
        }
        let mut ties = false;
        for window in &windows {
            match window.boundary(&ids) {
                Boundary::Missing => return AnswerVerdict::Short,
                Boundary::OtherIds => ties = true,
                Boundary::LowestIds => {}
            }
        }
        // The order of the events of several filters is not specified.
        let [window] = &windows[..] else { return AnswerVerdict::Right };
        if answer.len() > window.limit() {
            return AnswerVerdict::Wrong;
        }
        if !answer.is_sorted_by(|(before, _), (after, _)| before >= after) {
            return AnswerVerdict::Unordered;
        }
        let in_order = answer.is_sorted_by_key(|(time, id)| (u64::MAX - time, *id));
        if ties || !in_order { AnswerVerdict::OtherTies } else { AnswerVerdict::Right }
    }
}

/// Returns the newest events of a kind that a relay holds after it has received the whole file:
/// about `most` events, and always all events of the oldest second.
pub(crate) fn newest(path: &Path, kind: u16, most: usize) -> anyhow::Result<Vec<AnsweredEvent>> {
    let stored = CorpusState::read(path)?;
    let (mut lines, mut window) = (EventFile::open(path)?, AnswerWindow::new(most));
    while let Some(event) = lines.event()? {
        if event.kind() == kind && stored.presence(&event) == EventPresence::Held {
            window.add((event.created_at(), *event.id()), false);
        }
    }
    Ok(window.events().collect())
}

impl ExpectedFilter {
    fn new(condition: FilterCondition) -> Self {
        let ways = if condition.names_kinds() { 1 } else { HIDDEN.len() };
        let windows = (0..ways).map(|_| AnswerWindow::new(condition.limit)).collect();
        Self { condition, windows }
    }

    fn add(&mut self, event: &Event<'_>, is_optional: bool) {
        if !self.condition.matches(event) {
            return;
        }
        for (window, hidden) in self.windows.iter_mut().zip(HIDDEN) {
            if !hidden.contains(&event.kind()) {
                window.add((event.created_at(), *event.id()), is_optional);
            }
        }
    }
}

#[cfg(test)]
mod tests;
