//! The stored records that the rules may need for a batch. A layout fetches all these records in
//! one round trip.

use std::collections::{HashMap, HashSet};

use hark_archive::{Id, LabelSet, Query};
use hark_codec::record::{Key as Author, PRIVATE_LABELS};
use tokio_postgres::Row;

use super::batch::{PreparedPut, time};
use crate::error::StatementError;
use crate::session::DatabaseSession;
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;

/// Maximum number of slots and ids that a commit looks up for the rules of its puts. A single event
/// can name this many.
pub(crate) const LOOKUPS_MAX: usize = 2_500;

/// A slot of records, as an index can find it: an author, a kind, and optionally a label that is
/// private to the author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlotQuery {
    pub(crate) author: Author,
    pub(crate) kind: i32,
    pub(crate) term: Option<i64>,
}

impl SlotQuery {
    /// Returns the slots whose records a query selects; `None` if there are more than `max` slots,
    /// or if the query has other conditions.
    pub(crate) fn all(query: &Query, terms: &DatabaseTermHasher, max: usize) -> Option<Vec<Self>> {
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

    /// Returns the slots to which a record belongs.
    pub(crate) fn of(put: &PreparedPut<'_>, terms: &DatabaseTermHasher) -> Vec<Self> {
        let Some(author) = put.record.author() else { return Vec::new() };
        let kind = put.record.kind().cast_signed();
        let private = put.record.labels().filter(|(name, _)| *name < PRIVATE_LABELS);
        let termed = private.map(|(name, value)| terms.label(name, value, Some(author)));
        let all = std::iter::once(None).chain(termed);
        all.map(|term| Self { author: *author, kind, term }).collect()
    }
}

/// Whether a query has only conditions that occur in the queries of rules.
fn is_plain(query: &Query) -> bool {
    query.gate.is_none() && query.words.is_none() && query.not_authors.is_empty()
}

/// Returns the ids that a query names, if the columns of [`NamedRecord`] suffice to compare a
/// record with the query.
fn named(query: &Query) -> Option<&[Id]> {
    let of_kinds = query.labels.is_empty() || query.kinds.is_some();
    query.ids.as_deref().filter(|_| is_plain(query) && of_kinds)
}

/// The look-ups and searches by which a layout answers the queries of rules.
#[derive(Clone, Copy)]
pub(crate) struct RuleLookups {
    /// Maximum number of slots to which a query may refer.
    pub(crate) slots_max: usize,
    /// Whether ids are looked up.
    pub(crate) by_id: bool,
    /// Maximum number of searches in a commit, for queries that no look-up can answer.
    pub(crate) searches_max: usize,
}

impl RuleLookups {
    pub(crate) fn slots(self, query: &Query, terms: &DatabaseTermHasher) -> Option<Vec<SlotQuery>> {
        SlotQuery::all(query, terms, self.slots_max)
    }

    pub(crate) fn ids(self, query: &Query) -> Option<&[Id]> {
        named(query).filter(|_| self.by_id)
    }

