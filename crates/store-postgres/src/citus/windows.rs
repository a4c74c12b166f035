//! Searches distributed tables. A condition with one value and one kind is an ordered index range
//! in one shard. The search reads this range up to the query's limit. Any other condition needs
//! several shards. Each shard would sort all its rows and return as many rows as the whole query
//! wants. So such conditions are read in windows of time. The first window should contain a few
//! more records than are wanted. If it contains fewer, and all remaining times have few rows, the
//! search reads all these rows at once. Otherwise the number of rows in each window determines the
//! width of the next window.

use std::collections::VecDeque;

use hark_archive::Order;
use hark_archive::query::plan::Set;
use tokio_postgres::Row;

use super::density::{DENSITY_RECORDS, RecordDensity};
use super::places::{Place, placed_key};
use super::reader::{ShelfReader, split};
use super::shards::{ShardCall, ShardMap, ShardValue, TableShard, merge, references};
use super::statement::{
    CitusStatement, ShardForm, ShardedTable, ValueCount, WindowForm, WindowTable,
};
use crate::error::StatementError;
use crate::search::SqlQuery;
use crate::search::asked::compare;
use crate::search::found::{FETCH_MAX, PAGE_BYTES_MAX, matching, read_fitting};
use crate::time::IndexKey;

/// Maximum number of keys that are read at once, without a window.
const FEW_MAX: u32 = 1_024;
/// Minimum and maximum number of tag rows that are read at a time.
const KEYS_MIN: usize = 64;
const KEYS_MAX: usize = 1_000;
/// Maximum number of kinds for which the index ranges of one term or author are merged.
const ARMS_MAX: usize = 10;
/// The first window is chosen as if one in this many records met the condition. The three numbers
/// are for no condition, for a condition on kinds, and for a condition on terms or authors.
const SHARE_ALL: u64 = 2;
const SHARE_KINDS: u64 = 4;
const SHARE_VALUES: u64 = 32;
/// The factor by which the window becomes wider after a window without rows. No window becomes
/// wider by more than this factor.
const WIDEN_MAX: u64 = 64;

/// The values of the condition that drives a search.
#[derive(Clone, Debug)]
enum WindowValues {
    Terms(Vec<i64>),
    Authors(Vec<Vec<u8>>),
    None,
}

/// A walk through the records that meet a condition, window by window.
pub(super) struct WindowWalk {
    pub(super) set: Set,
    pub(super) visited: u64,
    values: WindowValues,
    kinds: Option<Vec<i32>>,
    not_kinds: Vec<i32>,
    order: Order,
    /// The times for which no window was read yet; both bounds are inclusive.
    rest: Option<(i64, i64)>,
    /// The current window; both bounds are inclusive.
    now: Option<(i64, i64)>,
    /// The last key that was read. The next rows to read follow this key.
    at: Option<IndexKey>,
    /// The width of the next window; `None` if the next window covers all remaining times.
    width: Option<u64>,
    /// Whether the remaining times may have few rows; false after the check.
    may_be_few: bool,
    /// Whether any window was read.
    has_read: bool,
    /// Number of rows found in the current window.
    found: usize,
    /// The oldest and the newest time of records, as far as known.
    oldest: i64,
    newest: i64,
    /// The next keys whose records are not fetched yet.
    keys: VecDeque<(IndexKey, Place)>,
    /// Maximum number of keys whose records are fetched at a time. It is lowered while records turn
    /// out to be long.
    fetch_max: usize,
}

impl WindowWalk {
    pub(super) fn new(asked: &SqlQuery) -> Self {
        let (from, to) = asked.times();
        Self {
            set: Set::Time,
            visited: 0,
            values: WindowValues::None,
            kinds: None,
            not_kinds: asked.not_kinds(),
            order: asked.query.order,
            rest: (from <= to).then_some((from, to)),
            now: None,
            at: asked.after(),
            width: None,
            may_be_few: true,
            has_read: false,
            found: 0,
            oldest: i64::MIN,
            newest: i64::MAX,
            keys: VecDeque::new(),
            fetch_max: FETCH_MAX,
        }
    }

    /// Sets the condition that the walk follows.
    pub(super) fn drive(&mut self, asked: &SqlQuery, set: Set) {
        self.may_be_few |= set != self.set;
        self.kinds = asked.kinds();
        (self.set, self.values) = match set {
            Set::Label(at) => {
                (set, WindowValues::Terms(asked.terms[at].clone().unwrap_or_default()))
            }
            Set::Authors => {
                let authors = asked.query.authors.iter().flatten();
                (set, WindowValues::Authors(authors.map(|author| author.to_vec()).collect()))
            }
            _ if self.kinds.is_some() => (Set::Kinds, WindowValues::None),
            _ => (Set::Time, WindowValues::None),
        };
    }

