//! The web page for people: a description of the relay, its retention rules, its limits, and its
//! counts. The page works without scripts; with scripts, its counts stay fresh.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use hark_archive::{Query, Store};
use hark_codec::hex;
use hark_codec::nostr::npub;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use super::html::{Html, html, link};
use super::policy::EventPolicy;
use super::rule_mode::RuleMode;
use super::{Relay, RelayInfo, nip11};
use crate::admin::http::Operators;
use crate::blocking;
use crate::words::{bytes, date, number};

mod access;
mod kept;
mod pictures;

use access::{FurtherRules, access, bounds};
use kept::describe_retention;
use pictures::{Picture, security};

/// The script that refreshes the counts.
pub(crate) const SCRIPT: &str = include_str!("page.js");
/// The styles of this page, and of the page for managers.
pub(crate) const STYLE: &str = include_str!("page.css");

/// The description of a relay whose operator has not described the relay.
const DESCRIPTION: &str =
    "Keeps the messages of open networks and gives any slice of the history back.";
/// The names of the counts on the page, in the order of [`LandingCounts`].
const COUNT_NAMES: [&str; 6] =
    ["Events kept", "Oldest of them", "On disk", "Connections", "Subscriptions", "Up since"];

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

    /// Returns the page for a visitor who reached the relay under `url`. `prefix` is the path of the
    /// relay's configured URL.
    pub(crate) async fn page(&self, url: &str, prefix: &str, operators: &Operators) -> LandingHtml {
        let counts = self.counts().await;
        let (relay, settings) = (&self.relay, self.relay.settings());
        let (identity, policy) = (relay.identity.current(), relay.policy.load());
        let info = &identity.info;
        let private_kinds = identity.private_kinds();
        let services = nip11::OfferedServices::of(relay);
        let nips = nip11::nips(info, &settings.limits, &policy, private_kinds, services);
        let nips: Vec<_> = nips.iter().map(u16::to_string).collect();
        let banner = info.banner.as_deref().and_then(Picture::new);
        let icon = info.icon.as_deref().and_then(Picture::new);
        let rules = FurtherRules {
            needs_trust: relay.trust.mode() == RuleMode::Require,
            has_plugin: relay.plugin.options().is_on(),
        };
        let name = nip11::name(info);
        let description = Some(info.description.as_str()).filter(|text| !text.is_empty());
        let admin = relay
            .management
            .has_page()
            .then(|| html!(" <a href=\"{}/admin\" rel=\"nofollow\">Manage this relay</a>", prefix));
        let text = html!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{name}</title>\n\
             <link rel=\"icon\" href=\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' \
             viewBox='0 0 16 16'%3E%3Cpath d='M4 2v12M4 9q0-3 4-3t4 3v5' fill='none' stroke='%23b4582a' \
             stroke-width='2.4' stroke-linecap='round'/%3E%3C/svg%3E\">\n\
             <link rel=\"stylesheet\" href=\"{prefix}/page.css\">\n\
             <noscript><meta http-equiv=\"refresh\" content=\"30\"></noscript>\n</head>\n<body>\n\
             <header>\n{banner}<div class=\"title\">\n{icon}<h1>{name}</h1>\n</div>\n\
             <p class=\"description\">{description}</p>\n\
             <p class=\"url\"><code id=\"url\">{url}</code> <button id=\"copy\" hidden>Copy</button>{client}</p>\n\
             </header>\n<main>\n<dl class=\"counts\">\n{counts}</dl>\n\
             <section>\n<h2>How to join</h2>\n{joining}\
             <p>This is a Nostr relay. Add the address above to the relays of your Nostr client. Programs get \
             the relay's NIP-11 document from the same address.</p>\n\
             <dl class=\"facts\">\n{access}</dl>\n</section>\n\
             <section>\n<h2>What is kept, and for how long</h2>\n<ul>\n{kept}</ul>\n</section>\n\
             {networks}{operator}{terms}{privacy}\
             <section>\n<h2>Limits</h2>\n<dl class=\"facts\">\n{limits}</dl>\n</section>\n</main>\n\
             <footer>Hark {version}: listen now, hark back later. NIPs: {nips}.{admin}</footer>\n\
             <script src=\"{prefix}/page.js\" defer></script>\n</body>\n</html>\n",
            name = name,
            prefix = prefix,
            banner = banner.as_ref().map(|picture| picture.image("banner")),
            icon = icon.as_ref().map(|picture| picture.image("icon")),
            description = description.unwrap_or(DESCRIPTION),
            url = info.url.as_deref().unwrap_or(url),
            client = client_link(info),
            counts = show_counts(&counts),
            joining = joining(info, &policy),
            access = access(&policy, &info.fees, services.searches, rules),
            kept = describe_retention(&relay.shelf.retention(), private_kinds),
            networks = other_networks(relay.shelf.name(), operators),
            operator = operator(info),
            terms = text_section("terms", "Terms", info.terms.as_deref()),
            privacy = text_section("privacy", "Privacy", info.privacy.as_deref()),
            limits = bounds(&settings.limits, &policy),
            version = env!("CARGO_PKG_VERSION"),
            nips = nips.join(", "),
            admin = admin,
        );
        LandingHtml { text: text.into_text(), security: security(&[banner, icon]) }
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
}

/// The counts, in the order of the page.
fn show_counts(counts: &LandingCounts) -> Html {
    let named = counts.iter().zip(COUNT_NAMES);
    named
        .map(|((id, value), name)| {
            html!("<div><dt>{}</dt><dd id=\"{}\">{}</dd></div>\n", name, *id, value)
        })
        .collect()
}

