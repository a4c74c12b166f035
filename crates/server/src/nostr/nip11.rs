//! The NIP-11 document: the relay's description of itself for programs. The document is derived
//! from the limits in force.

use serde_json::{Map, Value, json};

use super::message_head::question_bytes_max;
use super::policy::EventPolicy;
use super::{FeePurpose, Relay, RelayFee, RelayInfo};
use crate::limits::Limits;

/// NIPs that are offered under every configuration. NIPs that concern only clients are not listed.
const NIPS: [u16; 8] = [1, 9, 11, 40, 45, 67, 70, 91];
/// NIPs that are offered if the given kind is both accepted and private. The readers of a private
/// kind must prove their keys.
const PRIVATE_NIPS: [(u16, &[u16]); 2] = [(4, &[4]), (1059, &[17, 59])];

/// The NIP of proofs of work, which is offered if events must have a proof of work.
const WORK: u16 = 13;

/// The NIP of AUTH, which is offered if a connection may prove a key.
const AUTH: u16 = 42;

/// The NIP of requests to vanish, which is offered if the relay knows its own URL.
const VANISH: u16 = 62;

/// The NIP of comparisons, which is offered if a connection may open a comparison.
const COMPARISONS: u16 = 77;

/// The NIP of the relay management API, which is offered if the relay has managers.
const MANAGEMENT: u16 = 86;

/// The NIP of requests to join and to leave, which is offered if the relay has a key of its own.
const MEMBERSHIP: u16 = 43;

/// The NIP of searches, which is offered if texts are searched.
const SEARCH: u16 = 50;

/// Services that a relay offers or not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OfferedServices {
    /// Whether texts are searched.
    pub(crate) searches: bool,
    /// Whether somebody may manage the relay.
    pub(crate) management: bool,
    /// Whether keys may join and leave.
    pub(crate) membership: bool,
}

impl OfferedServices {
    /// The services of a relay.
    pub(crate) fn of(relay: &Relay) -> Self {
        Self {
            searches: relay.texts.is_some(),
            management: relay.management.is_offered(),
            membership: relay.identity.own_key().is_some(),
        }
    }
}

pub(crate) fn nips(
    info: &RelayInfo,
    limits: &Limits,
    policy: &EventPolicy,
    private_kinds: &[u32],
    services: OfferedServices,
) -> Vec<u16> {
    let proves = limits.auth_keys_max > 0;
    let is_kept =
        |kind: u16| proves && private_kinds.contains(&u32::from(kind)) && policy.takes_kind(kind);
    let kept = PRIVATE_NIPS.iter().filter(|(kind, _)| is_kept(*kind));
    let mut nips: Vec<u16> = kept.flat_map(|(_, nips)| *nips).chain(&NIPS).copied().collect();
    nips.extend(proves.then_some(AUTH));
    nips.extend((policy.pow_bits_min > 0).then_some(WORK));
    nips.extend((limits.negentropy_per_connection_max > 0).then_some(COMPARISONS));
    nips.extend(services.searches.then_some(SEARCH));
    nips.extend(services.membership.then_some(MEMBERSHIP));
    nips.extend(services.management.then_some(MANAGEMENT));
    nips.extend(info.url.is_some().then_some(VANISH));
    nips.sort_unstable();
    nips
}

/// The project's homepage, from Cargo.toml.
const SOFTWARE: &str = env!("CARGO_PKG_HOMEPAGE");