    /// Chooses the width of the first window for a number of wanted records.
    pub(super) fn begin(&mut self, density: RecordDensity, wanted: usize) {
        let share = match (&self.values, &self.kinds) {
            (WindowValues::None, None) => SHARE_ALL,
            (WindowValues::None, Some(_)) => SHARE_KINDS,
            _ => SHARE_VALUES,
        };
        // This width contains about `records` of the newest records.
        let records = (wanted.min(FETCH_MAX) as u64).saturating_mul(share);
        let width = u128::from(density.width) * u128::from(records);
        let width = width / u128::from(DENSITY_RECORDS.unsigned_abs());
        self.width = Some(u64::try_from(width).unwrap_or(u64::MAX).max(1));
        (self.oldest, self.newest) = (density.oldest, density.newest);
    }

    pub(super) fn form(&self) -> WindowForm {
        self.form_of(&self.values)
    }

    /// Returns the form of a statement for some of the values.
    fn form_of(&self, values: &WindowValues) -> WindowForm {
        let (table, values) = match values {
            WindowValues::Terms(terms) => (WindowTable::Tag, ValueCount::of(Some(terms))),
            WindowValues::Authors(authors) => (WindowTable::Author, ValueCount::of(Some(authors))),
            WindowValues::None => (WindowTable::Record, ValueCount::None),
        };
        let kinds = match (values, ValueCount::of(self.kinds.as_deref()), &self.kinds) {
            (ValueCount::One, ValueCount::Many, Some(kinds)) if kinds.len() <= ARMS_MAX => {
                ValueCount::Arms(kinds.len())
            }
            (_, count, _) => count,
        };
        WindowForm {
            order: self.order,
            table,
            values,
            kinds,
            has_not_kinds: !self.not_kinds.is_empty(),
        }
    }

    /// Whether the rows come in order from one index range of each shard.
    pub(super) fn is_ordered(&self) -> bool {
        let form = self.form();
        match (form.values, form.kinds) {
            (ValueCount::One, ValueCount::Arms(_))
            | (ValueCount::One | ValueCount::None, ValueCount::One) => true,
            (ValueCount::None, ValueCount::None) => !form.has_not_kinds,
            _ => false,
        }
    }

    pub(super) fn is_through(&self) -> bool {
        self.rest.is_none() && self.now.is_none()
    }

    /// Reads all keys of the remaining times if there are few, and returns whether it has read the
    /// keys.
    pub(super) fn read_few(
        &mut self,
        asked: &SqlQuery,
        reader: &mut ShelfReader<'_>,
    ) -> Result<bool, StatementError> {
        let Some((from, to)) = self.rest.filter(|_| self.may_be_few) else { return Ok(false) };
        let (few_max, form) = (i64::from(FEW_MAX), self.form());
        let pages = reader.on_shards(usize::MAX, |map| {
            self.calls(asked, map, |form| (ShardForm::Few(form), few_values(from, to, few_max)))
        })?;
        let rows = if let Some(pages) = pages {
            pages.into_iter().flat_map(|page| page.rows).collect()
        } else {
            let mut values = few_values(from, to, few_max);
            self.push(&mut values, form, self.values.clone(), asked);
            reader.session()?.query(CitusStatement::Few(form), &references(&values))?
        };
        self.may_be_few = false;
        self.visited += rows.len() as u64;
        if rows.len() >= FEW_MAX as usize {
            return Ok(false);
        }
        let mut keys: Vec<_> = rows.iter().map(placed_key).collect();
        keys.retain(|(key, _)| asked.lies_ahead(key));
        keys.sort_unstable_by(|(a, _), (b, _)| compare(self.order, a, b));
        keys.dedup();
        self.keys.extend(keys);
        (self.rest, self.now) = (None, None);
        Ok(true)
    }

