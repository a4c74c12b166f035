//! Checks names in the background, one after another for each domain and several at a time in all. Each
//! check begins with the author's newest profile, so only the newest profile counts. The result is stored
//! only if the profile is still the newest.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hark_archive::{Query, SearchError};
use hark_codec::nostr::{Event, EventArena};
use hark_codec::record::{Id, Key};
use hark_networks::nostr::names::{InternetName, PROFILE_KIND};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::checks::{NameChecks, NameResult};
use super::client::NameClient;
use super::fault::NameFault;
use super::lines::{DomainLines, NameCheck, Queued};
use super::rules::NameRules;
use crate::blocking;
use crate::moderation::{Moderation, ModerationError, NAMES_MAX, VerifiedName};
use crate::shelf::Shelf;

/// Interval between two searches for names that are to be checked again.
const SCAN_EVERY: Duration = Duration::from_mins(1);

/// The task that checks names.
pub(crate) struct NameChecker {
    pub(crate) checks: Arc<NameChecks>,
    pub(crate) client: NameClient,
    pub(crate) shelf: Weak<Shelf>,
}

/// The answer of a domain: the key of the name, if the domain lists the name.
type DomainAnswer = Result<Option<Key>, NameFault>;

/// Why a profile was not read, or a result was not stored.
#[derive(Debug, thiserror::Error)]
enum NameStoreError {
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Moderation(#[from] ModerationError),
    #[error("the relay is stopping")]
    Stopping,
}

/// The effect of a profile on the name of its author.
enum NameClaim {
    /// Nothing is to be checked.
    Nothing,
    /// Names of the domain do not count.
    OfDomain(InternetName),
    /// Too many keys have a verified name.
    Full(InternetName),
    /// The name is to be checked.
    Check(NameCheck),
}

impl NameChecker {
    /// Checks names until the shelf is closed.
    pub(crate) async fn run(self) {
        let (mut lines, mut running) = (DomainLines::default(), RunningChecks::default());
        let (mut next_scan, early) = (Instant::now(), EarlyPart::random());
        loop {
            let (policy, now) = (self.checks.policy.load_full(), Instant::now());
            let rules = &policy.names;
            if next_scan <= now {
                if self.shelf.strong_count() == 0 {
                    return;
                }
                next_scan = now + SCAN_EVERY;
                lines.remove_old(now);
                self.want_due(rules, early);
            }
            while running.tasks.len() < rules.checks_max
                && let Some(check) = lines.pop(now)
            {
                running.begin(&self.client, check, rules);
            }
            self.checks.metrics.waiting.store(lines.len() as u64, Ordering::Relaxed);
            let next_start = lines.next_at().filter(|_| running.tasks.len() < rules.checks_max);
            let wake = next_start.map_or(next_scan, |at| at.min(next_scan));
            let has_place = lines.len() < rules.waiting_max;
            tokio::select! {
                Some((check, answer)) = running.next() => {
                    self.finish(check, answer, &mut lines).await;
                }
                key = self.checks.next_wanted(), if has_place => {
                    self.queue(key, early, &mut lines).await;
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Queues the keys whose names are to be checked again.
    fn want_due(&self, rules: &NameRules, early: EarlyPart) {
        let moderation = &self.checks.moderation;
        let before_s = early.fresh_from_s(rules, moderation.now_s());
        for key in moderation.names_due(before_s) {
            if !rules.is_on() || self.checks.has_failed(&key) {
                continue;
            }
            // The next search finds the keys for which there is no place now.
            if self.checks.wanted_len() >= rules.waiting_max.div_ceil(2) {
                return;
            }
            self.checks.want(&key, rules.waiting_max);
        }
    }

    /// Reads the profile of a key, and queues the check of its name.
    async fn queue(&self, key: Key, early: EarlyPart, lines: &mut DomainLines) {
        // The policy may have changed while the task waited for the key.
        let policy = self.checks.policy.load_full();
        if !policy.names.is_on() {
            return;
        }
        let rules = Arc::clone(&policy);
        let claim = self.stored(move |checks, shelf| {
            read_claim(&checks.moderation, shelf, &rules.names, early, &key)
        });
        let (result, reason) = match claim.await {
            Ok(NameClaim::Nothing) => return,
            Ok(NameClaim::Check(check)) => {
                let name = check.name.clone();
                match lines.push(check, policy.names.waiting_max, Instant::now()) {
                    Queued::Waits => return,
                    Queued::Postponed => (NameResult::Postponed, postponed(&name)),
                    Queued::Full => (NameResult::Full, crowded(&name)),
                }
            }
            Ok(NameClaim::Full(name)) => (NameResult::Full, crowded(&name)),
            Ok(NameClaim::OfDomain(name)) => {
                (NameResult::Domain, format!("names of {} do not count here", name.domain()))
            }
            Err(error) => return self.note_store_error(&error),
        };
        self.checks.note_failure(&key, result, reason);
    }

    /// Stores the result of a check.
    async fn finish(&self, check: NameCheck, answer: DomainAnswer, lines: &mut DomainLines) {
        let has_failed = answer.as_ref().is_err_and(NameFault::concerns_domain);
        for other in lines.finish(check.name.domain(), has_failed, Instant::now()) {
            self.checks.note_failure(&other.key, NameResult::Postponed, postponed(&other.name));
        }
        let (key, name) = (check.key, check.name.clone());
        let listed = match answer {
            Ok(listed) => listed == Some(key),
            Err(fault) => {
                tracing::debug!(%name, ?fault, "a name could not be checked");
                let reason = format!("{name} could not be checked: {fault}");
                return self.checks.note_failure(&key, NameResult::Failed, reason);
            }
        };
        let valid_s = self.checks.policy.load().names.valid_s;
        let stored = self.stored(move |checks, shelf| {
            store_result(&checks.moderation, shelf, &check, listed, valid_s)
        });
        match stored.await {
            Ok(NameResult::Unlisted) => {
                let reason =
                    format!("{name} is not verified, as its domain does not list your key");
                self.checks.note_failure(&key, NameResult::Unlisted, reason);
            }
            Ok(result) => self.checks.note_success(&key, result),
            Err(error) => self.note_store_error(&error),
        }
    }

    /// Runs work that waits for the archive.
    async fn stored<T: Send + 'static>(
        &self,
        work: impl FnOnce(&NameChecks, &Shelf) -> Result<T, NameStoreError> + Send + 'static,
    ) -> Result<T, NameStoreError> {
        let shelf = self.shelf.upgrade().ok_or(NameStoreError::Stopping)?;
        let checks = Arc::clone(&self.checks);
        let done = blocking::run(move || work(&checks, &shelf));
        done.await.map_err(|_| NameStoreError::Stopping)?
    }

    fn note_store_error(&self, error: &NameStoreError) {
        self.checks.metrics.results.of(NameResult::Store).add(1);
        tracing::warn!(%error, "the check of a name was not stored, and is made again later");
    }
}

/// The reason for an author whose name's domain has failed a short time ago.
fn postponed(name: &InternetName) -> String {
    format!("{name} could not be checked: its domain does not answer, and is asked again later")
}

/// The reason for an author for whose name there is no place.
fn crowded(name: &InternetName) -> String {
    format!("{name} could not be checked: this relay has too many names to check")
}

/// The part of the interval between two checks of a name by which this process checks the name
/// earlier, in 2560ths. Of several servers of an archive, one is the earliest, and checks the name.
#[derive(Clone, Copy)]
struct EarlyPart(u8);

impl EarlyPart {
    fn random() -> Self {
        let mut part = [0];
        // Without random bytes, several servers check a name at about the same time.
        let _ = getrandom::fill(&mut part);
        Self(part[0])
    }

    /// The time from which a confirmation is too new to be checked again, in seconds since 1970.
    fn fresh_from_s(self, rules: &NameRules, now_s: u64) -> u64 {
        let every_s = rules.check_after_s();
        let early_s = every_s / 2_560 * u64::from(self.0);
        now_s.saturating_sub(every_s - early_s)
    }
}

/// The checks that are being made.
#[derive(Default)]
struct RunningChecks {
    tasks: JoinSet<DomainAnswer>,
    checks: HashMap<tokio::task::Id, NameCheck>,
}

impl RunningChecks {
    fn begin(&mut self, client: &NameClient, check: NameCheck, rules: &NameRules) {
        let (client, name) = (client.clone(), check.name.clone());
        let (bytes_max, time_max) = (rules.answer_bytes_max, rules.timeout);
        let task = async move { client.listed_key(&name, bytes_max, time_max).await };
        self.checks.insert(self.tasks.spawn(task).id(), check);
    }

    /// Waits for the next check that ends. `None` if no check is being made.
    async fn next(&mut self) -> Option<(NameCheck, DomainAnswer)> {
        let (id, answer) = match self.tasks.join_next_with_id().await? {
            Ok((id, answer)) => (id, answer),
            // The check has panicked, which is a bug, and the other checks continue.
            Err(error) => (error.id(), Err(NameFault::Interrupted)),
        };
        Some((self.checks.remove(&id)?, answer))
    }
}

/// Reads the newest profile of a key: its id, and the name that it claims.
fn newest_profile(
    shelf: &Shelf,
    key: &Key,
) -> Result<Option<(Id, Option<InternetName>)>, SearchError> {
    let query = Query {
        authors: Some(vec![*key]),
        kinds: Some(vec![u32::from(PROFILE_KIND)]),
        limit: 1,
        now: shelf.clock().now_s(),
        ..Query::default()
    };
    let (mut newest, mut arena) = (None, EventArena::new());
    shelf.store().search(&query)?.read_all(&mut |record| {
        let profile = Event::parse(record.wire(), &mut arena).ok();
        newest = profile.map(|it| (*it.id(), InternetName::of_profile(it.content())));
    })?;
    Ok(newest)
}

/// Reads the name that the newest profile of a key claims, and ends the verification of another name.
fn read_claim(
    moderation: &Moderation,
    shelf: &Shelf,
    rules: &NameRules,
    early: EarlyPart,
    key: &Key,
) -> Result<NameClaim, NameStoreError> {
    let (newest, verified) = (newest_profile(shelf, key)?, moderation.name_of(key));
    let claimed = newest.and_then(|(profile, name)| Some((profile, name?)));
    let is_other = |known: &VerifiedName| claimed.as_ref().map(|it| &it.1) != Some(&known.name);
    if verified.as_ref().is_some_and(is_other) {
        moderation.end_name_now(key)?;
    }
    let Some((profile, name)) = claimed else { return Ok(NameClaim::Nothing) };
    if !rules.accepts(name.domain()) {
        return Ok(NameClaim::OfDomain(name));
    }
    let fresh_from_s = early.fresh_from_s(rules, moderation.now_s());
    match verified.filter(|known| known.name == name) {
        Some(known) if known.checked_s >= fresh_from_s => return Ok(NameClaim::Nothing),
        None if moderation.names_len() >= NAMES_MAX => return Ok(NameClaim::Full(name)),
        _ => {}
    }
    Ok(NameClaim::Check(NameCheck { key: *key, name, profile }))
}

/// Stores the result of a check if the profile is still the newest of its author.
fn store_result(
    moderation: &Moderation,
    shelf: &Shelf,
    check: &NameCheck,
    is_listed: bool,
    valid_s: u64,
) -> Result<NameResult, NameStoreError> {
    if newest_profile(shelf, &check.key)?.map(|(profile, _)| profile) != Some(check.profile) {
        return Ok(NameResult::Replaced);
    }
    if is_listed {
        moderation.verify_name_now(&check.key, &check.name, valid_s)?;
        return Ok(NameResult::Verified);
    }
    moderation.end_name_now(&check.key)?;
    Ok(NameResult::Unlisted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_an_archive_check_a_name_again_at_different_times() {
        let rules = NameRules { check_every_s: 25_600, ..NameRules::default() };
        for (part, fresh_from_s) in [(0, 74_400), (1, 74_410), (255, 76_950)] {
            assert_eq!(EarlyPart(part).fresh_from_s(&rules, 100_000), fresh_from_s, "{part}");
        }
        assert_eq!(EarlyPart(255).fresh_from_s(&rules, 7), 0);
    }
}
