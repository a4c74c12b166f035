//! Rules of NIP-01 for subscriptions and new events, and of NIP-67 for the end of an answer.

use serde_json::{Value, json};

use super::rule::RuleForce::{May, Must, Plain, Should};
use super::rule::{Rule, rule};
use super::trial::RuleTrial;
use crate::probe::client::{ProbeClient, QuestionEnd};
use crate::probe::end::{ProbeEnd, ProbeResult, ensure};
use crate::websocket::{ConnectionKind, RelayConnection, Url};

pub(super) const RULES: &[Rule] = &[
    rule(
        (1, "live"),
        Should,
        "Any new events it receives SHOULD be sent to that same websocket until the connection is closed",
        ("a subscription, then events on another connection", "the matching event only"),
        |t| Box::pin(live(t)),
    ),
    rule(
        (1, "live-own"),
        Should,
        "Any new events it receives SHOULD be sent to that same websocket until the connection is closed",
        ("a subscription and an event on one connection", "the event, and OK"),
        |t| Box::pin(live_own(t)),
    ),
    rule(
        (1, "live-two"),
        Should,
        "Any new events it receives SHOULD be sent to that same websocket",
        ("two subscriptions that match an event", "the event for both"),
        |t| Box::pin(live_two(t)),
    ),
    rule(
        (1, "live-time"),
        Plain,
        "In short, an event matches a filter if `since <= created_at <= until` holds.",
        ("subscriptions with since and until, then events", "only events within the range"),
        |t| Box::pin(live_time(t)),
    ),
    rule(
        (1, "close"),
        Plain,
        "`[\"CLOSE\", <subscription_id>]`, used to stop previous subscriptions.",
        ("CLOSE, then a matching event", "no event"),
        |t| Box::pin(close(t)),
    ),
    rule(
        (1, "replaced"),
        Plain,
        "a new `REQ` is sent using the same `<subscription_id>` (in which case a new subscription is created, replacing the old one)",
        ("a second REQ with the same id, then events", "events of the second filter only"),
        |t| Box::pin(replaced(t)),
    ),
    rule(
        (1, "independent"),
        Must,
        "Relays MUST manage `<subscription_id>`s independently for each WebSocket connection.",
        ("the same id on two connections, and one CLOSE", "the other subscription stays"),
        |t| Box::pin(independent(t)),
    ),
    rule(
        (1, "id-length"),
        Plain,
        "`<subscription_id>` is an arbitrary, non-empty string of max length 64 chars.",
        ("a subscription id of 64 characters", "EOSE"),
        |t| Box::pin(id_length(t)),
    ),
    rule(
        (1, "id-arbitrary"),
        Plain,
        "`<subscription_id>` is an arbitrary, non-empty string of max length 64 chars.",
        ("ids with quotes, blanks and emoji", "EOSE with the same ids"),
        |t| Box::pin(id_arbitrary(t)),
    ),
    rule(
        (1, "id-limits"),
        May,
        "`<subscription_id>` is an arbitrary, non-empty string of max length 64 chars.",
        ("an empty id, and an id of 65 characters", "CLOSED"),
        |t| Box::pin(id_limits(t)),
    ),
    rule(
        (1, "ephemeral-live"),
        Should,
        "events are **ephemeral**, which means they are not expected to be stored by relays.",
        ("a subscription, then an ephemeral event", "the event"),
        |t| Box::pin(ephemeral_live(t)),
    ),
    rule(
        (1, "ephemeral-stored"),
        Should,
        "events are **ephemeral**, which means they are not expected to be stored by relays.",
        ("an ephemeral event, then a question", "no event"),
        |t| Box::pin(ephemeral_stored(t)),
    ),
    rule(
        (1, "single-endpoint"),
        Must,
        "Relays MUST only accept connections to a single endpoint when additional path segments do not influence its behavior.",
        ("a handshake at another path", "no WebSocket"),
        |t| Box::pin(single_endpoint(t)),
    ),
    rule(
        (67, "hints"),
        May,
        "A relay that implements this NIP MAY append a third element to the `EOSE` message: an array of hint strings.",
        ("a question with few matches", "EOSE with an array of texts"),
        |t| Box::pin(hints(t)),
    ),
    rule(
        (67, "finish"),
        Plain,
        "`\"finish\"`: the relay has sent every stored event matching the subscription's filters.",
        ("limit 2 of four events", "EOSE without finish"),
        |t| Box::pin(finish(t)),
    ),
    rule(
        (67, "more"),
        Plain,
        "`\"more\"`: the relay holds more matching stored events than it has sent.",
        ("a question that is answered in full", "EOSE without more"),
        |t| Box::pin(more(t)),
    ),
];

