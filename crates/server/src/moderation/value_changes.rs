//! Changes of the named values (`values`).

use std::ops::ControlFlow;

use hark_archive::{Outcome, Query, Record, SearchProgress, Write};
use serde_json::Value;

use super::changes::delete;
use super::entry::{AuditAct, AuditNote};
use super::records::{NamedValue, note_record, value_slots};
use super::state::{ATTEMPTS, Moderation, ModerationError, run_blocking};
use super::values::ValueFollower;

/// Maximum number of values.
const VALUES_MAX: usize = 50_000;
/// Maximum number of bytes of a name, and of a value in JSON.
const NAME_BYTES_MAX: usize = 1_000;
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Number of names that are looked up at once.
const NAMES_AT_ONCE: usize = 200;

impl Moderation {
    /// Calls `follower` with all values now, and after each change.
    pub(crate) fn on_values(&self, follower: ValueFollower) {
        self.state.values.follow(follower);
    }

    /// The named value that this process knows.
    pub(crate) fn value(&self, name: &str) -> Option<Value> {
        self.state.values.get(name)
    }

    /// The time of the newest record of a value that this process knows, in nanoseconds since 1970.
    pub(crate) fn value_ns(&self, name: &str) -> u64 {
        self.state.values.time(name)
    }

    /// The names of the values that begin with `prefix`.
    pub(crate) fn value_names(&self, prefix: &str) -> Vec<String> {
        self.state.values.with(|values| {
            let names = values.range(prefix.to_owned()..).map(|(name, _)| name);
            names.take_while(|name| name.starts_with(prefix)).cloned().collect()
        })
    }

    /// Sets values, and writes a note of the act into the audit log. `null` removes a value. On
    /// return, the values are durable and in force in this process.
    pub async fn set_values(
        &self,
        values: Vec<(String, Value)>,
        act: AuditAct,
        by: &str,
    ) -> Result<(), ModerationError> {
        let (this, by) = (self.clone(), by.to_owned());
        run_blocking(move || this.set_values_now(&values, &act, &by)).await
    }

    /// Does the same as [`Moderation::set_values`], for a thread that may block.
    pub(crate) fn set_values_now(
        &self,
        values: &[(String, Value)],
        act: &AuditAct,
        by: &str,
    ) -> Result<(), ModerationError> {
        let is_long = |(name, value): &(String, Value)| {
            name.len() > NAME_BYTES_MAX || value.to_string().len() > VALUE_BYTES_MAX
        };
        if values.iter().any(is_long) {
            return Err(ModerationError::Text);
        }
        let adds = values.iter().any(|(_, value)| !value.is_null());
        if adds && self.state.values.len() + values.len() > VALUES_MAX {
            return Err(ModerationError::Full);
        }
        let _changing = self.state.changing.lock();
        // The id of the note of an attempt that the archive has refused.
        let mut refused = Vec::new();
        for _ in 0..ATTEMPTS {
            let newest_ns = self.newest_value(values)?;
            let at_ns = self.next_ns(newest_ns)?;
            let AuditAct { act, subject, before, after } = act.clone();
            let note = AuditNote { at_ns, by: by.into(), act, subject, before, after };
            let records = values.iter().map(|(name, value)| {
                let (name, value, by) = (name.clone(), value.clone(), by.to_owned());
                Write::Put(NamedValue { at_ns, name, value, by }.record())
            });
            let note = note_record(&note);
            let id = Record::new(&note).map(|note| *note.id()).ok();
            let writes = delete(refused).chain([Write::Put(note)]).chain(records).collect();
            if !self.commit(writes)?.contains(&Outcome::Superseded) {
                return Ok(());
            }
            refused = id.into_iter().collect();
        }
        self.commit(delete(refused).collect())?;
        Err(ModerationError::Contended)
    }

    /// Sets a value at a given time, without a note in the audit log. Returns false if the archive
    /// already has this record, or a newer record of the value. So if several servers set the same
    /// value with the same time, exactly one server gets true.
    pub(crate) fn claim(
        &self,
        at_ns: u64,
        name: String,
        value: Value,
    ) -> Result<bool, ModerationError> {
        let record = NamedValue { at_ns, name, value, by: String::new() }.record();
        let outcomes = self.commit(vec![Write::Put(record)])?;
        Ok(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Stored { .. })))
    }

    /// Returns the time of the newest record of these values. 0 if there is none.
    fn newest_value(&self, values: &[(String, Value)]) -> Result<u64, ModerationError> {
        let mut newest_ns = 0;
        for some in values.chunks(NAMES_AT_ONCE) {
            let names = some.iter().map(|(name, _)| name.as_str());
            let query = Query { limit: 1, ..value_slots(names) };
            let mut search = self.shelf()?.store().search(&query)?;
            while search.slice(u64::MAX, &mut |record| {
                newest_ns = newest_ns.max(record.time());
                ControlFlow::Break(())
            })? == SearchProgress::Paused
            {}
        }
        Ok(newest_ns)
    }
}
