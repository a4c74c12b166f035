//! What the relay says about itself: the NIP-11 document for programs, a small page for people.
//! Both follow from the effective limits.

use hark_archive::limits::Limits;
use serde_json::{Map, Value, json};

use crate::RelayInfo;

/// NIPs that are offered, whatever the configuration.
const NIPS: [u16; 10] = [1, 9, 11, 40, 42, 45, 62, 65, 67, 70];
/// Those that are kept by keeping a kind private.
const PRIVATE_NIPS: [(u32, &[u16]); 2] = [(4, &[4]), (1059, &[17, 59])];

fn nips(private_kinds: &[u32]) -> Vec<u16> {
    let kept = PRIVATE_NIPS.iter().filter(|(kind, _)| private_kinds.contains(kind));
    let mut nips: Vec<u16> = kept.flat_map(|(_, nips)| *nips).chain(&NIPS).copied().collect();
    nips.sort_unstable();
    nips
}

/// The NIP-11 document.
pub(crate) fn document(info: &RelayInfo, limits: &Limits, private_kinds: &[u32]) -> String {
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
    put("supported_nips", json!(nips(private_kinds)));
    put("software", json!(env!("CARGO_PKG_NAME").trim_end_matches("-server")));
    put("version", json!(env!("CARGO_PKG_VERSION")));
    let mut limitation = json!({
        "max_message_length": limits.message_bytes_max,
        "max_subscriptions": limits.subscriptions_max,
        "max_limit": limits.limit_max,
        "default_limit": limits.limit_default,
        "max_subid_length": limits.subscription_id_chars_max,
        "max_event_tags": limits.event_tags_max,
        "max_content_length": limits.event_bytes_max,
        "created_at_upper_limit": limits.created_at_ahead_s_max,
        "min_pow_difficulty": 0,
        "auth_required": false,
        "payment_required": false,
        "restricted_writes": false,
    });
    if let (Some(bound), Some(fields)) =
        (limits.created_at_behind_s_max, limitation.as_object_mut())
    {
        fields.insert("created_at_lower_limit".into(), json!(bound));
    }
    put("limitation", limitation);
    Value::Object(document).to_string()
}

/// The page for people.
pub(crate) fn page(info: &RelayInfo, limits: &Limits, url: &str) -> String {
    let description = if info.description.is_empty() {
        "Keeps the messages of open networks and gives any slice of the history back."
    } else {
        &info.description
    };
    include_str!("page.html")
        .replace("{name}", &escape(name(info)))
        .replace("{description}", &escape(description))
        .replace("{url}", &escape(info.url.as_deref().unwrap_or(url)))
        .replace("{limit}", &limits.limit_max.to_string())
        .replace("{event_kib}", &(limits.event_bytes_max >> 10).to_string())
        .replace("{version}", env!("CARGO_PKG_VERSION"))
}

fn name(info: &RelayInfo) -> &str {
    if info.name.is_empty() { "Hark" } else { &info.name }
}

/// Text as it stands in HTML. Braces go too, so that no text is taken for a place to fill.
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
    use super::*;

    #[test]
    fn the_document_follows_the_limits_and_the_page_escapes() {
        let limits = Limits { limit_max: 77, ..Limits::default() };
        let info = RelayInfo { name: "<b>{url}".into(), ..RelayInfo::default() };
        let document: Value = serde_json::from_str(&document(&info, &limits, &[4])).unwrap();
        assert_eq!(document["limitation"]["max_limit"], 77);
        assert_eq!(document["name"], "<b>{url}");
        assert!(document.get("pubkey").is_none());
        assert_eq!(document["supported_nips"], json!([1, 4, 9, 11, 40, 42, 45, 62, 65, 67, 70]));
        let page = page(&info, &limits, "ws://x");
        assert!(page.contains("<h1>&lt;b&gt;&#123;url}</h1>") && page.contains("ws://x"));
    }
}
