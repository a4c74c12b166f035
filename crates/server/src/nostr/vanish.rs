//! Requests to vanish that name this relay, and were stored before the relay knew its own URL. They
//! came from an import, from another relay, or from a client of an earlier version. Once the URL is
//! known, the requests are carried out.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hark_archive::effects::Effects;
use hark_archive::writer::BetweenBatchesJob;
use hark_archive::{CommitError, Outcome, Query, Record, SearchError, Write};
use hark_codec::nostr::{Event, EventArena, EventEncoder};
use hark_codec::record::RecordError;
use hark_networks::nostr::admit::{OwnUrls, PrivateLabels};
use hark_networks::nostr::rules::{VANISH, VANISH_KIND};

use super::identity::SharedIdentity;
use crate::shelf::Shelf;

/// Interval between two attempts to queue a job while the writer's queue is full.
const RETRY: Duration = Duration::from_millis(5);
/// How long a request waits for the writer's queue.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Carries out the requests that name this relay, now and whenever its URLs change, until the shelf
/// is closed.
pub(super) async fn follow(identity: SharedIdentity, shelf: Weak<Shelf>) {
    loop {
        let changed = identity.changed();
        let urls = {
            let current = identity.current();
            current.knows_url().then(|| current.hosts.clone())
        };
        let Some(open) = shelf.upgrade() else { return };
        // `judge` runs on a blocking thread, because it reads and writes the archive.
        let judged = urls.map(|urls| crate::blocking::run(move || judge(&open, &urls)));
        if let Some(judged) = judged
            && let Ok(Err(error)) = judged.await
        {
            tracing::error!(%error, "earlier requests to vanish could not be carried out");
        }
        changed.await;
    }
}

/// Why a request could not be carried out.
#[derive(Debug, thiserror::Error)]
enum VanishError {
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Erase(#[from] Arc<CommitError>),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error("the writer is busy or has stopped; the next start tries again")]
    NoWriter,
}

/// Carries out the stored requests that name one of these URLs and have not been carried out.
fn judge(shelf: &Shelf, urls: &OwnUrls) -> Result<(), VanishError> {
    for request in requests(shelf, urls)? {
        carry_out(shelf, &request)?;
    }
    Ok(())
}

/// Returns the records of the requests to carry out, in the form that a relay stores if it knows
/// its URL.
fn requests(shelf: &Shelf, urls: &OwnUrls) -> Result<Vec<Vec<u8>>, SearchError> {
    let query = Query { kinds: Some(vec![VANISH_KIND]), ..Query::default() };
    let mut search = shelf.store().search(&query)?;
    let (mut arena, mut encoder) = (EventArena::new(), EventEncoder::default());
    let mut requests = Vec::new();
    search.read_all(&mut |record| {
        let is_done = record.labels().any(|(name, _)| name == VANISH);
        if let Ok(event) = Event::parse(record.wire(), &mut arena)
            && !is_done
            && urls.are_named_by_deletion(&event)
        {
            let mut request = Vec::new();
            encoder.encode(&event, PrivateLabels::of(&event, urls).labels(), &mut request);
            requests.push(request);
        }
    })?;
    Ok(requests)
}

/// Deletes the events that a request covers, and stores the request again, as a request that has
/// been carried out.
fn carry_out(shelf: &Shelf, request: &[u8]) -> Result<(), VanishError> {
    let record = Record::new(request)?;
    let mut effects = Effects::default();
    shelf.network().rules().effects(&record, &mut effects);
    // The request itself stays until the last step, so that a crash loses nothing.
    for query in effects.erases.drain(..) {
        let not_kinds = [&query.not_kinds[..], &[VANISH_KIND]].concat();
        let all = Write::Erase(Box::new(Query { not_kinds, ..query }));
        shelf.writer().write(all)?;
    }
    let this = Query { ids: Some(vec![*record.id()]), ..Query::default() };
    let writes = [Write::Erase(Box::new(this)), Write::Put(request.into())];
    let (done, outcome) = std::sync::mpsc::sync_channel(1);
    let mut job: BetweenBatchesJob = Box::new(move |target| {
        // The sending fails only if nobody waits any more.
        let _ = done.send(target.commit_whole(&writes));
    });
    let until = Instant::now() + WAIT_MAX;
    while let Err(refused) = shelf.writer().between(job) {
        if Instant::now() > until {
            return Err(VanishError::NoWriter);
        }
        job = refused;
        std::thread::sleep(RETRY);
    }
    let outcome = outcome.recv().map_err(|_| VanishError::NoWriter)?;
    // Any other outcome means that a newer request of the same author has been carried out.
    if let Some(Outcome::Stored { .. }) = outcome?.last() {
        tracing::info!(
            "a request to vanish was carried out that was stored before [info] url was set"
        );
    }
    Ok(())
}

/// Starts [`follow`] on the runtime of the sessions.
pub(super) fn start(identity: &SharedIdentity, shelf: &Arc<Shelf>) {
    tokio::spawn(follow(identity.clone(), Arc::downgrade(shelf)));
}
