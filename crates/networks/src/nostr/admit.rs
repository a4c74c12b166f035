//! The conditions under which an event is accepted, and the private labels of its record.

use hark_archive::effects::Refusal;
use hark_archive::{Key, Outcome, Record};
use hark_codec::nostr::{Event, EventArena, EventEncoder, REQUESTS};

use super::limits::EventLimits;
use super::refusal::NostrRefusal;
use super::refusal::NostrVerdict::{
    AuthRequired, Blocked, Duplicate, Invalid, Replaced, Restricted,
};
use super::rules::{
    DELETED_KINDS_MAX, DELETION, KindClass, SLOT, VANISH, WRAP_RECIPIENTS_MAX, class,
    deletes_too_many_kinds, wraps_for_too_many,
};

/// Kind of the answer to an AUTH challenge (NIP-42). Events of this kind are never stored or
/// forwarded.
pub const AUTH: u16 = 22_242;
/// Kind of a request to vanish (NIP-62).
const VANISH_KIND: u16 = 62;

/// Kinds whose content is another event (NIP-18).
const REPOSTS: [u16; 2] = [6, 16];

/// Kinds of gift wraps (NIP-59). The time of a gift wrap is up to [`WRAP_AGE_S`] before its
/// creation, so that it does not reveal when the inner message was written.
const WRAPS: [u16; 2] = [1059, 21_059];
/// Maximum number of seconds by which clients backdate a gift wrap.
const WRAP_AGE_S: u64 = 2 * 86_400;

/// The lowest limits for requests about a person's own data: number of bytes, number of tags, and
/// the seconds by which the time may lie in the future. A lower limit of the relay applies only to
/// other events.
const REQUEST_BYTES: usize = 64 << 10;
const REQUEST_TAGS: usize = 2_500;
const REQUEST_AHEAD_S: u64 = 900;

/// The URLs of this relay, normalised by [`plain`]. Requests to vanish (NIP-62) and AUTH (NIP-42)
/// must name one of these URLs.
#[derive(Clone, Debug, Default)]
pub struct OwnUrls(Vec<String>);

impl OwnUrls {
    /// Makes a set of these URLs, each normalised by [`plain`].
    pub fn new(urls: impl IntoIterator<Item = String>) -> Self {
        Self(urls.into_iter().map(|url| plain(&url)).collect())
    }

    /// Returns the first URL, normalised. Empty if there are no URLs.
    pub fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Whether `url` is a URL of this relay.
    pub fn have(&self, url: &str) -> bool {
        self.0.contains(&plain(url))
    }

    /// Whether `url` has the host and port of one of these URLs. For AUTH (NIP-42), the path may
    /// differ.
    pub fn have_host_of(&self, url: &str) -> bool {
        authority(url).is_some_and(|asked| {
            self.0.iter().any(|own| own.split('/').next() == Some(asked.as_str()))
        })
    }

    /// Whether an event asks this relay to delete data of its author: a deletion, or a request to
    /// vanish that names this relay. The relay's policy must not block such a request.
    pub fn are_named_by_deletion(&self, event: &Event<'_>) -> bool {
        u32::from(event.kind()) == DELETION
            || event.kind() == VANISH_KIND && self.are_named_by(event)
    }

    /// Whether a request to vanish does not apply to this relay, because it names only another path
    /// or port of this relay's host, or the host's name without a port.
    pub fn are_missed_by(&self, event: &Event<'_>) -> bool {
        let is_host = |url: &str| {
            let asked = host_name(url);
            !asked.is_empty() && self.0.iter().any(|own| host_name(own) == asked)
        };
        vanishes_from_some(event) && !self.are_named_by(event) && relays(event).any(is_host)
    }

    /// Whether a `relay` tag of the event names this relay, or all relays.
    fn are_named_by(&self, event: &Event<'_>) -> bool {
        relays(event).any(|url| url == ALL_RELAYS || self.have(url))
    }
}

/// The value of the `relay` tag in a request to vanish that is meant for all relays (NIP-62).
const ALL_RELAYS: &str = "ALL_RELAYS";

/// The relays that an event's `relay` tags name.
fn relays<'a>(event: &Event<'a>) -> impl Iterator<Item = &'a str> {
    event.tags().filter(|tag| tag.name() == "relay").filter_map(|tag| tag.get(1))
}

/// Whether an event is a request to vanish that names particular relays instead of all relays.
pub fn vanishes_from_some(event: &Event<'_>) -> bool {
    event.kind() == VANISH_KIND && relays(event).all(|url| url != ALL_RELAYS)
}