/// Waits for these events of a subscription, and then for the answer to a question as a barrier.
/// Fails if the subscription received any other event.
async fn expect_live(client: &mut ProbeClient, subscription: &str, ids: &[&str]) -> ProbeResult {
    for id in ids {
        client.wait_for_event(subscription, id).await?;
    }
    client.sync().await?;
    let mut found: Vec<_> =
        client.live(subscription).iter().map(crate::probe::client::id_of).collect();
    let mut expected: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
    found.sort();
    expected.sort();
    ensure(found == expected, || format!("{subscription}: {found:?} instead of {expected:?}"))
}

async fn live(t: &mut RuleTrial<'_>) -> ProbeResult {
    let mut reader = t.connect().await?;
    reader.subscribe_as(&t.author, "notes", &[t.filter(json!({"kinds": [1]}))]).await?;
    t.store(t.plan(7, 0)).await?;
    let note = t.store(t.plan(1, 0)).await?;
    expect_live(&mut reader, "notes", &[&note.id]).await
}

async fn live_own(t: &mut RuleTrial<'_>) -> ProbeResult {
    let filter = t.filter(json!({}));
    t.subscribe("own", &[filter]).await?;
    let note = t.store(t.plan(1, 0)).await?;
    expect_live(&mut t.client, "own", &[&note.id]).await
}

async fn live_two(t: &mut RuleTrial<'_>) -> ProbeResult {
    let filter = t.filter(json!({}));
    t.subscribe("one", std::slice::from_ref(&filter)).await?;
    t.subscribe("two", &[filter]).await?;
    let note = t.store(t.plan(1, 0)).await?;
    expect_live(&mut t.client, "one", &[&note.id]).await?;
    expect_live(&mut t.client, "two", &[&note.id]).await
}

async fn live_time(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (since, until) =
        (t.filter(json!({"since": t.time})), t.filter(json!({"until": t.time - 10})));
    t.subscribe("since", &[since]).await?;
    t.subscribe("until", &[until]).await?;
    let notes = t.notes(&[11, 10, 9, 1, 0]).await?;
    expect_live(&mut t.client, "since", &[&notes[4].id]).await?;
    expect_live(&mut t.client, "until", &[&notes[0].id, &notes[1].id]).await
}

async fn close(t: &mut RuleTrial<'_>) -> ProbeResult {
    let filter = t.filter(json!({}));
    t.subscribe("ends", std::slice::from_ref(&filter)).await?;
    t.client.close("ends").await?;
    t.subscribe("stays", &[filter]).await?;
    let note = t.store(t.plan(1, 0)).await?;
    expect_live(&mut t.client, "stays", &[&note.id]).await?;
    expect_live(&mut t.client, "ends", &[]).await
}

async fn replaced(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (notes, reactions) = (t.filter(json!({"kinds": [1]})), t.filter(json!({"kinds": [7]})));
    t.subscribe("same", &[notes]).await?;
    t.subscribe("same", &[reactions]).await?;
    t.store(t.plan(1, 0)).await?;
    let reaction = t.store(t.plan(7, 0)).await?;
    expect_live(&mut t.client, "same", &[&reaction.id]).await
}

async fn independent(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (notes, reactions) = (t.filter(json!({"kinds": [1]})), t.filter(json!({"kinds": [7]})));
    let mut second = t.connect().await?;
    t.subscribe("same", &[notes]).await?;
    second.subscribe_as(&t.author, "same", &[reactions]).await?;
    let note = t.store(t.plan(1, 0)).await?;
    let reaction = t.store(t.plan(7, 0)).await?;
    expect_live(&mut t.client, "same", &[&note.id]).await?;
    expect_live(&mut second, "same", &[&reaction.id]).await?;
    t.client.close("same").await?;
    t.client.sync().await?;
    let later = t.store(t.plan(7, 1)).await?;
    expect_live(&mut second, "same", &[&later.id]).await
}

