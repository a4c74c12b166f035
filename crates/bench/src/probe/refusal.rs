//! The messages of refusals in OK, CLOSED and NEG-ERR.

/// The prefixes of refusals by a relay's policy. A relay that refuses with one of these prefixes
/// keeps the protocol.
const POLICY_PREFIXES: [&str; 4] = ["auth-required", "blocked", "rate-limited", "restricted"];

/// Returns the first word of a message before its colon; `None` if there is no such prefix.
pub(crate) fn prefix_of(message: &str) -> Option<&str> {
    let (prefix, rest) = message.split_once(':')?;
    let is_word = !prefix.is_empty() && !prefix.contains(char::is_whitespace);
    (is_word && !rest.trim().is_empty()).then_some(prefix)
}

/// Whether a refusal with this message follows the relay's policy.
pub(crate) fn is_policy(message: &str) -> bool {
    prefix_of(message).is_some_and(|prefix| POLICY_PREFIXES.contains(&prefix))
}
