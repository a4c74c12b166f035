//! Rules of NIP-11: the information document, and the limits that the document announces.
#![expect(clippy::unused_async, reason = "all rules are functions of one type")]

use serde_json::{Value, json};

use super::rule::RuleForce::{May, Must, Plain, Should};
use super::rule::{Rule, rule};
use super::trial::RuleTrial;
use crate::probe::client::QuestionEnd;
use crate::probe::end::{ProbeEnd, ProbeResult, ensure};
use crate::probe::event::EventPlan;
use crate::probe::info::ProbeInfo;
use crate::probe::run::now;

const EXCEED: &str = "Your client should expect that requests exceed these *practical* limitations are rejected or fail immediately.";

pub(super) const RULES: &[Rule] = &[
    rule(
        (11, "document"),
        Should,
        "When a relay receives an HTTP(s) request with an `Accept` header of `application/nostr+json` to a URI supporting WebSocket upgrades, they SHOULD return a document with the following structure.",
        ("GET with the header", "status 200 and a JSON object"),
        |t| Box::pin(document(t)),
    ),
    rule(
        (11, "content-type"),
        May,
        "This is made available as a JSON document over HTTP, on the same URI as the relay's websocket.",
        ("GET with the header", "a content type for JSON"),
        |t| Box::pin(content_type(t)),
    ),
    rule(
        (11, "cors"),
        Must,
        "Relays MUST accept CORS requests by sending `Access-Control-Allow-Origin`, `Access-Control-Allow-Headers`, and `Access-Control-Allow-Methods` headers.",
        ("GET with an Origin, and OPTIONS", "each of the three headers in one of the answers"),
        |t| Box::pin(cors(t)),
    ),
    rule(
        (11, "supported-nips"),
        Plain,
        "This field is an array of the integer identifiers of `NIP`s that are implemented in the relay.",
        ("GET with the header", "an array of integers"),
        |t| Box::pin(supported_nips(t)),
    ),
    rule(
        (11, "name"),
        Should,
        "This is a string, and SHOULD be less than 30 characters to avoid client truncation.",
        ("GET with the header", "a short name"),
        |t| Box::pin(name(t)),
    ),
    rule(
        (11, "software"),
        Must,
        "If present, this MUST be a URL to the project's homepage.",
        ("GET with the header", "a URL"),
        |t| Box::pin(software(t)),
    ),
    rule(
        (11, "self"),
        Must,
        "using the `self` field, which MUST be a 32-byte hex public key",
        ("GET with the header", "64 hex digits"),
        |t| Box::pin(self_key(t)),
    ),
    rule(
        (11, "pubkey"),
        Plain,
        "An administrative contact may be listed with a `pubkey`, in the same format as Nostr events (32-byte hex for a `secp256k1` public key).",
        ("GET with the header", "64 hex digits"),
        |t| Box::pin(pubkey(t)),
    ),
    rule(
        (11, "max-subscriptions"),
        Should,
        EXCEED,
        ("as many subscriptions as allowed, and one more", "CLOSED for the last one only"),
        |t| Box::pin(max_subscriptions(t)),
    ),
    rule(
        (11, "max-subid-length"),
        Should,
        EXCEED,
        ("the longest allowed subscription id, and a longer one", "the longer id is refused"),
        |t| Box::pin(max_subid_length(t)),
    ),
    rule(
        (11, "max-limit"),
        Plain,
        "the relay server will clamp each filter's `limit` value to this number",
        ("a limit above max_limit", "an answer, and not CLOSED"),
        |t| Box::pin(max_limit(t)),
    ),
    rule(
        (11, "max-event-tags"),
        Should,
        "in any event, this is the maximum number of elements in the `tags` list.",
        ("an event with as many tags as allowed, and with one more", "the larger event is refused"),
        |t| Box::pin(max_event_tags(t)),
    ),
    rule(
        (11, "max-content-length"),
        Should,
        "maximum number of characters in the `content` field of any event. This is a count of unicode characters.",
        ("the longest allowed content, and longer content", "the longer content is refused"),
        |t| Box::pin(max_content_length(t)),
    ),
    rule(
        (11, "created-at-lower"),
        Should,
        EXCEED,
        ("an event older than created_at_lower_limit", "OK false"),
        |t| Box::pin(created_at_lower(t)),
    ),
    rule(
        (11, "created-at-upper"),
        Should,
        EXCEED,
        ("an event ahead of created_at_upper_limit", "OK false"),
        |t| Box::pin(created_at_upper(t)),
    ),
    rule(
        (11, "auth-required"),
        Plain,
        "this relay requires [NIP-42](42.md) authentication to happen before a new connection may perform any other action",
        ("a question without AUTH", "CLOSED, if auth_required is true"),
        |t| Box::pin(auth_required(t)),
    ),
    rule(
        (11, "min-pow-difficulty"),
        Plain,
        "new events will require at least this difficulty of PoW, based on [NIP-13](13.md), or they will be rejected by this server.",
        ("an event without work", "OK false, if the relay requires work"),
        |t| Box::pin(difficulty(t)),
    ),
];

