//! The names of keys, from their profiles (kind 0), and the texts of events, for lists.

use std::collections::HashMap;
use std::sync::Arc;

use hark_archive::{Id, Key, Query, SearchError, Store};
use hark_codec::nostr::{Event, EventArena};
use serde_json::Value;

use crate::blocking;
use crate::nostr::Relay;
use crate::nostr::manage::fault::ManageFault;
use crate::words::cut;

/// The kind of a profile.
const PROFILE: u32 = 0;
/// Maximum number of characters of a name, and of the text of an event.
const NAME_CHARS_MAX: usize = 60;
const TEXT_CHARS_MAX: usize = 600;

/// The names of keys, and the texts of events.
#[derive(Debug, Default)]
pub(super) struct ShownTexts {
    names: HashMap<Key, String>,
    events: HashMap<Id, ShownEvent>,
}

/// An event in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShownEvent {
    pub(super) author: Key,
    pub(super) kind: u16,
    pub(super) created_at: u64,
    /// The content, cut.
    pub(super) text: String,
}

impl ShownTexts {
    /// Reads the names of `keys`, and the events with these ids and the names of their authors.
    pub(super) async fn read(
        relay: &Arc<Relay>,
        mut keys: Vec<Key>,
        ids: Vec<Id>,
    ) -> Result<Self, ManageFault> {
        let (store, now_s) = (Arc::clone(relay.shelf.store()), relay.shelf.clock().now_s());
        let read = blocking::run(move || {
            let mut texts = Self::default();
            if !ids.is_empty() {
                let query = Query { ids: Some(ids), now: now_s, ..Query::default() };
                visit(&*store, query, |event| {
                    keys.push(*event.pubkey());
                    texts.events.insert(*event.id(), ShownEvent::new(event));
                })?;
            }
            if !keys.is_empty() {
                let kinds = Some(vec![PROFILE]);
                let query = Query { authors: Some(keys), kinds, now: now_s, ..Query::default() };
                visit(&*store, query, |event| {
                    let name = profile_name(event.content());
                    texts.names.extend(name.map(|name| (*event.pubkey(), name)));
                })?;
            }
            Ok::<_, SearchError>(texts)
        });
        let read = read.await.map_err(|_| ManageFault::Stopping)?;
        read.map_err(|error| ManageFault::Search(error.to_string()))
    }

    /// The name of a key. `None` if its profile is not stored here, or has no name.
    pub(super) fn name(&self, key: &Key) -> Option<&String> {
        self.names.get(key)
    }

    /// The event with an id. `None` if the event is not stored here.
    pub(super) fn event(&self, id: &Id) -> Option<&ShownEvent> {
        self.events.get(id)
    }
}

impl ShownEvent {
    fn new(event: &Event<'_>) -> Self {
        let text = cut(event.content(), TEXT_CHARS_MAX);
        let (author, kind, created_at) = (*event.pubkey(), event.kind(), event.created_at());
        Self { author, kind, created_at, text }
    }
}

/// Passes all events that match a query to `each`.
fn visit(
    store: &dyn Store,
    mut query: Query,
    mut each: impl FnMut(&Event<'_>),
) -> Result<(), SearchError> {
    query.normalise();
    let mut arena = EventArena::new();
    store.search(&query)?.read_all(&mut |record| {
        if let Ok(event) = Event::parse(record.wire(), &mut arena) {
            each(&event);
        }
    })
}

/// The name in the content of a profile, on one line.
fn profile_name(content: &str) -> Option<String> {
    let profile: Value = serde_json::from_str(content).ok()?;
    let names = ["display_name", "name"].into_iter().filter_map(|field| profile[field].as_str());
    let line = |name: &str| {
        let words = name.split_whitespace().collect::<Vec<_>>().join(" ");
        words.chars().filter(|letter| !letter.is_control()).take(NAME_CHARS_MAX).collect::<String>()
    };
    names.map(line).find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_short_line() {
        assert_eq!(profile_name(r#"{"name":" a\n b ","display_name":""}"#).as_deref(), Some("a b"));
        let long = format!(r#"{{"display_name":"{}"}}"#, "\u{e4}".repeat(100));
        assert_eq!(profile_name(&long).map(|name| name.chars().count()), Some(NAME_CHARS_MAX));
        for none in ["", "[]", "{}", r#"{"name":7}"#, r#"{"name":"\u0007"}"#] {
            assert_eq!(profile_name(none), None, "{none}");
        }
    }
}
