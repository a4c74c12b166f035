//! Keeps the relay's list of members, its roles and the notices of changes (NIP-43), and its report
//! about itself (NIP-66), in the archive as they should be. The events are ordinary events of the
//! relay's shelf, so questions, counts, comparisons and other servers find them as they find all
//! events.
//!
//! Each round compares the stored events with the present members. So a round repairs whatever a
//! crash has left undone, and the second of two servers finds nothing to do. If several servers find
//! the same change at the same time, one of them publishes the change (`turns`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hark_archive::{CommitError, Outcome, Query, Record, SearchError, Write};
use hark_codec::hex;
use hark_codec::nostr::{Event, EventArena};
use hark_codec::record::Key;

use super::key::OwnKey;
use super::members::MemberList;
use super::options::{OwnEvents, SharedOwnEvents};
use super::report::report_tags;
use super::turns::ListTurns;
use crate::blocking;
use crate::moderation::{Moderation, ModerationError};
use crate::nostr::identity::SharedIdentity;
use crate::nostr::manage::{RoleDefinition, RoleList};
use crate::nostr::policy::EventPolicy;
use crate::nostr::{Relay, nip11};
use crate::shelf::{JobNotRun, Shelf};

/// Kinds of NIP-43: the list of members, a role, and the notices of a new and of a former member.
const LIST_KIND: u16 = 13_534;
const ROLE_KIND: u16 = 33_534;
const ADDED_KIND: u16 = 8_000;
const REMOVED_KIND: u16 = 8_001;
/// The kind of a report about a relay (NIP-66).
const REPORT_KIND: u16 = 30_166;
/// Age in seconds from which the report is published again.
const REPORT_AGE_S_MAX: u64 = 6 * 3_600;
/// The kind of a deletion.
const DELETION_KIND: u16 = 5;
/// Maximum number of notices of one round. After more changes, only the list is published.
const NOTICES_MAX: usize = 500;
/// Interval after which a round follows without a change: allows may have ended.
const RECHECK: Duration = Duration::from_mins(1);
/// Time between a change and its round, so that further changes within this time need no further
/// round, and the times of the lists do not run ahead of the clock.
const PAUSE: Duration = Duration::from_secs(1);
/// Further time for each member, so that the lists of many members take a bounded part of the disk.
const PAUSE_FOR_MEMBER: Duration = Duration::from_millis(1);

/// The sources of the relay's own events, and the shelf that they go to.
pub(crate) struct OwnPublisher {
    pub(crate) key: Arc<OwnKey>,
    pub(crate) options: SharedOwnEvents,
    pub(crate) identity: SharedIdentity,
    pub(crate) moderation: Moderation,
    pub(crate) relay: Weak<Relay>,
    pub(crate) turns: ListTurns,
}

/// The result of a round.
#[derive(Default)]
struct PublishRound {
    /// Number of listed members.
    members: usize,
    /// Whether another server has the turn to publish a change of the members.
    is_waiting: bool,
}

/// Why a round was not completed.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error(transparent)]
    Moderation(#[from] ModerationError),
    #[error("the writer is busy or has stopped")]
    NoWriter,
}

