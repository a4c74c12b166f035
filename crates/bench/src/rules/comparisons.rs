//! Rules of NIP-77 for comparisons.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::rule::RuleForce::{Plain, Should};
use super::rule::{Rule, rule};
use super::trial::RuleTrial;
use crate::probe::client::{is_of, name_of};
use crate::probe::comparison::{ComparedEvent, ComparisonClient, VERSION};
use crate::probe::end::{ProbeEnd, ProbeResult, ensure};
use crate::probe::event::ProbeEvent;
use crate::probe::refusal::{is_policy, prefix_of};

pub(super) const RULES: &[Rule] = &[
    rule(
        (77, "answer"),
        Plain,
        "Relay constructs a response and returns it to the client in a `NEG-MSG` message.",
        ("NEG-OPEN with a list of no ids", "NEG-MSG with version 61"),
        |t| Box::pin(answer(t)),
    ),
    rule(
        (77, "whole"),
        Plain,
        "The goal of the protocol is for the client to learn the set of IDs that it has and the server does not, and the set of items that the server has and it does not.",
        ("a comparison of 40 events, 5 of them on one side only", "exactly these 5 events"),
        |t| Box::pin(whole(t)),
    ),
    rule(
        (77, "equal"),
        Plain,
        "Compute the addition mod 2<sup>256</sup> of the element IDs (interpreted as 32-byte little-endian unsigned integers)",
        ("a comparison of the same events", "no difference in one round"),
        |t| Box::pin(equal(t)),
    ),
    rule(
        (77, "ties"),
        Plain,
        "If two timestamps are equal then items are sorted lexically by ID, ascending by first differing byte.",
        ("a comparison of 20 events of one second", "exactly the differences"),
        |t| Box::pin(ties(t)),
    ),
    rule(
        (77, "filter"),
        Plain,
        "Relay selects the set of events that it has locally that match the filter (or uses a cache).",
        ("a comparison of one of two kinds", "only events of this kind"),
        |t| Box::pin(filter(t)),
    ),
    rule(
        (77, "namespace"),
        Plain,
        "Subscription IDs are in a separate namespace from `REQ` subscription IDs.",
        ("REQ and NEG-OPEN with the same id, and NEG-CLOSE", "the subscription stays"),
        |t| Box::pin(namespace(t)),
    ),
    rule(
        (77, "reopened"),
        Plain,
        "If a `NEG-OPEN` is issued for a currently open subscription ID, the existing subscription is first closed.",
        ("NEG-OPEN twice with the same id and other filters", "the second filter counts"),
        |t| Box::pin(reopened(t)),
    ),
    rule(
        (77, "version"),
        Should,
        "If a server receives a message with a protocol version that it cannot handle, it should reply with a single byte containing the highest protocol version it supports",
        ("NEG-OPEN with version 6f", "NEG-MSG with one byte"),
        |t| Box::pin(version(t)),
    ),
    rule(
        (77, "error"),
        Plain,
        "If a request cannot be serviced by the relay, an error is returned to the client:",
        ("NEG-OPEN with a message that is no hex", "NEG-ERR"),
        |t| Box::pin(error(t)),
    ),
    rule(
        (77, "error-prefix"),
        Should,
        "They should begin with a machine-readable single-word prefix, followed by a `:` and then a human-readable message with more information.",
        ("NEG-OPEN with a message that is no hex", "a reason with a prefix"),
        |t| Box::pin(error_prefix(t)),
    ),
];

/// The events in the form of a comparison.
fn compared(events: &[ProbeEvent]) -> Vec<ComparedEvent> {
    let id = |event: &ProbeEvent| hark_codec::hex::decode_32(event.id.as_bytes());
    events.iter().filter_map(|event| Some((event.created_at, id(event)?))).collect()
}