/// The button that opens the relay in a web client. `None` if the operator has disabled the button,
/// or if the relay has no URL.
fn client_link(info: &RelayInfo) -> Option<Html> {
    let (client, url) = (info.client_url.as_deref()?, info.url.as_deref()?);
    let host = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/');
    let escaped = utf8_percent_encode(url, NON_ALPHANUMERIC).to_string();
    let link = client.replace("{url}", &escaped).replace("{host}", host);
    let button = html!(
        " <a class=\"button\" href=\"{}\" rel=\"nofollow noopener\">Open in a client</a>",
        link
    );
    Some(button)
}

/// How a visitor becomes a member, or begins at once.
fn joining(info: &RelayInfo, policy: &EventPolicy) -> Html {
    if let Some(text) = &info.joining {
        return html!("<p class=\"description\">{}</p>\n", text);
    }
    let has_members = policy.allow_keys.is_some() || policy.questions.has_members();
    match (has_members, &info.payments_url) {
        (true, Some(url)) => html!("<p>To become a member, pay the fee at {}.</p>\n", link(url)),
        (true, None) => html!("<p>Ask the operator to become a member.</p>\n"),
        (false, _) if policy.names.is_required() => html!(
            "<p>To publish, set a verified name (NIP-05) in your profile, and publish the profile here.</p>\n"
        ),
        (false, _) => html!("<p>Everyone can begin at once, without an account.</p>\n"),
    }
}

/// The other networks that the server serves.
fn other_networks(own: &str, operators: &Operators) -> Html {
    let networks = operators.networks();
    let others =
        networks.iter().filter(|it| it.shelf.name() != own && !it.door.addresses().is_empty());
    let items: Html = others
        .map(|it| {
            html!(
                "<li><b class=\"network\">{}</b>: its {} are kept and returned as well.</li>\n",
                it.shelf.name(),
                it.shelf.records()
            )
        })
        .collect();
    if items.is_empty() {
        return items;
    }
    html!("<section>\n<h2>Other networks of this server</h2>\n<ul>\n{}</ul>\n</section>\n", items)
}

/// A section with the operator's configured details. Empty if no detail is configured.
fn operator(info: &RelayInfo) -> Html {
    let npub = info.pubkey.as_ref().and_then(|key| hex::decode_32(key.as_bytes()));
    let key = npub.map(|key| {
        let npub = npub::encode(&key);
        html!(
            "<li>Key: <a href=\"nostr:{npub}\" rel=\"nofollow\"><code>{npub}</code></a></li>\n",
            npub = npub
        )
    });
    let rows = [
        ("Contact", &info.contact),
        ("Terms of service", &info.terms_of_service),
        ("Payments", &info.payments_url),
    ];
    let shown = rows.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?)));
    let shown: Html =
        shown.map(|(name, value)| html!("<li>{}: {}</li>\n", name, link(value))).collect();
    if key.is_none() && shown.is_empty() {
        return shown;
    }
    html!("<section>\n<h2>Who runs it</h2>\n<ul>\n{}{}</ul>\n</section>\n", key, shown)
}

/// A section with a text of the operator, whose lines stay lines.
fn text_section(id: &str, title: &str, text: Option<&str>) -> Option<Html> {
    text.map(|text| {
        html!(
            "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"description\">{}</p>\n</section>\n",
            id,
            title,
            text
        )
    })
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
    fn the_button_opens_the_relay_in_the_configured_client() {
        let link = |client: Option<&str>, url: Option<&str>| {
            let [client_url, url] = [client, url].map(|text| text.map(str::to_owned));
            let info = RelayInfo { url, client_url, ..RelayInfo::default() };
            client_link(&info).map(|link| link.into_text().split('"').nth(3).unwrap().to_owned())
        };
        let url = Some("wss://relay.example/chat/");
        let opened = link(Some("https://client.example/?r={url}"), url).unwrap();
        assert_eq!(opened, "https://client.example/?r=wss%3A%2F%2Frelay%2Eexample%2Fchat%2F");
        let opened = link(Some("https://client.example/r/{host}"), url).unwrap();
        assert_eq!(opened, "https://client.example/r/relay.example/chat");
        assert_eq!(link(None, url), None);
        assert_eq!(link(Some("https://client.example/"), None), None);
        let quoted = link(Some("https://client.example/\"onclick=x"), url).unwrap();
        assert_eq!(quoted, "https://client.example/&quot;onclick=x");
    }

    #[test]
    fn the_operators_key_is_a_link_and_texts_stay_texts() {
        let pubkey = Some("ab".repeat(32));
        let contact = Some("<b>me</b>".to_owned());
        let told = operator(&RelayInfo { pubkey, contact, ..RelayInfo::default() }).into_text();
        let npub = npub::encode(&[0xab; 32]);
        assert!(
            told.contains(&format!("<a href=\"nostr:{npub}\" rel=\"nofollow\"><code>{npub}<")),
            "{told}"
        );
        assert!(told.contains("Contact: &lt;b&gt;me&lt;/b&gt;"), "{told}");
        assert!(operator(&RelayInfo::default()).is_empty());
        let terms = text_section("terms", "Terms", Some("a\n<script>")).unwrap().into_text();
        assert!(terms.contains("<p class=\"description\">a\n&lt;script&gt;</p>"), "{terms}");
        let (mut policy, mut info) = (EventPolicy::default(), RelayInfo::default());
        let told = |info: &RelayInfo, policy: &EventPolicy| joining(info, policy).into_text();
        assert!(told(&info, &policy).contains("Everyone can begin"));
        policy.allow_keys = Some([].into());
        assert!(told(&info, &policy).contains("Ask the operator"));
        info.joining = Some("Knock <twice>".into());
        assert!(told(&info, &policy).contains("Knock &lt;twice&gt;"));
    }
}
