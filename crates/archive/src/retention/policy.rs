//! The rules and bounds of retention.

use std::time::Duration;

use hark_codec::record::{Key, Record};

use crate::query::{Order, Query};

/// The rules and bounds by which records are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// The rules by age. Each rule applies independently of the others.
    pub rules: Vec<RetentionRule>,
    /// Number of bytes on disk above which the oldest records are deleted. Bytes of deleted records
    /// that will soon be freed do not count, so a slow compaction causes no further deletes.
    pub bytes_max: Option<u64>,
    /// Number of free bytes of the disk below which the oldest records are deleted. Applies only to
    /// a store on a disk. Bytes of deleted records that will soon be freed count as free.
    pub free_bytes_min: Option<u64>,
    /// Number of records above which the oldest records are deleted.
    pub records_max: Option<u64>,
    /// Kinds that no rule and no bound deletes.
    pub spared_kinds: Vec<u32>,
    /// Kinds of the records that prevent deleted records from being stored again
    /// ([`Rules::forbids`]). Retention never deletes records of these kinds: no rule, no bound and
    /// no expiry applies.
    ///
    /// [`Rules::forbids`]: crate::effects::Rules::forbids
    pub tombstone_kinds: Vec<u32>,
    /// Maximum number of records that one write deletes.
    pub batch_max: usize,
    /// Time between two rounds of deletes.
    pub every: Duration,
    /// Number of the network's units of time in a second.
    pub units_per_s: u64,
    /// Seconds by which the clock may be ahead of the expected time, which is the last trusted time
    /// plus the running time of the server since then. If the clock is further ahead, no record is
    /// deleted by age. With `None`, every clock is trusted.
    pub clock_ahead_max_s: Option<u64>,
    /// Whether rules also delete imported records that were already too old at the time of their
    /// import.
    pub delete_brought: bool,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            bytes_max: None,
            free_bytes_min: None,
            records_max: None,
            spared_kinds: Vec::new(),
            tombstone_kinds: Vec::new(),
            batch_max: 256,
            every: Duration::from_secs(10),
            units_per_s: 1,
            clock_ahead_max_s: Some(30 * 86_400),
            delete_brought: false,
        }
    }
}

/// A rule that deletes old records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionRule {
    /// The rule applies only to these kinds.
    pub kinds: Option<Vec<u32>>,
    /// The rule does not apply to these kinds.
    pub not_kinds: Vec<u32>,
    /// The rule applies only to these authors.
    pub authors: Option<Vec<Key>>,
    /// The age in seconds above which the rule deletes records. With 0, all records to which the
    /// rule applies are deleted.
    pub older_than_s: u64,
}

impl RetentionRule {
    /// Returns whether age is the only condition of the rule.
    pub(super) fn takes_all(&self) -> bool {
        self.kinds.is_none() && self.authors.is_none() && self.not_kinds.is_empty()
    }
}

impl RetentionPolicy {
    /// Returns the kinds that no rule and no bound deletes.
    pub(super) fn spared(&self) -> Vec<u32> {
        [&self.spared_kinds[..], &self.tombstone_kinds].concat()
    }

    /// Returns the query for the oldest records that a rule deletes.
    pub(super) fn due(&self, rule: &RetentionRule, now_s: u64) -> Option<Query> {
        Some(Query {
            kinds: rule.kinds.clone(),
            authors: rule.authors.clone(),
            not_kinds: [&rule.not_kinds[..], &self.spared()].concat(),
            to: self.last_due(rule, now_s)?,
            ..oldest(self.batch_max)
        })
    }

    /// Returns the time up to which a rule deletes records.
    pub(super) fn last_due(&self, rule: &RetentionRule, now_s: u64) -> Option<u64> {
        let units = |seconds: u64| seconds.saturating_mul(self.units_per_s);
        units(now_s).checked_sub(units(rule.older_than_s))
    }

    /// If rules would delete `record` now, returns the time up to which these rules delete records.
    /// Otherwise returns `None`.
    pub fn would_delete(&self, record: &Record<'_>, now_s: u64) -> Option<u64> {
        let matching = self.rules.iter().filter(|rule| {
            rule.kinds.as_ref().is_none_or(|kinds| kinds.contains(&record.kind()))
                && !rule.not_kinds.contains(&record.kind())
                && !self.spared_kinds.contains(&record.kind())
                && !self.tombstone_kinds.contains(&record.kind())
                && (rule.authors.as_ref()).is_none_or(|authors| {
                    record.author().is_some_and(|author| authors.contains(author))
                })
        });
        let last = matching.filter_map(|rule| self.last_due(rule, now_s)).max()?;
        (record.time() <= last).then_some(last)
    }
}

/// Makes a query for the `limit` oldest records.
pub(super) fn oldest(limit: usize) -> Query {
    Query { order: Order::OldestFirst, limit, ..Query::default() }
}
