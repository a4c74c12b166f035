//! Rules of NIP-01 for EVENT and OK.

use serde_json::{Value, json};

use super::rule::RuleForce::{May, Must, Plain, Should};
use super::rule::{Rule, rule};
use super::trial::RuleTrial;
use crate::probe::client::id_of;
use crate::probe::end::{ProbeEnd, ProbeResult, ensure};
use crate::probe::event::{EventPlan, sign_parts};
use crate::probe::refusal::prefix_of;
use crate::text;

/// The prefixes of NIP-01 and NIP-42, and `replaced`, which several relays use.
const PREFIXES: [&str; 12] = [
    "duplicate",
    "pow",
    "blocked",
    "rate-limited",
    "invalid",
    "restricted",
    "mute",
    "error",
    "auth-required",
    "replaced",
    "deleted",
    "unsupported",
];

pub(super) const RULES: &[Rule] = &[
    rule(
        (1, "ok"),
        Must,
        "`OK` messages MUST be sent in response to `EVENT` messages received from clients",
        ("a valid event", "OK with the event's id"),
        |t| Box::pin(ok(t)),
    ),
    rule(
        (1, "ok-parts"),
        Must,
        "The 4th parameter MUST always be present",
        ("a valid event", "OK with a boolean and a text"),
        |t| Box::pin(ok_parts(t)),
    ),
    rule(
        (1, "ok-false"),
        Must,
        "`OK` messages MUST be sent in response to `EVENT` messages received from clients, they must have the 3rd parameter set to `true` when an event has been accepted by the relay, `false` otherwise",
        ("an event with a wrong signature", "OK false, and the event is not found"),
        |t| Box::pin(wrong_signature(t)),
    ),
    rule(
        (1, "ok-prefix"),
        Must,
        "otherwise it MUST be a string formed by a machine-readable single-word prefix followed by a `:` and then a human-readable message",
        ("an event with a wrong signature", "a message with a prefix"),
        |t| Box::pin(refusal_prefix(t)),
    ),
    rule(
        (1, "ok-known-prefix"),
        May,
        "The standardized machine-readable prefixes for `OK` and `CLOSED` are: `duplicate`, `pow`, `blocked`, `rate-limited`, `invalid`, `restricted`, `mute` and `error` for when none of that fits.",
        ("an event with a wrong signature", "a standardized prefix"),
        |t| Box::pin(known_prefix(t)),
    ),
    rule(
        (1, "ok-each"),
        Must,
        "`OK` messages MUST be sent in response to `EVENT` messages received from clients",
        ("five events at once", "five OKs"),
        |t| Box::pin(ok_each(t)),
    ),
    rule(
        (1, "duplicate-ok"),
        May,
        "`[\"OK\", \"b1a649ebe8...\", true, \"duplicate: already have this event\"]`",
        ("an event twice", "the second OK is true"),
        |t| Box::pin(duplicate_ok(t)),
    ),
    rule(
        (1, "duplicate-once"),
        Should,
        "the relay SHOULD return events that match the filter",
        ("an event twice, then a question", "the event once"),
        |t| Box::pin(duplicate_once(t)),
    ),
    rule(
        (1, "id-hash"),
        Plain,
        "To obtain the `event.id`, we `sha256` the serialized event.",
        ("an event with the id of other content", "no OK true"),
        |t| Box::pin(wrong_id(t)),
    ),
    rule(
        (1, "signature-key"),
        Plain,
        "<64-bytes lowercase hex of the signature of the sha256 hash of the serialized event data, which is the same as the \"id\" field>",
        ("an event signed with another key", "OK false"),
        |t| Box::pin(foreign_signature(t)),
    ),
    rule(
        (1, "lowercase-hex"),
        Plain,
        "<32-bytes lowercase hex-encoded public key of the event creator>",
        ("an event whose pubkey has uppercase digits", "the event is not accepted"),
        |t| Box::pin(uppercase_pubkey(t)),
    ),
    rule(
        (1, "kind-range"),
        Plain,
        "\"kind\": <integer between 0 and 65535>",
        ("an event of kind 65536", "the event is not accepted"),
        |t| Box::pin(kind_range(t)),
    ),
    rule(
        (1, "kind-integer"),
        Plain,
        "\"kind\": <integer between 0 and 65535>",
        ("an event whose kind is a text", "the event is not accepted"),
        |t| Box::pin(kind_integer(t)),
    ),
    rule(
        (1, "created-at-integer"),
        Plain,
        "\"created_at\": <unix timestamp in seconds>",
        ("an event whose created_at is a text", "the event is not accepted"),
        |t| Box::pin(created_at_integer(t)),
    ),
    rule(
        (1, "created-at-whole"),
        Plain,
        "\"created_at\": <unix timestamp in seconds>",
        ("an event whose created_at has a fraction", "the event is not accepted"),
        |t| Box::pin(created_at_whole(t)),
    ),
    rule(
        (1, "tags-strings"),
        Plain,
        "<tags, as an array of arrays of non-null strings>",
        ("events with a number or null in a tag", "the events are not accepted"),
        |t| Box::pin(tags_strings(t)),
    ),
    rule(
        (1, "content-string"),
        Plain,
        "\"content\": <arbitrary string>",
        ("an event whose content is a number", "the event is not accepted"),
        |t| Box::pin(content_string(t)),
    ),
    rule(
        (1, "fields-required"),
        Plain,
        "which has the following format on the wire:",
        ("an event without sig", "the event is not accepted"),
        |t| Box::pin(missing_field(t)),
    ),
    rule(
        (1, "escapes"),
        Must,
        "The following characters in the content field must be escaped as shown, and all other characters must be included verbatim:",
        (
            "content with quotes, backslashes, tabs and line breaks",
            "accepted, and returned the same",
        ),
        |t| Box::pin(escapes(t)),
    ),
    rule(
        (1, "verbatim"),
        Must,
        "all other characters must be included verbatim",
        ("content with emoji, U+007F, U+2028 and slashes", "accepted, and returned the same"),
        |t| Box::pin(verbatim(t)),
    ),
    rule(
        (1, "other-spelling"),
        Must,
        "To prevent implementation differences from creating a different event ID for the same event, the following rules MUST be followed while serializing:",
        (
            "an event with blanks, \\u escapes and another order of fields",
            "accepted under the same id",
        ),
        |t| Box::pin(other_spelling(t)),
    ),
    rule(
        (1, "event-whole"),
        Plain,
        "`[\"EVENT\", <subscription_id>, <event JSON as defined above>]`, used to send events requested by clients.",
        ("an event with many tags, then a question", "all seven fields as published"),
        |t| Box::pin(event_whole(t)),
    ),
    rule(
        (1, "regular-stored"),
        Should,
        "events are **regular**, which means they're all expected to be stored by relays.",
        ("events of the kinds 1, 44, 1000 and 9999", "all are found"),
        |t| Box::pin(regular_stored(t)),
    ),
    rule(
        (1, "no-json"),
        Plain,
        "Clients can send 3 types of messages, which must be JSON arrays, according to the following patterns:",
        ("texts that are no message", "the relay still answers"),
        |t| Box::pin(no_json(t)),
    ),
];

