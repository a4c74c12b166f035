//! Fetches all stored records that the rules of a batch may affect, in one round trip.

use std::collections::{HashMap, HashSet};

use hark_archive::{Id, LabelSet, Query, Record};
use hark_codec::record::{Key as Author, PRIVATE_LABELS};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PreparedPut;
use crate::layout::StatementForm;
use crate::search::windows::{PlacedBody, bodies};
use crate::session::{DatabaseSession, StatementError};
use crate::state::PostgresState;
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;

/// Maximum number of slots and ids that a commit looks up for the rules of its puts: as many as one
/// event can name.
const LOOKUPS_MAX: usize = 2_500;
/// Maximum number of queries of a commit that need a search, as no look-up answers them: the number
/// that a request to vanish has.
const SEARCHES_MAX: usize = 2;
/// The same maximum on a cluster, where ids are searched for, too.
const PLACED_SEARCHES_MAX: usize = 16;

/// The conditions of a slot's query, if an index has them: an author, a kind, and optionally a
/// label that is private to the author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SlotQuery {
    author: Author,
    kind: i32,
    term: Option<i64>,
}

impl SlotQuery {
    /// Returns the slots whose records a query selects, if there are at most `max`. Returns `None`
    /// if the query has other conditions.
    pub(super) fn all(query: &Query, terms: &DatabaseTermHasher, max: usize) -> Option<Vec<Self>> {
        let ([author], Some(kinds)) = (query.authors.as_deref()?, &query.kinds) else {
            return None;
        };
        let terms = match query.labels.as_slice() {
            [] => vec![None],
            [set] if set.name < PRIVATE_LABELS && set.values.len() <= max => {
                let values = set.values.iter();
                values.map(|value| terms.label(set.name, value, Some(author))).collect()
            }
            _ => return None,
        };
        let plain = query.ids.is_none() && is_plain(query) && query.not_kinds.is_empty();
        let of = |kind: &u32| {
            let kind = kind.cast_signed();
            terms.iter().map(move |term| Self { author: *author, kind, term: *term })
        };
        (plain && kinds.len() * terms.len() <= max).then(|| kinds.iter().flat_map(of).collect())
    }

    /// Returns the slots that contain a record.
    pub(super) fn of(put: &PreparedPut<'_>, terms: &DatabaseTermHasher) -> Vec<Self> {
        let Some(author) = put.record.author() else { return Vec::new() };
        let kind = put.record.kind().cast_signed();
        let private = put.record.labels().filter(|(name, _)| *name < PRIVATE_LABELS);
        let termed = private.map(|(name, value)| terms.label(name, value, Some(author)));
        let all = std::iter::once(None).chain(termed);
        all.map(|term| Self { author: *author, kind, term }).collect()
    }
}

/// Whether a query has only conditions that rules use.
fn is_plain(query: &Query) -> bool {
    query.gate.is_none() && query.words.is_none() && query.not_authors.is_empty()
}

/// Returns the ids that a query names, if the fetched columns of a record suffice for the
/// comparison.
fn named(query: &Query) -> Option<&[Id]> {
    let of_kinds = query.labels.is_empty() || query.kinds.is_some();
    query.ids.as_deref().filter(|_| is_plain(query) && of_kinds)
}

/// The look-ups and searches by which a store's layout answers the queries of rules.
#[derive(Clone, Copy)]
pub(super) struct RuleLookups {
    /// Maximum number of slots of a query.
    slots_max: usize,
    by_id: bool,
    searches_max: usize,
}

impl RuleLookups {
    pub(super) fn of(inner: &PostgresState) -> Self {
        if inner.pool.door().layout().is_distributed() {
            return Self { slots_max: 1, by_id: false, searches_max: PLACED_SEARCHES_MAX };
        }
        Self { slots_max: LOOKUPS_MAX, by_id: true, searches_max: SEARCHES_MAX }
    }

    pub(super) fn slots(self, query: &Query, terms: &DatabaseTermHasher) -> Option<Vec<SlotQuery>> {
        SlotQuery::all(query, terms, self.slots_max)
    }