    /// Reads about `reach` rows, and returns the records that match. Returns `None` if no rows are
    /// left.
    pub(super) fn next(
        &mut self,
        asked: &SqlQuery,
        reach: usize,
        reader: &mut ShelfReader<'_>,
    ) -> Result<Option<Vec<Box<[u8]>>>, StatementError> {
        if !self.keys.is_empty() {
            let wanted = reach.clamp(1, self.fetch_max).min(self.keys.len());
            let cut = asked.cut(Some(self.set));
            let (count, mut found) = read_fitting(wanted, |count, bytes_max| {
                let keys: Vec<(IndexKey, Place)> = self.keys.iter().take(count).copied().collect();
                reader.bodies_within(bytes_max, &keys, asked.seq, cut)
            })?;
            let fetch_max = if count < wanted { count } else { self.fetch_max };
            self.fetch_max = (fetch_max * 2).min(FETCH_MAX);
            found.sort_unstable_by(|(a, _), (b, _)| compare(self.order, a, b));
            let bodies = found.iter().map(|(_, body)| &body[..]);
            let found = matching(asked, bodies, &mut self.visited)?;
            self.keys.drain(..count);
            return Ok(Some(found));
        }
        // The first window had too few rows. An ordered range does not need this step, because it
        // is read with a limit.
        let has_begun = self.now.is_none() && self.has_read;
        // Without the coordinator, a further window costs less than reading the keys of all
        // remaining times, unless there is no row by which to choose its width.
        let may_be_few = self.found == 0 || !reader.has_shards();
        if has_begun && may_be_few && self.width.is_some() && self.read_few(asked, reader)? {
            return Ok(Some(Vec::new()));
        }
        let Some(now) = self.now.or_else(|| self.begin_window()) else { return Ok(None) };
        self.now = Some(now);
        let form = self.form();
        let is_tag = form.table == WindowTable::Tag;
        let limit =
            if is_tag { reach.clamp(KEYS_MIN, KEYS_MAX) } else { reach.clamp(1, FETCH_MAX) };
        let (rows, is_cut) = self.read(asked, form, now, limit, reader)?;
        // Only rows are counted, and not windows, because the cost must not reveal how many records
        // are hidden from the reader.
        self.visited += rows.len() as u64;
        self.found += rows.len();
        let mut found = Vec::new();
        if is_tag {
            let mut keys: Vec<_> = rows.iter().map(placed_key).collect();
            // A record that has two of the values is returned twice.
            keys.dedup();
            let last = self.keys.back().copied();
            self.keys.extend(keys.into_iter().filter(|key| Some(*key) != last));
        } else {
            found = matching(asked, rows.iter().map(|row| row.get(2)), &mut self.visited)?;
        }
        if let Some(last) = rows.last() {
            self.at = Some(IndexKey::read(last, 0));
        }
        if !is_cut && rows.len() < limit {
            self.now = None;
            self.widen(limit);
        }
        Ok(Some(found))
    }

