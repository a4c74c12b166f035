//! Named values that managers set: parts of the relay's description, and roles. They are records of
//! the same shelf as the entries, so every process of the archive learns of a change.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use parking_lot::Mutex;
use serde_json::Value;

use super::records::NamedValue;

/// Called with all values, and with all values again after each change.
pub type ValueFollower = Box<dyn Fn(&BTreeMap<String, Value>) + Send + Sync>;

/// The values that one process knows.
#[derive(Default)]
pub(super) struct ValueBook {
    known: Mutex<KnownValues>,
    follower: OnceLock<ValueFollower>,
}

#[derive(Default)]
struct KnownValues {
    values: BTreeMap<String, Value>,
    /// The times of the records of the values, and of removed values.
    times: BTreeMap<String, u64>,
    /// Whether the values have changed since the follower was called.
    is_changed: bool,
}

impl std::fmt::Debug for ValueBook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueBook")
            .field("values", &self.known.lock().values)
            .finish_non_exhaustive()
    }
}

impl ValueBook {
    /// Applies a record, unless a newer record of the same name was applied before.
    pub(super) fn apply(&self, NamedValue { at_ns, name, value, .. }: NamedValue) {
        let mut known = self.known.lock();
        if known.times.get(&name).is_some_and(|known_ns| *known_ns > at_ns) {
            return;
        }
        known.is_changed = true;
        if value.is_null() {
            known.values.remove(&name);
        } else {
            known.values.insert(name.clone(), value);
        }
        known.times.insert(name, at_ns);
    }

    /// Passes the values to the follower if they have changed.
    pub(super) fn put_in_force(&self) {
        // The lock is held during the call, so that no older values follow newer values.
        let mut known = self.known.lock();
        if std::mem::take(&mut known.is_changed)
            && let Some(follower) = self.follower.get()
        {
            follower(&known.values);
        }
    }

    /// Sets the follower, and calls it with the present values.
    pub(super) fn follow(&self, follower: ValueFollower) {
        let known = self.known.lock();
        // A second follower would not be stored, but only the relay sets a follower, once.
        follower(&known.values);
        let _ = self.follower.set(follower);
        drop(known);
    }

    /// Reads the values.
    pub(super) fn with<T>(&self, read: impl FnOnce(&BTreeMap<String, Value>) -> T) -> T {
        read(&self.known.lock().values)
    }

    /// The value with this name.
    pub(super) fn get(&self, name: &str) -> Option<Value> {
        self.known.lock().values.get(name).cloned()
    }

    /// The time of the newest record of the value with this name, in nanoseconds since 1970. 0 if no
    /// record is known.
    pub(super) fn time(&self, name: &str) -> u64 {
        self.known.lock().times.get(name).copied().unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.known.lock().values.len()
    }
}
