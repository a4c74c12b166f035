//! The sessions of the page: who has logged in, and the links that log in once. Both are in memory,
//! so they end with the process. Only hashes of the secrets are stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_codec::nostr::npub;
use hark_codec::record::Key;
use parking_lot::Mutex;

/// How long a session lasts.
pub(super) const SESSION_MAX: Duration = Duration::from_hours(12);
/// How long a link can be used.
const LINK_MAX: Duration = Duration::from_mins(10);
/// Maximum number of sessions, and of sessions of one person. The oldest session of a person ends if
/// the person begins one session more.
const SESSIONS_MAX: usize = 256;
const SESSIONS_OF_PERSON_MAX: usize = 8;
/// Maximum number of links that are not used yet. Above this number, the oldest link ends.
const LINKS_MAX: usize = 32;

/// The person of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AdminPerson {
    /// A manager who has proved a key.
    Manager(Key),
    /// The user of a link. A person who can run commands on the server has made the link.
    LinkUser {
        /// The maker of the link.
        maker: String,
    },
}

impl AdminPerson {
    /// The name of the person in the audit log.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Manager(key) => npub::encode(key),
            Self::LinkUser { maker } => format!("link ({maker})"),
        }
    }
}

/// A session.
#[derive(Debug)]
pub(super) struct AdminSession {
    pub(super) person: AdminPerson,
    /// The secret that each form of the session has.
    pub(super) form_token: String,
    /// The result of the last act, which the next page shows.
    pub(super) notice: Mutex<Option<PageNotice>>,
    begun: Instant,
}

/// The result of an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageNotice {
    pub(super) text: String,
    pub(super) is_failure: bool,
}

/// A link that logs in once.
#[derive(Debug)]
struct LoginLink {
    maker: String,
    made: Instant,
}

/// Why a link or a session was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SessionFault {
    #[error("the system has no random bytes; try again")]
    Random,
    #[error("this link was used before, or is older than {} minutes; `hark admin link` makes a new one", LINK_MAX.as_secs() / 60)]
    Link,
    #[error("{SESSIONS_MAX} people have logged in, which is the maximum; try again later")]
    Full,
}

/// All sessions and links of this process.
#[derive(Default)]
pub(crate) struct AdminSessions {
    table: Mutex<SessionTable>,
}

#[derive(Default)]
struct SessionTable {
    /// The links, by the hashes of their secrets.
    links: HashMap<[u8; 32], LoginLink>,
    /// The sessions, by the hashes of their cookies.
    sessions: HashMap<[u8; 32], Arc<AdminSession>>,
}

impl SessionTable {
    fn drop_expired(&mut self, now: Instant) {
        self.links.retain(|_, link| now.duration_since(link.made) < LINK_MAX);
        self.sessions.retain(|_, session| now.duration_since(session.begun) < SESSION_MAX);
    }

    /// Makes room for a session of `person`.
    fn make_room(&mut self, person: &AdminPerson) -> Result<(), SessionFault> {
        let of_person = self.sessions.iter().filter(|(_, session)| session.person == *person);
        let oldest = of_person.clone().min_by_key(|(_, session)| session.begun);
        if of_person.count() >= SESSIONS_OF_PERSON_MAX
            && let Some(oldest) = oldest.map(|(hash, _)| *hash)
        {
            self.sessions.remove(&oldest);
        }
        if self.sessions.len() >= SESSIONS_MAX { Err(SessionFault::Full) } else { Ok(()) }
    }
}

