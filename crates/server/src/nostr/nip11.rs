//! What the relay says about itself to programs: the NIP-11 document. It follows from the effective
//! limits.

use hark_archive::limits::Limits;
use serde_json::{Map, Value, json};

use super::RelayInfo;
use super::policy::EventPolicy;

/// NIPs that are offered, whatever the configuration.
const NIPS: [u16; 11] = [1, 9, 11, 13, 40, 42, 45, 65, 67, 70, 91];
/// NIPs that are offered if a kind is private, by kind.
const PRIVATE_NIPS: [(u32, &[u16]); 2] = [(4, &[4]), (1059, &[17, 59])];

/// The NIP of requests to vanish, which is offered if the relay knows the URL that they name.
const VANISH: u16 = 62;

/// The NIP of comparisons, which is offered if a connection may have one.
const COMPARISONS: u16 = 77;

/// The NIP of searches, which is offered if texts are searched.
const SEARCH: u16 = 50;

pub(crate) fn nips(
    info: &RelayInfo,
    limits: &Limits,
    private_kinds: &[u32],
    searches: bool,
) -> Vec<u16> {
    let kept = PRIVATE_NIPS.iter().filter(|(kind, _)| private_kinds.contains(kind));
    let mut nips: Vec<u16> = kept.flat_map(|(_, nips)| *nips).chain(&NIPS).copied().collect();
    nips.extend((limits.negentropy_per_connection_max > 0).then_some(COMPARISONS));
    nips.extend(searches.then_some(SEARCH));
    nips.extend(info.url.is_some().then_some(VANISH));
    nips.sort_unstable();
    nips
}

/// The NIP-11 document.
pub(crate) fn document(
    info: &RelayInfo,
    limits: &Limits,
    policy: &EventPolicy,
    private_kinds: &[u32],
    searches: bool,
) -> String {
    let mut document = Map::new();
    let mut put = |name: &str, value: Value| document.insert(name.into(), value);
    put("name", json!(name(info)));
    put("description", json!(info.description));
    let optional = [
        ("pubkey", &info.pubkey),
        ("contact", &info.contact),
        ("icon", &info.icon),
        ("banner", &info.banner),
        ("terms_of_service", &info.terms_of_service),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            put(name, json!(value));
        }
    }
    put("supported_nips", json!(nips(info, limits, private_kinds, searches)));
    put("software", json!(env!("CARGO_PKG_NAME").trim_end_matches("-server")));
    put("version", json!(env!("CARGO_PKG_VERSION")));
    let mut limitation = json!({
        "max_message_length": limits.message_bytes_max,
        "max_subscriptions": limits.subscriptions_max,
        "max_limit": limits.limit_max,
        "default_limit": limits.limit_default,
        "max_subid_length": limits.subscription_id_chars_max,
        "max_event_tags": limits.event_tags_max,
        "max_content_length": content_chars_max(limits),
        "created_at_upper_limit": limits.created_at_ahead_s_max,
        "min_pow_difficulty": policy.pow_bits_min,
        "auth_required": false,
        "payment_required": false,
        "restricted_writes": policy.restricts_writes(),
    });
    if let (Some(bound), Some(fields)) =
        (limits.created_at_behind_s_max, limitation.as_object_mut())
    {
        fields.insert("created_at_lower_limit".into(), json!(bound));
    }
    put("limitation", limitation);
    Value::Object(document).to_string()
}

/// Bytes of an event without tags and content.
const BARE_EVENT_BYTES: usize = 350;

/// Maximum number of characters of a content: by its own limit, and by that of an event's bytes.
fn content_chars_max(limits: &Limits) -> usize {
    limits.content_chars_max.min(limits.event_bytes_max.saturating_sub(BARE_EVENT_BYTES))
}

pub(crate) fn name(info: &RelayInfo) -> &str {
    if info.name.is_empty() { "Hark" } else { &info.name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_follows_the_limits() {
        let limits = Limits { limit_max: 77, ..Limits::default() };
        let url = Some("wss://relay.example".into());
        let info = RelayInfo { name: "<b>{url}".into(), url, ..RelayInfo::default() };
        let document = document(&info, &limits, &EventPolicy::default(), &[4], true);
        let document: Value = serde_json::from_str(&document).unwrap();
        assert_eq!(document["limitation"]["max_limit"], 77);
        assert_eq!(document["name"], "<b>{url}");
        assert!(document.get("pubkey").is_none());
        assert_eq!(
            document["supported_nips"],
            json!([1, 4, 9, 11, 13, 40, 42, 45, 50, 62, 65, 67, 70, 77, 91])
        );
        let without = Limits { negentropy_per_connection_max: 0, ..limits };
        let nips = nips(&RelayInfo::default(), &without, &[4], false);
        assert!(![COMPARISONS, SEARCH, VANISH].iter().any(|nip| nips.contains(nip)));
    }
}
