//! Tests of the bans of an archive that several processes share. Each process has a store of its
//! own over the same records.

use std::sync::Arc;

use hark_archive::Query;
use hark_archive::clock::Clock;
use hark_archive::query::explain::Explanation;
use hark_archive::store::memory::MemoryStore;
use hark_archive::store::{
    CommitError, CommitResult, NumberedRecord, Outcome, Search, SearchError, Store, StoreStats,
    Write,
};
use hark_archive::{Id, Record};
use hark_networks::Network as _;
use parking_lot::Mutex;

use super::*;

/// The records that processes share.
struct SharedRecords {
    store: MemoryStore,
    /// All puts, in order.
    puts: Mutex<Vec<NumberedRecord>>,
}

/// The store of one process, which learns of the puts of others only when it is asked.
struct ProcessStore {
    shared: Arc<SharedRecords>,
    /// Number of puts that were delivered.
    seen: Mutex<usize>,
    /// Whether the process can learn of puts.
    is_told: bool,
}

impl Store for ProcessStore {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        let mut puts = self.shared.puts.lock();
        let done = self.shared.store.commit(writes)?;
        for (write, outcome) in writes.iter().zip(&done.outcomes) {
            if let (Write::Put(bytes), Outcome::Stored { seq }) = (write, outcome) {
                puts.push((*seq, bytes.clone()));
            }
        }
        Ok(done)
    }

    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        self.shared.store.knows(id)
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        self.shared.store.search(query)
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        self.shared.store.count_visiting(query, visited)
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        self.shared.store.label_values(name, each)
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        self.shared.store.expired(now, limit)
    }

    fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.shared.store.explain(query)
    }

    fn stats(&self) -> StoreStats {
        self.shared.store.stats()
    }

    fn news(&self) -> Vec<NumberedRecord> {
        let (puts, mut seen) = (self.shared.puts.lock(), self.seen.lock());
        if !self.is_told {
            return Vec::new();
        }
        let news = puts.get(*seen..).unwrap_or_default().to_vec();
        *seen = puts.len();
        news
    }
}

/// Two processes that have read the archive before its first entry.
fn two_processes(is_told: bool) -> [Moderation; 2] {
    let store = MemoryStore::new(ModerationNetwork.rules());
    let shared = Arc::new(SharedRecords { store, puts: Mutex::default() });
    [(), ()].map(|()| {
        let store = ProcessStore { shared: Arc::clone(&shared), seen: Mutex::default(), is_told };
        Moderation::with_clock(Arc::new(store), Clock::fake(1_700_000_000)).unwrap()
    })
}

fn ban(text: &str, reason: &str) -> RulingChange {
    let (subject, ruling) = (text.parse().unwrap(), Ruling::Ban);
    RulingChange::Set { subject, ruling, reason: reason.into(), until_s: None }
}

fn unban(text: &str) -> RulingChange {
    RulingChange::Lift(text.parse().unwrap(), Ruling::Ban)
}

fn acts(moderation: &Moderation) -> Vec<String> {
    let mut notes = moderation.log(0, None, 100).unwrap().notes;
    notes.reverse();
    notes.into_iter().map(|note| format!("{} {}", note.act, note.by)).collect()
}

/// A process learns of the changes of another process before it plans a change, even if no
/// notification has come yet.
#[test]
fn a_process_changes_what_another_process_has_just_changed() {
    let [one, two] = two_processes(true);
    one.change_now(&[ban("kind:7", "x")], "one").unwrap();
    let lifted = two.change_now(&[unban("kind:7")], "two").unwrap();
    assert!(lifted[0].is_change(), "{lifted:?}");
    assert_eq!(two.count(Ruling::Ban, SubjectSort::Kind), 0);
    let again = one.change_now(&[ban("kind:7", "x")], "one").unwrap();
    assert!(again[0].is_change(), "the same ban, which the other process has lifted: {again:?}");
    let replaced = two.change_now(&[ban("kind:7", "y")], "two").unwrap();
    assert_eq!(replaced[0].before.as_ref().map(|entry| &*entry.reason), Some("x"));
    assert_eq!(acts(&one), ["ban one", "unban two", "ban one", "ban two"]);
}

/// A change that the archive has refused, because another process has changed the entry at the same
/// time, leaves no row in the audit log.
#[test]
fn a_change_that_is_made_again_has_one_row_in_the_log() {
    let [one, two] = two_processes(false);
    // The entries of the first process are newer than those that the second one plans.
    for n in 0..5 {
        one.change_now(&[ban("kind:7", &n.to_string())], "one").unwrap();
    }
    let made = two.change_now(&[ban("kind:7", "y"), ban("kind:8", "y")], "two").unwrap();
    assert!(made.iter().all(ChangedRuling::is_change), "{made:?}");
    let log = acts(&one);
    assert_eq!(log.iter().filter(|row| row.ends_with("two")).count(), 2, "{log:?}");
    assert_eq!(log.len(), 7, "{log:?}");
    let shelf = two.shelf().unwrap();
    let mut search = shelf.store().search(&records::notes()).unwrap();
    let mut notes = 0;
    let mut count = |_: &Record<'_>| {
        notes += 1;
        std::ops::ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut count).unwrap();
    assert_eq!(notes, 7);
}

#[test]
fn a_name_that_one_process_verifies_or_ends_is_so_for_all() {
    let [one, two] = two_processes(true);
    let (key, name) = ([7; 32], "bob@example.com".parse().unwrap());
    one.verify_name_now(&key, &name, 100).unwrap();
    two.learn_news().unwrap();
    assert_eq!(two.name_of(&key).map(|known| known.name), Some(name));
    assert!(two.end_name_now(&key).unwrap());
    one.learn_news().unwrap();
    assert_eq!(one.name_of(&key), None);
}