async fn ok(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[0]).await.map(drop)
}

async fn ok_parts(t: &mut RuleTrial<'_>) -> ProbeResult {
    let keys = t.author.clone();
    let (_, answer) = t.publish(t.plan(1, 0), &keys).await?;
    let parts = answer.parts;
    let is_complete = parts.len() >= 4 && parts[2].is_boolean() && parts[3].is_string();
    ensure(is_complete, || format!("OK is {}", Value::Array(parts)))
}

/// A note with a wrong signature.
fn unsigned(t: &RuleTrial<'_>) -> Value {
    let mut event = t.sign(t.plan(1, 0), &t.author).json();
    event["sig"] = json!("00".repeat(64));
    event
}

async fn wrong_signature(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.expect_refused(&unsigned(t)).await.map(drop)
}

async fn refusal_prefix(t: &mut RuleTrial<'_>) -> ProbeResult {
    let answer = t.expect_refused(&unsigned(t)).await?;
    ensure(prefix_of(&answer.message).is_some(), || format!("the message is {:?}", answer.message))
}

async fn known_prefix(t: &mut RuleTrial<'_>) -> ProbeResult {
    let answer = t.expect_refused(&unsigned(t)).await?;
    let is_known = prefix_of(&answer.message).is_some_and(|prefix| PREFIXES.contains(&prefix));
    ensure(is_known, || format!("the message is {:?}", answer.message))
}