    /// Returns how many writes, counted from the first, fit into one commit. The commit's look-ups
    /// and searches are bounded.
    pub(crate) fn fit(self, puts: &[Option<PreparedPut<'_>>], terms: &DatabaseTermHasher) -> usize {
        let (mut lookups, mut searches) = (0, 0);
        let cost = |query: &Query| match (self.ids(query), self.slots(query, terms)) {
            (Some(ids), _) => (ids.len(), 0),
            (None, Some(slots)) => (slots.len(), 0),
            (None, None) => (0, 1),
        };
        let mut fits = |put: &Option<PreparedPut<'_>>| {
            // A write other than a put needs one search.
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

/// The key of a stored record, and the record's size in bytes.
#[derive(Clone, Copy)]
pub(crate) struct SizedKey {
    pub(crate) key: IndexKey,
    pub(crate) bytes: usize,
}

/// A stored record whose id a rule names, with the columns that the rule's query compares.
pub(crate) struct NamedRecord {
    pub(crate) found: SizedKey,
    pub(crate) author: Option<Author>,
    pub(crate) kind: u32,
    /// Those terms of the record that also occur in a rule of this batch.
    pub(crate) terms: Vec<i64>,
}

impl NamedRecord {
    /// Whether the record matches a query that names the record's id.
    pub(crate) fn matches(&self, query: &Query, terms: &DatabaseTermHasher) -> bool {
        let has_label = |set: &LabelSet| {
            let mut asked = set.values.iter().map(|value| terms.label(set.name, value, None));
            asked.any(|term| term.is_some_and(|term| self.terms.contains(&term)))
        };
        query.authors.as_ref().is_none_or(|all| self.author.is_some_and(|one| all.contains(&one)))
            && query.kinds.as_ref().is_none_or(|all| all.contains(&self.kind))
            && !query.not_kinds.contains(&self.kind)
            && (query.from..=query.to).contains(&time(&self.found.key))
            && query.labels.iter().all(has_label)
    }
}

#[derive(Default)]
pub(crate) struct FetchedState {
    /// The number of the newest put.
    pub(crate) seq: i64,
    /// The number of stored records.
    pub(crate) records: i64,
    /// The version of the list of parts.
    pub(crate) parts: i64,
    /// The timeline to which the numbers belong.
    pub(crate) line: i64,
    /// The texts whose words are indexed; `None` if no texts are indexed.
    pub(crate) texts: Option<i64>,
    /// The words of all puts up to this number are indexed, and no words of later puts.
    pub(crate) words_seq: i64,
    /// The ids of the batch that are already stored.
    pub(crate) known: HashSet<[u8; 32]>,
    /// Whether the database has some rows, but not all, of a record of the batch (on a cluster).
    pub(crate) has_leftovers: bool,
    /// For each hash of a prohibition, the newest record that has this hash in the table `forbid`.
    /// The bytes are empty if this record is lost.
    pub(crate) forbids: HashMap<i64, Vec<u8>>,
    /// For each slot, its records.
    pub(crate) slots: HashMap<SlotQuery, Vec<SizedKey>>,
    /// For each id that a rule names, the record; `None` if the id is not stored.
    pub(crate) named: HashMap<Id, Option<NamedRecord>>,
}

impl FetchedState {
    /// Reads the shelf's state, and finds which ids of the batch are stored. `ids` are the ids of
    /// the batch.
    pub(crate) fn read(
        session: &DatabaseSession,
        state: &[Row],
        known: &[Row],
        ids: &[&[u8]],
    ) -> Result<Self, StatementError> {
        let mut fetched = Self::default();
        for row in state {
            (fetched.seq, fetched.records, fetched.parts) = (row.get(0), row.get(1), row.get(2));
            (fetched.line, fetched.texts, fetched.words_seq) = (row.get(3), row.get(4), row.get(5));
            session.must_have_locked(row)?;
        }
        for row in known {
            let n = row.get::<_, i64>(0) as usize - 1;
            fetched.known.insert(ids[n].try_into().unwrap_or_default());
        }
        Ok(fetched)
    }
}

/// The values by which a commit looks up the records that the rules may need.
pub(crate) struct RuleKeys<'a> {
    /// The times and the ids of the batch's puts.
    pub(crate) times: Vec<i64>,
    pub(crate) ids: Vec<&'a [u8]>,
    /// The hashes of the prohibitions.
    pub(crate) forbidding: Vec<i64>,
    /// The slots without a label, and the slots with a label.
    pub(crate) plain: Vec<SlotQuery>,
    pub(crate) termed: Vec<SlotQuery>,
    pub(crate) named: NamedIds<'a>,
}

impl<'a> RuleKeys<'a> {
    pub(crate) fn of<'p: 'a>(
        puts: &'a [Option<PreparedPut<'p>>],
        lookups: RuleLookups,
        terms: &DatabaseTermHasher,
    ) -> Self {
        let puts = || puts.iter().flatten();
        let forbidding = puts().flat_map(|put| put.effects.forbidding());
        let mut keys: Vec<i64> = forbidding.map(|there_is| terms.forbidding(&there_is)).collect();
        keys.sort_unstable();
        keys.dedup();
        let slots = puts().flat_map(|put| put.effects.slot.iter().chain(&put.effects.erases));
        let wanted: HashSet<SlotQuery> =
            slots.filter_map(|query| lookups.slots(query, terms)).flatten().collect();
        let (plain, termed) = wanted.into_iter().partition(|slot| slot.term.is_none());
        Self {
            times: puts().map(|put| put.key.time).collect(),
            ids: puts().map(|put| &put.key.id[..]).collect(),
            forbidding: keys,
            plain,
            termed,
            named: NamedIds::of(puts(), lookups, terms),
        }
    }

    /// Returns a map with these slots, none of which has records yet.
    pub(crate) fn empty_slots(&self) -> HashMap<SlotQuery, Vec<SizedKey>> {
        self.plain.iter().chain(&self.termed).map(|slot| (*slot, Vec::new())).collect()
    }
}

/// Returns the authors and the kinds of slots, and the terms of those slots that have a label.
pub(crate) fn slot_columns(slots: &[SlotQuery]) -> (Vec<&[u8]>, Vec<i32>, Vec<i64>) {
    let authors = slots.iter().map(|slot| &slot.author[..]).collect();
    let kinds = slots.iter().map(|slot| slot.kind).collect();
    (authors, kinds, slots.iter().filter_map(|slot| slot.term).collect())
}

/// The ids that rules name, and the kinds and terms that occur in the same rules.
#[derive(Default)]
pub(crate) struct NamedIds<'a> {
    pub(crate) ids: Vec<&'a [u8]>,
    pub(crate) kinds: Vec<i32>,
    pub(crate) terms: Vec<i64>,
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

/// Reads a record's key and size from the columns beginning with `at`.
pub(crate) fn sized(row: &Row, at: usize) -> SizedKey {
    SizedKey {
        key: IndexKey::read(row, at),
        bytes: row.get::<_, i32>(at + 2).unsigned_abs() as usize,
    }
}

/// Reads an id or an author.
pub(crate) fn id(bytes: &[u8]) -> [u8; 32] {
    bytes.try_into().unwrap_or_default()
}
