//! Decides when a domain is asked: about one name at a time, with a pause between two names, and a
//! longer pause after each failure in a row.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hark_codec::record::{Id, Key};
use hark_networks::nostr::names::InternetName;
use tokio::time::Instant;

/// Pause between two checks of names of one domain.
const PAUSE: Duration = Duration::from_millis(500);
/// Pause after the first failure of a domain. Each further failure in a row doubles the pause.
const FAILED_PAUSE: Duration = Duration::from_secs(30);
/// Maximum pause.
const PAUSE_MAX: Duration = Duration::from_hours(1);
/// Maximum number of domains in memory.
const DOMAINS_MAX: usize = 20_000;
/// One domain may have one of this number of the places for names that wait.
const DOMAIN_PART: usize = 8;

/// A name to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameCheck {
    pub(super) key: Key,
    pub(super) name: InternetName,
    /// The event that claims the name.
    pub(super) profile: Id,
}

/// The result of queueing a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queued {
    /// The check waits, or is being made.
    Waits,
    /// The domain failed a short time ago.
    Postponed,
    /// There is no place for the check.
    Full,
}

/// The checks that wait, by domain.
#[derive(Default)]
pub(super) struct DomainLines {
    lines: HashMap<Arc<str>, DomainLine>,
    /// The domains with a waiting check and without a check in progress, by the time of the next
    /// check.
    due: BTreeSet<(Instant, Arc<str>)>,
    /// Number of checks that wait.
    waiting: usize,
}

struct DomainLine {
    waiting: VecDeque<NameCheck>,
    /// The check that is being made.
    running: Option<NameCheck>,
    not_before: Instant,
    /// Number of failures in a row.
    failures: u32,
}

impl DomainLine {
    /// The pause after the present number of failures.
    fn pause(&self) -> Duration {
        match self.failures.checked_sub(1) {
            None => PAUSE,
            Some(further) => FAILED_PAUSE.saturating_mul(1 << further.min(16)).min(PAUSE_MAX),
        }
    }

    /// Whether the line affects no check. The failures are remembered for one further pause, so that
    /// the next failure doubles the pause.
    fn is_over(&self, now: Instant) -> bool {
        let is_idle = self.waiting.is_empty() && self.running.is_none();
        is_idle && self.not_before + self.pause() <= now
    }
}

impl DomainLines {
    /// Number of checks that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Queues a check. A newer claim of the same key replaces the earlier claim.
    pub(super) fn push(&mut self, check: NameCheck, waiting_max: usize, now: Instant) -> Queued {
        if self.waiting >= waiting_max {
            return Queued::Full;
        }
        let domain: Arc<str> = check.name.domain().into();
        if self.lines.len() >= DOMAINS_MAX && !self.lines.contains_key(&domain) {
            return Queued::Full;
        }
        let line = self.lines.entry(Arc::clone(&domain)).or_insert_with(|| DomainLine {
            waiting: VecDeque::new(),
            running: None,
            not_before: now,
            failures: 0,
        });
        if line.running.as_ref() == Some(&check) {
            return Queued::Waits;
        }
        if line.failures > 0 && now < line.not_before {
            return Queued::Postponed;
        }
        if let Some(known) = line.waiting.iter_mut().find(|known| known.key == check.key) {
            *known = check;
            return Queued::Waits;
        }
        if line.waiting.len() >= (waiting_max / DOMAIN_PART).max(1) {
            return Queued::Full;
        }
        if line.waiting.is_empty() && line.running.is_none() {
            self.due.insert((line.not_before, domain));
        }
        line.waiting.push_back(check);
        self.waiting += 1;
        Queued::Waits
    }

    /// The time of the next check. `None` if no check can begin before another ends.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Begins the next check if its time has come.
    pub(super) fn pop(&mut self, now: Instant) -> Option<NameCheck> {
        if self.next_at()? > now {
            return None;
        }
        let (_, domain) = self.due.pop_first()?;
        let line = self.lines.get_mut(&domain)?;
        line.running = line.waiting.pop_front();
        self.waiting -= usize::from(line.running.is_some());
        line.running.clone()
    }