async fn ok_each(t: &mut RuleTrial<'_>) -> ProbeResult {
    let first = t.notes(&[0]).await?;
    let events: Vec<_> =
        (1..=5).map(|ago| t.sign(t.plan(1, ago).content("one of five"), &t.author)).collect();
    for event in &events {
        t.client.send(&json!(["EVENT", event.json()])).await?;
    }
    for event in &events {
        let is_wanted = |parts: &[Value]| {
            parts.first() == Some(&json!("OK")) && parts.get(1) == Some(&json!(event.id))
        };
        let parts = t.client.wait("OK", is_wanted).await?;
        if parts.get(2) == Some(&json!(true)) {
            let keys = t.author.clone();
            t.remember(event, &keys);
        }
    }
    ensure(first.len() == 1, String::new)
}

async fn duplicate_ok(t: &mut RuleTrial<'_>) -> ProbeResult {
    let note = t.notes(&[0]).await?.remove(0);
    let answer = t.client.publish(&note.json()).await?;
    ensure(answer.accepted, || format!("OK false {:?}", answer.message))
}

async fn duplicate_once(t: &mut RuleTrial<'_>) -> ProbeResult {
    let note = t.notes(&[0]).await?.remove(0);
    t.client.publish(&note.json()).await?;
    t.expect_order(t.filter(json!({})), &[&note]).await
}

async fn wrong_id(t: &mut RuleTrial<'_>) -> ProbeResult {
    let mut event = t.sign(t.plan(1, 0), &t.author).json();
    event["content"] = json!("other content");
    t.expect_refused(&event).await.map(drop)
}

async fn foreign_signature(t: &mut RuleTrial<'_>) -> ProbeResult {
    let mut event = t.sign(t.plan(1, 0), &t.author).json();
    let parts = json!([
        0,
        event["pubkey"],
        event["created_at"],
        event["kind"],
        event["tags"],
        event["content"]
    ]);
    let (id, sig) = sign_parts(&t.other, &parts);
    ensure(id == id_of(&event), || "the serialization is not stable".into())?;
    event["sig"] = json!(sig);
    t.expect_refused(&event).await.map(drop)
}

/// Sends an event with an invalid field and a correct signature. The relay may answer in any way
/// except by accepting the event, and may also end the connection.
async fn invalid(t: &mut RuleTrial<'_>, field: &str, value: Value) -> ProbeResult {
    let mut event = t.sign(t.plan(1, 0), &t.author).json();
    event[field] = value;
    let parts = json!([
        0,
        event["pubkey"],
        event["created_at"],
        event["kind"],
        event["tags"],
        event["content"]
    ]);
    let (id, sig) = sign_parts(&t.author, &parts);
    event["id"] = json!(id);
    event["sig"] = json!(sig);
    is_not_accepted(t, &event).await
}

async fn is_not_accepted(t: &mut RuleTrial<'_>, event: &Value) -> ProbeResult {
    let id = id_of(event);
    t.client.send(&json!(["EVENT", event])).await?;
    let is_accepted = |parts: &[Value]| {
        parts.first() == Some(&json!("OK"))
            && parts.get(1) == Some(&json!(id))
            && parts.get(2) == Some(&json!(true))
    };
    // A new connection asks for the event, since the relay may close the first connection.
    let synced = t.client.sync().await;
    let accepted = if synced.is_ok() { t.client.received(is_accepted) } else { false };
    ensure(!accepted, || "OK true for an invalid event".into())?;
    t.client = t.connect().await?;
    t.expect_absent(&id).await
}

async fn uppercase_pubkey(t: &mut RuleTrial<'_>) -> ProbeResult {
    let pubkey = text::hex(t.author.public()).to_uppercase();
    invalid(t, "pubkey", json!(pubkey)).await
}

async fn kind_range(t: &mut RuleTrial<'_>) -> ProbeResult {
    invalid(t, "kind", json!(65_536)).await
}

async fn kind_integer(t: &mut RuleTrial<'_>) -> ProbeResult {
    invalid(t, "kind", json!("1")).await
}

async fn created_at_integer(t: &mut RuleTrial<'_>) -> ProbeResult {
    let time = t.time.to_string();
    invalid(t, "created_at", json!(time)).await
}

async fn created_at_whole(t: &mut RuleTrial<'_>) -> ProbeResult {
    let time = t.time as f64 + 0.5;
    invalid(t, "created_at", json!(time)).await
}