impl AdminSessions {
    /// Makes a link for the person who has run a command. Returns its secret.
    pub(super) fn make_link(&self, maker: &str, now: Instant) -> Result<String, SessionFault> {
        let secret = random_secret()?;
        let mut table = self.table.lock();
        table.drop_expired(now);
        if table.links.len() >= LINKS_MAX {
            let oldest = table.links.iter().min_by_key(|(_, link)| link.made);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                table.links.remove(&oldest);
            }
        }
        let link = LoginLink { maker: maker.to_owned(), made: now };
        table.links.insert(sha256(secret.as_bytes()), link);
        Ok(secret)
    }

    /// Uses a link, and begins a session of its user. Returns the secret for the cookie.
    pub(super) fn use_link(&self, secret: &str, now: Instant) -> Result<String, SessionFault> {
        let link = {
            let mut table = self.table.lock();
            table.drop_expired(now);
            table.links.remove(&sha256(secret.as_bytes())).ok_or(SessionFault::Link)?
        };
        self.begin(AdminPerson::LinkUser { maker: link.maker }, now)
    }

    /// Begins a session. Returns the secret for the cookie.
    pub(super) fn begin(&self, person: AdminPerson, now: Instant) -> Result<String, SessionFault> {
        let (secret, form_token) = (random_secret()?, random_secret()?);
        let mut table = self.table.lock();
        table.drop_expired(now);
        table.make_room(&person)?;
        let session = AdminSession { person, form_token, notice: Mutex::default(), begun: now };
        table.sessions.insert(sha256(secret.as_bytes()), Arc::new(session));
        Ok(secret)
    }

    /// Returns the session with this cookie.
    pub(super) fn find(&self, secret: &str, now: Instant) -> Option<Arc<AdminSession>> {
        let mut table = self.table.lock();
        table.drop_expired(now);
        table.sessions.get(&sha256(secret.as_bytes())).cloned()
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &Arc<AdminSession>) {
        self.table.lock().sessions.retain(|_, known| !Arc::ptr_eq(known, session));
    }
}

/// Returns 256 random bits in hex.
fn random_secret() -> Result<String, SessionFault> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| SessionFault::Random)?;
    Ok(hex::text_32(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_logs_in_once_and_within_ten_minutes() {
        let (sessions, now) = (AdminSessions::default(), Instant::now());
        let link = sessions.make_link("somebody", now).unwrap();
        let cookie = sessions.use_link(&link, now).unwrap();
        assert_eq!(sessions.find(&cookie, now).unwrap().person.name(), "link (somebody)");
        assert_eq!(sessions.use_link(&link, now), Err(SessionFault::Link));
        let late = sessions.make_link("somebody", now).unwrap();
        assert_eq!(sessions.use_link(&late, now + LINK_MAX), Err(SessionFault::Link));
        for wrong in ["", &late[1..], "0"] {
            assert_eq!(sessions.use_link(wrong, now), Err(SessionFault::Link), "{wrong}");
        }
        // A cookie is no link, and a link is no cookie.
        assert_eq!(sessions.use_link(&cookie, now), Err(SessionFault::Link));
        let link = sessions.make_link("somebody", now).unwrap();
        assert!(sessions.find(&link, now).is_none());
    }

    #[test]
    fn a_session_ends_after_twelve_hours_or_when_its_person_logs_out() {
        let (sessions, now) = (AdminSessions::default(), Instant::now());
        let cookie = sessions.begin(AdminPerson::Manager([7; 32]), now).unwrap();
        let last = now + Duration::from_secs(SESSION_MAX.as_secs() - 1);
        assert!(sessions.find(&cookie, last).is_some());
        assert!(sessions.find(&cookie, now + SESSION_MAX).is_none());
        let cookie = sessions.begin(AdminPerson::Manager([7; 32]), now).unwrap();
        let session = sessions.find(&cookie, now).unwrap();
        sessions.end(&session);
        assert!(sessions.find(&cookie, now).is_none());
    }

    #[test]
    fn the_number_of_sessions_and_links_is_bounded() {
        let (sessions, now) = (AdminSessions::default(), Instant::now());
        let begin = |number: u8, second| {
            let at = now + Duration::from_secs(second);
            sessions.begin(AdminPerson::Manager([number; 32]), at)
        };
        let first = begin(0, 0).unwrap();
        let next: Vec<String> = (1..=8).map(|second| begin(0, second).unwrap()).collect();
        assert!(sessions.find(&first, now).is_none(), "the oldest session of a person ends");
        assert!(next.iter().all(|cookie| sessions.find(cookie, now).is_some()));
        for number in 1..=31 {
            (0..8).for_each(|second| drop(begin(number, second).unwrap()));
        }
        assert_eq!(begin(32, 0), Err(SessionFault::Full));
        let links: Vec<String> = (0..=LINKS_MAX as u64)
            .map(|second| sessions.make_link("", now + Duration::from_secs(second)).unwrap())
            .collect();
        assert_eq!(sessions.use_link(&links[0], now), Err(SessionFault::Link));
        assert_eq!(sessions.table.lock().links.len(), LINKS_MAX);
    }
}
