//! Fetches all stored records that the rules of a batch's records could touch, in one round trip.

use std::collections::{HashMap, HashSet};

use hark_archive::{Query, Record};
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

/// The conditions of a slot's query, if an index has them: an author, a kind, and optionally a
/// label that is private to the author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SlotQuery {
    author: Author,
    kind: i32,
    term: Option<i64>,
}

impl SlotQuery {
    /// Returns the slot of a query. `None` if the query has other conditions.
    pub(super) fn of(query: &Query, terms: &DatabaseTermHasher) -> Option<Self> {
        let ([author], [kind]) = (query.authors.as_deref()?, query.kinds.as_deref()?) else {
            return None;
        };
        let term = match query.labels.as_slice() {
            [] => None,
            [set] if set.name < PRIVATE_LABELS && set.values.len() == 1 => {
                Some(terms.label(set.name, &set.values[0], Some(author))?)
            }
            _ => return None,
        };
        let plain = query.ids.is_none() && query.gate.is_none() && query.not_kinds.is_empty();
        plain.then_some(Self { author: *author, kind: kind.cast_signed(), term })
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
    /// The line that the numbers belong to.
    pub(super) line: i64,
    /// The texts whose words are indexed, if any are.
    pub(super) texts: Option<i64>,
    /// The number up to which words are indexed.
    pub(super) words_seq: i64,
    /// The batch's ids that are stored.
    pub(super) known: HashSet<[u8; 32]>,
    /// The newest forbidding record of each key that has one.
    pub(super) forbids: HashMap<i64, Vec<u8>>,
    /// The keys of the records in each slot.
    pub(super) slots: HashMap<SlotQuery, Vec<IndexKey>>,
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
        let wanted: HashSet<SlotQuery> = puts()
            .flat_map(|put| put.effects.slot.iter().chain(&put.effects.erases))
            .filter_map(|query| SlotQuery::of(query, terms))
            .collect();
        let plain: Vec<SlotQuery> =
            wanted.iter().filter(|slot| slot.term.is_none()).copied().collect();
        let termed: Vec<SlotQuery> =
            wanted.iter().filter(|slot| slot.term.is_some()).copied().collect();
        let authors: Vec<&[u8]> = plain.iter().map(|slot| &slot.author[..]).collect();
        let kinds: Vec<i32> = plain.iter().map(|slot| slot.kind).collect();
        let slot_terms: Vec<i64> = termed.iter().filter_map(|slot| slot.term).collect();
        let term_kinds: Vec<i32> = termed.iter().map(|slot| slot.kind).collect();

        let known: [&(dyn ToSql + Sync); 2] = [&times, &ids];
        let forbids: [&(dyn ToSql + Sync); 1] = [&keys];
        let slots: [&(dyn ToSql + Sync); 2] = [&authors, &kinds];
        let term_slots: [&(dyn ToSql + Sync); 2] = [&slot_terms, &term_kinds];
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
            calls.push((StatementForm::TermSlots, &term_slots));
        }
        let answers = session.pipeline(&calls)?;
        let mut answers = answers.into_iter().skip(1);
        let mut next = || answers.next().unwrap_or_default();
        let mut fetched = Self::default();
        for row in next() {
            (fetched.seq, fetched.records, fetched.parts) = (row.get(0), row.get(1), row.get(2));
            (fetched.line, fetched.texts, fetched.words_seq) = (row.get(3), row.get(4), row.get(5));
        }
        for row in next() {
            let n = row.get::<_, i64>(0) as usize - 1;
            fetched.known.insert(ids[n].try_into().unwrap_or_default());
        }
        fetched.slots.extend(wanted.into_iter().map(|slot| (slot, Vec::new())));
        if session.layout().is_distributed() {
            let (forbids, slots) = (next(), if plain.is_empty() { Vec::new() } else { next() });
            fetched.find_placed(inner, session, &forbids, &slots, &next())?;
            return Ok(fetched);
        }
        for row in next() {
            fetched.forbids.insert(row.get(0), row.get(1));
        }
        if !plain.is_empty() {
            for row in next() {
                let slot = &plain[row.get::<_, i64>(0) as usize - 1];
                let key = IndexKey { time: row.get(1), id: id(row.get(2)) };
                fetched.slots.entry(*slot).or_default().push(key);
            }
        }
        if !termed.is_empty() {
            for row in next() {
                let slot = &termed[row.get::<_, i64>(0) as usize - 1];
                let body: &[u8] = row.get(3);
                // Another author or value may have the same term.
                let theirs = Record::new(body).is_ok_and(|record| {
                    record.author() == Some(&slot.author)
                        && terms.of(&record).binary_search(&slot.term.unwrap_or(0)).is_ok()
                });
                if theirs {
                    let key = IndexKey { time: row.get(1), id: id(row.get(2)) };
                    fetched.slots.entry(*slot).or_default().push(key);
                }
            }
        }
        Ok(fetched)
    }

    /// Adds what distributed tables have: the slots of authors, and records that are fetched by their
    /// places, which are the newest forbidding ones and those of the slots of terms.
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
            // All kinds of all authors were asked for.
            if let Some(held) = self.slots.get_mut(&slot) {
                held.push(IndexKey { time: row.get(2), id: id(row.get(3)) });
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
            // Another author or value may have the same term.
            let is_theirs = inner.terms.of(&record).binary_search(&term).is_ok();
            let Some(author) = record.author().filter(|_| is_theirs) else { continue };
            let slot = SlotQuery { author: *author, kind: row.get(1), term: Some(term) };
            if let Some(held) = self.slots.get_mut(&slot) {
                held.push(*key);
            }
        }
        Ok(())
    }
}

fn id(bytes: &[u8]) -> [u8; 32] {
    bytes.try_into().unwrap_or_default()
}
