//! The archive as used by long-running streams: writes, notifications of new events, and reads of
//! the current state.
//!
//! If a server runs on the archive, the server writes and reports new events (control.sock). The
//! server may be stopped, restarted or replaced; writes wait until a server runs again. Without a
//! server, this process writes, and knows the new events itself. The choice is made once, at the
//! start, so this process never locks the archive while its server restarts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context as _;
use hark_archive::{Record, SearchError, vital};
use hark_networks::Network;
use hark_peers::{EventIntake, LocalEnd, LocalFeed, SnapshotOpener, StreamEnds};
use hark_server::control::FedRecord;
use hark_server::moderation::{Moderation, ModerationNetwork};
use hark_server::nostr::OpenStore;

use super::RelayRules;
use super::waiting::{LOOK_EVERY, WaitingWriter};
use crate::location::ArchiveLocation;
use crate::stores::ArchiveHeld;
use crate::writer::WriterHandle;

/// An archive that streams read and write, closed by [`StreamArchive::finish`].
pub(super) struct StreamArchive {
    pub(super) ends: StreamEnds,
    /// The rules for events from relays.
    pub(super) rules: RelayRules,
    intake: EventIntake,
    following: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl StreamArchive {
    /// Opens the archive. Streams stop waiting for a server once `stop` is set. Returns `None` if
    /// `stop` was set before the archive could be opened.
    pub(super) fn open(
        location: &ArchiveLocation,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<Option<Self>> {
        let feed = Arc::<LocalFeed>::default();
        let Some(writer) = writer(location, stop)? else { return Ok(None) };
        let is_served = location.control()?.is_some();
        let bans = location.bans_beside(&writer)?;
        let own = match &writer {
            WriterHandle::Server(_) => None,
            WriterHandle::Own(owned) => Some(LocalEnd {
                network: location.network,
                store: Arc::clone(&owned.store),
                hidden: bans.as_ref().map(Moderation::hidden),
            }),
        };
        let store = own.as_ref().map(|own| Arc::clone(&own.store));
        let rules = RelayRules::start(&location.config, bans, open_store(location, own.as_ref()))?;
        let mut following = Vec::new();
        if is_served {
            following.push(follow_events(location, &feed, &rules, stop)?);
        }
        // Only a snapshot of the bans does not learn of later changes.
        if is_served && own.is_none() && location.facts().is_in_directory {
            following.push(follow_bans(location, &rules, stop)?);
        }
        let open = opener(location, own, rules.clone());
        // A server reports the events that it stores, so this listener is used only without a
        // server.
        let stored = {
            let (feed, rules) = (Arc::clone(&feed), rules.clone());
            Arc::new(move |record: &Record<'_>| {
                rules.note(record);
                feed.publish(record);
            }) as hark_peers::StoredListener
        };
        let stored = (!is_served).then_some(stored);
        let waits = Arc::<AtomicBool>::default();
        let writer = WaitingWriter {
            waits: Arc::clone(&waits),
            writer,
            location: location.of(location.network),
            stop: Arc::clone(stop),
            feed: (!is_served).then(|| Arc::clone(&feed)),
        };
        let mut options = super::intake_options(location, &rules, store.clone());
        options.known = store.filter(|_| !location.facts().is_remote);
        (options.feed, options.stored) = (Some(Arc::clone(&feed)), stored);
        let intake = EventIntake::start(options, Box::new(writer))
            .context("the threads that check events could not be started")?;
        let network = location.network;
        let ends = StreamEnds { network, open, feed, intake: intake.queue(), waits };
        Ok(Some(Self { ends, rules, intake, following, stop: Arc::clone(stop) }))
    }

    /// Writes all received events, and closes the archive. All streams must have ended.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.ends);
        let written = self.intake.finish();
        for thread in self.following {
            // A panic of the thread would have ended the process.
            let _ = thread.join();
        }
        written.context("not all received events were written")
    }
}

