//! The writers of an archive: this process or the running server, and the writer of records from
//! another store.

use std::ops::Deref;
use std::sync::Arc;

use anyhow::Context as _;
use hark_archive::clock::Clock;
use hark_archive::effects::Refusal;
use hark_archive::retention::{RetentionPolicy, RetentionState};
use hark_archive::{Outcome, Query, Record, Store, Write};
use hark_server::control::{ControlClient, ControlError, WriteRefusal};
use hark_server::moderation::Moderation;

use crate::print;
use crate::stores::StoreLock;

/// The error message if a server ends while a command writes.
const SERVER_IS_GONE: &str = "the server stopped answering; what was reported as stored is safe. Run the \
                              import again: it skips what is stored";

/// A store opened for writing, and the archive's lock, which is held while the store is open.
pub struct OwnedStore {
    /// The open store.
    pub store: Arc<dyn Store>,
    /// The bans of the archive, if they concern the records of this store.
    pub(crate) bans: Option<Moderation>,
    /// The lock of the archive, which is dropped after the store.
    pub(crate) lock: StoreLock,
}

/// The writer of an archive: this process, or the running server.
pub(crate) enum WriterHandle {
    Own(OwnedStore),
    Server(ControlClient),
}

impl WriterHandle {
    /// Returns the store if this process writes to it; `None` if a running server writes.
    pub(crate) fn own_store(&self) -> Option<&dyn Store> {
        match self {
            Self::Own(owned) => Some(&*owned.store),
            Self::Server(_) => None,
        }
    }

    /// Puts records. Returns the outcome of each record, or the server's reason for a failure. The
    /// records are durable on return.
    pub(crate) fn put(
        &mut self,
        records: Vec<Box<[u8]>>,
    ) -> anyhow::Result<Vec<Result<Outcome, String>>> {
        match self {
            Self::Own(owned) => owned.put(records),
            Self::Server(client) => {
                let records: Vec<Vec<u8>> = records.into_iter().map(Vec::from).collect();
                Ok(texts(client.put_many(&records).context(SERVER_IS_GONE)?))
            }
        }
    }

    /// Deletes the records with these ids, and returns how many existed. The deletions are durable
    /// on return.
    pub(crate) fn erase(&mut self, ids: &[hark_archive::Id]) -> anyhow::Result<u64> {
        match self {
            Self::Own(owned) => erase(&*owned.store, ids),
            Self::Server(client) => client.erase(ids).map_err(|error| {
                let words = match error {
                    ControlError::Refused(_) => {
                        "not all was deleted; run the command again once the server does it"
                    }
                    _ => "the server stopped answering; run the command again",
                };
                anyhow::Error::new(error).context(words)
            }),
        }
    }
}

/// The writer of records from another store: an import, an adoption, or a copy. Records that are
/// older than retention allows are not deleted until the operator decides.
pub(crate) struct HistoryWriter {
    writer: WriterHandle,
    policy: RetentionPolicy,
    state: RetentionState,
    /// The network's word for its records.
    records: &'static str,
    /// Number of stored records that are older than retention allows.
    held: u64,
}

impl Deref for HistoryWriter {
    type Target = WriterHandle;

    fn deref(&self) -> &WriterHandle {
        &self.writer
    }
}

impl HistoryWriter {
    /// Creates a writer of one shelf. `records` is the network's word for its records.
    pub(crate) fn new(
        writer: WriterHandle,
        policy: RetentionPolicy,
        records: &'static str,
    ) -> Self {
        Self { writer, policy, state: RetentionState::default(), records, held: 0 }
    }

    /// Like [`WriterHandle::put`].
    pub(crate) fn put(
        &mut self,
        records: Vec<Box<[u8]>>,
    ) -> anyhow::Result<Vec<Result<Outcome, String>>> {
        let (policy, clock) = (&self.policy, Clock::System);
        let mut is_old = Vec::with_capacity(records.len());
        for record in &records {
            let record = Record::new(record).context("a converted record is invalid")?;
            is_old.push(policy.would_delete(&record, clock.now_s()).is_some());
            if let Some(store) = self.writer.own_store() {
                self.state
                    .prepare_import(policy, store, &clock, &record)
                    .context("the archive could not be written to")?;
            }
        }
        let outcomes = match &mut self.writer {
            WriterHandle::Server(client) => {
                texts(client.import_many(&records).context(SERVER_IS_GONE)?)
            }
            writer @ WriterHandle::Own(_) => writer.put(records)?,
        };
        let stored =
            |outcome: &Result<Outcome, String>| matches!(outcome, Ok(Outcome::Stored { .. }));
        let held = outcomes.iter().zip(is_old).filter(|(outcome, old)| *old && stored(outcome));
        self.held += held.count() as u64;
        Ok(outcomes)
    }

    /// Like [`WriterHandle::erase`].
    pub(crate) fn erase(&mut self, ids: &[hark_archive::Id]) -> anyhow::Result<u64> {
        self.writer.erase(ids)
    }

    /// Reports the effect of retention on the written records, if any.
    pub(crate) fn report_held(&self) {
        let Self { held, records, .. } = self;
        if *held == 0 {
            return;
        }
        let held = print::number(*held);
        if self.policy.delete_brought {
            print::note!(
                "hark: {held} of the {records} are older than retention allows, and a server deletes \
                 them, as retention.delete_brought is true"
            );
        } else {
            print::note!(
                "hark: {held} of the {records} are older than retention allows. They are kept until you \
                 decide: set retention.delete_brought to true to delete them, or let retention allow \
                 their age to keep them"
            );
        }
    }
}

/// Converts the reasons in a server's outcomes to texts.
fn texts(outcomes: Vec<Result<Outcome, WriteRefusal>>) -> Vec<Result<Outcome, String>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(|refusal| refusal.to_string())).collect()
}

impl OwnedStore {
    /// Stores records that no ban refuses.
    fn put(&self, records: Vec<Box<[u8]>>) -> anyhow::Result<Vec<Result<Outcome, String>>> {
        let is_banned = |bytes: &[u8]| {
            let bans = self.bans.as_ref();
            bans.is_some_and(|bans| {
                Record::new(bytes).is_ok_and(|record| bans.bans_record(&record))
            })
        };
        let mut outcomes = Vec::with_capacity(records.len());
        let mut writes = Vec::with_capacity(records.len());
        for record in records {
            let banned = is_banned(&record).then_some(Outcome::Refused(Refusal::Banned));
            if banned.is_none() {
                writes.push(Write::Put(record));
            }
            outcomes.push(banned);
        }
        let committed = (self.store)
            .commit(&writes)
            .context("the archive could not be written to; what was reported as stored is safe")?;
        let mut stored = committed.outcomes.into_iter();
        let outcomes = outcomes.into_iter().map(|banned| banned.or_else(|| stored.next()));
        Ok(outcomes.flatten().map(Ok).collect())
    }
}

fn erase(store: &dyn Store, ids: &[hark_archive::Id]) -> anyhow::Result<u64> {
    let query = Query { ids: Some(ids.to_vec()), ..Query::default() };
    let committed = store
        .commit(&[Write::Erase(Box::new(query))])
        .context("the archive could not be written to; run the command again")?;
    match committed.outcomes.first() {
        Some(Outcome::Erased(count)) => Ok(*count),
        _ => Ok(0),
    }
}
