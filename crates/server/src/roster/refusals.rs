//! The log of clients whose messages or connections are refused again and again: a line names the
//! client, counts its refusals, and has the last reason. The filter of fail2ban in `deploy/` reads
//! these lines.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::lines::{AddressLines, LogBudget};
use crate::settings::SharedSettings;

/// Maximum number of lines in a minute, about all addresses together.
const LINES_MAX: u64 = 600;
/// Maximum number of characters of a reason in a line.
const REASON_CHARS_MAX: usize = 200;

/// A refused message or connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientRefusal<'a> {
    /// The purpose of the message, such as the network's verb.
    pub(crate) verb: &'a str,
    /// The class of the reason, such as `rate-limited`.
    pub(crate) verdict: &'a str,
    /// The reason in words.
    pub(crate) reason: &'a str,
    /// Whether the message had a record.
    pub(crate) is_of_record: bool,
    /// Whether the refusal may be logged. Some refusals are a part of normal use.
    pub(crate) is_logged: bool,
}

/// The log; see the module.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    settings: SharedSettings,
    lines: Mutex<BoundedLines>,
}

#[derive(Debug)]
struct BoundedLines {
    addresses: AddressLines,
    budget: LogBudget,
}

impl Default for BoundedLines {
    fn default() -> Self {
        let budget = LogBudget::new(LINES_MAX, Duration::from_mins(1));
        Self { addresses: AddressLines::default(), budget }
    }
}

impl BoundedLines {
    fn has_room(&mut self, now: Instant) -> bool {
        self.budget.has_room(now, |left_out| {
            tracing::info!(left_out, "further refused clients were only counted");
        })
    }
}

impl RefusalLog {
    pub(super) fn new(settings: SharedSettings) -> Self {
        Self { settings, lines: Mutex::default() }
    }

    /// Counts a refusal of the client at `ip`. Logs a line if the client has many refusals; `key`
    /// returns the client's key.
    pub(crate) fn note(
        &self,
        ip: IpAddr,
        key: impl FnOnce() -> Option<Box<str>>,
        refusal: &ClientRefusal<'_>,
    ) {
        let settings = self.settings.load();
        let Some(min) = settings.refusals_from.filter(|_| refusal.is_logged) else { return };
        let now = Instant::now();
        let refused = {
            let mut lines = self.lines.lock();
            lines.addresses.note(ip, now, min).filter(|_| lines.has_room(now))
        };
        let Some(refused) = refused else { return };
        let ClientRefusal { verb, verdict, reason, .. } = *refusal;
        let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
        let (address, key) = (settings.addresses_shown.show(ip), key());
        let key = key.as_deref().unwrap_or("-");
        tracing::info!(%address, refused, verb, verdict, key, reason, "a client is refused");
    }

    /// Logs the refusals of clients whose next line is due although they were not refused again.
    /// Called every few seconds.
    pub(crate) fn log_pending(&self) {
        let settings = self.settings.load();
        let Some(min) = settings.refusals_from else { return };
        let now = Instant::now();
        let due = {
            let mut lines = self.lines.lock();
            let mut due = lines.addresses.due(now, min);
            due.retain(|_| lines.has_room(now));
            due
        };
        for (ip, refused) in due {
            let address = settings.addresses_shown.show(ip);
            tracing::info!(%address, refused, "a client is refused");
        }
    }
}
