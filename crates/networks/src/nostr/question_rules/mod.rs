//! The operator's rules for questions: kinds that only members may read, kinds about which
//! questions are answered, and the conditions that a filter must have.
//!
//! The rules decide about queries, and hold for every question in the same way: REQ, COUNT and
//! NEG-OPEN, searches included. A rule either refuses the question, or restricts its queries by
//! conditions that each store knows. So no rule is checked for each event.

use std::sync::Arc;

use hark_archive::{Gate, Query};

use super::refusal::{NostrRefusal, NostrVerdict};

/// Maximum number of kinds in a rule. The kinds become conditions of queries, which stay in memory
/// while a subscription is open.
pub const RULE_KINDS_MAX: usize = 1_000;

/// The rules for questions. By default, every question is answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuestionRules {
    /// The events that only members read.
    pub members_only: MembersOnly,
    /// Whether a client that has proved a key, but not a member's key, may read those events of
    /// `members_only` that its key wrote, or that name its key in a `p` tag.
    pub except_own: bool,
    /// The only kinds about which questions are answered, ascending. `None`: all kinds.
    pub kinds: Option<Vec<u32>>,
    /// Whether every filter must name ids, authors or the values of a tag.
    pub narrow: bool,
}

/// The events that only members read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembersOnly {
    /// The events of these kinds, ascending.
    Kinds(Vec<u32>),
    /// All events.
    Everything,
}

impl Default for MembersOnly {
    fn default() -> Self {
        Self::Kinds(Vec::new())
    }
}

/// The standing of a client that asks a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderStanding {
    /// A client that has proved no key.
    Stranger,
    /// A client that has proved keys, but the key of no member.
    Guest,
    /// A client that has proved the key of a member.
    Member,
}

impl ReaderStanding {
    /// Returns the refusal of a reader who is no member.
    fn refusal(self, words: &'static str) -> NostrRefusal {
        let is_stranger = self == Self::Stranger;
        let verdict =
            if is_stranger { NostrVerdict::AuthRequired } else { NostrVerdict::Restricted };
        verdict.because(words)
    }
}

const RELAY_WORDS: &str = "only members may read this relay";
const OWN_WORDS: &str = "only members may read this relay; others may ask for events that they \
     wrote (authors) or that name them (#p)";
const MEMBER_KINDS_WORDS: &str = "only members may read these kinds";
const KINDS_WORDS: &str = "this relay does not answer questions for these kinds";
const NARROW_WORDS: &str = "a filter must name ids, authors or a tag at this relay";

impl QuestionRules {
    /// Whether any rule is set.
    pub fn is_set(&self) -> bool {
        self.has_members() || self.kinds.is_some() || self.narrow
    }

    /// Whether a rule distinguishes members from other readers.
    pub fn has_members(&self) -> bool {
        self.members_only != MembersOnly::default()
    }

    /// Whether no question is answered before an AUTH: NIP-11's `auth_required`.
    pub fn needs_auth(&self) -> bool {
        self.members_only == MembersOnly::Everything
    }

    /// Maximum number of values that the rules add to a query, as an estimate of the query's
    /// memory.
    pub fn added_values(&self) -> usize {
        // A kind that is left out takes a few bytes, and a kind in the live index many.
        let left_out = match &self.members_only {
            MembersOnly::Kinds(kinds) => kinds.len().div_ceil(16),
            MembersOnly::Everything => 0,
        };
        self.kinds.as_ref().map_or(0, Vec::len) + left_out
    }

    /// Refuses a question, or restricts its queries to the events that the rules let the reader
    /// see. `gate` is the reader's gate for the private kinds. Returns the gate that the queries
    /// must get.
    pub fn restrict(
        &self,
        standing: ReaderStanding,
        gate: &Arc<Gate>,
        queries: &mut [Query],
    ) -> Result<Arc<Gate>, NostrRefusal> {
        if self.is_too_wide(queries) {
            return Err(NostrVerdict::Blocked.because(NARROW_WORDS));
        }
        if let Some(kinds) = &self.kinds {
            let is_unanswered = |kind: &u32| kinds.binary_search(kind).is_err();
            if queries.iter().all(|query| names_only(query, is_unanswered)) {
                return Err(NostrVerdict::Blocked.because(KINDS_WORDS));
            }
            for query in &mut *queries {
                match &mut query.kinds {
                    Some(asked) => asked.retain(|kind| !is_unanswered(kind)),
                    None => query.kinds = Some(kinds.clone()),
                }
            }
        }
        if standing == ReaderStanding::Member {
            return Ok(Arc::clone(gate));
        }
        let closed = match &self.members_only {
            MembersOnly::Everything => {
                let refusal = self.outsider_refusal(standing, gate, queries);
                return refusal.map_or_else(|| Ok(Arc::clone(gate)), Err);
            }
            MembersOnly::Kinds(closed) if closed.is_empty() => return Ok(Arc::clone(gate)),
            MembersOnly::Kinds(closed) => closed,
        };
        let is_closed = |kind: &u32| closed.binary_search(kind).is_ok();
        if !self.spares(standing) {
            // A stranger reads no private kinds, either.
            let is_stranger = standing == ReaderStanding::Stranger;
            let is_shut = |kind: &u32| {
                is_closed(kind) || is_stranger && gate.kinds.binary_search(kind).is_ok()
            };
            let has_closed = |query: &Query| query.kinds.iter().flatten().any(is_closed);
            if queries.iter().any(has_closed)
                && queries.iter().all(|query| names_only(query, is_shut))
            {
                return Err(standing.refusal(MEMBER_KINDS_WORDS));
            }
        }
        if standing == ReaderStanding::Guest && !self.except_own {
            // The gate would show the guest its own events.
            for query in queries {
                query.not_kinds.extend_from_slice(closed);
                query.normalise();
            }
            return Ok(Arc::clone(gate));
        }
        let mut wider = Gate::clone(gate);
        wider.kinds.extend_from_slice(closed);
        wider.kinds.sort_unstable();
        wider.kinds.dedup();
        Ok(wider.into())
    }