/// Normalises a URL, so that two spellings of the same relay are equal. Converts the URL to lower
/// case. Removes the scheme, the default port, the trailing dot of the host name, trailing slashes,
/// query and fragment of a WebSocket URL. The scheme is removed because TLS usually ends at a proxy
/// in front of the relay.
pub fn plain(url: &str) -> String {
    let url = url.trim().to_ascii_lowercase();
    let (rest, port) = match url.split_once("://") {
        Some(("wss", rest)) => (rest, ":443"),
        Some(("ws", rest)) => (rest, ":80"),
        _ => return url,
    };
    let rest = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.strip_suffix(port).unwrap_or(host);
    let (name, port) = host.split_at(host.rfind(':').unwrap_or(host.len()));
    [name.strip_suffix('.').unwrap_or(name), port, path.trim_end_matches('/')].concat()
}

/// Returns the host of a WebSocket URL, normalised, and the port if it is not the default port.
/// `None` for any other URL.
pub fn authority(url: &str) -> Option<String> {
    let scheme = url.trim().split_once("://")?.0.to_ascii_lowercase();
    let plain = plain(url);
    let host = plain.split('/').next().filter(|host| !host.is_empty());
    host.filter(|_| ["ws", "wss"].contains(&scheme.as_str())).map(str::to_owned)
}