/// Opens the archive for writing. If another process holds the lock, it may be a server that is
/// starting or ending. The function then waits for that server until `stop` is set.
fn writer(location: &ArchiveLocation, stop: &AtomicBool) -> anyhow::Result<Option<WriterHandle>> {
    let mut has_told = false;
    loop {
        match location.write() {
            Ok(writer) => return Ok(Some(writer)),
            Err(error) => {
                let Some(held) = error.downcast_ref::<ArchiveHeld>() else { return Err(error) };
                if stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                if !std::mem::replace(&mut has_told, true) {
                    tracing::warn!(
                        pid = held.pid,
                        data = %location.data.display(),
                        "another process holds the archive and is no server yet; waiting until it \
                         serves or ends"
                    );
                }
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns a function that opens the archive for a comparison: the store that this process writes,
/// or a snapshot of the server's files, with the present bans. The present allows are then in force
/// for events from relays.
fn opener(location: &ArchiveLocation, own: Option<LocalEnd>, rules: RelayRules) -> SnapshotOpener {
    let location = location.of(location.network);
    let snapshot = move || -> anyhow::Result<LocalEnd> {
        let (store, bans) = (location.read()?, location.bans()?);
        let hidden = bans.as_ref().map(Moderation::hidden);
        rules.set_bans(bans);
        Ok(LocalEnd { network: location.network, store, hidden })
    };
    Arc::new(move || match &own {
        Some(own) => Ok(own.clone()),
        None => snapshot().map_err(|error| format!("{error:#}")),
    })
}

/// Returns a function that opens the archive for follow lists: the store that this process writes,
/// or a new snapshot of the server's files.
fn open_store(location: &ArchiveLocation, own: Option<&LocalEnd>) -> OpenStore {
    let (location, own) = (location.of(location.network), own.map(|own| Arc::clone(&own.store)));
    Box::new(move || match &own {
        Some(store) => Ok(Arc::clone(store)),
        None => location.read().map_err(|error| SearchError::Failed(format!("{error:#}"))),
    })
}

/// Starts a thread that passes on the new events that the server reports.
fn follow_events(
    location: &ArchiveLocation,
    feed: &Arc<LocalFeed>,
    rules: &RelayRules,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<JoinHandle<()>> {
    let (feed, rules) = (Arc::clone(feed), rules.clone());
    follow(location, location.network, stop, move |said| match said {
        FedRecord::Record(record) => {
            rules.note(&record);
            feed.publish(&record);
        }
        // A comparison finds the events that were not reported.
        FedRecord::Lagged => feed.lagged(),
        FedRecord::Quiet => {}
    })
}

/// Starts a thread that puts the server's bans and allows in force after each change.
fn follow_bans(
    location: &ArchiveLocation,
    rules: &RelayRules,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<JoinHandle<()>> {
    let (of, rules) = (location.of(location.network), rules.clone());
    // The bans may have changed since they were read for the rules.
    let mut has_changed = true;
    follow(location, &ModerationNetwork, stop, move |said| {
        if !matches!(said, FedRecord::Quiet) {
            has_changed = true;
            return;
        }
        if !has_changed {
            return;
        }
        match of.bans() {
            Ok(bans) => {
                rules.set_bans(bans);
                has_changed = false;
            }
            Err(error) => tracing::warn!(%error, "the bans cannot be read; trying again"),
        }
    })
}

/// Starts a thread that passes on the server's reports about the shelf of `network`.
fn follow(
    location: &ArchiveLocation,
    network: &'static dyn Network,
    stop: &Arc<AtomicBool>,
    mut told: impl FnMut(FedRecord<'_>) + Send + 'static,
) -> anyhow::Result<JoinHandle<()>> {
    let location = location.of(network);
    let client = location.control()?.context("the server has just ended; run this again")?;
    let first = client.follow().context(
        "the server does not report new events; it must be of the same version as this command",
    )?;
    let stop = Arc::clone(stop);
    let thread = vital::spawn("hark-follow", move || {
        let mut records = Some(first);
        while !stop.load(Ordering::Relaxed) {
            let Some(mut open) = records.take() else {
                std::thread::sleep(LOOK_EVERY);
                let client = location.control().ok().flatten();
                records = client.and_then(|client| client.follow().ok());
                if records.is_some() {
                    tracing::info!("the server is back");
                    told(FedRecord::Lagged);
                }
                continue;
            };
            if let Err(error) = open.read_for(LOOK_EVERY, &stop, &mut told) {
                tracing::warn!(%error, "the server is gone; waiting for it");
            }
        }
    });
    thread.context("the thread that follows the server could not be started")
}