    /// Returns the reason why queries that were answered so far may not be answered any more,
    /// because the rules or the members have changed. `gate` is the gate of the reader by the
    /// private kinds.
    pub fn refusal_of_open(
        &self,
        standing: ReaderStanding,
        gate: &Gate,
        queries: &[Query],
    ) -> Option<NostrRefusal> {
        if self.is_too_wide(queries) {
            return Some(NostrVerdict::Blocked.because(NARROW_WORDS));
        }
        if let Some(kinds) = &self.kinds {
            let is_answered = |kind: &u32| kinds.binary_search(kind).is_ok();
            let are_answered =
                |query: &Query| query.kinds.as_ref().is_some_and(|it| it.iter().all(is_answered));
            if !queries.iter().all(are_answered) {
                return Some(NostrVerdict::Blocked.because(KINDS_WORDS));
            }
        }
        if standing == ReaderStanding::Member {
            return None;
        }
        let closed = match &self.members_only {
            MembersOnly::Everything => return self.outsider_refusal(standing, gate, queries),
            MembersOnly::Kinds(closed) => closed,
        };
        let spares = self.spares(standing);
        let delivers = |query: &Query| closed.iter().any(|kind| may_deliver(query, *kind, spares));
        queries.iter().any(delivers).then(|| standing.refusal(MEMBER_KINDS_WORDS))
    }

    /// Whether a reader who is no member reads its own events of the kinds for members.
    fn spares(&self, standing: ReaderStanding) -> bool {
        self.except_own && standing == ReaderStanding::Guest
    }

    fn is_too_wide(&self, queries: &[Query]) -> bool {
        let is_wide = |query: &Query| {
            query.ids.is_none() && query.authors.is_none() && query.labels.is_empty()
        };
        self.narrow && queries.iter().any(is_wide)
    }

    /// The reason to refuse a question of a reader who is no member, at a relay where only members
    /// may read.
    fn outsider_refusal(
        &self,
        standing: ReaderStanding,
        gate: &Gate,
        queries: &[Query],
    ) -> Option<NostrRefusal> {
        if !self.spares(standing) {
            return Some(standing.refusal(RELAY_WORDS));
        }
        let are_own = queries.iter().all(|query| finds_only_own(query, gate));
        (!are_own).then(|| standing.refusal(OWN_WORDS))
    }
}

/// Whether a query names kinds, and `is_so` holds for every named kind.
fn names_only(query: &Query, is_so: impl Fn(&u32) -> bool) -> bool {
    query.kinds.as_ref().is_some_and(|kinds| !kinds.is_empty() && kinds.iter().all(is_so))
}

/// Whether a query finds only events that the readers of the gate wrote or that name the readers.
fn finds_only_own(query: &Query, gate: &Gate) -> bool {
    let is_reader = |key: &[u8; 32]| gate.readers.binary_search(key).is_ok();
    let own = &gate.addressed;
    query.authors.as_ref().is_some_and(|authors| authors.iter().all(is_reader))
        || query.labels.iter().any(|set| {
            set.name == own.name
                && set.values.iter().all(|value| own.values.binary_search(value).is_ok())
        })
}

/// Whether a query may find an event of the kind that its reader neither wrote nor received, or any
/// event of the kind unless `spares_own` is set.
fn may_deliver(query: &Query, kind: u32, spares_own: bool) -> bool {
    let is_named = query.kinds.as_ref().is_none_or(|kinds| kinds.binary_search(&kind).is_ok());
    let is_gated = || {
        query.gate.as_ref().is_some_and(|gate| {
            gate.kinds.binary_search(&kind).is_ok() && (spares_own || gate.is_to_strangers())
        })
    };
    is_named && query.not_kinds.binary_search(&kind).is_err() && !is_gated()
}

#[cfg(test)]
mod tests;
