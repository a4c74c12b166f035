//! The web page for people: a description of the relay, its retention rules, its limits, and its
//! counts. The page works without scripts; with scripts, its counts stay fresh.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use hark_archive::retention::{RetentionPolicy, RetentionRule};
use hark_archive::{Query, Store};
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use super::message_head::question_bytes_max;
use super::{Relay, nip11, policy};
use crate::blocking;
use crate::limits::{Limits, Rate};
use crate::words::{age, bytes, date, number, size_set};

/// The script that refreshes the counts.
pub(crate) const SCRIPT: &str = include_str!("landing.js");

/// Maximum age of the counts. Within this time, many visitors cost as much as one visitor.
const FRESH: Duration = Duration::from_secs(4);
/// The size of the archive is rounded up to a multiple of this number, so that the size reveals no
/// private event.
const BYTES_STEP: u64 = 1 << 20;
/// Maximum number of rows that the count of private events visits.
const COUNT_ROWS_MAX: u64 = 2_000;

/// Names of counts, and their values as text.
type LandingCounts = Vec<(&'static str, String)>;

/// The page as it is sent.
pub(crate) struct LandingHtml {
    pub(crate) text: String,
    /// The Content-Security-Policy of the page.
    pub(crate) security: HeaderValue,
}

/// The source of the page, with its cached counts.
pub(crate) struct LandingPage {
    relay: Arc<Relay>,
    /// The cached counts. The lock is held while the archive is read, so that only one visitor at a
    /// time occupies a thread.
    counted: Mutex<Option<(Instant, Arc<LandingCounts>)>>,
}

impl LandingPage {
    pub(crate) fn new(relay: Arc<Relay>) -> Self {
        Self { relay, counted: Mutex::default() }
    }

    /// Returns the page for a visitor who reached the relay under `url`.
    pub(crate) async fn page(&self, url: &str) -> LandingHtml {
        let settings = self.relay.settings();
        let identity = self.relay.identity.current();
        let info = &identity.info;
        let description = if info.description.is_empty() {
            "Keeps the messages of open networks and gives any slice of the history back."
        } else {
            &info.description
        };
        let private_kinds = identity.private_kinds();
        let nips = nip11::nips(
            &identity.info,
            &settings.limits,
            &self.relay.policy.load(),
            private_kinds,
            nip11::OfferedServices::of(&self.relay),
        );
        let nips: Vec<_> = nips.iter().map(u16::to_string).collect();
        let banner = info.banner.as_deref().and_then(Picture::new);
        let icon = info.icon.as_deref().and_then(Picture::new);
        let shown = |class, picture: Option<&Picture<'_>>| {
            picture.map_or_else(String::new, |picture| image(class, picture.url))
        };
        let page = include_str!("landing.html")
            .replace("{banner}", &shown("banner", banner.as_ref()))
            .replace("{icon}", &shown("icon", icon.as_ref()))
            .replace("{name}", &escape(nip11::name(info)))
            .replace("{description}", &escape(description))
            .replace("{url}", &escape(info.url.as_deref().unwrap_or(url)))
            .replace("{kept}", &describe_retention(&self.relay.shelf.retention(), private_kinds))
            .replace("{limits}", &bounds(&settings.limits, &self.relay.policy.load()))
            .replace("{operator}", &self.operator())
            .replace("{nips}", &nips.join(", "))
            .replace("{version}", env!("CARGO_PKG_VERSION"));
        let fill = |page: String, (name, text): &(&str, String)| {
            page.replace(&format!("{{{name}}}"), &escape(text))
        };
        let text = self.counts().await.iter().fold(page, fill);
        LandingHtml { text, security: security(&[banner, icon]) }
    }

    /// The counts as a JSON object. The keys are the ids of page elements, and the values are their
    /// texts.
    pub(crate) async fn counts_json(&self) -> String {
        let counts = self.counts().await;
        let fields = counts.iter().map(|(name, text)| ((*name).into(), text.as_str().into()));
        Value::Object(fields.collect::<Map<_, _>>()).to_string()
    }

    async fn counts(&self) -> Arc<LandingCounts> {
        let mut counted = self.counted.lock().await;
        if let Some((_, counts)) = counted.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Arc::clone(counts);
        }
        let store = Arc::clone(self.relay.shelf.store());
        let private_kinds = self.relay.identity.current().private_kinds().to_vec();
        // Only a bug makes this call fail. Then the page shows 0 for the counts of the archive.
        let (stats, public) = blocking::run(move || {
            let stats = store.stats();
            let public = public_records(&*store, stats.records, private_kinds);
            (stats, public)
        })
        .await
        .unwrap_or_default();
        let counts = Arc::new(vec![
            ("events", number(public)),
            ("oldest", stats.oldest.filter(|_| stats.records > 0).map_or("-".into(), date)),
            ("bytes", bytes(stats.bytes.next_multiple_of(BYTES_STEP))),
            ("connections", number(self.relay.metrics.websockets_open.get())),
            ("subscriptions", number(self.relay.live.len() as u64)),
            ("since", date(self.relay.shelf.since_s())),
        ]);
        *counted = Some((Instant::now(), Arc::clone(&counts)));
        counts
    }

    /// Returns an HTML section with the operator's configured details. Empty if no detail is
    /// configured.
    fn operator(&self) -> String {
        let identity = self.relay.identity.current();
        let info = &identity.info;
        let rows = [
            ("Contact", &info.contact),
            ("Public key", &info.pubkey),
            ("Terms", &info.terms_of_service),
            ("Payments", &info.payments_url),
        ];
        let shown = rows.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let shown = lines(shown.map(|(name, value)| format!("<li>{name}: {}</li>\n", link(value))));
        if shown.is_empty() {
            return shown;
        }
        format!("<section>\n<h2>Who runs it</h2>\n<ul>\n{shown}</ul>\n</section>\n")
    }
}

