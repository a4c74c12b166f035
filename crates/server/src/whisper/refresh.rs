//! Forgets the topics of deleted envelopes, and reads the topics that could not be read at the
//! start.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::mail_server::MailServer;
use crate::service::StoreLocation;
use crate::stop::StopSignal;

/// The server spends at most 1/`REFRESH_SHARE` of its time on reading all topics again.
const REFRESH_SHARE: u32 = 100;
/// Minimum pause between two checks of the size of an archive in a database.
const IN_DATABASE: Duration = Duration::from_mins(1);

/// Pause before the topics are read again that could not be read at the start.
const AGAIN: Duration = Duration::from_secs(5);

/// Removes the topics of deleted envelopes, until `stop`. Checks at most as often as retention
/// runs.
pub(super) async fn refresh(mail: Arc<MailServer>, mut stop: StopSignal) {
    // Number of stored envelopes, and number of envelopes ever added, at the last check.
    let (mut counted, mut seen) = (0, mail.topics.added());
    let mut pause = Duration::ZERO;
    loop {
        let is_near = mail.config.store_at == StoreLocation::Process;
        let least = if is_near { Duration::ZERO } else { IN_DATABASE };
        let is_partial = mail.topics.is_partial();
        let usual = pause.max(mail.service.shelf.retention().every).max(least);
        let pause_now = if is_partial { AGAIN } else { usual };
        tokio::select! {
            () = tokio::time::sleep(pause_now) => {}
            () = stop.accepting() => return,
        }
        let known_added = mail.topics.added();
        let looked = Arc::clone(&mail);
        let work = crate::blocking::run(move || {
            let expected = counted + known_added.saturating_sub(seen);
            let now = looked.service.shelf.store().stats().records;
            let began = Instant::now();
            if (is_partial || now < expected)
                && let Err(error) = looked.topics.refresh(&**looked.service.shelf.store())
            {
                tracing::debug!(%error, "the topics are read again later");
                return None;
            }
            Some((now, began.elapsed() * REFRESH_SHARE))
        });
        let Ok(done) = work.await else { return };
        if let Some((now, share)) = done {
            (counted, seen, pause) = (now, known_added, share);
        }
    }
}
