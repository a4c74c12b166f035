//! Prepares an archive in files to be served, with or without a takeover from a running server.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use hark_networks::Network as _;
use hark_server::StoreLocation;
use hark_server::control::{ControlError, Handover, Takeover};
use hark_server::moderation::ModerationNetwork;
use hark_server::shelf::CompactFn;
use hark_store_embedded::{CompactionResult, DirectoryLock, DiskReserve, EmbeddedStore};

use super::lock::{ArchiveLock, LockedShelf};
use super::shelf::FileShelf;
use crate::control::CONTROL_SOCKET;
use crate::print;
use crate::stores::{ServedShelf, ServedStore, ShelfPlace};

/// Takes over the archive's lock from the running server, to serve these shelves in its stead. If
/// this process fails to start serving, the old server continues. Returns `None` if no server runs.
pub(super) fn take_over(
    data: &Path,
    shelves: &[&str],
) -> anyhow::Result<Option<(DirectoryLock, Takeover)>> {
    let socket = data.join(CONTROL_SOCKET);
    let ask = |shelves: &[&str]| {
        Takeover::ask(&socket, shelves, &mut |line| tracing::info!("the running server: {line}"))
    };
    // A server of an earlier version has no shelf for bans.
    let asked = ask(shelves).or_else(|refused| {
        let bans = ModerationNetwork.name();
        let is_refused = matches!(refused, ControlError::Refused(_)) && shelves.contains(&bans);
        let earlier: Vec<&str> = shelves.iter().copied().filter(|name| *name != bans).collect();
        is_refused.then(|| ask(&earlier).ok()).flatten().ok_or(refused)
    });
    let mut taking = match asked {
        Ok(taking) => taking,
        Err(ControlError::Absent) => {
            tracing::info!("no server runs on this archive, so there is none to take over from");
            return Ok(None);
        }
        Err(error) => {
            return Err(anyhow::Error::new(error)
                .context("the running server was not taken over, and continues"));
        }
    };
    let lock = taking.lock().context("the running server did not pass its lock on")?;
    let lock = DirectoryLock::inherit(lock, data, taking.turn())
        .context("the running server was not taken over, and continues")?;
    Ok(Some((lock, taking)))
}

/// Returns the archive to be served under its lock.
pub(super) fn serve(
    reserve: Arc<DiskReserve>,
    lock: DirectoryLock,
    taking: Option<Takeover>,
) -> ServedStore {
    let (held, is_takeover) = (Arc::new(ArchiveLock::new(lock)), taking.is_some());
    let lock = Arc::clone(&held);
    let open = move |place: &ShelfPlace<'_>| {
        let shelf = FileShelf { place: *place, reserve: &reserve };
        open(&shelf, &held, is_takeover)
    };
    ServedStore { lock: Some(lock as _), taking, open: Box::new(open) }
}

/// Opens a shelf to be served, with the lock held by this process.
fn open(
    shelf: &FileShelf<'_>,
    held: &Arc<ArchiveLock>,
    is_takeover: bool,
) -> anyhow::Result<ServedShelf> {
    let name = shelf.place.network.name();
    if is_takeover && !shelf.dir().is_dir() {
        // The running server does not have this shelf, so this process makes the shelf.
        drop(shelf.open()?);
    }
    let store = if is_takeover { shelf.open_released() } else { shelf.open() };
    let store = Arc::new(store.or_else(|error| shelf.open_refusing(error))?);
    let (mut compact, mut handover) = (None, None);
    if let Some(reason) = store.refusal() {
        tracing::error!(shelf = name, reason, "nothing is stored");
    } else {
        for note in store.notes() {
            tracing::warn!(shelf = name, "{note}");
        }
        compact = Some(compaction(&store));
        let records_max = shelf.place.config.limits.takeover_records_max;
        let locked = LockedShelf { store: Arc::clone(&store), held: Arc::clone(held), records_max };
        handover = Some(Arc::new(locked) as Arc<dyn Handover>);
    }
    let refuses_writes = store.refusal().is_some();
    Ok(ServedShelf { store, at: StoreLocation::Process, refuses_writes, compact, handover })
}

fn compaction(store: &Arc<EmbeddedStore>) -> CompactFn {
    let store = Arc::clone(store);
    Arc::new(move |words| {
        store
            .compact(&mut |progress| {
                words(&format!("{} {} of {}", progress.what, progress.done, progress.total));
            })
            .map(|done| summary(&done))
            .map_err(Into::into)
    })
}

/// Returns the result of a compaction as text.
pub(crate) fn summary(done: &CompactionResult) -> String {
    format!(
        "{} became {}, {} became {}",
        print::count(done.segments_before, "segment"),
        done.segments_after,
        print::bytes(done.bytes_before),
        print::bytes(done.bytes_after)
    )
}