/// Returns the name of the host in a URL, with or without a scheme. The name is in lower case,
/// without user, port and path.
pub fn host_name(url: &str) -> String {
    let url = url.trim();
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let name = match host.rsplit_once(':') {
        // An IPv6 address also has colons, but is in brackets.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The labels that an event's record has in addition to the event's tags: private labels, and an
/// empty `d` for an addressable event whose first `d` tag is missing or has no value.
#[derive(Clone, Copy, Debug)]
pub struct PrivateLabels<'a> {
    labels: [(u8, &'a [u8]); 2],
    count: usize,
}

impl<'a> PrivateLabels<'a> {
    /// Returns the private labels of `event` at the relay with the URLs `own`.
    pub fn of(event: &Event<'a>, own: &OwnUrls) -> Self {
        let lacks_d = || {
            let d = event.tags().find(|tag| tag.name() == "d");
            d.is_none_or(|tag| tag.value().is_none())
        };
        let empty_d = (b'd', &b""[..]);
        let (label, count) = match class(u32::from(event.kind())) {
            KindClass::Addressable => ((SLOT, event.d().as_bytes()), if lacks_d() { 2 } else { 1 }),
            KindClass::Regular if event.kind() == VANISH_KIND && own.are_named_by(event) => {
                ((VANISH, &b""[..]), 1)
            }
            _ => (empty_d, 0),
        };
        Self { labels: [label, empty_d], count }
    }

    /// Returns the labels in the form that the encoder accepts.
    pub fn labels(&self) -> &[(u8, &'a [u8])] {
        &self.labels[..self.count]
    }
}

/// Returns whether events of a kind are gift wraps, stored or ephemeral.
pub fn is_wrap(kind: u16) -> bool {
    WRAPS.contains(&kind)
}

/// Whether an event is only forwarded, and never stored.
pub fn is_ephemeral(event: &Event<'_>) -> bool {
    class(u32::from(event.kind())) == KindClass::Ephemeral
}

/// Returns the maximum size of an event of any kind, in bytes. `max` is the maximum of ordinary
/// events.
pub fn longest_event(max: usize) -> usize {
    max.max(REQUEST_BYTES)
}

/// Returns the maximum size of an event of this kind, in bytes. `max` is the maximum of ordinary
/// events.
fn event_bytes_max(kind: u16, max: usize) -> usize {
    if REQUESTS.contains(&kind) { max.max(REQUEST_BYTES) } else { max }
}

/// Returns the reason for refusing a protected event (NIP-70), which only its author may publish.
/// `None` if the event is not protected, or if its author is among `proven`, the authenticated keys
/// of the connection.
pub fn protected_refusal(event: &Event<'_>, proven: &[Key]) -> Option<NostrRefusal> {
    (event.is_protected() && !proven.contains(event.pubkey())).then(|| {
        let is_stranger = proven.is_empty();
        let verdict = if is_stranger { AuthRequired } else { Restricted };
        verdict.because("event is protected; only its author may publish it")
    })
}

/// Whether events of a kind are lists: follows (NIP-02), and the lists and sets of NIP-51. A list
/// may have more tags than other events.
fn is_list(kind: u16) -> bool {
    matches!(kind, 3 | 10_000..=39_999)
}

/// Returns the length of an event in its stored form, without the white space and the escapes of
/// the received form.
fn stored_bytes(event: &Event<'_>) -> usize {
    let mut record = Vec::new();
    EventEncoder::default().encode(event, &[], &mut record);
    Record::new(&record).map_or(usize::MAX, |record| record.wire().len())
}

/// If an event is larger than its bound, returns the bound. `max` is the bound of ordinary events,
/// in bytes. `event_bytes` is the received length; the bound applies to the stored length, which
/// may be lower.
pub fn larger_than(event: &Event<'_>, event_bytes: usize, max: usize) -> Option<usize> {
    let max = event_bytes_max(event.kind(), max);
    (event_bytes > max && stored_bytes(event) > max).then_some(max)
}

/// Checks an event, except its id and signature. Returns the reason for refusing the event, or
/// `None`. `event_bytes` is the received length; the bound applies to the stored length, which may
/// be lower. Cheap checks come first. `proven` has the authenticated keys of the event's
/// connection, and `arena` is memory for parsing the inner event of a repost. Requests about a
/// person's own data ([`REQUESTS`]) are subject only to limits that no legitimate request exceeds.
///
/// ```
/// use hark_codec::crypto::KeyPair;
/// use hark_codec::nostr::{Event, EventArena, EventDraft};
/// use hark_networks::EventLimits;
/// use hark_networks::nostr::NostrVerdict;
/// use hark_networks::nostr::admit::refusal;
///
/// let keys = KeyPair::from_secret([7; 32]).ok_or("no secret key")?;
/// let mut json = Vec::new();
/// EventDraft { created_at: 5_000, kind: 1, tags: &[], content: "hi" }.sign(&keys, &mut json);
/// let (mut arena, mut inner) = (EventArena::new(), EventArena::new());
/// let event = Event::parse(&json, &mut arena)?;
/// let limits = EventLimits::default();
/// let mut refused = |now_s| refusal(&event, json.len(), &limits, now_s, &[], &mut inner);
/// assert_eq!(refused(5_000), None);
/// // The event is from the future.
/// assert_eq!(refused(1_000).map(|refusal| refusal.verdict), Some(NostrVerdict::Invalid));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn refusal(
    event: &Event<'_>,
    event_bytes: usize,
    limits: &EventLimits,
    now_s: u64,
    proven: &[Key],
    arena: &mut EventArena,
) -> Option<NostrRefusal> {
    let is_request = REQUESTS.contains(&event.kind());
    if let Some(bytes_max) = larger_than(event, event_bytes, limits.event_bytes_max) {
        return Some(Invalid.because(format!("event is larger than {bytes_max} bytes")));
    }
    let chars_max = if is_request {
        event_bytes_max(event.kind(), limits.event_bytes_max)
    } else {
        limits.content_chars_max
    };
    if event.content().len() > chars_max && event.content().chars().count() > chars_max {
        return Some(Invalid.because(format!("content is longer than {chars_max} characters")));
    }
    let list_tags_max = if is_list(event.kind()) { limits.list_tags_max } else { 0 };
    let own_tags_max = if is_request { REQUEST_TAGS } else { list_tags_max };
    let tags_max = limits.event_tags_max.max(own_tags_max);
    if event.tag_count() > tags_max {
        return Some(Invalid.because(format!("event has more than {tags_max} tags")));
    }
    if event.kind() == AUTH {
        return Some(Invalid.because("kind 22242 answers a challenge and belongs in AUTH"));
    }
    if let Some(reason) = time_refusal(event, limits, now_s) {
        return Some(reason);
    }
    if event.expiration().is_some_and(|at| at <= now_s) {
        return Some(Invalid.because("event has expired"));
    }
    if let Some(reason) = protected_refusal(event, proven) {
        return Some(reason);
    }
    if REPOSTS.contains(&event.kind())
        && Event::parse(event.content().as_bytes(), arena).is_ok_and(|inner| inner.is_protected())
    {
        return Some(Blocked.because("repost holds a protected event"));
    }
    if event.kind() == VANISH_KIND && !event.tags().any(|tag| tag.name() == "relay") {
        return Some(Invalid.because("request to vanish names no relay"));
    }
    let addresses = event.tags().filter(|tag| tag.name() == "a").filter_map(|tag| tag.value());
    let addresses = addresses.map(str::as_bytes);
    if deletes_too_many_kinds(u32::from(event.kind()), event.pubkey(), addresses) {
        return Some(
            Blocked.because(format!("deletes addresses of more than {DELETED_KINDS_MAX} kinds")),
        );
    }
    let recipients = event.tags().filter(|tag| tag.name() == "p");
    if wraps_for_too_many(u32::from(event.kind()), recipients) {
        return Some(
            Blocked.because(format!("a gift wrap for more than {WRAP_RECIPIENTS_MAX} recipients")),
        );
    }
    None
}

/// Returns the reason for refusing an event because of its time; `None` if its time is allowed.
fn time_refusal(event: &Event<'_>, limits: &EventLimits, now_s: u64) -> Option<NostrRefusal> {
    let (kind, time) = (event.kind(), event.created_at());
    let is_request = REQUESTS.contains(&kind);
    let ahead_max = limits.created_at_ahead_s_max.max(if is_request { REQUEST_AHEAD_S } else { 0 });
    if time > now_s.saturating_add(ahead_max) {
        return Some(
            Invalid.because(format!("created_at is more than {ahead_max} s in the future")),
        );
    }
    let behind_max = limits.created_at_behind_s_max.filter(|_| !is_request)?;
    let behind_max = if is_wrap(kind) { behind_max.saturating_add(WRAP_AGE_S) } else { behind_max };
    (time < now_s.saturating_sub(behind_max))
        .then(|| Invalid.because(format!("created_at is more than {behind_max} s in the past")))
}

/// Returns the answer to the sender of an event of this kind: OK without a reason, or a refusal.
pub fn answer(kind: u16, outcome: Outcome) -> Result<(), NostrRefusal> {
    let (verdict, words) = match outcome {
        Outcome::Stored { .. } | Outcome::Erased(_) => return Ok(()),
        Outcome::Duplicate => return Err(duplicate()),
        Outcome::Refused(Refusal::Vanished) if kind == VANISH_KIND => {
            (Duplicate, "its author has asked to vanish already")
        }
        // The answer must show that the event is not stored. Otherwise a client could report, for
        // example, that its profile was saved. NIP-01 has no prefix for this case, and its
        // `duplicate` would mean that the event is stored.
        Outcome::Superseded => {
            (Replaced, "have a newer version, or one of the same time with a lower id")
        }
        Outcome::Refused(Refusal::Deleted) => (Blocked, "event was deleted by its author"),
        Outcome::Refused(Refusal::Vanished) => (Blocked, "its author asked to vanish"),
        Outcome::Refused(Refusal::Banned) => (Blocked, "this relay does not take this event"),
    };
    Err(verdict.because(words))
}

/// Returns the answer for an event that is already stored.
pub fn duplicate() -> NostrRefusal {
    Duplicate.because("already have this event")
}

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
        assert!(own.have("wss://relay.example./?key=1#x"));
    }

    #[test]
    fn a_request_that_names_the_host_alone_is_told_from_one_that_names_another() {
        let own = OwnUrls::new(["wss://Relay.example/inbox".into(), "ws://[::1]:7777".into()]);
        let (pubkey, sig) = ("a".repeat(64), "b".repeat(128));
        let is_missed = |tags: &str| {
            let event = format!(
                r#"{{"id":"{pubkey}","pubkey":"{pubkey}","created_at":1,"kind":62,"tags":[{tags}],"content":"","sig":"{sig}"}}"#
            );
            own.are_missed_by(&Event::parse(event.as_bytes(), &mut EventArena::new()).unwrap())
        };
        for url in [
            "wss://relay.example",
            "wss://RELAY.example:443/outbox",
            "wss://relay.example.:444/inbox",
            "https://me@relay.example/inbox",
            "relay.example",
            "ws://[::1]:80/",
        ] {
            assert!(is_missed(&format!(r#"["relay","{url}"]"#)), "{url}");
        }
        for tags in [
            r#"["relay","wss://relay.example/inbox/"]"#,
            r#"["relay","wss://relay.example/outbox"],["relay","wss://relay.example/inbox"]"#,
            r#"["relay","wss://relay.example/outbox"],["relay","ALL_RELAYS"]"#,
            r#"["relay","wss://relay.example.evil.example/"]"#,
            r#"["relay","wss://other.example/relay.example"]"#,
            r#"["relay","wss://"],["relay",""],["relay"]"#,
        ] {
            assert!(!is_missed(tags), "{tags}");
        }
    }

    #[test]
    fn for_auth_the_host_counts_and_not_the_path() {
        let own = OwnUrls::new(["wss://Relay.example/inbox".into(), "ws://abc.onion".into()]);
        for url in [
            "wss://relay.example",
            "wss://RELAY.example:443/inbox/?a=b",
            "ws://relay.example./chat#x",
            " wss://relay.example/outbox ",
            "ws://abc.onion:80/",
        ] {
            assert!(own.have_host_of(url), "{url}");
        }
        for url in [
            "wss://relay.example.evil.example/",
            "wss://evil.example/relay.example",
            "wss://relay.example@evil.example",
            "wss://relay.example:444",
            "https://relay.example",
            "relay.example",
            "wss://",
            "wss:///inbox",
            "",
        ] {
            assert!(!own.have_host_of(url), "{url}");
        }
        assert!(!OwnUrls::default().have_host_of("wss://"));
    }
}