    pub(super) fn ids(self, query: &Query) -> Option<&[Id]> {
        named(query).filter(|_| self.by_id)
    }

    /// Returns how many of the first writes fit into one commit, whose look-ups and searches are
    /// bounded.
    pub(super) fn fit(self, puts: &[Option<PreparedPut<'_>>], terms: &DatabaseTermHasher) -> usize {
        let (mut lookups, mut searches) = (0, 0);
        let cost = |query: &Query| match (self.ids(query), self.slots(query, terms)) {
            (Some(ids), _) => (ids.len(), 0),
            (None, Some(slots)) => (slots.len(), 0),
            (None, None) => (0, 1),
        };
        let mut fits = |put: &Option<PreparedPut<'_>>| {
            // A write that is not a put needs one search.
            let Some(put) = put else {
                searches += 1;
                return searches <= self.searches_max;
            };
            for (found, searched) in put.effects.erases.iter().map(cost) {
                (lookups, searches) = (lookups + found, searches + searched);
            }
            lookups <= LOOKUPS_MAX && searches <= self.searches_max
        };
        let over = puts.iter().position(|put| !fits(put));
        over.map_or(puts.len(), |at| at.max(1))
    }
}

/// The key of a stored record, and the size of the record in bytes.
#[derive(Clone, Copy)]
pub(super) struct SizedKey {
    pub(super) key: IndexKey,
    pub(super) bytes: usize,
}

/// The columns of a stored record that suffice to match rules that name the record's id.
pub(super) struct NamedRecord {
    pub(super) found: SizedKey,
    author: Option<Author>,
    kind: u32,
    /// Those of the record's terms that rules of this batch contain.
    terms: Vec<i64>,
}

impl NamedRecord {
    /// Whether the record matches a query whose ids include the record's own.
    pub(super) fn matches(&self, query: &Query, terms: &DatabaseTermHasher) -> bool {
        let has_label = |set: &LabelSet| {
            let mut asked = set.values.iter().map(|value| terms.label(set.name, value, None));
            asked.any(|term| term.is_some_and(|term| self.terms.contains(&term)))
        };
        query.authors.as_ref().is_none_or(|all| self.author.is_some_and(|one| all.contains(&one)))
            && query.kinds.as_ref().is_none_or(|all| all.contains(&self.kind))
            && !query.not_kinds.contains(&self.kind)
            && (query.from..=query.to).contains(&super::time(&self.found.key))
            && query.labels.iter().all(has_label)
    }
}

#[derive(Default)]
pub(super) struct FetchedState {
    /// The number of the newest put.
    pub(super) seq: i64,
    /// The number of stored records.
    pub(super) records: i64,
    /// The version of the parts.
    pub(super) parts: i64,
    /// The timeline of the numbers.
    pub(super) line: i64,
    /// The texts whose words are indexed. `None` if no texts are indexed.
    pub(super) texts: Option<i64>,
    /// The number of the put up to which words are indexed.
    pub(super) words_seq: i64,
    /// The batch's ids that are stored.
    pub(super) known: HashSet<[u8; 32]>,
    /// The newest forbidding record of each key that has such a record.
    pub(super) forbids: HashMap<i64, Vec<u8>>,
    /// The records in each slot.
    pub(super) slots: HashMap<SlotQuery, Vec<SizedKey>>,
    /// The records of the ids that rules name. `None` for ids that are not stored.
    pub(super) named: HashMap<Id, Option<NamedRecord>>,
}