impl OwnPublisher {
    /// Publishes the members now and after each change, until the shelf is closed.
    pub(crate) async fn run(self) {
        let this = Arc::new(self);
        loop {
            let (changed, set) = (this.moderation.changed(), this.identity.changed());
            let mut round = PublishRound::default();
            let signs = this.identity.own_key().as_ref() == Some(this.key.public());
            let options = **this.options.load();
            if signs && (options.members || options.report) {
                let Some(relay) = this.relay.upgrade() else { return };
                let publisher = Arc::clone(&this);
                match blocking::run(move || publisher.publish(&relay, options)).await {
                    Ok(Ok(done)) => round = done,
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "the relay's own events could not be published yet");
                    }
                    // The runtime ends.
                    Err(_) => return,
                }
            }
            if !round.is_waiting {
                tokio::select! {
                    () = changed => {}
                    () = set => {}
                    () = tokio::time::sleep(RECHECK) => {}
                }
            }
            let members = u32::try_from(round.members).unwrap_or(u32::MAX);
            tokio::time::sleep(PAUSE + PAUSE_FOR_MEMBER * members).await;
        }
    }

    /// Makes one round.
    fn publish(&self, relay: &Relay, options: OwnEvents) -> Result<PublishRound, PublishError> {
        let (shelf, policy) = (&*relay.shelf, relay.policy.load());
        let (mut writes, mut round) = (Vec::new(), PublishRound::default());
        let now_s = shelf.clock().now_s();
        if options.members {
            let stored = self.stored(shelf, LIST_KIND)?.into_iter().next();
            // The server that has published the stored list may know changes that this server does
            // not know yet. Without these changes, this server would publish the reverse.
            self.moderation.learn_news()?;
            let roles = relay.management.roles.load_full();
            let list = MemberList::read(&policy, &self.moderation, &roles);
            round.members = list.tags.len();
            match self.list_writes(&policy, stored.as_ref(), list, now_s)? {
                Some(of_list) => writes = of_list,
                None => round.is_waiting = true,
            }
            writes.extend(self.role_writes(shelf, &roles, now_s)?);
        }
        if options.report {
            writes.extend(self.report_write(relay, now_s)?);
        }
        if !writes.is_empty() {
            let done = shelf.between(move |target| target.commit_whole(&writes));
            let outcomes = done.map_err(|JobNotRun| PublishError::NoWriter)??;
            let refused = outcomes.iter().filter(|it| !matches!(it, Outcome::Stored { .. }));
            let refused = refused.count();
            if refused > 0 {
                tracing::debug!(refused, "another server has published the same change");
            }
        }
        Ok(round)
    }

    /// Returns the writes that make the stored list equal to `list`, and the notices of the changes.
    /// `None` if it is the turn of another server.
    fn list_writes(
        &self,
        policy: &EventPolicy,
        stored: Option<&StoredEvent>,
        list: MemberList,
        now_s: u64,
    ) -> Result<Option<Vec<Write>>, PublishError> {
        let tags_before = stored.map(|stored| stored.tags_of("member"));
        if tags_before.as_ref() == Some(&list.tags) {
            return Ok(Some(Vec::new()));
        }
        if let Some(stored) = stored
            && !self.turns.take(&self.moderation, &stored.id, stored.created_at)?
        {
            return Ok(None);
        }
        let at_s = stored.map_or(now_s, |stored| now_s.max(stored.created_at + 1));
        let was_cut =
            tags_before.as_ref().is_some_and(|tags| tags.len() >= super::members::LISTED_MAX);
        // A list that is cut tells nothing about the keys after its end.
        let notices = tags_before
            .filter(|_| !list.is_cut && !was_cut)
            .map(|before| self.notices(policy, &keys_of(&before), &keys_of(&list.tags), at_s));
        if list.is_cut {
            let listed = list.tags.len();
            tracing::warn!(listed, "the relay has more members than its list may have");
        }
        let tags: Vec<Vec<String>> = protected().chain(list.tags).collect();
        // The list comes first: after a crash between the two, notices may be missing, but are never
        // published twice.
        let list = self.put(LIST_KIND, at_s, &tags);
        Ok(Some(std::iter::once(list).chain(notices.into_iter().flatten()).collect()))
    }

    fn notices(
        &self,
        policy: &EventPolicy,
        before: &BTreeSet<Key>,
        after: &BTreeSet<Key>,
        at_s: u64,
    ) -> Vec<Write> {
        let check = self.moderation.check();
        let added = after.difference(before).map(|key| (ADDED_KIND, key));
        let removed = before.difference(after).map(|key| (REMOVED_KIND, key));
        let removed = removed.filter(|(_, key)| !check.names_member(policy, key));
        let changes: Vec<(u16, &Key)> = added.chain(removed).collect();
        if changes.len() > NOTICES_MAX {
            return Vec::new();
        }
        let notice = |(kind, key): (u16, &Key)| {
            let tags: Vec<Vec<String>> =
                protected().chain([vec!["p".into(), hex::text_32(key)]]).collect();
            self.put(kind, at_s, &tags)
        };
        changes.into_iter().map(notice).collect()
    }

    /// Returns the writes that make the stored roles equal to the present roles.
    fn role_writes(
        &self,
        shelf: &Shelf,
        roles: &RoleList,
        now_s: u64,
    ) -> Result<Vec<Write>, PublishError> {
        let stored = self.stored(shelf, ROLE_KIND)?;
        let mut stored: BTreeMap<String, StoredEvent> =
            stored.into_iter().map(|event| (event.d(), event)).collect();
        let mut writes = Vec::new();
        for role in roles.definitions() {
            let tags = role_tags(role);
            let before = stored.remove(&role.id);
            if before.as_ref().is_some_and(|before| before.tags == tags) {
                continue;
            }
            let at_s = before.map_or(now_s, |before| now_s.max(before.created_at + 1));
            writes.push(self.put(ROLE_KIND, at_s, &tags));
        }
        // The rest were deleted. A deletion tells clients and mirrors of the relay as well.
        let owner = hex::text_32(self.key.public());
        for (id, before) in stored {
            let event = vec!["e".into(), before.id.clone()];
            let address = vec!["a".into(), format!("{ROLE_KIND}:{owner}:{id}")];
            let kind = vec!["k".into(), ROLE_KIND.to_string()];
            writes.push(self.put(
                DELETION_KIND,
                before.created_at.max(now_s),
                &[event, address, kind],
            ));
        }
        Ok(writes)
    }

    /// Returns the write of the relay's report about itself, if the stored report is old or has
    /// other tags. A relay that does not know its URL has no report.
    fn report_write(&self, relay: &Relay, now_s: u64) -> Result<Option<Write>, PublishError> {
        let identity = relay.identity.current();
        let Some(url) = &identity.info.url else { return Ok(None) };
        let (settings, policy) = (relay.settings(), relay.policy.load());
        let document = nip11::document(
            &identity.info,
            &settings.limits,
            &policy,
            relay.has_further_rules(),
            identity.private_kinds(),
            nip11::OfferedServices::of(relay),
        );
        // Parsing does not fail, because the relay has written the document.
        let document = serde_json::from_str(&document).unwrap_or_default();
        let tags = report_tags(url, &policy, &document);
        let stored = self.stored(&relay.shelf, REPORT_KIND)?;
        let before = stored.iter().find(|stored| Some(stored.d().as_str()) == d_of(&tags));
        let is_new = before.is_some_and(|before| {
            before.tags == tags && now_s.saturating_sub(before.created_at) < REPORT_AGE_S_MAX
        });
        if is_new {
            return Ok(None);
        }
        let at_s = before.map_or(now_s, |before| now_s.max(before.created_at + 1));
        Ok(Some(self.put(REPORT_KIND, at_s, &tags)))
    }

    /// Signs an event, and returns the write that stores the event.
    fn put(&self, kind: u16, at_s: u64, tags: &[Vec<String>]) -> Write {
        Write::Put(self.key.sign(kind, at_s, tags, "").into())
    }

    /// Reads the relay's own events of one kind.
    fn stored(&self, shelf: &Shelf, kind: u16) -> Result<Vec<StoredEvent>, SearchError> {
        let query = Query {
            authors: Some(vec![*self.key.public()]),
            kinds: Some(vec![u32::from(kind)]),
            now: shelf.clock().now_s(),
            ..Query::default()
        };
        let (mut events, mut arena) = (Vec::new(), EventArena::new());
        let mut search = shelf.store().search(&query)?;
        search.read_all(&mut |record| events.extend(StoredEvent::read(record, &mut arena)))?;
        Ok(events)
    }
}

