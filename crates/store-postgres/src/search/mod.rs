//! Answering a question: keys first, from ordered ranges of an index, then the records they name.
//!
//! No transaction outlives a statement. A search goes on behind the exact place where it was, and
//! records that came after its beginning are told by their number.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::query::Open;
use hark_archive::query::plan::Set;
use hark_archive::{Order, Progress, Query, Record, Search, SearchError};

use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::layout::Form;
use crate::line::Place;
use crate::replica::Reading;
use crate::session::{Fault, Session};
use crate::terms::Terms;
use crate::time::Key;
use crate::{Inner, Nature};
use walk::{Gathered, Pages, Walk};

pub(crate) use several::Finders;

mod plan;
mod several;
mod walk;

/// Records fetched at a time, at most.
const FETCH_MAX: usize = 500;
/// Parts that records are fetched from one by one, at most.
const FETCH_PARTS_MAX: usize = 4;
/// Records fetched at a time at least, however long they are.
const FETCH_MIN: usize = 16;
/// Bytes of records that a search keeps while it rests; more if there is room. The others are fetched again.
const KEPT_BYTES: usize = 64 << 10;
/// As far as there is room.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// Room for that, of all searches together.
pub(crate) const KEPT_ALL_BYTES: usize = 64 << 20;
/// Values of a label that are also compared in the database, so that what does not match is not sent.
const CUT_VALUES_MAX: usize = 64;

/// A question with what follows from it.
pub(crate) struct Asked {
    pub(crate) query: Query,
    /// Of each label condition, the terms of its values; none where no index has them.
    pub(crate) terms: Vec<Option<Vec<i64>>>,
    /// Of each label condition, whether large parts of all records meet it.
    pub(crate) common: Vec<bool>,
    /// Numbers above this are not seen.
    pub(crate) seq: i64,
    /// What alone the search may be driven by, where that is not left to a choice.
    pub(crate) driver: Option<Set>,
}

impl Asked {
    /// The questions that take the place of one that may have a gate.
    pub(crate) fn opened(query: &Query, terms: &Terms, nature: Nature, seq: i64) -> Vec<Self> {
        let mut query = query.clone();
        query.normalise();
        let asked =
            |Open { query, driver }| Self { driver, ..Self::new(&query, terms, nature, seq) };
        query.opened().into_iter().map(asked).collect()
    }

    pub(crate) fn new(query: &Query, terms: &Terms, nature: Nature, seq: i64) -> Self {
        let mut query = query.clone();
        if nature.one_kind {
            query.kinds.get_or_insert_with(|| vec![0]);
        }
        query.normalise();
        let author = match query.authors.as_deref() {
            Some([one]) => Some(*one),
            _ => None,
        };
        let of = |set: &hark_archive::LabelSet| {
            let values = set.values.iter();
            values
                .map(|value| terms.label(set.name, value, author.as_ref()))
                .collect::<Option<Vec<i64>>>()
        };
        let terms = query.labels.iter().map(of).collect();
        let common = query.labels.iter().map(|set| nature.common_labels.contains(&set.name));
        let common = common.collect();
        Self { query, terms, common, seq, driver: None }
    }

    /// The ranges of kinds between those that are not asked for, as the first and the last kind of each;
    /// none where all are.
    pub(crate) fn gaps(&self) -> Option<(Vec<i32>, Vec<i32>)> {
        if self.query.not_kinds.is_empty() {
            return None;
        }
        let mut not: Vec<i32> =
            self.query.not_kinds.iter().map(|kind| kind.cast_signed()).collect();
        not.sort_unstable();
        let (mut firsts, mut lasts, mut next) = (Vec::new(), Vec::new(), Some(i32::MIN));
        for kind in not {
            if let Some(first) = next.filter(|&first| first < kind) {
                firsts.push(first);
                lasts.push(kind - 1);
            }
            next = kind.checked_add(1);
        }
        if let Some(first) = next {
            firsts.push(first);
            lasts.push(i32::MAX);
        }
        Some((firsts, lasts))
    }

    /// Kinds that are not asked for, as the database has them.
    fn not_kinds(&self) -> Vec<i32> {
        self.query.not_kinds.iter().map(|kind| kind.cast_signed()).collect()
    }

    /// Of the label conditions but `driver`, the one that is cheapest to compare in the database.
    fn cut(&self, driver: Option<Set>) -> Option<&Vec<i64>> {
        let others =
            self.terms.iter().enumerate().filter(|(at, _)| driver != Some(Set::Label(*at)));
        let short = others.filter_map(|(_, terms)| terms.as_ref());
        short.filter(|terms| terms.len() <= CUT_VALUES_MAX).min_by_key(|terms| terms.len())
    }
}

/// Where statements of a search are carried out.
pub(crate) trait Sessions {
    /// On a session that `work` is given; again on another if that one turns out to be lost.
    fn with<T>(&mut self, work: impl FnMut(&mut Session) -> Result<T, Fault>) -> Result<T, Fault>;
}

impl Sessions for Session {
    fn with<T>(
        &mut self,
        mut work: impl FnMut(&mut Session) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        work(self)
    }
}

