//! The operator's plugin for the events of clients: how the plugin is asked, and the meaning of its
//! decisions for the client ([`hark_plugin`]).
//!
//! An event goes to the plugin after all other checks. The verifying threads do not wait for the
//! plugin: the event comes back to their queue. Until then the event holds its permit of the
//! intake, so the only further memory of a waiting event is one more copy of its bytes.

use std::sync::Arc;

use hark_codec::record::Key;
use hark_networks::nostr::{NostrRefusal, NostrVerdict};
use hark_plugin::{
    EventOrigin, FailureRule, PluginDecision, PluginFailure, PluginOutcome, question,
};

use super::reply_handle::ReplyHandle;
use crate::rate::RatedConnection;

/// The verdicts whose prefix a plugin's text may begin with. `duplicate` would report the event as
/// accepted.
const PREFIXES: [NostrVerdict; 7] = [
    NostrVerdict::Blocked,
    NostrVerdict::RateLimited,
    NostrVerdict::Pow,
    NostrVerdict::Invalid,
    NostrVerdict::Restricted,
    NostrVerdict::AuthRequired,
    NostrVerdict::Error,
];

/// The fate of an event after the plugin's decision.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PluginVerdict {
    Pass,
    Refuse(NostrRefusal),
    /// The event is refused, but the OK claims with this text that it was accepted.
    Feign(String),
}

/// Returns the line that asks the plugin about an event of `author`.
pub(super) fn question(event: &[u8], author: &Key, now_s: u64, from: &ReplyHandle) -> Vec<u8> {
    let source = EventOrigin::Client(from.rated.listed().ip());
    let gate = from.caller.gate();
    // A connection may have proved several keys, and the line has room for a single key.
    let authed = gate.readers.iter().find(|key| *key == author).or(gate.readers.first());
    question::line(event, now_s, source, authed)
}

/// Returns the client for the plugin's queue: the address, or the connection if a proxy names no
/// address.
pub(super) fn client(rated: &RatedConnection) -> Arc<str> {
    let connection = || format!("connection {}", rated.listed().number());
    rated.address().map_or_else(connection, |address| address.to_string()).into()
}

/// Returns the fate of an event. `rule` applies if the plugin has not decided.
pub(super) fn verdict(outcome: PluginOutcome, rule: FailureRule) -> PluginVerdict {
    match (outcome, rule) {
        (Ok(PluginDecision::Reject(msg)), _) => PluginVerdict::Refuse(refusal(msg)),
        (Ok(PluginDecision::ShadowReject(msg)), _) => PluginVerdict::Feign(msg),
        // Otherwise a client could bypass the plugin by a flood, or by events that make the plugin
        // fail.
        (Err(PluginFailure::Crowded), _) | (Err(PluginFailure::Suspended), FailureRule::Accept) => {
            PluginVerdict::Refuse(
                NostrVerdict::RateLimited.because("too many events wait for the relay's plugin"),
            )
        }
        (Ok(PluginDecision::Accept), _) | (Err(_), FailureRule::Accept) => PluginVerdict::Pass,
        (Err(_), FailureRule::Refuse) => PluginVerdict::Refuse(
            NostrVerdict::Error.because("the relay's plugin has not decided; try again later"),
        ),
    }
}

/// Returns the refusal with a plugin's text. A text without a standard prefix gets the prefix
/// `blocked`.
fn refusal(msg: String) -> NostrRefusal {
    for verdict in PREFIXES {
        let rest = msg.strip_prefix(verdict.prefix()).and_then(|rest| rest.strip_prefix(':'));
        if let Some(words) = rest {
            return verdict.because(words.trim_start().to_owned());
        }
    }
    if msg.is_empty() {
        return NostrVerdict::Blocked.because("the relay's plugin does not take this event");
    }
    NostrVerdict::Blocked.because(msg)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_plugins_text_reaches_the_client_with_a_standard_prefix() {
        for (msg, expected) in [
            ("blocked: not on white-list", "blocked: not on white-list"),
            ("rate-limited:slow down", "rate-limited: slow down"),
            ("auth-required: who are you?", "auth-required: who are you?"),
            ("not today", "blocked: not today"),
            ("duplicate: x", "blocked: duplicate: x"),
            ("blockedx: y", "blocked: blockedx: y"),
            ("", "blocked: the relay's plugin does not take this event"),
        ] {
            assert_eq!(refusal(msg.into()).to_string(), expected);
        }
    }

    #[test]
    fn a_failure_lets_events_pass_only_by_the_rule_and_a_flood_never_does() {
        let refused = |outcome: &PluginOutcome, rule| match verdict(outcome.clone(), rule) {
            PluginVerdict::Refuse(refusal) => Some(refusal.verdict),
            _ => None,
        };
        let failure = Err(PluginFailure::Timeout(Duration::from_secs(1)));
        assert_eq!(refused(&failure, FailureRule::Refuse), Some(NostrVerdict::Error));
        assert_eq!(verdict(failure, FailureRule::Accept), PluginVerdict::Pass);
        for rule in [FailureRule::Accept, FailureRule::Refuse] {
            let crowded = Err(PluginFailure::Crowded);
            assert_eq!(refused(&crowded, rule), Some(NostrVerdict::RateLimited));
            let suspended = refused(&Err(PluginFailure::Suspended), rule);
            let expected = match rule {
                FailureRule::Accept => NostrVerdict::RateLimited,
                FailureRule::Refuse => NostrVerdict::Error,
            };
            assert_eq!(suspended, Some(expected));
            let feigned = verdict(Ok(PluginDecision::ShadowReject("m".into())), rule);
            assert_eq!(feigned, PluginVerdict::Feign("m".into()));
        }
    }
}