    fn read(
        &self,
        asked: &SqlQuery,
        form: WindowForm,
        (lo, hi): (i64, i64),
        limit: usize,
        reader: &mut ShelfReader<'_>,
    ) -> Result<(Vec<Row>, bool), StatementError> {
        let edge = if self.order == Order::NewestFirst { i64::MAX } else { i64::MIN };
        // The empty id sorts before all other ids.
        let (time, id) = self.at.as_ref().map_or((edge, &[][..]), |at| (at.time, &at.id));
        let values = |limit: usize| -> Vec<ShardValue<'_>> {
            let limit = i64::from(limit as u32);
            vec![Box::new(lo), Box::new(hi), Box::new(limit), Box::new(time), Box::new(id)]
        };
        let is_wide = matches!(self.values, WindowValues::None);
        let pages = reader.on_shards(PAGE_BYTES_MAX, |map| {
            if is_wide {
                return self.wide_calls(asked, map, |workers| values(worker_limit(limit, workers)));
            }
            self.calls(asked, map, |form| (ShardForm::Window(form), values(limit)))
        })?;
        if let Some(mut pages) = pages {
            let of_each = if is_wide { worker_limit(limit, pages.len()) } else { limit };
            for page in &mut pages {
                page.is_cut |= page.rows.len() >= of_each;
            }
            return Ok(merge(self.order, pages, limit));
        }
        let mut values = values(limit);
        self.push(&mut values, form, self.values.clone(), asked);
        let values = references(&values);
        reader.session()?.query_first(CitusStatement::Window(form), &values, PAGE_BYTES_MAX)
    }

    /// Returns a statement for each shard that may have rows. `begin` makes the form and the first
    /// values of a statement.
    fn calls<'v>(
        &'v self,
        asked: &'v SqlQuery,
        map: &ShardMap,
        begin: impl Fn(WindowForm) -> (ShardForm, Vec<ShardValue<'v>>),
    ) -> Option<Vec<ShardCall<'v>>> {
        let parts: Vec<(TableShard, WindowValues)> = match &self.values {
            WindowValues::Terms(terms) => {
                let parts = split(terms, |term| map.of_term(*term))?.into_iter();
                parts.map(|(shard, terms)| (shard, WindowValues::Terms(terms))).collect()
            }
            WindowValues::Authors(authors) => {
                let authors: Vec<&Vec<u8>> = authors.iter().collect();
                let shard_of = |author: &&Vec<u8>| map.of_bytes(ShardedTable::Record, author);
                let parts = split(&authors, shard_of)?.into_iter();
                let owned = |authors: Vec<&Vec<u8>>| authors.into_iter().cloned().collect();
                parts.map(|(shard, list)| (shard, WindowValues::Authors(owned(list)))).collect()
            }
            WindowValues::None => {
                let shards = map.all(ShardedTable::Record).iter();
                shards.map(|shard| (*shard, WindowValues::None)).collect()
            }
        };
        let call = |(shard, values): (TableShard, WindowValues)| {
            let mut form = self.form_of(&values);
            if form.values == ValueCount::Many {
                form.values = ValueCount::Each;
            }
            let (shard_form, mut all) = begin(form);
            self.push(&mut all, form, values, asked);
            ShardCall::new(shard, shard_form, all)
        };
        Some(parts.into_iter().map(call).collect())
    }

    /// Returns a statement for each node, which reads all its shards of records. `begin` makes the
    /// first values of a statement from the number of nodes.
    fn wide_calls<'v>(
        &'v self,
        asked: &'v SqlQuery,
        map: &ShardMap,
        begin: impl Fn(usize) -> Vec<ShardValue<'v>>,
    ) -> Option<Vec<ShardCall<'v>>> {
        let mut form = self.form();
        if let Some(kinds) = &self.kinds
            && (2..=ARMS_MAX).contains(&kinds.len())
        {
            form.kinds = ValueCount::Arms(kinds.len());
        }
        let nodes = map.by_group(ShardedTable::Record);
        let count = nodes.len();
        let call = |shards: Vec<TableShard>| {
            let mut values = begin(count);
            self.push(&mut values, form, WindowValues::None, asked);
            ShardCall::several(&shards, form, values)
        };
        nodes.into_values().map(call).collect()
    }

    /// Adds the values of the form's conditions, in the order of the conditions in the statement.
    /// `values` are all or some of the values of the condition that drives the search.
    fn push<'v>(
        &'v self,
        all: &mut Vec<ShardValue<'v>>,
        form: WindowForm,
        values: WindowValues,
        asked: &'v SqlQuery,
    ) {
        match (form.kinds, &self.kinds) {
            (ValueCount::One, Some(kinds)) => all.push(Box::new(kinds[0])),
            (ValueCount::Arms(_) | ValueCount::Many, Some(kinds)) => all.push(Box::new(kinds)),
            _ => {}
        }
        match (values, form.values) {
            (WindowValues::Terms(terms), ValueCount::One) => all.push(Box::new(terms[0])),
            (WindowValues::Terms(terms), _) => all.push(Box::new(terms)),
            (WindowValues::Authors(mut authors), ValueCount::One) => {
                all.push(Box::new(authors.pop()));
            }
            (WindowValues::Authors(authors), _) => all.push(Box::new(authors)),
            (WindowValues::None, _) => {}
        }
        if form.has_not_kinds {
            all.push(Box::new(&self.not_kinds));
        }
        if form.table != WindowTable::Tag {
            all.push(Box::new(asked.seq));
            all.push(Box::new(asked.cut(Some(self.set))));
        }
    }

    /// Returns the next window, and removes its times from the remaining times.
    fn begin_window(&mut self) -> Option<(i64, i64)> {
        let (from, to) = self.rest.take()?;
        (self.has_read, self.found) = (true, 0);
        let Some(width) = self.width else { return Some((from, to)) };
        Some(match self.order {
            Order::NewestFirst => {
                let edge = to.min(self.newest).saturating_sub_unsigned(width);
                let lo = edge.clamp(from, to);
                self.rest = (lo > from).then(|| (from, lo - 1));
                (lo, to)
            }
            Order::OldestFirst => {
                let edge = from.max(self.oldest).saturating_add_unsigned(width);
                let hi = edge.clamp(from, to);
                self.rest = (hi < to).then(|| (hi + 1, to));
                (from, hi)
            }
        })
    }

    /// Chooses the width of the next window, after a window had fewer than `wanted` rows.
    fn widen(&mut self, wanted: usize) {
        let Some(width) = self.width else { return };
        if self.is_ordered() {
            self.width = None;
            return;
        }
        let factor = match self.found as u64 {
            0 => WIDEN_MAX,
            found => (2 * wanted as u64 / found).clamp(2, WIDEN_MAX),
        };
        self.width = Some(width.max(1).saturating_mul(factor));
    }
}

/// Returns the first values of [`CitusStatement::Few`].
fn few_values<'v>(from: i64, to: i64, few_max: i64) -> Vec<ShardValue<'v>> {
    vec![Box::new(from), Box::new(to), Box::new(few_max)]
}

/// Returns the limit of rows for each of several nodes that together return about `limit` rows. The
/// limit is one and a half times an equal share, because the nodes' shares differ.
fn worker_limit(limit: usize, workers: usize) -> usize {
    (limit * 3 / 2 / workers.max(1) + 8).min(limit)
}
