//! Notifications to systemd, if systemd has started this process (`Type=notify`, see
//! deploy/hark.service). Otherwise these functions do nothing.

use std::time::Duration;

use hark_server::control::TakeoverState;
use sd_notify::NotifyState;

/// Reports that the server accepts connections. After a takeover, this process becomes the
/// service's main process.
pub(crate) fn ready(url: &str, has_taken_over: bool) {
    let status = format!("listening on {url}");
    let mut states = vec![NotifyState::Ready, NotifyState::Status(&status)];
    if has_taken_over {
        states.insert(0, NotifyState::MainPid(std::process::id()));
    }
    notify(&states);
}

/// Reports that a process without listeners is working. `status` describes the work.
pub(crate) fn working(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the process is waiting, as described by `status`, and extends its start timeout by
/// `more`.
pub(crate) fn waiting(status: &str, more: Duration) {
    let more_us = u32::try_from(more.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::Status(status), NotifyState::ExtendTimeoutUsec(more_us)]);
}

/// Reports that the configuration is being read again. The caller calls [`reloaded`] afterwards,
/// even if the configuration is refused.
pub(crate) fn reloading() {
    // Newer versions of systemd require a timestamp. Reading the clock does not fail.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[NotifyState::Reloading, now]);
    }
}

/// Reports that the configuration has been read again.
pub(crate) fn reloaded() {
    notify(&[NotifyState::Ready]);
}

/// Reports that the server is shutting down.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("finishing the work in progress")]);
}

/// Notifies systemd's watchdog three times per watchdog interval, until another process has taken
/// over. If the runtime hangs, systemd restarts the process.
pub(crate) async fn signs_of_life(takeover: TakeoverState) {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    while !takeover.is_superseded() {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(patience / 3).await;
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd could not be notified of this server's state");
    }
}
