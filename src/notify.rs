//! Notifications to systemd, if it has started this process (`Type=notify`, see
//! deploy/hark.service). Otherwise these functions do nothing.

use sd_notify::NotifyState;

/// The server accepts connections.
pub(crate) fn ready(url: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("listening on {url}"))]);
}

/// The configuration is being read again. Followed by [`reloaded`], whatever became of it.
pub(crate) fn reloading() {
    // Without the time, newer versions of systemd would not take it; the clock is always there.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// It has been read again.
pub(crate) fn reloaded() {
    tell(&[NotifyState::Ready]);
}

/// The server goes down.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing what is under way")]);
}

/// Notifies systemd's watchdog three times per watchdog interval. If the runtime hangs, systemd
/// restarts the process.
pub(crate) async fn signs_of_life() {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    loop {
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep(patience / 3).await;
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd could not be told how this server is");
    }
}
