//! The right answers, by brute force over a list of events. The oracle shares no code with Hark's
//! stores, networks or codec, since a fault in shared code would stay hidden.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::probe::event::ProbeEvent;

/// A filter of a question.
#[derive(Clone, Debug, Default)]
pub(super) struct OracleFilter {
    pub(super) ids: Option<Vec<String>>,
    pub(super) authors: Option<Vec<String>>,
    pub(super) kinds: Option<Vec<u64>>,
    /// The wanted values, by the letter of the tag.
    pub(super) tags: BTreeMap<String, Vec<String>>,
    pub(super) since: Option<u64>,
    pub(super) until: Option<u64>,
    pub(super) limit: Option<usize>,
}

impl OracleFilter {
    pub(super) fn json(&self) -> Value {
        let mut out = json!({});
        let lists = [("ids", &self.ids), ("authors", &self.authors)];
        for (name, list) in lists.iter().filter_map(|(name, list)| Some((name, list.as_ref()?))) {
            out[*name] = json!(list);
        }
        if let Some(kinds) = &self.kinds {
            out["kinds"] = json!(kinds);
        }
        for (letter, values) in &self.tags {
            out[format!("#{letter}")] = json!(values);
        }
        let limit = self.limit.map(|limit| limit as u64);
        let numbers = [("since", self.since), ("until", self.until), ("limit", limit)];
        for (name, number) in numbers.iter().filter_map(|(name, number)| Some((name, (*number)?))) {
            out[*name] = json!(number);
        }
        out
    }

    fn matches(&self, event: &ProbeEvent) -> bool {
        let has = |list: &Option<Vec<String>>, value: &String| {
            list.as_ref().is_none_or(|list| list.contains(value))
        };
        let has_tag = |(letter, values): (&String, &Vec<String>)| {
            event.tags.iter().any(|tag| match &tag[..] {
                [name, value, ..] => name == letter && values.contains(value),
                _ => false,
            })
        };
        has(&self.ids, &event.id)
            && has(&self.authors, &event.pubkey)
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind))
            && self.tags.iter().all(has_tag)
            && self.since.is_none_or(|since| event.created_at >= since)
            && self.until.is_none_or(|until| event.created_at <= until)
    }
}

/// The events that a relay must have.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerOracle {
    stored: Vec<ProbeEvent>,
    /// All deletion requests, in the order of arrival.
    deletions: Vec<ProbeEvent>,
}

/// Whether the kind is replaceable or addressable (replaceable by its tag `d`).
pub(super) fn is_replaceable(kind: u64) -> bool {
    matches!(kind, 0 | 3 | 10_000..20_000 | 30_000..40_000)
}

/// The address of an event: events with the same address replace each other.
pub(super) fn address(event: &ProbeEvent) -> String {
    let d = if event.kind >= 30_000 { event.value("d").unwrap_or_default() } else { "" };
    format!("{}:{}:{d}", event.kind, event.pubkey)
}

/// Whether the deletion request deletes the event.
fn deletes(request: &ProbeEvent, event: &ProbeEvent) -> bool {
    let names = |tag: &Vec<String>| match &tag[..] {
        [name, value, ..] if name == "e" => *value == event.id,
        [name, value, ..] if name == "a" => {
            is_replaceable(event.kind)
                && *value == address(event)
                && event.created_at <= request.created_at
        }
        _ => false,
    };
    request.pubkey == event.pubkey && event.kind != 5 && request.tags.iter().any(names)
}

impl AnswerOracle {
    /// Adds an event that the relay received.
    pub(super) fn add(&mut self, event: &ProbeEvent) {
        let is_known = self.stored.iter().any(|stored| stored.id == event.id);
        let is_deleted = self.deletions.iter().any(|request| deletes(request, event));
        if is_known || is_deleted || (20_000..30_000).contains(&event.kind) {
            return;
        }
        if is_replaceable(event.kind) {
            let address_of_event = address(event);
            let is_same = |stored: &ProbeEvent| {
                is_replaceable(stored.kind) && address(stored) == address_of_event
            };
            let is_newer = |stored: &ProbeEvent| {
                stored.created_at > event.created_at
                    || stored.created_at == event.created_at && stored.id < event.id
            };
            if self.stored.iter().any(|stored| is_same(stored) && is_newer(stored)) {
                return;
            }
            self.stored.retain(|stored| !is_same(stored));
        }
        if event.kind == 5 {
            self.stored.retain(|stored| !deletes(event, stored));
            self.deletions.push(event.clone());
        }
        self.stored.push(event.clone());
    }

    /// Whether the event is stored.
    pub(super) fn has(&self, id: &str) -> bool {
        self.stored.iter().any(|event| event.id == id)
    }

    /// The number of stored events.
    pub(super) fn len(&self) -> usize {
        self.stored.len()
    }

    /// The ids of the right answer, newest first, and lowest id first at equal times.
    pub(super) fn answer(&self, filters: &[OracleFilter]) -> Vec<String> {
        let mut found: Vec<&ProbeEvent> = Vec::new();
        for filter in filters {
            let mut page: Vec<_> =
                self.stored.iter().filter(|event| filter.matches(event)).collect();
            page.sort_by(|one, two| sort_key(one).cmp(&sort_key(two)));
            page.truncate(filter.limit.unwrap_or(usize::MAX));
            found.extend(page);
        }
        found.sort_by(|one, two| sort_key(one).cmp(&sort_key(two)));
        found.dedup_by(|one, two| one.id == two.id);
        found.iter().map(|event| event.id.clone()).collect()
    }
}

fn sort_key(event: &ProbeEvent) -> (std::cmp::Reverse<u64>, &str) {
    (std::cmp::Reverse(event.created_at), &event.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::people::keys_of;
    use crate::probe::event::EventPlan;

    #[test]
    fn replaced_and_deleted_events_are_absent_in_any_order() {
        let keys = keys_of("oracle").unwrap();
        let old = EventPlan::new(30_023, 10).tag(&["d", "x"]).sign(&keys);
        let new = EventPlan::new(30_023, 20).tag(&["d", "x"]).sign(&keys);
        let note = EventPlan::new(1, 15).tag(&["t", "bread", "butter"]).sign(&keys);
        let delete_note = EventPlan::new(5, 16).tag(&["e", &note.id]).sign(&keys);
        let delete_old = EventPlan::new(5, 17).tag(&["a", &address(&old)]).sign(&keys);
        for order in [[&old, &new, &note, &delete_note], [&delete_note, &note, &new, &old]] {
            let mut oracle = AnswerOracle::default();
            for event in &order {
                oracle.add(event);
            }
            let all = oracle.answer(&[OracleFilter::default()]);
            assert_eq!(all, [new.id.clone(), delete_note.id.clone()]);
            // The deletion is older than the version.
            oracle.add(&delete_old);
            assert_eq!(
                (oracle.len(), oracle.answer(&[OracleFilter::default()])[0] == new.id),
                (3, true)
            );
        }
        let mut oracle = AnswerOracle::default();
        oracle.add(&note);
        let tag = |value: &str| OracleFilter {
            tags: [("t".to_owned(), vec![value.to_owned()])].into(),
            ..OracleFilter::default()
        };
        assert_eq!(oracle.answer(&[tag("bread"), tag("none")]), [note.id]);
        assert!(oracle.answer(&[tag("butter")]).is_empty());
    }
}