    /// Ends the check of a domain. After a failure of the domain, returns the other checks of the
    /// domain, which wait no longer.
    pub(super) fn finish(
        &mut self,
        domain: &str,
        has_failed: bool,
        now: Instant,
    ) -> Vec<NameCheck> {
        let Some((domain, _)) = self.lines.get_key_value(domain) else { return Vec::new() };
        let domain = Arc::clone(domain);
        let Some(line) = self.lines.get_mut(&domain) else { return Vec::new() };
        line.running = None;
        line.failures = if has_failed { line.failures.saturating_add(1) } else { 0 };
        line.not_before = now + line.pause();
        if has_failed {
            self.waiting -= line.waiting.len();
            return line.waiting.drain(..).collect();
        }
        if !line.waiting.is_empty() {
            self.due.insert((line.not_before, domain));
        }
        Vec::new()
    }

    /// Removes the domains that were not asked for a while.
    pub(super) fn remove_old(&mut self, now: Instant) {
        self.lines.retain(|_, line| !line.is_over(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 1_000;

    fn check(key: u8, name: &str) -> NameCheck {
        NameCheck { key: [key; 32], name: name.parse().unwrap(), profile: [key; 32] }
    }

    #[test]
    fn a_domain_is_asked_about_one_name_at_a_time_with_pauses() {
        let (mut lines, now) = (DomainLines::default(), Instant::now());
        let [one, two, other] =
            [check(1, "a@one.example"), check(2, "b@one.example"), check(3, "c@two.example")];
        for check in [&one, &two, &other] {
            assert_eq!(lines.push(check.clone(), MANY, now), Queued::Waits);
        }
        assert_eq!(lines.len(), 3);
        assert_eq!([lines.pop(now), lines.pop(now)], [Some(one.clone()), Some(other)]);
        assert_eq!((lines.pop(now), lines.next_at(), lines.len()), (None, None, 1));
        // The same claim is not checked twice, and a newer claim replaces an older claim.
        assert_eq!(lines.push(one, MANY, now), Queued::Waits);
        let newer = NameCheck { profile: [9; 32], ..two };
        assert_eq!(lines.push(newer.clone(), MANY, now), Queued::Waits);
        assert_eq!(lines.len(), 1);
        assert!(lines.finish("one.example", false, now).is_empty());
        assert_eq!((lines.pop(now), lines.next_at()), (None, Some(now + PAUSE)));
        assert_eq!(lines.pop(now + PAUSE), Some(newer));
        assert_eq!(lines.len(), 0);
    }

    #[test]
    fn a_domain_that_fails_is_asked_less_and_less_often() {
        let (mut lines, mut now) = (DomainLines::default(), Instant::now());
        for pause_s in [30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600] {
            assert_eq!(lines.push(check(1, "a@one.example"), MANY, now), Queued::Waits);
            assert_eq!(lines.push(check(2, "b@one.example"), MANY, now), Queued::Waits);
            assert_eq!(lines.pop(now), Some(check(1, "a@one.example")));
            let dropped = lines.finish("one.example", true, now);
            assert_eq!((dropped, lines.len()), (vec![check(2, "b@one.example")], 0));
            now += Duration::from_millis(pause_s * 1_000 - 1);
            let postponed = lines.push(check(1, "a@one.example"), MANY, now);
            assert_eq!(postponed, Queued::Postponed, "{pause_s}");
            lines.remove_old(now);
            now += Duration::from_millis(1);
        }
        assert_eq!(lines.push(check(1, "a@one.example"), MANY, now), Queued::Waits);
        assert!(lines.pop(now).is_some() && lines.finish("one.example", false, now).is_empty());
        now += PAUSE;
        lines.remove_old(now);
        assert_eq!(lines.lines.len(), 1);
        lines.remove_old(now + PAUSE);
        assert_eq!(lines.lines.len(), 0);
    }

    #[test]
    fn neither_one_domain_nor_many_take_more_than_their_places() {
        let (mut lines, now) = (DomainLines::default(), Instant::now());
        let full = |lines: &mut DomainLines, domain: &str| {
            (0..50)
                .filter(|key| {
                    lines.push(check(*key, &format!("a@{domain}")), 16, now) == Queued::Full
                })
                .count()
        };
        assert_eq!(full(&mut lines, "one.example"), 48);
        for domain in 0..7 {
            assert_eq!(full(&mut lines, &format!("d{domain}.example")), 48);
        }
        assert_eq!(lines.len(), 16);
        assert_eq!(full(&mut lines, "last.example"), 50);
    }
}