fn hex(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    hark_codec::hex::encode_into(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Waits for the NEG-MSG or NEG-ERR of a comparison. Returns whether it is NEG-MSG, and its text.
async fn reply(t: &mut RuleTrial<'_>, id: &str) -> ProbeResult<(bool, String)> {
    let is_reply =
        |parts: &[Value]| matches!(name_of(parts), "NEG-MSG" | "NEG-ERR") && is_of(parts, id);
    let is_listed = t.run.info.lists(77) == Some(true);
    let parts = t.client.wait("NEG-MSG or NEG-ERR", is_reply).await.map_err(|end| match end {
        ProbeEnd::Failed(why) if !is_listed => ProbeEnd::Unsupported(why),
        other => other,
    })?;
    let text = parts.get(2).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok((name_of(&parts) == "NEG-MSG", text))
}

/// Waits for the bytes of a NEG-MSG.
async fn message(t: &mut RuleTrial<'_>, id: &str) -> ProbeResult<Vec<u8>> {
    bytes_of(reply(t, id).await?)
}

/// The bytes of a NEG-MSG. A NEG-ERR by the relay's policy leaves the check undecided.
fn bytes_of((is_message, text): (bool, String)) -> ProbeResult<Vec<u8>> {
    if !is_message && is_policy(&text) {
        return Err(ProbeEnd::Undecided(format!("the relay refuses a comparison: {text}")));
    }
    ensure(is_message, || format!("NEG-ERR {text:?}"))?;
    let mut bytes = Vec::new();
    let is_hex = hark_codec::hex::decode_into(text.as_bytes(), &mut bytes);
    ensure(is_hex && !bytes.is_empty(), || format!("NEG-MSG is no hex: {text:?}"))?;
    Ok(bytes)
}

/// Opens a comparison, as the author if the relay requires AUTH. Returns the bytes of the relay's
/// first message.
async fn open(
    t: &mut RuleTrial<'_>,
    id: &str,
    filter: &Value,
    first: &[u8],
) -> ProbeResult<Vec<u8>> {
    t.require(77)?;
    let request = json!(["NEG-OPEN", id, filter, hex(first)]);
    t.client.send(&request).await?;
    let mut answer = reply(t, id).await?;
    if !answer.0 && prefix_of(&answer.1) == Some("auth-required") {
        t.client.authenticate(&t.author).await?;
        t.client.send(&request).await?;
        answer = reply(t, id).await?;
    }
    bytes_of(answer)
}

/// Compares these events with the relay's. Returns the comparison and its number of rounds.
async fn compare(
    t: &mut RuleTrial<'_>,
    filter: &Value,
    own: &[ProbeEvent],
) -> ProbeResult<(ComparisonClient, usize)> {
    let mut comparison = ComparisonClient::new(compared(own));
    let mut bytes = open(t, "whole", filter, &comparison.open()).await?;
    for round in 1..=50 {
        let Some(next) = comparison.answer(&bytes)? else {
            t.client.send(&json!(["NEG-CLOSE", "whole"])).await?;
            return Ok((comparison, round));
        };
        t.client.send(&json!(["NEG-MSG", "whole", hex(&next)])).await?;
        bytes = message(t, "whole").await?;
    }
    Err(ProbeEnd::Failed("the comparison has not ended after 50 rounds".into()))
}

/// Compares, and checks the differences.
async fn expect_differences(
    t: &mut RuleTrial<'_>,
    filter: &Value,
    own: &[ProbeEvent],
    (only_here, only_there): (&[ProbeEvent], &[ProbeEvent]),
) -> ProbeResult {
    let ids = |events: &[ProbeEvent]| -> BTreeSet<[u8; 32]> {
        compared(events).into_iter().map(|event| event.1).collect()
    };
    let (found, _) = compare(t, filter, own).await?;
    let is_right = found.only_here == ids(only_here) && found.only_there == ids(only_there);
    ensure(is_right, || {
        let list = |ids: &BTreeSet<[u8; 32]>| ids.iter().map(|id| hex(id)).collect::<Vec<_>>();
        let (here, there) = (list(&found.only_here), list(&found.only_there));
        format!("only here: {here:?}, only there: {there:?}")
    })
}

async fn answer(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(77)?;
    t.notes(&[0]).await?;
    let filter = t.filter(json!({}));
    let bytes = open(t, "first", &filter, &ComparisonClient::new(Vec::new()).open()).await?;
    ensure(bytes.first() == Some(&VERSION), || format!("the message is {}", hex(&bytes)))
}

/// Compares 18 or more events, some of them on one side only.
async fn compare_part(t: &mut RuleTrial<'_>, ages: &[u64]) -> ProbeResult {
    t.require(77)?;
    let stored = t.notes(ages).await?;
    let unpublished: Vec<_> = (0..2)
        .map(|number| t.sign(t.plan(1, ages[number]).content("not published"), &t.author))
        .collect();
    let (missing, known) = stored.split_at(3);
    let own: Vec<_> = known.iter().chain(&unpublished).cloned().collect();
    let filter = t.filter(json!({"kinds": [1]}));
    expect_differences(t, &filter, &own, (&unpublished, missing)).await
}

async fn whole(t: &mut RuleTrial<'_>) -> ProbeResult {
    let ages: Vec<u64> = (0..38).map(|number| number * 7 % 40).collect();
    compare_part(t, &ages).await
}

async fn ties(t: &mut RuleTrial<'_>) -> ProbeResult {
    compare_part(t, &[0; 18]).await
}

async fn equal(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(77)?;
    let notes = t.notes(&(0..12).collect::<Vec<_>>()).await?;
    let filter = t.filter(json!({}));
    let (found, rounds) = compare(t, &filter, &notes).await?;
    let is_equal = found.only_here.is_empty() && found.only_there.is_empty();
    ensure(is_equal && rounds == 1, || format!("{rounds} rounds, {found:?}"))
}

async fn filter(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(77)?;
    let notes = t.notes(&[2, 1]).await?;
    t.store(t.plan(7, 0)).await?;
    let filter = t.filter(json!({"kinds": [1]}));
    expect_differences(t, &filter, &[], (&[], &notes)).await
}

async fn namespace(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(77)?;
    let filter = t.filter(json!({}));
    t.subscribe("same", std::slice::from_ref(&filter)).await?;
    open(t, "same", &filter, &ComparisonClient::new(Vec::new()).open()).await?;
    t.client.send(&json!(["NEG-CLOSE", "same"])).await?;
    let note = t.store(t.plan(1, 0)).await?;
    t.client.wait_for_event("same", &note.id).await
}

async fn reopened(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(77)?;
    t.store(t.plan(7, 0)).await?;
    let notes = t.notes(&[1]).await?;
    let first = ComparisonClient::new(Vec::new()).open();
    let (reactions, filter) = (t.filter(json!({"kinds": [7]})), t.filter(json!({"kinds": [1]})));
    open(t, "whole", &reactions, &first).await?;
    expect_differences(t, &filter, &[], (&[], &notes)).await
}

async fn version(t: &mut RuleTrial<'_>) -> ProbeResult {
    let filter = t.filter(json!({}));
    let bytes = open(t, "version", &filter, &[0x6f]).await?;
    ensure(bytes.len() == 1, || format!("the message is {}", hex(&bytes)))
}

/// Opens a comparison with a message that is no hex. Returns the reason of NEG-ERR.
async fn refused(t: &mut RuleTrial<'_>) -> ProbeResult<String> {
    t.require(77)?;
    let filter = t.filter(json!({}));
    t.client.send(&json!(["NEG-OPEN", "bad", filter, "no hex"])).await?;
    let (is_message, text) = reply(t, "bad").await?;
    ensure(!is_message, || "the relay answers NEG-MSG".into())?;
    Ok(text)
}

async fn error(t: &mut RuleTrial<'_>) -> ProbeResult {
    refused(t).await.map(drop)
}

async fn error_prefix(t: &mut RuleTrial<'_>) -> ProbeResult {
    let reason = refused(t).await?;
    ensure(prefix_of(&reason).is_some(), || format!("the reason is {reason:?}"))
}
