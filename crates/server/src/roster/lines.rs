//! Bounds for lines of the log that strangers cause: at most one line per address and minute, with
//! the number of occurrences since the last line, and a bounded number of lines in all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::address::ClientAddress;

/// Minimum interval between two lines about an address.
const LINE_EVERY: Duration = Duration::from_mins(1);
/// Maximum number of addresses in each of the two halves of a table.
const HALF_MAX: usize = 2_048;

/// The occurrences of each address since its last line. The table has a bounded number of
/// addresses. Beyond this number, the addresses that had no occurrence for the longest time are
/// forgotten.
#[derive(Debug, Default)]
pub(crate) struct AddressLines {
    /// Addresses with recent occurrences.
    recent: HashMap<ClientAddress, AddressTally>,
    /// Addresses without an occurrence since the addresses moved here. If `recent` is full, it
    /// replaces this half.
    earlier: HashMap<ClientAddress, AddressTally>,
}

/// The occurrences of an address.
#[derive(Clone, Copy, Debug)]
struct AddressTally {
    /// The address of the last occurrence.
    ip: IpAddr,
    /// The time of the last line. Before the first line, the start of the minute in which the
    /// occurrences are counted.
    since: Instant,
    count: u64,
    is_logged: bool,
}

impl AddressTally {
    /// Returns the number of occurrences if a line is due: there were at least `min`, and the last
    /// line is old enough. The count then begins again.
    fn due(&mut self, now: Instant, min: u64) -> Option<u64> {
        let is_old = now.saturating_duration_since(self.since) >= LINE_EVERY;
        if is_old && (!self.is_logged || self.count < min) {
            // Too few occurrences within a minute for a line.
            *self = Self { since: now, count: self.count.min(1), is_logged: false, ..*self };
        }
        let count = self.count;
        let is_due = count >= min && (is_old || !self.is_logged);
        is_due.then(|| {
            *self = Self { since: now, is_logged: true, count: 0, ..*self };
            count
        })
    }
}

impl AddressLines {
    /// Counts an occurrence of an address. Returns the number of occurrences since the last line if
    /// a line is due: once the address has `min` occurrences within a minute, and then at most once
    /// a minute.
    pub(crate) fn note(&mut self, ip: IpAddr, now: Instant, min: u64) -> Option<u64> {
        let address = ClientAddress::from(ip);
        if !self.recent.contains_key(&address) {
            let new = AddressTally { ip, since: now, count: 0, is_logged: false };
            let tally = self.earlier.remove(&address).unwrap_or(new);
            if self.recent.len() >= HALF_MAX {
                self.earlier = std::mem::take(&mut self.recent);
            }
            self.recent.insert(address, tally);
        }
        let tally = self.recent.get_mut(&address)?;
        (tally.ip, tally.count) = (ip, tally.count + 1);
        tally.due(now, min)
    }

    /// Returns the addresses whose next line is due although they have no new occurrence, with the
    /// number of occurrences of each address since its last line.
    pub(crate) fn due(&mut self, now: Instant, min: u64) -> Vec<(IpAddr, u64)> {
        let tallies = self.recent.values_mut().chain(self.earlier.values_mut());
        let logged = tallies.filter(|tally| tally.is_logged && tally.count > 0);
        logged.filter_map(|tally| Some((tally.ip, tally.due(now, min)?))).collect()
    }
}

/// Bounds the number of lines in each window of time.
#[derive(Debug)]
pub(crate) struct LogBudget {
    max: u64,
    window: Duration,
    began: Instant,
    lines: u64,
}

impl LogBudget {
    /// Allows `max` lines in each `window`.
    pub(crate) fn new(max: u64, window: Duration) -> Self {
        Self { max, window, began: Instant::now(), lines: 0 }
    }

    /// Counts a line. Returns whether the line may be logged. `report` receives the number of lines
    /// that were left out in the last window, if any.
    pub(crate) fn has_room(&mut self, now: Instant, report: impl FnOnce(u64)) -> bool {
        if now.saturating_duration_since(self.began) >= self.window {
            let left_out = self.lines.saturating_sub(self.max);
            if left_out > 0 {
                report(left_out);
            }
            (self.began, self.lines) = (now, 0);
        }
        self.lines += 1;
        self.lines <= self.max
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_has_a_line_a_minute_with_all_its_occurrences() {
        let (mut lines, start) = (AddressLines::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let [one, other] = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        // The third occurrence within a minute causes the first line.
        let noted: Vec<_> = (0..3).map(|ms| lines.note(one, at(ms), 3)).collect();
        assert_eq!(noted, [None, None, Some(3)]);
        assert!((3..1_000).all(|ms| lines.note(one, at(ms), 3).is_none()));
        assert_eq!(lines.due(at(60_001), 3), []);
        assert_eq!(lines.note(one, at(60_002), 3), Some(998));
        // The rest of a flood that has ended is reported.
        assert!((0..9).all(|_| lines.note(one, at(60_003), 3).is_none()));
        assert_eq!(lines.due(at(120_001), 3), []);
        assert_eq!(lines.due(at(120_002), 3), [(one, 9)]);
        assert_eq!(lines.due(at(999_999), 3), []);
        // Few occurrences a minute cause no line. A network of 64 bits counts as one address.
        assert!((0..99).all(|n| lines.note(other, at(n * 59_000), 3).is_none()));
        let neighbour = "2001:db8::2".parse().unwrap();
        let noted: Vec<_> =
            [other, neighbour, other].map(|ip| lines.note(ip, at(9_999_999), 3)).into();
        assert_eq!(noted, [None, None, Some(3)]);
    }

    #[test]
    fn a_flood_from_many_addresses_needs_bounded_memory() {
        let (mut lines, now) = (AddressLines::default(), Instant::now());
        let [busy, quiet] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
        assert_eq!((lines.note(busy, now, 1), lines.note(quiet, now, 1)), (Some(1), Some(1)));
        for n in 0..1_u32 << 15 {
            lines.note(Ipv4Addr::from_bits(n | 10 << 24).into(), now, 1);
            if n % 1_000 == 0 {
                assert_eq!(lines.note(busy, now, 1), None);
            }
        }
        assert!(lines.recent.len() + lines.earlier.len() <= 2 * HALF_MAX);
        assert_eq!(lines.note(quiet, now, 1), Some(1), "the quiet address was forgotten");
        assert_eq!(lines.note(busy, now, 1), None, "the busy address was not");
    }

    #[test]
    fn lines_beyond_a_bound_are_counted() {
        let start = Instant::now();
        let mut budget = LogBudget::new(5, Duration::from_secs(10));
        let mut left_out = 0;
        let logged = (0..20).filter(|_| budget.has_room(start, |_| unreachable!())).count();
        assert_eq!(logged, 5);
        assert!(budget.has_room(start + Duration::from_secs(11), |count| left_out = count));
        assert_eq!(left_out, 15);
    }
}