/// The NIP-11 document. `has_further_rules` tells whether other rules than the policy
/// decide about events.
pub(crate) fn document(
    info: &RelayInfo,
    limits: &Limits,
    policy: &EventPolicy,
    has_further_rules: bool,
    private_kinds: &[u32],
    services: OfferedServices,
) -> String {
    let mut document = Map::new();
    let mut put = |name: &str, value: Value| document.insert(name.into(), value);
    put("name", json!(name(info)));
    put("description", json!(info.description));
    let terms = info.terms_url();
    let optional = [
        ("pubkey", &info.pubkey),
        ("self", &info.self_key),
        ("contact", &info.contact),
        ("icon", &info.icon),
        ("banner", &info.banner),
        ("terms_of_service", &terms),
        ("payments_url", &info.payments_url),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            put(name, json!(value));
        }
    }
    if !info.fees.is_empty() {
        put("fees", fees(&info.fees));
    }
    put("supported_nips", json!(nips(info, limits, policy, private_kinds, services)));
    // NIP-11 requires the URL of the project's homepage, or no field.
    if !SOFTWARE.is_empty() {
        put("software", json!(SOFTWARE));
    }
    put("version", json!(env!("CARGO_PKG_VERSION")));
    let mut limitation = json!({
        // Every type of message may have this length; an EVENT may be longer.
        "max_message_length": question_bytes_max(limits),
        "max_subscriptions": limits.subscriptions_max,
        "max_limit": limits.filters.limit_max,
        "default_limit": limits.filters.limit_default,
        "max_subid_length": limits.subscription_id_chars_max,
        "max_event_tags": limits.events.event_tags_max,
        "max_content_length": content_chars_max(limits),
        "created_at_upper_limit": limits.events.created_at_ahead_s_max,
        "min_pow_difficulty": policy.pow_bits_min,
        "auth_required": policy.questions.needs_auth(),
        "payment_required": info.fees.iter().any(|fee| fee.purpose == FeePurpose::Admission),
        "restricted_writes": has_further_rules || policy.restricts_writes(),
    });
    if let (Some(bound), Some(fields)) =
        (limits.events.created_at_behind_s_max, limitation.as_object_mut())
    {
        fields.insert("created_at_lower_limit".into(), json!(bound));
    }
    put("limitation", limitation);
    Value::Object(document).to_string()
}

/// The fees, by purpose.
fn fees(fees: &[RelayFee]) -> Value {
    let mut by_purpose = Map::new();
    for purpose in FeePurpose::ALL {
        let of_purpose = fees.iter().filter(|fee| fee.purpose == purpose);
        let listed: Vec<Value> = of_purpose.map(fee_fields).collect();
        if !listed.is_empty() {
            by_purpose.insert(purpose.name().into(), listed.into());
        }
    }
    Value::Object(by_purpose)
}

fn fee_fields(fee: &RelayFee) -> Value {
    let mut fields = json!({ "amount": fee.amount, "unit": fee.unit });
    if let Some(period_s) = fee.period_s {
        fields["period"] = json!(period_s);
    }
    if !fee.kinds.is_empty() {
        fields["kinds"] = json!(fee.kinds);
    }
    fields
}

/// Size of an event without tags and content, in bytes.
const BARE_EVENT_BYTES: usize = 350;

/// Maximum number of characters of an event's content: the smaller of the limit for contents and
/// the limit that follows from the maximum size of an event.
fn content_chars_max(limits: &Limits) -> usize {
    let event_bytes_max = limits.events.event_bytes_max.min(limits.message_bytes_max);
    limits.events.content_chars_max.min(event_bytes_max.saturating_sub(BARE_EVENT_BYTES))
}

pub(crate) fn name(info: &RelayInfo) -> &str {
    if info.name.is_empty() { "Hark" } else { &info.name }
}

#[cfg(test)]
mod tests {
    use hark_networks::nostr::question_rules::{MembersOnly, QuestionRules};

    use super::*;

    const NONE: OfferedServices =
        OfferedServices { searches: false, management: false, membership: false };
    const SEARCHES: OfferedServices = OfferedServices { searches: true, ..NONE };
    const MANAGED: OfferedServices = OfferedServices { management: true, ..NONE };
    const JOINED: OfferedServices = OfferedServices { membership: true, ..NONE };

    #[test]
    fn the_document_follows_the_limits() {
        let mut limits = Limits::default();
        limits.filters.limit_max = 77;
        let url = Some("wss://relay.example".into());
        let info = RelayInfo { name: "<b>{url}".into(), url, ..RelayInfo::default() };
        let document = document(&info, &limits, &EventPolicy::default(), false, &[4], SEARCHES);
        let document: Value = serde_json::from_str(&document).unwrap();
        assert_eq!(document["limitation"]["max_limit"], 77);
        assert_eq!(document["name"], "<b>{url}");
        assert!(document.get("pubkey").is_none());
        assert_eq!(
            document["supported_nips"],
            json!([1, 4, 9, 11, 40, 42, 45, 50, 62, 67, 70, 77, 91])
        );
        // NIP-11 has removed these fields, or never had such fields.
        for gone in ["retention", "posting_policy", "relay_countries", "language_tags", "tags"] {
            assert!(document.get(gone).is_none(), "{gone}");
        }
        let software = document.get("software").and_then(Value::as_str);
        assert!(software.is_none_or(|url| url.starts_with("https://")), "{software:?}");
    }