/// How a search finds its keys.
enum Stage {
    /// It is not decided yet.
    Start,
    /// In walks along runs.
    Walk(Box<Walk>),
    /// Page by page, with the records.
    Pages(Box<Pages>),
    /// All are found.
    Found,
}

/// A search that is carried out on sessions it is given.
pub(crate) struct Finder {
    asked: Asked,
    stage: Stage,
    /// Keys that come next, in order.
    keys: VecDeque<Key>,
    /// Records that come before those.
    bodies: VecDeque<Box<[u8]>>,
    /// Room that they have while it rests.
    room: Option<OwnedSemaphorePermit>,
    /// Records that are fetched at a time, as long as they have turned out to be.
    fetch_max: usize,
    told: usize,
    /// Keys whose records were fetched, and how many of these belong to the answer.
    fetched: usize,
    matched: usize,
    visited: u64,
    driver: Option<Set>,
    /// Whether it has turned out that walking past others' records is dear.
    by_value: bool,
}

impl Finder {
    pub(crate) fn new(asked: Asked) -> Self {
        Self {
            asked,
            stage: Stage::Start,
            keys: VecDeque::new(),
            bodies: VecDeque::new(),
            room: None,
            fetch_max: FETCH_MAX,
            told: 0,
            fetched: 0,
            matched: 0,
            visited: 0,
            driver: None,
            by_value: false,
        }
    }

    pub(crate) fn visited(&self) -> u64 {
        self.visited
    }

    pub(crate) fn driver(&self) -> Option<Set> {
        self.driver
    }

    /// Whether there is nothing left to find or fetch.
    fn is_through(&self) -> bool {
        matches!(self.stage, Stage::Found) && self.keys.is_empty()
    }

    /// Records that are still wanted, with the one that tells that there is more.
    fn wanted(&self) -> usize {
        (self.asked.query.limit - self.told).saturating_add(1).saturating_sub(self.bodies.len())
    }

    /// Keys to look at, so that as many of their records as are wanted belong to the answer if it goes on
    /// as before.
    fn reach(&self) -> usize {
        self.wanted().saturating_mul(self.fetched + 1) / (self.matched + 1)
    }

    /// Takes a step towards the next record. False if there is none.
    fn step(&mut self, inner: &Inner, session: &mut Session) -> Result<bool, Fault> {
        if !self.keys.is_empty() {
            self.fetch(inner, session)?;
            return Ok(true);
        }
        let (wanted, reach) = (self.wanted(), self.reach());
        match &mut self.stage {
            Stage::Start => {
                self.stage = self.plan(session)?;
                Ok(true)
            }
            Stage::Walk(walk) => {
                let before = walk.visited;
                let parts = inner.parts();
                let gathered = walk.gather(&self.asked, &parts, reach, &mut self.keys, session)?;
                self.visited += walk.visited - before;
                match gathered {
                    Gathered::Some => {}
                    Gathered::All => self.stage = Stage::Found,
                    Gathered::Instead(at) => {
                        self.asked.query.after = Some(at.position());
                        (self.stage, self.by_value) = (Stage::Start, true);
                    }
                }
                Ok(true)
            }
            Stage::Pages(pages) => {
                let (before, wanted) = (pages.visited, wanted.clamp(1, self.fetch_max));
                let page = pages.next(&self.asked, &inner.parts(), wanted, session)?;
                self.visited += pages.visited - before;
                match page {
                    Some(page) => self.bodies.extend(page),
                    None => self.stage = Stage::Found,
                }
                Ok(true)
            }
            Stage::Found => Ok(false),
        }
    }

    /// Fetches records of the next keys.
    fn fetch(&mut self, inner: &Inner, session: &mut Session) -> Result<(), Fault> {
        let count = self.reach().clamp(1, self.fetch_max).min(self.keys.len());
        let keys: Vec<Key> = self.keys.iter().take(count).copied().collect();
        let parts = inner.parts();
        let rows = match self.rows(&keys, &|key| parts.of_time(key.time), session) {
            // A part may have gone, or be unknown where a replica is behind.
            Err(Fault::Missing(_)) => self.rows(&keys, &|_| None, session)?,
            rows => rows?,
        };
        let mut found: Vec<(usize, &[u8])> =
            rows.iter().map(|(place, row)| (*place, row.get(1))).collect();
        found.sort_unstable_by_key(|(place, _)| *place);
        let found = matching(&self.asked, found.into_iter().map(|(_, body)| body))?;
        (self.fetched, self.matched) = (self.fetched + count, self.matched + found.len());
        self.bodies.extend(found);
        self.keys.drain(..count);
        Ok(())
    }