impl FetchedState {
    /// Begins the transaction, locks the shelf, and fetches the records.
    pub(super) fn get(
        inner: &PostgresState,
        session: &mut DatabaseSession,
        puts: &[Option<PreparedPut<'_>>],
    ) -> Result<Self, StatementError> {
        let terms = &inner.terms;
        let puts = || puts.iter().flatten();
        let times: Vec<i64> = puts().map(|put| put.key.time).collect();
        let ids: Vec<&[u8]> = puts().map(|put| &put.key.id[..]).collect();
        let forbidding = puts().flat_map(|put| put.effects.forbidding());
        let mut keys: Vec<i64> = forbidding.map(|there_is| terms.forbidding(&there_is)).collect();
        keys.sort_unstable();
        keys.dedup();
        let lookups = RuleLookups::of(inner);
        let slots = puts().flat_map(|put| put.effects.slot.iter().chain(&put.effects.erases));
        let wanted: HashSet<SlotQuery> =
            slots.filter_map(|query| lookups.slots(query, terms)).flatten().collect();
        let plain: Vec<SlotQuery> =
            wanted.iter().filter(|slot| slot.term.is_none()).copied().collect();
        let termed: Vec<SlotQuery> =
            wanted.iter().filter(|slot| slot.term.is_some()).copied().collect();
        let authors: Vec<&[u8]> = plain.iter().map(|slot| &slot.author[..]).collect();
        let kinds: Vec<i32> = plain.iter().map(|slot| slot.kind).collect();
        let slot_terms: Vec<i64> = termed.iter().filter_map(|slot| slot.term).collect();
        let term_kinds: Vec<i32> = termed.iter().map(|slot| slot.kind).collect();
        let term_authors: Vec<&[u8]> = termed.iter().map(|slot| &slot.author[..]).collect();
        let is_distributed = session.layout().is_distributed();
        let by_id = NamedIds::of(puts(), lookups, terms);

        let known: [&(dyn ToSql + Sync); 2] = [&times, &ids];
        let forbids: [&(dyn ToSql + Sync); 1] = [&keys];
        let slots: [&(dyn ToSql + Sync); 2] = [&authors, &kinds];
        // On a cluster, `find_placed` compares the authors afterwards.
        let term_slots: [&(dyn ToSql + Sync); 3] = [&slot_terms, &term_kinds, &term_authors];
        let term_slots = if is_distributed { &term_slots[..2] } else { &term_slots[..] };
        let named: [&(dyn ToSql + Sync); 3] = [&by_id.ids, &by_id.kinds, &by_id.terms];
        let mut calls: Vec<(StatementForm, &[&(dyn ToSql + Sync)])> = vec![
            (StatementForm::Begin, &[]),
            (StatementForm::Lock, &[]),
            (StatementForm::Known, &known),
            (StatementForm::Forbids, &forbids),
        ];
        if !plain.is_empty() {
            calls.push((StatementForm::Slots, &slots));
        }
        if !termed.is_empty() {
            calls.push((StatementForm::TermSlots, term_slots));
        }
        if !by_id.ids.is_empty() {
            calls.push((StatementForm::NamedRecords, &named));
        }
        let answers = session.pipeline(&calls)?;
        let mut answers = answers.into_iter().skip(1);
        let mut next = || answers.next().unwrap_or_default();
        let mut fetched = Self::default();
        for row in next() {
            (fetched.seq, fetched.records, fetched.parts) = (row.get(0), row.get(1), row.get(2));
            (fetched.line, fetched.texts, fetched.words_seq) = (row.get(3), row.get(4), row.get(5));
            session.must_have_locked(&row)?;
        }
        for row in next() {
            let n = row.get::<_, i64>(0) as usize - 1;
            fetched.known.insert(ids[n].try_into().unwrap_or_default());
        }
        fetched.slots.extend(wanted.into_iter().map(|slot| (slot, Vec::new())));
        if is_distributed {
            let (forbids, slots) = (next(), if plain.is_empty() { Vec::new() } else { next() });
            fetched.find_placed(inner, session, &forbids, &slots, &next())?;
            return Ok(fetched);
        }
        for row in next() {
            fetched.forbids.insert(row.get(0), row.get(1));
        }
        for slots in [&plain, &termed].into_iter().filter(|slots| !slots.is_empty()) {
            for row in next() {
                let slot = &slots[row.get::<_, i64>(0) as usize - 1];
                fetched.slots.entry(*slot).or_default().push(sized(&row, 1));
            }
        }
        fetched.named.extend(by_id.ids.iter().map(|named| (id(named), None)));
        if !by_id.ids.is_empty() {
            for row in next() {
                let record = NamedRecord {
                    found: sized(&row, 0),
                    author: row.get::<_, Option<&[u8]>>(3).map(id),
                    kind: row.get::<_, i32>(4).cast_unsigned(),
                    terms: row.get(5),
                };
                fetched.named.insert(record.found.key.id, Some(record));
            }
        }
        Ok(fetched)
    }

    /// Adds the results of distributed tables. The slots of authors are complete. Two kinds of
    /// records are fetched by place: the newest records that forbid others, and the records that
    /// hold the slot of a term.
    fn find_placed(
        &mut self,
        inner: &PostgresState,
        session: &mut DatabaseSession,
        forbids: &[Row],
        slots: &[Row],
        term_slots: &[Row],
    ) -> Result<(), StatementError> {
        for row in slots {
            let slot = SlotQuery { author: id(row.get(0)), kind: row.get(1), term: None };
            // The statement returns all combinations of these authors and kinds.
            if let Some(held) = self.slots.get_mut(&slot) {
                let key = IndexKey { time: row.get(2), id: id(row.get(3)) };
                held.push(SizedKey { key, bytes: 0 });
            }
        }
        let placed =
            |row: &Row, at| (IndexKey { time: 0, id: id(row.get(at)) }, id(row.get(at + 1)));
        let forbidding = forbids.iter().map(|row| placed(row, 1));
        let mut keys: Vec<_> =
            forbidding.chain(term_slots.iter().map(|row| placed(row, 2))).collect();
        keys.sort_unstable_by_key(|(key, _)| key.id);
        keys.dedup();
        let bodies: HashMap<[u8; 32], PlacedBody> = bodies(session, &keys, i64::MAX, None)?
            .into_iter()
            .map(|(key, body)| (key.id, (key, body)))
            .collect();
        for row in forbids {
            if let Some((_, body)) = bodies.get(&id(row.get(1))) {
                self.forbids.insert(row.get(0), body.to_vec());
            }
        }
        for row in term_slots {
            let term: i64 = row.get(0);
            let Some((key, body)) = bodies.get(&id(row.get(2))) else { continue };
            let Ok(record) = Record::new(body) else { continue };
            // A label of another author or another value may have the same term.
            let is_theirs = inner.terms.of(&record).binary_search(&term).is_ok();
            let Some(author) = record.author().filter(|_| is_theirs) else { continue };
            let slot = SlotQuery { author: *author, kind: row.get(1), term: Some(term) };
            if let Some(held) = self.slots.get_mut(&slot) {
                held.push(SizedKey { key: *key, bytes: body.len() });
            }
        }
        Ok(())
    }
}

/// The ids that rules name, and the kinds and terms that these rules also contain.
#[derive(Default)]
struct NamedIds<'a> {
    ids: Vec<&'a [u8]>,
    kinds: Vec<i32>,
    terms: Vec<i64>,
}

