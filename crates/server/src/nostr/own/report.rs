//! The relay's report about itself (NIP-66): its NIP-11 document, as tags that clients can search.

use std::ops::RangeInclusive;

use hark_networks::nostr::admit::host_name;
use serde_json::Value;

use crate::nostr::policy::EventPolicy;

/// Maximum number of accepted kinds, and of refused kinds, that the report names.
const KINDS_MAX: usize = 100;

/// Returns the tags of the report. `url` is the relay's configured URL, and `document` its NIP-11
/// document. The report has no measured times: a relay cannot measure its own reach.
pub(super) fn report_tags(url: &str, policy: &EventPolicy, document: &Value) -> Vec<Vec<String>> {
    let mut tags = Vec::new();
    let mut add = |name: &str, value: String| tags.push(vec![name.to_owned(), value]);
    add("d", normal_url(url));
    add("n", network(url).into());
    for nip in document["supported_nips"].as_array().into_iter().flatten() {
        add("N", nip.to_string());
    }
    let limitation = &document["limitation"];
    let requirements = [
        ("auth", limitation["auth_required"] == true),
        ("writes", limitation["restricted_writes"] == true),
        ("pow", limitation["min_pow_difficulty"].as_u64().unwrap_or(0) > 0),
        ("payment", limitation["payment_required"] == true),
    ];
    for (name, is_required) in requirements {
        add("R", if is_required { name.into() } else { format!("!{name}") });
    }
    for kind in few(policy.allow_kinds.as_deref().unwrap_or_default()) {
        add("k", kind.to_string());
    }
    for kind in few(&policy.deny_kinds) {
        add("k", format!("!{kind}"));
    }
    tags
}

/// The kinds of a list, ascending. None if the list has too many for the report.
fn few(list: &[RangeInclusive<u16>]) -> Vec<u16> {
    let mut kinds: Vec<u16> = list.iter().cloned().flatten().take(KINDS_MAX + 1).collect();
    kinds.sort_unstable();
    kinds.dedup();
    if kinds.len() > KINDS_MAX { Vec::new() } else { kinds }
}

/// A URL with its scheme and host in lower case, and a path.
fn normal_url(url: &str) -> String {
    let (scheme, rest) = url.trim().split_once("://").unwrap_or(("wss", url.trim()));
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (scheme, host) = (scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
    let port = if scheme == "wss" { ":443" } else { ":80" };
    let host = host.strip_suffix(port).unwrap_or(&host);
    format!("{scheme}://{host}{}", if path.is_empty() { "/" } else { path })
}

/// The name of the network of a URL in NIP-66.
fn network(url: &str) -> &'static str {
    let host = host_name(url);
    match host.rsplit_once('.').map(|(_, last)| last) {
        Some("onion") => "tor",
        Some("i2p") => "i2p",
        Some("loki") => "loki",
        _ => "clearnet",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_report_says_what_the_document_says() {
        let document = json!({
            "supported_nips": [1, 43],
            "limitation": { "auth_required": true, "restricted_writes": false,
                            "min_pow_difficulty": 8, "payment_required": false },
        });
        let policy = EventPolicy {
            allow_kinds: Some(vec![3..=3, 0..=1]),
            deny_kinds: vec![1_000..=60_000],
            ..EventPolicy::default()
        };
        let tags = report_tags("WSS://Relay.Example:443", &policy, &document);
        let wanted = [
            ["d", "wss://relay.example/"],
            ["n", "clearnet"],
            ["N", "1"],
            ["N", "43"],
            ["R", "auth"],
            ["R", "!writes"],
            ["R", "pow"],
            ["R", "!payment"],
            ["k", "0"],
            ["k", "1"],
            ["k", "3"],
        ];
        assert_eq!(tags, wanted);
        assert_eq!(normal_url("ws://abc.onion/Chat"), "ws://abc.onion/Chat");
        assert_eq!((network("ws://abc.onion/Chat"), network("wss://[::1]:7")), ("tor", "clearnet"));
    }
}