/// Returns a field of the document. `Unsupported` if it is absent.
fn field<'a>(t: &'a RuleTrial<'_>, name: &str) -> ProbeResult<&'a Value> {
    let found = t.run.info.document.get(name).filter(|value| !value.is_null());
    found.ok_or_else(|| ProbeEnd::Unsupported(format!("the document has no {name}")))
}

/// Returns a number of `limitation`. `Unsupported` if it is absent.
fn limit(t: &RuleTrial<'_>, name: &str) -> ProbeResult<u64> {
    let found = t.run.info.limit(name);
    found.ok_or_else(|| ProbeEnd::Unsupported(format!("the document has no {name}")))
}

async fn document(t: &mut RuleTrial<'_>) -> ProbeResult {
    let info = &t.run.info;
    ensure(info.status == 200, || format!("status {}", info.status))?;
    ensure(info.document.is_object(), || "the body is no JSON object".into())
}

/// `Unsupported` if the relay has no information document.
fn require_document(t: &RuleTrial<'_>) -> ProbeResult {
    if t.run.info.document.is_object() {
        return Ok(());
    }
    Err(ProbeEnd::Unsupported("the relay has no information document".into()))
}

async fn content_type(t: &mut RuleTrial<'_>) -> ProbeResult {
    require_document(t)?;
    let found = t.run.info.header("content-type").unwrap_or_default();
    ensure(found.contains("json"), || format!("the content type is {found:?}"))
}

async fn cors(t: &mut RuleTrial<'_>) -> ProbeResult {
    require_document(t)?;
    // A browser asks for two of the headers with OPTIONS.
    let preflight = ProbeInfo::preflight(&t.run.url, t.run.timeout).await;
    for name in ["Origin", "Headers", "Methods"] {
        let header = format!("access-control-allow-{name}");
        let has = |info: &ProbeInfo| info.header(&header).is_some_and(|value| !value.is_empty());
        ensure(has(&t.run.info) || has(&preflight), || format!("no {header}"))?;
    }
    Ok(())
}

async fn supported_nips(t: &mut RuleTrial<'_>) -> ProbeResult {
    let found = field(t, "supported_nips")?;
    let is_right = found.as_array().is_some_and(|nips| nips.iter().all(Value::is_u64));
    ensure(is_right, || found.to_string())
}

async fn name(t: &mut RuleTrial<'_>) -> ProbeResult {
    let found = field(t, "name")?;
    let is_right = found.as_str().is_some_and(|name| name.chars().count() < 30);
    ensure(is_right, || found.to_string())
}

async fn software(t: &mut RuleTrial<'_>) -> ProbeResult {
    let found = field(t, "software")?;
    let is_url = |text: &str| text.contains("://") && !text.contains(' ');
    ensure(found.as_str().is_some_and(is_url), || found.to_string())
}

fn expect_key(value: &Value) -> ProbeResult {
    let is_key = |text: &str| hark_codec::hex::decode_32(text.as_bytes()).is_some();
    ensure(value.as_str().is_some_and(is_key), || value.to_string())
}

async fn self_key(t: &mut RuleTrial<'_>) -> ProbeResult {
    expect_key(field(t, "self")?)
}

async fn pubkey(t: &mut RuleTrial<'_>) -> ProbeResult {
    expect_key(field(t, "pubkey")?)
}

async fn max_subscriptions(t: &mut RuleTrial<'_>) -> ProbeResult {
    let count = limit(t, "max_subscriptions")?;
    if count > 500 {
        return Err(ProbeEnd::Undecided(format!("{count} subscriptions are too many to try")));
    }
    let filter = t.filter(json!({"kinds": [1], "limit": 1}));
    if count > 0 {
        // The first subscription shows whether the relay answers the question at all.
        t.subscribe("open0", std::slice::from_ref(&filter)).await?;
    }
    for number in 1..count {
        let id = format!("open{number}");
        let end = t.client.subscribe_paced(&id, std::slice::from_ref(&filter)).await?.end;
        if let QuestionEnd::Closed(why) = end {
            let why = format!("subscription {} of {count} is refused: {why}", number + 1);
            return Err(ProbeEnd::Failed(why));
        }
    }
    let end = t.client.subscribe("one more", &[filter]).await?.end;
    let is_closed = matches!(end, QuestionEnd::Closed(_));
    ensure(is_closed, || format!("{} subscriptions are open", count + 1))
}

