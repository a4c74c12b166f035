//! Random questions about the events of a run. Every filter names authors, ids or the tag of the
//! run, so events of other people do not match.

use super::corpus::{HardCorpus, LETTERS};
use super::oracle::OracleFilter;
use crate::random::Random;

/// The longest page that is requested.
const LIMIT_MAX: usize = 500;

/// Makes questions, one after the other.
pub(super) struct QuestionSource<'a> {
    corpus: &'a HardCorpus,
    authors: Vec<String>,
    random: Random,
    limit_max: usize,
}

impl<'a> QuestionSource<'a> {
    pub(super) fn new(corpus: &'a HardCorpus, seed: u64, limit_max: Option<u64>) -> Self {
        let limit_max = limit_max.map_or(LIMIT_MAX, |limit| LIMIT_MAX.min(limit.max(1) as usize));
        let authors = corpus.authors();
        Self { corpus, authors, random: Random::new(seed ^ 0x5eed), limit_max }
    }

    /// The filters of the next question: one, and sometimes several.
    pub(super) fn next(&mut self) -> Vec<OracleFilter> {
        let count = if self.random.once_in(6) { self.random.between(2, 5) } else { 1 };
        (0..count).map(|_| self.filter()).collect()
    }

    fn filter(&mut self) -> OracleFilter {
        let mut filter = OracleFilter::default();
        match self.random.below(10) {
            0 => filter.ids = Some(self.ids()),
            1..5 => filter.authors = Some(self.few(4, Self::author)),
            _ => {
                filter.tags.insert("t".into(), vec![self.corpus.name.clone()]);
            }
        }
        if self.random.once_in(2) {
            filter.kinds = Some(self.few(3, Self::kind));
        }
        if self.random.once_in(4) && filter.authors.is_none() {
            filter.authors = Some(self.few(2, Self::author));
        }
        if self.random.once_in(3) {
            self.add_tags(&mut filter);
        }
        let time = self.time();
        match self.random.below(6) {
            0 => filter.since = Some(time),
            1 => filter.until = Some(time),
            2 => {
                let other = self.time();
                (filter.since, filter.until) = (Some(time.min(other)), Some(time.max(other)));
            }
            _ => {}
        }
        let limit = *self.random.pick(&[1, 2, 3, 5, 10, 20, 100, LIMIT_MAX, LIMIT_MAX]);
        filter.limit = Some(limit.min(self.limit_max));
        filter
    }

    /// Adds a condition for one or two tags.
    fn add_tags(&mut self, filter: &mut OracleFilter) {
        for _ in 0..self.random.between(1, 2) {
            if self.random.once_in(4) {
                let letter = if self.random.once_in(2) { "e" } else { "p" };
                let values = self.few(3, |source| {
                    let (event, _) = source.random.pick(&source.corpus.events[..]);
                    if letter == "e" { event.id.clone() } else { event.pubkey.clone() }
                });
                filter.tags.insert(letter.into(), values);
            } else {
                let letter = *self.random.pick(&LETTERS);
                let values =
                    self.few(3, |source| source.random.pick(&source.corpus.values).clone());
                // An earlier condition on this tag stays, since it may be the condition that names
                // the run.
                filter.tags.entry(letter.into()).or_insert(values);
            }
        }
    }

    /// Makes one to `most` different values.
    fn few<T: PartialEq>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let mut values = Vec::new();
        for _ in 0..self.random.between(1, most) {
            let value = make(self);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }

    /// Some ids. About one id in eight is random and belongs to no event.
    fn ids(&mut self) -> Vec<String> {
        self.few(12, |source| {
            if source.random.once_in(8) {
                return crate::text::hex(&source.random.bytes());
            }
            source.random.pick(&source.corpus.events[..]).0.id.clone()
        })
    }

    fn author(&mut self) -> String {
        self.random.pick(&self.authors).clone()
    }

    fn kind(&mut self) -> u64 {
        self.random.pick(&self.corpus.events[..]).0.kind
    }

    /// The time of an event, or the second before or after the event.
    fn time(&mut self) -> u64 {
        let time = self.random.pick(&self.corpus.events[..]).0.created_at;
        (time + self.random.below(3) as u64).saturating_sub(1)
    }
}