impl<'a> NamedIds<'a> {
    fn of<'p: 'a>(
        puts: impl Iterator<Item = &'a PreparedPut<'p>>,
        lookups: RuleLookups,
        terms: &DatabaseTermHasher,
    ) -> Self {
        let mut all = Self::default();
        for query in puts.flat_map(|put| &put.effects.erases) {
            let Some(ids) = lookups.ids(query) else { continue };
            all.ids.extend(ids.iter().map(|id| &id[..]));
            if query.labels.is_empty() {
                continue;
            }
            all.kinds.extend(query.kinds.iter().flatten().map(|kind| kind.cast_signed()));
            for set in &query.labels {
                let asked = set.values.iter();
                all.terms.extend(asked.filter_map(|value| terms.label(set.name, value, None)));
            }
        }
        all.ids.sort_unstable();
        all.ids.dedup();
        all
    }
}

/// Reads a record's key and size, which begin at column `at`.
fn sized(row: &Row, at: usize) -> SizedKey {
    let key = IndexKey { time: row.get(at), id: id(row.get(at + 1)) };
    SizedKey { key, bytes: row.get::<_, i32>(at + 2).unsigned_abs() as usize }
}

fn id(bytes: &[u8]) -> [u8; 32] {
    bytes.try_into().unwrap_or_default()
}