    #[test]
    fn a_nip_is_named_where_the_settings_let_it_be_used() {
        let (limits, open) = (Limits::default(), EventPolicy::default());
        let kinds = [4, 1059, 21_059];
        let is_named =
            |nip: u16, limits: &Limits, policy: &EventPolicy, services: OfferedServices| {
                nips(&RelayInfo::default(), limits, policy, &kinds, services).contains(&nip)
            };
        let no_auth = Limits { auth_keys_max: 0, ..limits.clone() };
        let no_comparison = Limits { negentropy_per_connection_max: 0, ..limits.clone() };
        let deny = |kind| EventPolicy { deny_kinds: vec![kind..=kind], ..open.clone() };
        let allow = |kind| EventPolicy { allow_kinds: Some(vec![kind..=kind]), ..open.clone() };
        let work = EventPolicy { pow_bits_min: 1, ..open.clone() };
        for (nip, with, without) in [
            (4, (&limits, &allow(4), NONE), (&limits, &deny(4), NONE)),
            (17, (&limits, &open, NONE), (&limits, &allow(4), NONE)),
            (59, (&limits, &open, NONE), (&no_auth, &open, NONE)),
            (42, (&limits, &open, NONE), (&no_auth, &open, NONE)),
            (13, (&limits, &work, NONE), (&limits, &open, NONE)),
            (50, (&limits, &open, SEARCHES), (&limits, &open, NONE)),
            (86, (&limits, &open, MANAGED), (&limits, &open, NONE)),
            (43, (&limits, &open, JOINED), (&limits, &open, NONE)),
            (77, (&limits, &open, NONE), (&no_comparison, &open, NONE)),
        ] {
            assert!(is_named(nip, with.0, with.1, with.2), "NIP-{nip}");
            assert!(!is_named(nip, without.0, without.1, without.2), "NIP-{nip}");
        }
        let nameless = nips(&RelayInfo::default(), &limits, &open, &kinds, NONE);
        assert!(!nameless.contains(&VANISH), "requests to vanish name a URL");
        assert!(
            !nips(&RelayInfo::default(), &limits, &open, &[], NONE).contains(&4),
            "everybody reads kind 4 then"
        );
    }

    #[test]
    fn an_auth_is_required_where_members_alone_read_the_relay() {
        let is_required = |members_only: MembersOnly| {
            let questions = QuestionRules { members_only, ..QuestionRules::default() };
            let policy = EventPolicy { questions, ..EventPolicy::default() };
            let (info, limits) = (RelayInfo::default(), Limits::default());
            let text = document(&info, &limits, &policy, false, &[], NONE);
            let document: Value = serde_json::from_str(&text).unwrap();
            document["limitation"]["auth_required"].as_bool().unwrap()
        };
        assert!(is_required(MembersOnly::Everything));
        assert!(!is_required(MembersOnly::Kinds(vec![30])) && !is_required(MembersOnly::default()));
    }

    #[test]
    fn fees_are_told_by_purpose_and_an_admission_fee_is_required() {
        let fee = |purpose, period_s, kinds| {
            let unit = "msats".into();
            RelayFee { purpose, amount: 5, unit, period_s, kinds }
        };
        let told = |fees| {
            let payments_url = Some("https://pay.example".into());
            let info = RelayInfo { payments_url, fees, ..RelayInfo::default() };
            let (limits, policy) = (Limits::default(), EventPolicy::default());
            let text = document(&info, &limits, &policy, false, &[], NONE);
            serde_json::from_str::<Value>(&text).unwrap()
        };
        let document = told(vec![
            fee(FeePurpose::Publication, None, vec![4]),
            fee(FeePurpose::Subscription, Some(60), Vec::new()),
        ]);
        assert_eq!(
            document["fees"],
            json!({
                "subscription": [{"amount": 5, "unit": "msats", "period": 60}],
                "publication": [{"amount": 5, "unit": "msats", "kinds": [4]}],
            })
        );
        assert_eq!(document["payments_url"], "https://pay.example");
        assert_eq!(document["limitation"]["payment_required"], false);
        let admission = told(vec![fee(FeePurpose::Admission, None, Vec::new())]);
        assert_eq!(admission["limitation"]["payment_required"], true);
        assert_eq!(told(Vec::new()).get("fees"), None);
    }

    #[test]
    fn the_relays_own_key_is_in_the_document_if_it_has_one() {
        let own_key = |self_key: Option<String>| {
            let info = RelayInfo { self_key, ..RelayInfo::default() };
            let text =
                document(&info, &Limits::default(), &EventPolicy::default(), false, &[], NONE);
            serde_json::from_str::<Value>(&text).unwrap().get("self").cloned()
        };
        let key = "ab".repeat(32);
        assert_eq!(own_key(Some(key.clone())), Some(json!(key)));
        assert_eq!(own_key(None), None);
    }
}
