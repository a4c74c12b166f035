//! The conditions on which an event is accepted, and the private labels of its record.

use hark_archive::effects::Refusal;
use hark_archive::limits::Limits;
use hark_archive::{Key, Outcome};
use hark_codec::nostr::{Event, EventArena};

use super::rules::{
    DELETED_KINDS_MAX, KindClass, SLOT, VANISH, WRAP_RECIPIENTS_MAX, class, deletes_too_many_kinds,
    wraps_for_too_many,
};

/// Kind of the answer to an AUTH challenge: never stored, never forwarded (NIP-42).
pub const AUTH: u16 = 22_242;
/// Kind of a request to vanish (NIP-62).
const VANISH_KIND: u16 = 62;

/// Kinds whose content is another event (NIP-18).
const REPOSTS: [u16; 2] = [6, 16];

/// The URLs that mean this relay, for requests to vanish (NIP-62) and for AUTH (NIP-42).
#[derive(Clone, Debug, Default)]
pub struct OwnUrls(Vec<String>);

impl OwnUrls {
    /// Makes a set of these URLs, each normalised by [`plain`].
    pub fn new(urls: impl IntoIterator<Item = String>) -> Self {
        Self(urls.into_iter().map(|url| plain(&url)).collect())
    }

    /// The first URL, normalised; empty if there is none.
    pub fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Whether `url` means this relay.
    pub fn have(&self, url: &str) -> bool {
        self.0.contains(&plain(url))
    }
}

/// Normalises a URL: removes what makes no difference here, which is case, the default port,
/// trailing slashes, and the scheme, since TLS mostly ends in front of the relay.
pub fn plain(url: &str) -> String {
    let url = url.trim().to_ascii_lowercase();
    let (rest, port) = match url.split_once("://") {
        Some(("wss", rest)) => (rest, ":443"),
        Some(("ws", rest)) => (rest, ":80"),
        _ => return url,
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.strip_suffix(port).unwrap_or(host);
    [host, path.trim_end_matches('/')].concat()
}

/// The private labels of an event's record.
#[derive(Clone, Copy, Debug)]
pub struct PrivateLabels<'a>(Option<(u8, &'a [u8])>);

impl<'a> PrivateLabels<'a> {
    /// The private labels of `event` at the relay with the URLs `own`.
    pub fn of(event: &Event<'a>, own: &OwnUrls) -> Self {
        let names_us = || {
            let relays = event.tags().filter(|tag| tag.name() == "relay");
            relays.filter_map(|tag| tag.get(1)).any(|url| url == "ALL_RELAYS" || own.have(url))
        };
        Self(match class(u32::from(event.kind())) {
            KindClass::Addressable => Some((SLOT, event.d().as_bytes())),
            KindClass::Regular if event.kind() == VANISH_KIND && names_us() => Some((VANISH, b"")),
            _ => None,
        })
    }

    /// The labels, as the encoder takes them.
    pub fn labels(&self) -> &[(u8, &'a [u8])] {
        self.0.as_slice()
    }
}

/// Whether an event is only forwarded, and never stored.
pub fn is_ephemeral(event: &Event<'_>) -> bool {
    class(u32::from(event.kind())) == KindClass::Ephemeral
}

/// Returns why an event is refused, whatever its signature, or `None` if it is accepted. Cheap
/// checks come first. The caller checks the id. `proven` are the authenticated keys of the event's
/// connection; `arena` is for an event within the event.
pub fn refusal(
    event: &Event<'_>,
    event_bytes: usize,
    limits: &Limits,
    now_s: u64,
    proven: &[Key],
    arena: &mut EventArena,
) -> Option<String> {
    let (tags, time) = (event.tag_count(), event.created_at());
    if event_bytes > limits.event_bytes_max {
        return Some(format!("invalid: event is larger than {} bytes", limits.event_bytes_max));
    }
    let chars_max = limits.content_chars_max;
    if event.content().len() > chars_max && event.content().chars().count() > chars_max {
        return Some(format!("invalid: content is longer than {chars_max} characters"));
    }
    if tags > limits.event_tags_max {
        return Some(format!("invalid: event has more than {} tags", limits.event_tags_max));
    }
    if event.kind() == AUTH {
        return Some("invalid: kind 22242 answers a challenge and belongs into AUTH".into());
    }
    if time > now_s.saturating_add(limits.created_at_ahead_s_max) {
        let bound = limits.created_at_ahead_s_max;
        return Some(format!("invalid: created_at is more than {bound} s in the future"));
    }
    if let Some(bound) = limits.created_at_behind_s_max
        && time < now_s.saturating_sub(bound)
    {
        return Some(format!("invalid: created_at is more than {bound} s in the past"));
    }
    if event.expiration().is_some_and(|at| at <= now_s) {
        return Some("invalid: event has expired".into());
    }
    if event.is_protected() && !proven.contains(event.pubkey()) {
        let prefix = if proven.is_empty() { "auth-required" } else { "restricted" };
        return Some(format!("{prefix}: event is protected; only its author may publish it"));
    }
    if REPOSTS.contains(&event.kind())
        && Event::parse(event.content().as_bytes(), arena).is_ok_and(|inner| inner.is_protected())
    {
        return Some("blocked: repost holds a protected event".into());
    }
    if event.kind() == VANISH_KIND && !event.tags().any(|tag| tag.name() == "relay") {
        return Some("invalid: request to vanish names no relay".into());
    }
    let addresses = event.tags().filter(|tag| tag.name() == "a").filter_map(|tag| tag.value());
    let addresses = addresses.map(str::as_bytes);
    if deletes_too_many_kinds(u32::from(event.kind()), event.pubkey(), addresses) {
        return Some(format!("invalid: deletes addresses of more than {DELETED_KINDS_MAX} kinds"));
    }
    let recipients = event.tags().filter(|tag| tag.name() == "p");
    if wraps_for_too_many(u32::from(event.kind()), recipients) {
        return Some(format!(
            "invalid: a gift wrap for more than {WRAP_RECIPIENTS_MAX} recipients"
        ));
    }
    None
}

/// Maps an outcome to the fields of OK: whether the event is accepted, and why.
pub fn answer(outcome: Outcome) -> (bool, &'static str) {
    match outcome {
        Outcome::Stored { .. } | Outcome::Erased(_) => (true, ""),
        Outcome::Duplicate => (true, DUPLICATE),
        // The event is not stored: a client must not believe that, say, its profile was saved.
        Outcome::Superseded => (false, REPLACED),
        Outcome::Refused(Refusal::Deleted) => (false, "blocked: event was deleted by its author"),
        Outcome::Refused(Refusal::Vanished) => (false, "blocked: its author asked to vanish"),
    }
}

/// The text of OK for a version of a replaceable or addressable event that loses to the stored one.
/// Other relays use this prefix. NIP-01 has none for this case, and its `duplicate` would say that
/// the event is stored.
const REPLACED: &str = "replaced: have a newer version, or one of the same time with a lower id";

/// The text of OK for an event that is already stored.
pub const DUPLICATE: &str = "duplicate: already have this event";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_means_us_however_it_is_written() {
        let own = OwnUrls::new(["wss://Relay.example/".to_owned()]);
        let ours = ["wss://relay.example", "WSS://relay.example:443//", " ws://relay.example:80/ "];
        assert!(ours.iter().all(|url| own.have(url)));
        let others = ["wss://other.example", "wss://relay.example/x", "https://relay.example", ""];
        assert!(!others.iter().any(|url| own.have(url)));
    }
}