async fn max_subid_length(t: &mut RuleTrial<'_>) -> ProbeResult {
    let length = limit(t, "max_subid_length")? as usize;
    if length > 100_000 {
        return Err(ProbeEnd::Undecided(format!("{length} characters are too many to try")));
    }
    let filter = t.filter(json!({"kinds": [1], "limit": 1}));
    t.subscribe(&"i".repeat(length), std::slice::from_ref(&filter)).await?;
    let end = t.client.subscribe(&"i".repeat(length + 1), &[filter]).await?.end;
    let is_closed = matches!(end, QuestionEnd::Closed(_));
    ensure(is_closed, || format!("an id of {} characters: {end:?}", length + 1))
}

async fn max_limit(t: &mut RuleTrial<'_>) -> ProbeResult {
    let limit = limit(t, "max_limit")?;
    let note = t.notes(&[0]).await?.remove(0);
    t.expect_set(t.filter(json!({"limit": limit + 1})), &[&note]).await
}

/// Publishes an event at a limit, which the relay must accept, and one above the limit.
async fn expect_bound(t: &mut RuleTrial<'_>, within: EventPlan, above: EventPlan) -> ProbeResult {
    let author = t.author.clone();
    // A plain note shows whether the relay accepts any event.
    t.notes(&[1]).await?;
    for (plan, is_allowed) in [(within, true), (above, false)] {
        let (_, answer) = t.publish(plan, &author).await?;
        let place = if is_allowed { "at" } else { "above" };
        ensure(answer.accepted == is_allowed, || {
            format!("{place} the limit: OK {} {:?}", answer.accepted, answer.message)
        })?;
    }
    Ok(())
}

async fn max_event_tags(t: &mut RuleTrial<'_>) -> ProbeResult {
    let count = limit(t, "max_event_tags")?;
    if count > 10_000 {
        return Err(ProbeEnd::Undecided(format!("{count} tags are too many to try")));
    }
    // An event with work has a tag for the nonce, too.
    let first = if t.run.work_bits() > 0 { 2 } else { 1 };
    let plan = |count: u64| (first..count).fold(t.plan(1, 0), |plan, _| plan.tag(&["x", "y"]));
    let (within, above) = (plan(count), plan(count + 1));
    expect_bound(t, within, above).await
}

async fn max_content_length(t: &mut RuleTrial<'_>) -> ProbeResult {
    let length = limit(t, "max_content_length")? as usize;
    let message = t.run.info.limit("max_message_length").unwrap_or(u64::MAX);
    if length > 1_000_000 || length as u64 + 1_000 > message {
        return Err(ProbeEnd::Undecided(format!("{length} characters are too many to try")));
    }
    let plan = |length: usize| t.plan(1, 0).content("c".repeat(length));
    let (within, above) = (plan(length), plan(length + 1));
    expect_bound(t, within, above).await
}

async fn created_at_lower(t: &mut RuleTrial<'_>) -> ProbeResult {
    let seconds = limit(t, "created_at_lower_limit")?;
    let Some(oldest) = now().checked_sub(seconds).filter(|_| seconds > 0) else {
        return Err(ProbeEnd::Unsupported("the limit admits every age".into()));
    };
    let at = |created_at: u64| EventPlan { created_at, ..t.plan(1, 0) };
    let (within, above) = (at(oldest + 60.min(seconds)), at(oldest.saturating_sub(60)));
    expect_bound(t, within, above).await
}

async fn created_at_upper(t: &mut RuleTrial<'_>) -> ProbeResult {
    let seconds = limit(t, "created_at_upper_limit")?;
    if seconds > 1_000_000_000 {
        return Err(ProbeEnd::Unsupported("the limit admits every time".into()));
    }
    let at = |created_at: u64| EventPlan { created_at, ..t.plan(1, 0) };
    let (within, above) = (at(now() + seconds.saturating_sub(30)), at(now() + seconds + 60));
    expect_bound(t, within, above).await
}

async fn auth_required(t: &mut RuleTrial<'_>) -> ProbeResult {
    let required = &t.run.info.document["limitation"]["auth_required"];
    let Some(required) = required.as_bool() else {
        return Err(ProbeEnd::Unsupported("the document has no auth_required".into()));
    };
    let answer = t.client.ask(&[t.filter(json!({"kinds": [1]}))]).await?;
    let is_closed = matches!(answer.end, QuestionEnd::Closed(_));
    // Without the requirement, a relay may still require AUTH for some actions.
    ensure(is_closed || !required, || format!("auth_required is {required}: {:?}", answer.end))
}

async fn difficulty(t: &mut RuleTrial<'_>) -> ProbeResult {
    let bits = limit(t, "min_pow_difficulty")?;
    if bits == 0 {
        return Err(ProbeEnd::Unsupported("the relay requires no work".into()));
    }
    // An id whose first bit is set has no work at all.
    let event = (0..1_000)
        .map(|number| t.plan(1, 0).content(format!("no work {number}")).sign(&t.author))
        .find(|event| event.id.as_bytes()[0] >= b'8');
    let event = event.ok_or_else(|| ProbeEnd::Undecided("every id has work".into()))?;
    t.expect_refused(&event.json()).await?;
    t.notes(&[1]).await.map(drop)
}