    /// Rows of keys, with their places among these. They are looked for in their parts if these are few.
    fn rows(
        &self,
        keys: &[Key],
        part: &dyn Fn(&Key) -> Option<i64>,
        session: &mut Session,
    ) -> Result<Vec<(usize, Row)>, Fault> {
        let mut places: BTreeMap<Option<i64>, Vec<usize>> = BTreeMap::new();
        for (place, key) in keys.iter().enumerate() {
            places.entry(part(key)).or_default().push(place);
        }
        if places.len() > FETCH_PARTS_MAX {
            places = BTreeMap::from([(None, (0..keys.len()).collect())]);
        }
        let cut = self.asked.cut(self.driver);
        let values: Vec<(Vec<i64>, Vec<&[u8]>)> = places
            .values()
            .map(|places| places.iter().map(|&at| (keys[at].time, &keys[at].id[..])).unzip())
            .collect();
        let values: Vec<[&(dyn ToSql + Sync); 4]> = values
            .iter()
            .map(|(times, ids)| [times as _, ids as _, &self.asked.seq as _, &cut as _])
            .collect();
        let calls: Vec<_> = places
            .keys()
            .zip(&values)
            .map(|(part, values)| (Form::Bodies(*part), &values[..]))
            .collect();
        let answers = session.pipeline(&calls)?;
        let rows = places.values().zip(answers).flat_map(|(places, rows)| {
            rows.into_iter().map(|row| (places[row.get::<_, i64>(0) as usize - 1], row))
        });
        Ok(rows.collect())
    }

    /// As [`Search::slice`].
    pub(crate) fn slice(
        &mut self,
        inner: &Inner,
        work: u64,
        sessions: &mut impl Sessions,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<Progress, Fault> {
        if self.asked.query.is_void() {
            return Ok(Progress::Done { more: false });
        }
        self.room = None;
        let start = self.visited;
        let mut handed = 0;
        loop {
            while let Some(body) = self.bodies.front() {
                if self.told == self.asked.query.limit {
                    return Ok(Progress::Done { more: true });
                }
                if handed >= work.max(1) {
                    return Ok(self.rest(inner));
                }
                let Ok(record) = Record::new(body) else {
                    self.bodies.pop_front();
                    continue;
                };
                handed += 1;
                self.told += 1;
                let stop = sink(&record).is_break();
                self.bodies.pop_front();
                if stop {
                    return Ok(self.rest(inner));
                }
            }
            if self.visited >= self.asked.query.budget {
                return Ok(Progress::Exhausted);
            }
            if self.visited - start >= work.max(1) {
                return Ok(self.rest(inner));
            }
            if !sessions.with(|session| self.step(inner, session))? {
                return Ok(Progress::Done { more: false });
            }
        }
    }

    /// Lets go of records that are too much to keep until the next slice.
    fn rest(&mut self, inner: &Inner) -> Progress {
        let (mut kept, bytes) = self.first(KEPT_BYTES_MAX);
        if bytes > KEPT_BYTES {
            self.room = Arc::clone(&inner.room).try_acquire_many_owned(bytes as u32).ok();
            if self.room.is_none() {
                kept = self.first(KEPT_BYTES).0;
            }
        }
        if kept < self.bodies.len() {
            self.fetch_max = kept.clamp(FETCH_MIN, FETCH_MAX);
        }
        for body in self.bodies.drain(kept..).rev() {
            if let Ok(record) = Record::new(&body) {
                let time = crate::time::to_db(record.time());
                self.keys.push_front(Key { time, id: *record.id() });
            }
        }
        Progress::Paused
    }

    /// How many of the records come next that have so many bytes at most, and how many they have.
    fn first(&self, bytes_max: usize) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for body in &self.bodies {
            if bytes + body.len() > bytes_max {
                break;
            }
            (count, bytes) = (count + 1, bytes + body.len());
        }
        (count, bytes)
    }
}

/// A search on pooled sessions.
pub(crate) struct PooledSearch {
    inner: Arc<Inner>,
    reading: Reading,
    finders: Finders,
    seq: u64,
}

impl PooledSearch {
    /// For questions that are asked at `place`.
    pub(crate) fn new(inner: Arc<Inner>, asked: Vec<Asked>, place: Place) -> Self {
        let reading = Reading::new(Arc::clone(&inner), place);
        Self { inner, reading, finders: Finders::new(asked), seq: place.own(place.seen) }
    }
}

impl Search for PooledSearch {
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<Progress, SearchError> {
        let Self { inner, reading, finders, .. } = self;
        let progress = finders.slice(inner, work, reading, sink);
        progress.map_err(|fault| SearchError::Failed(fault.to_string()))
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn visited(&self) -> u64 {
        self.finders.visited()
    }

    fn driver(&self) -> Option<Set> {
        self.finders.driver()
    }
}

/// Those of the records that belong to the answer.
fn matching<'a>(
    asked: &Asked,
    bodies: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Box<[u8]>>, Fault> {
    let mut found = Vec::new();
    for body in bodies {
        let record = Record::new(body)
            .map_err(|error| Fault::Refused(format!("a record is damaged: {error}")))?;
        if asked.query.matches(&record) {
            found.push(body.into());
        }
    }
    Ok(found)
}

/// Whether `key` comes before `other` in `order`.
fn compare(order: Order, key: &Key, other: &Key) -> std::cmp::Ordering {
    let times = match order {
        Order::NewestFirst => other.time.cmp(&key.time),
        Order::OldestFirst => key.time.cmp(&other.time),
    };
    times.then_with(|| key.id.cmp(&other.id))
}
