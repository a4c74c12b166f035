//! The part of the page about retention: which events are kept, and for how long.

use hark_archive::retention::{RetentionPolicy, RetentionRule};

use crate::nostr::html::{Html, html};
use crate::words::{age, size_set};

/// Formats the retention policy as list items: which events are kept, and which are removed.
pub(super) fn describe_retention(policy: &RetentionPolicy, private_kinds: &[u32]) -> Html {
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
    items.iter().map(|item| html!("<li>{}</li>\n", item)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_said_as_the_policy_means_it() {
        let policy = RetentionPolicy::default();
        assert!(describe_retention(&policy, &[]).into_text().starts_with("<li>All events stay"));
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
        let said = describe_retention(&policy, &[4]).into_text();
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
}