/// Sends a REQ with this id, and requires EOSE.
async fn expect_eose(t: &mut RuleTrial<'_>, id: &str) -> ProbeResult {
    let filter = t.filter(json!({}));
    t.subscribe(id, &[filter]).await?;
    t.client.close(id).await
}

async fn id_length(t: &mut RuleTrial<'_>) -> ProbeResult {
    expect_eose(t, &"i".repeat(64)).await
}

async fn id_arbitrary(t: &mut RuleTrial<'_>) -> ProbeResult {
    for id in ["with \"quotes\"", " blanks ", "back\\slash", "🌅", "{}", "line\nbreak"] {
        expect_eose(t, id).await?;
    }
    Ok(())
}

async fn id_limits(t: &mut RuleTrial<'_>) -> ProbeResult {
    for id in [String::new(), "i".repeat(65)] {
        let filter = t.filter(json!({}));
        let end = t.client.subscribe(&id, &[filter]).await?.end;
        let is_closed = matches!(end, QuestionEnd::Closed(_));
        ensure(is_closed, || format!("an id of {} characters is accepted", id.len()))?;
    }
    Ok(())
}

async fn ephemeral_live(t: &mut RuleTrial<'_>) -> ProbeResult {
    let mut reader = t.connect().await?;
    reader.subscribe_as(&t.author, "ephemeral", &[t.filter(json!({"kinds": [20_001]}))]).await?;
    let event = t.store(t.plan(20_001, 0)).await?;
    reader.wait_for_event("ephemeral", &event.id).await
}

async fn ephemeral_stored(t: &mut RuleTrial<'_>) -> ProbeResult {
    let event = t.store(t.plan(20_001, 0)).await?;
    t.expect_set(t.filter(json!({})), &[]).await?;
    t.expect_absent(&event.id).await
}

async fn single_endpoint(t: &mut RuleTrial<'_>) -> ProbeResult {
    let path = format!("{}/no-such-path", t.run.url.path.trim_end_matches('/'));
    let url = Url { path, ..t.run.url.clone() };
    let opened = RelayConnection::open(&url, ConnectionKind::Busy).await;
    ensure(opened.is_err(), || format!("a WebSocket at {}", url.path))
}

/// The hints of an EOSE. `Unsupported` if there are none.
fn hints_of(end: &QuestionEnd) -> ProbeResult<Vec<Value>> {
    let QuestionEnd::Eose(parts) = end else {
        return Err(ProbeEnd::Failed("the relay refuses a question".into()));
    };
    match parts.get(2) {
        None => Err(ProbeEnd::Unsupported("EOSE has no third element".into())),
        Some(Value::Array(hints)) => Ok(hints.clone()),
        Some(other) => Err(ProbeEnd::Failed(format!("the third element is {other}"))),
    }
}

async fn hints(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[0]).await?;
    let answer = t.ask(&[t.filter(json!({}))]).await?;
    let hints = hints_of(&answer.end)?;
    ensure(hints.iter().all(Value::is_string), || format!("the hints are {hints:?}"))
}

async fn finish(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[3, 2, 1, 0]).await?;
    let whole = t.ask(&[t.filter(json!({}))]).await?;
    hints_of(&whole.end)?;
    let part = t.ask(&[t.filter(json!({"limit": 2}))]).await?;
    match hints_of(&part.end) {
        Ok(hints) if hints.contains(&json!("finish")) && part.events.len() < 4 => {
            Err(ProbeEnd::Failed("finish, though the limit left out events".into()))
        }
        Err(ProbeEnd::Unsupported(_)) | Ok(_) => Ok(()),
        Err(other) => Err(other),
    }
}

async fn more(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[1, 0]).await?;
    let whole = t.ask(&[t.filter(json!({"limit": 10}))]).await?;
    let hints = hints_of(&whole.end)?;
    ensure(!hints.contains(&json!("more")), || "more, though all events were sent".into())
}
