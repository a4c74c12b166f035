//! The parts of the page about access: who may publish and read, the services, the fees, and the
//! limits.

use std::ops::RangeInclusive;

use hark_networks::nostr::question_rules::{MembersOnly, QuestionRules};

use crate::limits::{Limits, Rate};
use crate::nostr::html::{Html, html};
use crate::nostr::message_head::question_bytes_max;
use crate::nostr::policy::EventPolicy;
use crate::nostr::{FeePurpose, RelayFee};
use crate::words::{age, number, size_set};

/// Maximum number of kinds that are listed.
const KINDS_SHOWN_MAX: usize = 12;

/// Rules for published events beside the policy.
#[derive(Clone, Copy)]
pub(super) struct FurtherRules {
    /// Whether only trusted keys may publish.
    pub(super) needs_trust: bool,
    /// Whether a plugin decides.
    pub(super) has_plugin: bool,
}

/// The rows about publishing, reading, the search for words, and the fees.
pub(super) fn access(
    policy: &EventPolicy,
    fees: &[RelayFee],
    searches: bool,
    rules: FurtherRules,
) -> Html {
    let search = if searches { "by words (NIP-50)" } else { "not offered" };
    let mut rows = vec![
        ("Who may publish", publishers(policy, rules)),
        ("Who may read", readers(&policy.questions)),
        ("Search", search.to_owned()),
    ];
    rows.extend(fees.iter().map(|fee| ("Fee", describe_fee(fee))));
    facts(rows.into_iter())
}

fn publishers(policy: &EventPolicy, rules: FurtherRules) -> String {
    let mut words = vec![match &policy.allow_keys {
        None if policy.names.is_required() => "keys with a verified name (NIP-05)".to_owned(),
        None => "everyone".to_owned(),
        Some(_) if policy.addressed_kinds.is_empty() => "members".to_owned(),
        Some(_) => "members, and those who write to members".to_owned(),
    }];
    if policy.allow_keys.is_some() && !policy.open_kinds.is_empty() {
        words.push(format!("everyone {}", kinds(&policy.open_kinds)));
    }
    if let Some(allowed) = &policy.allow_kinds {
        words.push(format!("only {}", kinds(allowed)));
    }
    if policy.allow_words.is_some() {
        words.push("only about the topic of the relay".into());
    }
    if rules.needs_trust {
        words.push("if people whom the relay trusts follow the author".into());
    }
    if rules.has_plugin {
        words.push("if a program of the operator agrees".into());
    }
    words.join("; ")
}

fn readers(rules: &QuestionRules) -> String {
    let mut words = vec![match &rules.members_only {
        MembersOnly::Everything => "members, who authenticate (NIP-42)".to_owned(),
        MembersOnly::Kinds(members) if members.is_empty() => "everyone".to_owned(),
        MembersOnly::Kinds(members) => {
            format!("everyone, except for events of {} members-only kinds", members.len())
        }
    }];
    if let Some(answered) = &rules.kinds {
        words.push(format!("only {} kinds are answered", answered.len()));
    }
    if rules.narrow {
        words.push("only by ids, authors or tags".into());
    }
    words.join("; ")
}

/// Names ranges of kinds.
fn kinds(ranges: &[RangeInclusive<u16>]) -> String {
    let shown =
        ranges.iter().take(KINDS_SHOWN_MAX).map(|range| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        });
    let more = if ranges.len() > KINDS_SHOWN_MAX { " and more" } else { "" };
    format!("kinds {}{more}", shown.collect::<Vec<_>>().join(", "))
}

fn describe_fee(fee: &RelayFee) -> String {
    let purpose = match fee.purpose {
        FeePurpose::Admission => "for admission, once",
        FeePurpose::Subscription => "for access",
        FeePurpose::Publication => "for an event",
    };
    let period = fee.period_s.map(|period_s| format!(" for {}", age(period_s)));
    let amount = format!("{} {}", number(fee.amount), fee.unit);
    format!("{amount} {purpose}{}", period.unwrap_or_default())
}

/// Rows with a name and a value.
fn facts<'a>(rows: impl Iterator<Item = (&'a str, String)>) -> Html {
    rows.map(|(name, value)| html!("<dt>{}</dt><dd>{}</dd>\n", name, value)).collect()
}

/// The limits for clients, as rows.
pub(super) fn bounds(limits: &Limits, policy: &EventPolicy) -> Html {
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
    let work = (policy.pow_bits_min > 0)
        .then(|| ("Proof of work of an event (NIP-13)", format!("{} bits", policy.pow_bits_min)));
    let rows = work.into_iter().chain(rows);
    facts(rows)
}

fn rate(rate: Option<Rate>) -> String {
    rate.map_or("any".into(), |rate| format!("{} a minute", number(rate.per_minute)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::RuleMode;

    #[test]
    fn who_may_publish_and_read_is_told_from_the_policy() {
        let (mut policy, none) = (EventPolicy::default(), [].as_slice());
        let rules = FurtherRules { needs_trust: false, has_plugin: false };
        let told = access(&policy, none, true, rules).into_text();
        for row in [
            "<dt>Who may publish</dt><dd>everyone</dd>",
            "<dt>Who may read</dt><dd>everyone</dd>",
            "<dt>Search</dt><dd>by words",
        ] {
            assert!(told.contains(row), "{row}: {told}");
        }
        policy.names.mode = RuleMode::Require;
        let told = access(&policy, none, true, rules).into_text();
        assert!(told.contains("<dd>keys with a verified name (NIP-05)</dd>"), "{told}");
        policy.allow_keys = Some([[1; 32]].into());
        policy.addressed_kinds = vec![1_059..=1_059];
        policy.open_kinds = vec![3..=3];
        policy.allow_kinds = Some(vec![0..=3, 7..=7]);
        policy.questions.members_only = MembersOnly::Everything;
        policy.questions.narrow = true;
        let unit = "<msats>".into();
        let purpose = FeePurpose::Subscription;
        let fee =
            RelayFee { purpose, amount: 5_000, unit, period_s: Some(86_400), kinds: Vec::new() };
        let rules = FurtherRules { needs_trust: true, has_plugin: true };
        let told = access(&policy, &[fee], false, rules).into_text();
        for row in [
            "<dd>members, and those who write to members; everyone kinds 3; only kinds 0-3, 7; \
             if people whom the relay trusts follow the author; if a program",
            "<dd>members, who authenticate (NIP-42); only by ids, authors or tags</dd>",
            "<dd>not offered</dd>",
            "<dd>5,000 &lt;msats&gt; for access for 1 day</dd>",
        ] {
            assert!(told.contains(row), "{row}: {told}");
        }
    }

    #[test]
    fn bounds_are_those_in_force() {
        let (mut limits, mut policy) = (Limits::default(), EventPolicy::default());
        let said = bounds(&limits, &policy).into_text();
        assert!(said.contains("<dt>Filters in a question</dt><dd>20</dd>"), "{said}");
        assert!(!said.contains("NIP-13"), "{said}");
        policy.pow_bits_min = 20;
        limits.filters.filters_max = 3;
        limits.rates.events_per_key = Some(Rate { per_minute: 1_200, at_once: 1 });
        let said = bounds(&limits, &policy).into_text();
        for row in [
            "<dt>Proof of work of an event (NIP-13)</dt><dd>20 bits</dd>",
            "<dt>Filters in a question</dt><dd>3</dd>",
            "<dt>Events of a key</dt><dd>1,200 a minute</dd>",
        ] {
            assert!(said.contains(row), "{row}: {said}");
        }
    }
}