/// An event of the relay in the archive.
struct StoredEvent {
    id: String,
    created_at: u64,
    tags: Vec<Vec<String>>,
}

impl StoredEvent {
    fn read(record: &Record<'_>, arena: &mut EventArena) -> Option<Self> {
        let event = Event::parse(record.wire(), arena).ok()?;
        let tags = event.tags().map(|tag| tag.iter().map(str::to_owned).collect()).collect();
        Some(Self { id: hex::text_32(event.id()), created_at: event.created_at(), tags })
    }

    fn tags_of(&self, name: &str) -> Vec<Vec<String>> {
        let is_named = |tag: &&Vec<String>| tag.first().is_some_and(|first| first == name);
        self.tags.iter().filter(is_named).cloned().collect()
    }

    fn d(&self) -> String {
        d_of(&self.tags).unwrap_or_default().to_owned()
    }
}

/// The value of the `d` tag.
fn d_of(tags: &[Vec<String>]) -> Option<&str> {
    let tag = tags.iter().find(|tag| tag.first().is_some_and(|first| first == "d"))?;
    tag.get(1).map(String::as_str)
}

/// The tag that lets only the author publish an event (NIP-70).
fn protected() -> impl Iterator<Item = Vec<String>> {
    std::iter::once(vec!["-".to_owned()])
}