/// Returns the number of events of kinds that are not private. The number of all events would reveal
/// when a private event arrives. If there are many private events, the number of all events is
/// rounded instead.
fn public_records(store: &dyn Store, records: u64, private_kinds: Vec<u32>) -> u64 {
    if private_kinds.is_empty() {
        return records;
    }
    let kinds = Some(private_kinds);
    let query = Query { kinds, budget: COUNT_ROWS_MAX, ..Query::default() };
    match store.count_visiting(&query, &mut 0) {
        Ok(Some(private)) => records.saturating_sub(private),
        Ok(None) | Err(_) => rounded(records),
    }
}

/// Returns a number with zeros after its first two digits.
fn rounded(number: u64) -> u64 {
    let unit = 10_u64.pow(number.checked_ilog10().unwrap_or(0).saturating_sub(1));
    number / unit * unit
}

/// A picture, configured by the operator, that the page may show.
struct Picture<'a> {
    url: &'a str,
    /// Scheme, host and port of `url`.
    origin: &'a str,
}

impl<'a> Picture<'a> {
    /// Returns the picture at `url`. `None` if a Content-Security-Policy cannot name the origin,
    /// for example because of a user name before the host, or non-ASCII letters in the host.
    fn new(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let is_web = ["https", "http"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        let host = rest.split(['/', '?', '#']).next()?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
        let is_named = is_web && !host.is_empty() && host.bytes().all(is_plain);
        is_named.then(|| Self { url, origin: &url[..scheme.len() + "://".len() + host.len()] })
    }
}

/// The Content-Security-Policy of a page with these pictures: nothing else is loaded from other
/// hosts, and only [`SCRIPT`] runs.
fn security(pictures: &[Option<Picture<'_>>]) -> HeaderValue {
    let origins = pictures.iter().flatten().map(|picture| format!(" {}", picture.origin));
    let policy = format!(
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; \
         img-src data:{}; base-uri 'none'; form-action 'none'",
        origins.collect::<String>()
    );
    // Does not fail, because origins are plain ASCII.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

/// A picture on its own line. Its alternative text is empty, because the page also shows the
/// relay's name.
fn image(class: &str, url: &str) -> String {
    format!("<img class=\"{class}\" src=\"{}\" alt=\"\">\n", escape(url))
}

/// Formats the retention policy as list items: which events are kept, and which are removed.
fn describe_retention(policy: &RetentionPolicy, private_kinds: &[u32]) -> String {
    let mut items: Vec<String> = policy.rules.iter().map(describe_rule).collect();
    if let Some(bound) = policy.bytes_max {
        items.push(format!(
            "Above {} on disk, the oldest events are deleted first.",
            size_set(bound)
        ));
    }
    let narrow = |rule: &RetentionRule| rule.kinds.is_some() || rule.authors.is_some();
    if items.is_empty() {
        items.push("All events stay, without a time limit.".into());
    } else if policy.bytes_max.is_none() && policy.rules.iter().all(narrow) {
        items.push("All others stay.".into());
    } else {
        let mut spared = [&policy.spared_kinds[..], &policy.tombstone_kinds].concat();
        spared.sort_unstable();
        spared.dedup();
        if !spared.is_empty() {
            items.push(format!("{} stay.", kinds(&spared)));
        }
    }
    items.push("An event with an expiration time is removed at that time (NIP-40).".into());
    items.push(
        "An event that its author deletes is removed and does not come back (NIP-09). So are all \
         events of an author who has requested to vanish (NIP-62)."
            .into(),
    );
    if !private_kinds.is_empty() {
        items.push(format!(
            "{} are sent only to their authors and recipients (NIP-42).",
            kinds(private_kinds)
        ));
    }
    lines(items.iter().map(|item| format!("<li>{}</li>\n", escape(item))))
}

/// Formats a retention rule as a sentence.
fn describe_rule(rule: &RetentionRule) -> String {
    let of = match (&rule.kinds, rule.not_kinds.is_empty()) {
        (Some(some), _) => kinds(some),
        (None, true) => "Events".into(),
        (None, false) => format!("Events of kinds other than {}", list(&rule.not_kinds)),
    };
    let by = match &rule.authors {
        Some(authors) => format!(" by {} named authors", authors.len()),
        None => String::new(),
    };
    format!("{of}{by} stay for {}.", age(rule.older_than_s))
}

fn kinds(kinds: &[u32]) -> String {
    match kinds {
        [one] => format!("Events of kind {one}"),
        many => format!("Events of kinds {}", list(many)),
    }
}

fn list(kinds: &[u32]) -> String {
    let kinds: Vec<String> = kinds.iter().map(u32::to_string).collect();
    kinds.join(", ")
}

/// The limits for clients, as rows.
fn bounds(limits: &Limits, policy: &policy::EventPolicy) -> String {
    let count = |value: usize| number(value as u64);
    let size = |value: usize| size_set(value as u64);
    let answer = format!(
        "{}, {} if asked",
        count(limits.filters.limit_default),
        count(limits.filters.limit_max)
    );
    let past = limits.events.created_at_behind_s_max.map_or("any".into(), age);
    let rows = [
        ("Size of an event", size(limits.events.event_bytes_max.min(limits.message_bytes_max))),
        ("Tags of an event", count(limits.events.event_tags_max)),
        ("Tags of a list", count(limits.events.list_tags_max.max(limits.events.event_tags_max))),
        ("Age of an event on arrival", past),
        ("Time of an event in the future", age(limits.events.created_at_ahead_s_max)),
        ("Size of a message", size(limits.message_bytes_max)),
        ("Size of a question", size(question_bytes_max(limits))),
        ("Stored events for a filter", answer),
        ("Filters in a question", count(limits.filters.filters_max)),
        ("Values in a filter", count(limits.filters.filter_values_max)),
        ("Subscriptions of a connection", count(limits.subscriptions_max)),
        ("Events of an address", rate(limits.rates.events_per_address)),
        ("Events of a key", rate(limits.rates.events_per_key)),
        ("Questions of an address", rate(limits.rates.questions_per_address)),
    ];
    let few = policy.allow_keys.is_some();
    let who = few.then(|| {
        let addressed =
            if policy.addressed_kinds.is_empty() { "" } else { ", and who writes to them" };
        ("Who may publish", format!("listed keys{addressed}"))
    });
    let readers = policy.questions.needs_auth();
    let readers = readers.then(|| ("Who may read", "members, who authenticate (NIP-42)".into()));
    let work = (policy.pow_bits_min > 0)
        .then(|| ("Proof of work of an event (NIP-13)", format!("{} bits", policy.pow_bits_min)));
    let rows = who.into_iter().chain(readers).chain(work).chain(rows);
    lines(rows.map(|(name, value)| format!("<dt>{name}</dt><dd>{value}</dd>\n")))
}

fn rate(rate: Option<Rate>) -> String {
    rate.map_or("any".into(), |rate| format!("{} a minute", number(rate.per_minute)))
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.collect::<Vec<_>>().concat()
}

/// Formats text as a link if the text is a URL.
fn link(text: &str) -> String {
    let shown = escape(text);
    let is_link = ["https://", "http://", "mailto:"].iter().any(|begin| text.starts_with(begin));
    if is_link { format!("<a href=\"{shown}\" rel=\"nofollow\">{shown}</a>") } else { shown }
}

/// Escapes text for HTML. Braces are escaped too, so that no text can act as a placeholder.
fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '{' => out.push_str("&#123;"),
            other => out.push(other),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use hark_archive::store::memory::MemoryStore;
    use hark_archive::{RecordHeader, Write};
    use hark_networks::nostr::rules::NostrRules;
    use hark_testkit::random::encode;

    use super::*;

    #[test]
    fn private_events_are_not_in_the_number_of_events() {
        let store = MemoryStore::new(NostrRules);
        let put = |number: u32, kind| {
            let mut id = [7; 32];
            id[..4].copy_from_slice(&number.to_be_bytes());
            let head = RecordHeader { id, time: 5, author: Some([1; 32]), kind, expires: None };
            store.commit(&[Write::Put(encode(&head, &[]))]).unwrap();
        };
        (0..7).for_each(|number| put(number, 1));
        (7..10).for_each(|number| put(number, 1_059));
        assert_eq!(public_records(&store, 10, vec![4, 1_059]), 7);
        assert_eq!(public_records(&store, 10, vec![]), 10);
        assert_eq!([57, 3_010, 3_099, 3_100].map(rounded), [57, 3_000, 3_000, 3_100]);
    }

    #[test]
    fn what_is_kept_is_said_as_the_policy_means_it() {
        let policy = RetentionPolicy::default();
        assert!(describe_retention(&policy, &[]).starts_with("<li>All events stay"));
        let policy = RetentionPolicy {
            rules: vec![
                RetentionRule {
                    kinds: Some(vec![7]),
                    older_than_s: 90 * 86_400,
                    ..RetentionRule::default()
                },
                RetentionRule {
                    not_kinds: vec![0, 3],
                    older_than_s: 5_400,
                    ..RetentionRule::default()
                },
            ],
            bytes_max: Some(5 << 30),
            tombstone_kinds: vec![5, 62],
            ..policy
        };
        let said = describe_retention(&policy, &[4]);
        for item in [
            "Events of kind 7 stay for 90 days.",
            "Events of kinds other than 0, 3 stay for 90 minutes.",
            "Above 5.0 GiB on disk, the oldest events are deleted first.",
            "Events of kinds 5, 62 stay.",
            "Events of kind 4 are sent only to their authors and recipients",
        ] {
            assert!(said.contains(&format!("<li>{item}")), "{item}: {said}");
        }
        assert!(!said.contains("All events"));
    }

    #[test]
    fn bounds_are_those_in_force() {
        let (mut limits, mut policy) = (Limits::default(), policy::EventPolicy::default());
        let said = bounds(&limits, &policy);
        assert!(said.contains("<dt>Filters in a question</dt><dd>20</dd>"), "{said}");
        assert!(!said.contains("Who may publish") && !said.contains("NIP-13"), "{said}");
        policy.pow_bits_min = 20;
        policy.allow_keys = Some([[1; 32]].into());
        limits.filters.filters_max = 3;
        limits.rates.events_per_key = Some(Rate { per_minute: 1_200, at_once: 1 });
        let said = bounds(&limits, &policy);
        for row in [
            "<dt>Who may publish</dt><dd>listed keys</dd>",
            "<dt>Proof of work of an event (NIP-13)</dt><dd>20 bits</dd>",
            "<dt>Filters in a question</dt><dd>3</dd>",
            "<dt>Events of a key</dt><dd>1,200 a minute</dd>",
        ] {
            assert!(said.contains(row), "{row}: {said}");
        }
    }

    #[test]
    fn pictures_are_loaded_from_their_own_hosts_and_from_no_others() {
        let images = |urls: &[&str]| {
            let pictures: Vec<_> = urls.iter().map(|url| Picture::new(url)).collect();
            let policy = security(&pictures).to_str().unwrap().to_owned();
            let (_, rest) = policy.split_once("img-src ").unwrap();
            rest.split_once(';').unwrap().0.to_owned()
        };
        assert_eq!(images(&[]), "data:");
        assert_eq!(images(&["https://a.example/i.png"]), "data: https://a.example");
        assert_eq!(
            images(&["HTTP://a.example:8080?i=1#x", "https://b-2.example"]),
            "data: HTTP://a.example:8080 https://b-2.example"
        );
        for url in [
            "https://a.example;script-src *//i",
            "https://*.example/i",
            "https://me@a.example/i",
            "https://a.example'/i",
            "https://\u{e4}.example/i",
            "https:///i",
            "data:image/png;base64,AA",
            "/icon.png",
        ] {
            assert_eq!(images(&[url]), "data:", "{url}");
        }
        let shown = image("icon", "https://a.example/\"onload=\"x");
        assert_eq!(
            shown,
            "<img class=\"icon\" src=\"https://a.example/&quot;onload=&quot;x\" alt=\"\">\n"
        );
    }

    #[test]
    fn what_the_operator_writes_stays_text() {
        assert_eq!(escape("<b>{url}'"), "&lt;b&gt;&#123;url}&#39;");
        assert_eq!(link("javascript:x"), "javascript:x");
        let quoted = "<a href=\"https://x/&quot;\" rel=\"nofollow\">https://x/&quot;</a>";
        assert_eq!(link("https://x/\""), quoted);
    }
}