async fn tags_strings(t: &mut RuleTrial<'_>) -> ProbeResult {
    invalid(t, "tags", json!([["t", 7]])).await?;
    invalid(t, "tags", json!([["t", null]])).await?;
    invalid(t, "tags", json!(["t"])).await
}

async fn content_string(t: &mut RuleTrial<'_>) -> ProbeResult {
    invalid(t, "content", json!(7)).await
}

async fn missing_field(t: &mut RuleTrial<'_>) -> ProbeResult {
    let mut event = t.sign(t.plan(1, 0), &t.author).json();
    if let Some(fields) = event.as_object_mut() {
        fields.remove("sig");
    }
    is_not_accepted(t, &event).await
}

/// Publishes content, and checks that the same content comes back.
async fn round_trip(t: &mut RuleTrial<'_>, plan: EventPlan) -> ProbeResult {
    let keys = t.author.clone();
    let event = t.sign(plan, &keys);
    let answer = t.client.publish_as(&keys, &event.json()).await?;
    if !answer.accepted {
        // A plain note shows whether the relay refuses the content or any event.
        t.notes(&[1]).await?;
        return Err(ProbeEnd::Failed(format!("OK false {:?}", answer.message)));
    }
    t.remember(&event, &keys);
    let found = t.ask(&[json!({"ids": [event.id]})]).await?.events;
    ensure(found == [event.json()], || format!("returned as {}", Value::Array(found)))
}

async fn escapes(t: &mut RuleTrial<'_>) -> ProbeResult {
    let plan = t.plan(1, 0).content("\"quoted\" \\ back\\\\slash\ttab\nline\r\nbreak\u{8}\u{c}");
    round_trip(t, plan).await
}

async fn verbatim(t: &mut RuleTrial<'_>) -> ProbeResult {
    let plan = t.plan(1, 0).content("🌅 é ﷽ \u{7f} \u{2028}\u{2029} </script> a/b \u{fffe} 👩‍👩‍👧");
    round_trip(t, plan).await
}

async fn other_spelling(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[1]).await?;
    let keys = t.author.clone();
    let event = t.sign(t.plan(1, 0).content("A/é🌅"), &keys);
    let text = format!(
        "[ \"EVENT\" , {{ \"sig\":\"{}\",\n\"content\": \"\\u0041\\/\\u00e9\\ud83c\\udf05\", \"tags\" : {},\
         \t\"kind\": {} , \"created_at\":{}, \"pubkey\":\"{}\",\"id\":\"{}\" }} ]",
        event.sig,
        json!(event.tags),
        event.kind,
        event.created_at,
        event.pubkey,
        event.id,
    );
    t.client.send_text(&text).await?;
    let is_ok = |parts: &[Value]| {
        parts.first() == Some(&json!("OK")) && parts.get(1) == Some(&json!(event.id))
    };
    let parts = t.client.wait("OK", is_ok).await?;
    ensure(parts.get(2) == Some(&json!(true)), || format!("OK is {}", Value::Array(parts)))?;
    t.remember(&event, &keys);
    let found = t.ask(&[json!({"ids": [event.id]})]).await?.events;
    ensure(found == [event.json()], || format!("returned as {}", Value::Array(found)))
}

async fn event_whole(t: &mut RuleTrial<'_>) -> ProbeResult {
    let plan = t.plan(1, 0).tag(&["alt", ""]).tag(&["x"]).tag(&["t", "two", "three", "four"]);
    let plan = (0..40).fold(plan, |plan, at| plan.tag(&["z", &format!("value {at}")]));
    round_trip(t, plan.content("with tags")).await
}

async fn regular_stored(t: &mut RuleTrial<'_>) -> ProbeResult {
    let mut events = Vec::new();
    for kind in [1, 44, 1_000, 9_999] {
        events.push(t.store(t.plan(kind, kind % 7)).await?);
    }
    let events: Vec<_> = events.iter().collect();
    t.expect_set(t.filter(json!({})), &events).await
}

async fn no_json(t: &mut RuleTrial<'_>) -> ProbeResult {
    for text in ["", "hello", "{}", "[]", "[\"EVENT\"]", "[\"UNKNOWN\",\"x\"]", "[1,2", "\"EVENT\""]
    {
        // The relay may end the connection, and must serve other connections.
        let sent = t.client.send_text(text).await;
        if sent.is_err() || t.client.sync().await.is_err() {
            t.client = t.connect().await?;
        }
    }
    t.client.sync().await
}