fn role_tags(role: &RoleDefinition) -> Vec<Vec<String>> {
    let optional = [
        ("label", Some(role.label.clone()).filter(|text| !text.is_empty())),
        ("description", Some(role.description.clone()).filter(|text| !text.is_empty())),
        ("color", role.color.map(|hue| hue.to_string())),
        ("order", role.order.map(|order| order.to_string())),
    ];
    let optional =
        optional.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?]));
    protected().chain([vec!["d".into(), role.id.clone()]]).chain(optional).collect()
}

/// The keys of `member` tags.
fn keys_of(tags: &[Vec<String>]) -> BTreeSet<Key> {
    tags.iter().filter_map(|tag| hex::decode_32(tag.get(1)?.as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use hark_archive::store::memory::MemoryStore;
    use hark_networks::Network as _;

    use super::*;
    use crate::moderation::ModerationNetwork;

    /// Makes a server of an archive, which does not learn of the changes of other servers.
    fn server(key: &Arc<OwnKey>, store: &Arc<MemoryStore>) -> OwnPublisher {
        OwnPublisher {
            key: Arc::clone(key),
            options: SharedOwnEvents::default(),
            identity: SharedIdentity::default(),
            moderation: Moderation::over(store.clone()).unwrap(),
            relay: Weak::new(),
            turns: ListTurns::default(),
        }
    }

    /// The kinds of the events in these writes.
    fn kinds(writes: &[Write]) -> Vec<u32> {
        let puts = writes.iter().map(|write| match write {
            Write::Put(bytes) => Record::new(bytes).unwrap().kind(),
            Write::Erase(query) => panic!("{query:?}"),
        });
        puts.collect()
    }

    #[test]
    fn of_servers_that_find_a_change_together_one_publishes_its_notices() {
        let folder = hark_testkit::disk::scratch("own-turns");
        let key = Arc::new(OwnKey::load(&folder.join("relay.key"), [7; 32]).unwrap());
        let store = Arc::new(MemoryStore::new(ModerationNetwork.rules()));
        let [one, two] = [(), ()].map(|()| server(&key, &store));
        let list = |key: [u8; 32]| MemberList {
            tags: vec![vec!["member".into(), hex::text_32(&key)]],
            is_cut: false,
        };
        let stored = |id: &str, list: MemberList| {
            let created_at = if id == "aa" { 100 } else { 200 };
            StoredEvent { id: id.into(), created_at, tags: list.tags }
        };
        // Both have read the same list, and each finds the change in a second of its own.
        let find = |server: &OwnPublisher, id: &str, now_s: u64| {
            let before = stored(id, list([1; 32]));
            server
                .list_writes(&EventPolicy::default(), Some(&before), list([2; 32]), now_s)
                .unwrap()
        };
        let notices = [LIST_KIND, ADDED_KIND, REMOVED_KIND].map(u32::from);
        assert_eq!(find(&one, "aa", 200).as_deref().map(kinds), Some(notices.to_vec()));
        assert!(find(&two, "aa", 202).is_none());
        // A writer that was busy is asked again.
        assert!(find(&one, "aa", 203).is_some());
        let new = stored("bb", list([2; 32]));
        let new = two.list_writes(&EventPolicy::default(), Some(&new), list([2; 32]), 204);
        assert_eq!(new.unwrap().map(|writes| writes.len()), Some(0));
        // The turn of a server that has ended goes to another server.
        assert!(find(&one, "bb", 300).is_some());
        let rounds = (300..400).position(|now_s| find(&two, "bb", now_s).is_some());
        assert_eq!(rounds, Some(10));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
