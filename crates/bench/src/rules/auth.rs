//! Rules of NIP-42 for AUTH, of NIP-70 for protected events, and of NIP-17 and NIP-59 for gift
//! wraps.

use serde_json::json;

use super::rule::RuleForce::{Must, Plain, Should};
use super::rule::{Rule, rule};
use super::trial::RuleTrial;
use crate::probe::client::{ProbeClient, QuestionEnd};
use crate::probe::end::{ProbeEnd, ProbeResult, ensure};
use crate::probe::event::{EventPlan, ProbeEvent};
use crate::probe::refusal::{is_policy, prefix_of};
use crate::probe::run::now;
use crate::text;

const VERIFY: &str = "To verify `AUTH` messages, relays must ensure:";
const WRAPS: &str = "Relays SHOULD protect message metadata by only serving `kind:1059` events to users p-tagged on the event (enforced using [NIP-42 AUTH](./42.md)).";

pub(super) const RULES: &[Rule] = &[
    rule(
        (42, "ok"),
        Must,
        "`AUTH` messages sent by clients MUST be answered with an `OK` message, like any `EVENT` message.",
        ("AUTH with the relay's challenge", "OK true"),
        |t| Box::pin(ok(t)),
    ),
    rule(
        (42, "kind"),
        Plain,
        "that the `kind` is `22242`",
        ("AUTH with an event of kind 1", "OK false"),
        |t| Box::pin(wrong_kind(t)),
    ),
    rule(
        (42, "old"),
        Plain,
        "that the event `created_at` is close (e.g. within ~10 minutes) of the current time",
        ("AUTH that is an hour old", "OK false"),
        |t| Box::pin(old(t)),
    ),
    rule(
        (42, "future"),
        Plain,
        "that the event `created_at` is close (e.g. within ~10 minutes) of the current time",
        ("AUTH that is an hour ahead", "OK false"),
        |t| Box::pin(future(t)),
    ),
    rule(
        (42, "challenge"),
        Plain,
        "that the `\"challenge\"` tag matches the challenge sent before",
        ("AUTH with another challenge, and without one", "OK false"),
        |t| Box::pin(wrong_challenge(t)),
    ),
    rule(
        (42, "challenge-connection"),
        Plain,
        "The challenge is valid for the duration of the connection or until another challenge is sent by the relay.",
        ("AUTH with the challenge of another connection", "OK false"),
        |t| Box::pin(foreign_challenge(t)),
    ),
    rule(
        (42, "relay"),
        Plain,
        "that the `\"relay\"` tag matches the relay URL",
        ("AUTH for another relay, and without a relay", "OK false"),
        |t| Box::pin(wrong_relay(t)),
    ),
    rule((42, "signature"), Plain, VERIFY, ("AUTH with a wrong signature", "OK false"), |t| {
        Box::pin(wrong_signature(t))
    }),
    rule(
        (42, "several-keys"),
        Must,
        "Relays MUST treat all pubkeys as authenticated accordingly.",
        ("AUTH of two keys, then a protected event of each", "both events are accepted"),
        |t| Box::pin(several_keys(t)),
    ),
    rule(
        (42, "not-broadcast"),
        Must,
        "Relays MUST exclude `kind: 22242` events from being broadcasted to any client.",
        ("an EVENT and an AUTH of kind 22242, beside a subscription", "no event"),
        |t| Box::pin(not_broadcast(t)),
    ),
    rule(
        (42, "prefix"),
        Plain,
        "`\"auth-required: \"` - for when a client has not performed `AUTH` and the relay requires that to fulfill the query or write the event.",
        ("a protected event without AUTH", "auth-required: or another refusal with a prefix"),
        |t| Box::pin(prefix(t)),
    ),
    rule(
        (70, "default"),
        Must,
        "The default behavior of a relay MUST be to reject any event that contains `[\"-\"]`.",
        ("a protected event without AUTH", "OK false, and the event is not found"),
        |t| Box::pin(protected(t)),
    ),
    rule(
        (70, "other-key"),
        Must,
        "Relays that want to accept such events MUST first require that the client perform the [NIP-42](42.md) `AUTH` flow and then check if the authenticated client has the same pubkey as the event being published and only accept the event in that case.",
        ("a protected event after AUTH with another key", "OK false"),
        |t| Box::pin(protected_other(t)),
    ),
    rule(
        (70, "author"),
        Plain,
        "A protected event is an event that can only be published to relays by its author.",
        ("a protected event after AUTH of its author", "OK true"),
        |t| Box::pin(protected_author(t)),
    ),
    rule(
        (70, "repost"),
        Should,
        "If a repost of a protected event embeds the event anyway, relays SHOULD summarily reject it.",
        ("a repost that embeds a protected event", "OK false"),
        |t| Box::pin(repost(t)),
    ),
    rule(
        (17, "without-auth"),
        Should,
        WRAPS,
        ("questions for a gift wrap without AUTH", "the gift wrap is not returned"),
        |t| Box::pin(wrap_without_auth(t)),
    ),
    rule(
        (17, "other-key"),
        Should,
        WRAPS,
        ("questions for a gift wrap with another key", "the gift wrap is not returned"),
        |t| Box::pin(wrap_other_key(t)),
    ),
    rule(
        (17, "recipient"),
        Should,
        WRAPS,
        ("a question for a gift wrap by its recipient", "the gift wrap"),
        |t| Box::pin(wrap_recipient(t)),
    ),
    rule(
        (17, "live"),
        Should,
        WRAPS,
        ("a subscription of a stranger, then a gift wrap", "the gift wrap is not delivered"),
        |t| Box::pin(wrap_live(t)),
    ),
    rule(
        (59, "ephemeral"),
        Must,
        "follows ephemeral event semantics (relays MUST NOT store it)",
        ("a gift wrap of kind 21059, and a question of its recipient", "no event"),
        |t| Box::pin(ephemeral_wrap(t)),
    ),
    rule(
        (59, "deletion"),
        Should,
        "relays SHOULD delete `kind:1059` events whose p-tag matches the signer of [NIP-09](09.md) deletions or [NIP-62](62.md) vanish requests.",
        ("a deletion request of a gift wrap's recipient", "the gift wrap is gone"),
        |t| Box::pin(wrap_deletion(t)),
    ),
];

/// Waits for a challenge. A relay that sends no challenge on a new connection may send it when it
/// refuses a protected event or a question for gift wraps.
async fn challenged(t: &RuleTrial<'_>, client: &mut ProbeClient) -> ProbeResult<String> {
    client.sync().await?;
    if client.challenge().is_none() {
        let pubkey = text::hex(t.author.public());
        client.ask(&[json!({"kinds": [1_059], "#p": [pubkey], "limit": 1})]).await?;
    }
    if client.challenge().is_none() {
        let event = t.sign(t.plan(1, 0).tag(&["-"]), &t.author);
        client.publish(&event.json()).await?;
    }
    let challenge = client.challenge();
    challenge.ok_or_else(|| ProbeEnd::Unsupported("the relay sends no challenge".into()))
}

/// Connects again, and waits for the challenge of the new connection.
async fn start(t: &mut RuleTrial<'_>) -> ProbeResult<String> {
    let mut client = t.connect().await?;
    let challenge = challenged(t, &mut client).await?;
    t.client = client;
    Ok(challenge)
}

async fn ok(t: &mut RuleTrial<'_>) -> ProbeResult {
    start(t).await?;
    let event = t.client.auth_event(&t.author);
    let event = event.ok_or_else(|| ProbeEnd::Unsupported("no challenge".into()))?;
    let answer = t.client.auth(&event).await?;
    if answer.accepted {
        return Ok(());
    }
    // The NIP's sentence requires only an answer, and the refusal may be due to a wrong
    // `--relay-url`.
    let message = answer.message;
    let why = format!("OK false {message:?}; is --relay-url the relay's public address?");
    Err(ProbeEnd::Undecided(why))
}

/// Sends an AUTH that the relay must refuse.
async fn expect_refusal(t: &mut RuleTrial<'_>, plan: EventPlan) -> ProbeResult {
    let event = plan.sign(&t.author);
    expect_refusal_of(t, &event).await
}

async fn expect_refusal_of(t: &mut RuleTrial<'_>, event: &ProbeEvent) -> ProbeResult {
    let answer = t.client.auth(event).await?;
    ensure(!answer.accepted, || "OK true".into())
}

/// The plan of a right AUTH.
fn auth_plan(t: &RuleTrial<'_>, challenge: &str) -> EventPlan {
    EventPlan::new(22_242, now()).tag(&["relay", &t.run.public_url]).tag(&["challenge", challenge])
}

async fn wrong_kind(t: &mut RuleTrial<'_>) -> ProbeResult {
    let challenge = start(t).await?;
    let plan = EventPlan { kind: 1, ..auth_plan(t, &challenge) };
    expect_refusal(t, plan).await
}

async fn old(t: &mut RuleTrial<'_>) -> ProbeResult {
    let challenge = start(t).await?;
    let plan = EventPlan { created_at: now() - 3_600, ..auth_plan(t, &challenge) };
    expect_refusal(t, plan).await
}

async fn future(t: &mut RuleTrial<'_>) -> ProbeResult {
    let challenge = start(t).await?;
    let plan = EventPlan { created_at: now() + 3_600, ..auth_plan(t, &challenge) };
    expect_refusal(t, plan).await
}

async fn wrong_challenge(t: &mut RuleTrial<'_>) -> ProbeResult {
    start(t).await?;
    expect_refusal(t, auth_plan(t, "another challenge")).await?;
    let plan = EventPlan::new(22_242, now()).tag(&["relay", &t.run.public_url]);
    expect_refusal(t, plan).await
}

async fn foreign_challenge(t: &mut RuleTrial<'_>) -> ProbeResult {
    let own = start(t).await?;
    let mut second = t.connect().await?;
    let foreign = challenged(t, &mut second).await?;
    ensure(own != foreign, || "two connections have the same challenge".into())?;
    expect_refusal(t, auth_plan(t, &foreign)).await
}

async fn wrong_relay(t: &mut RuleTrial<'_>) -> ProbeResult {
    let challenge = start(t).await?;
    let plan = EventPlan::new(22_242, now()).tag(&["challenge", &challenge]);
    expect_refusal(t, plan.clone().tag(&["relay", "wss://other-relay.example"])).await?;
    expect_refusal(t, plan).await
}

async fn wrong_signature(t: &mut RuleTrial<'_>) -> ProbeResult {
    let challenge = start(t).await?;
    let mut event = auth_plan(t, &challenge).sign(&t.author);
    event.sig = "00".repeat(64);
    expect_refusal_of(t, &event).await
}

/// A protected note of the author.
fn protected_note(t: &RuleTrial<'_>) -> ProbeEvent {
    t.sign(t.plan(1, 0).tag(&["-"]).content("protected"), &t.author)
}

async fn several_keys(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(70)?;
    start(t).await?;
    let (author, other) = (t.author.clone(), t.other.clone());
    t.client.authenticate(&author).await?;
    t.client.authenticate(&other).await?;
    let mut refusals = Vec::new();
    for (number, keys) in [&author, &other].into_iter().enumerate() {
        let plan = t.plan(1, number as u64).tag(&["-"]).content("protected");
        let (_, answer) = t.publish(plan, keys).await?;
        refusals.extend((!answer.accepted).then_some(answer.message));
    }
    // The check is undecided if the relay refuses all protected events, or all events of
    // non-members.
    let is_own = |why: &String| is_policy(why) && prefix_of(why) != Some("auth-required");
    if refusals.len() > 1 || refusals.iter().any(is_own) {
        let why = format!("the relay refuses protected events: {}", refusals[0]);
        return Err(ProbeEnd::Undecided(why));
    }
    ensure(refusals.is_empty(), || format!("one of the two events has OK false: {refusals:?}"))
}

async fn not_broadcast(t: &mut RuleTrial<'_>) -> ProbeResult {
    let challenge = start(t).await?;
    let filter = json!({"authors": [text::hex(t.author.public())], "kinds": [22_242]});
    let mut reader = t.connect().await?;
    reader.subscribe_as(&t.author, "auth", std::slice::from_ref(&filter)).await?;
    let plain = EventPlan::new(22_242, now()).tag(&["t", &t.topic]).sign(&t.author);
    t.client.publish(&plain.json()).await?;
    let event = auth_plan(t, &challenge).sign(&t.author);
    t.client.auth(&event).await?;
    // An ordinary note is published afterwards as a barrier.
    reader.subscribe_as(&t.author, "barrier", &[t.filter(json!({"kinds": [1]}))]).await?;
    let note = t.store(t.plan(1, 0)).await?;
    reader.wait_for_event("barrier", &note.id).await?;
    reader.sync().await?;
    ensure(reader.live("auth").is_empty(), || "an event of kind 22242 is delivered".into())?;
    t.expect_set(filter, &[]).await
}

async fn prefix(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(70)?;
    let event = protected_note(t);
    let answer = t.client.publish(&event.json()).await?;
    if answer.accepted {
        let author = t.author.clone();
        t.remember(&event, &author);
        return Err(ProbeEnd::Undecided("the relay requires no AUTH".into()));
    }
    ensure(prefix_of(&answer.message).is_some(), || format!("the message is {:?}", answer.message))
}

async fn protected(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(70)?;
    let event = protected_note(t);
    let answer = t.client.publish(&event.json()).await?;
    if answer.accepted {
        let author = t.author.clone();
        t.remember(&event, &author);
    }
    ensure(!answer.accepted, || "OK true".into())?;
    t.expect_absent(&event.id).await
}

async fn protected_other(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(70)?;
    start(t).await?;
    let other = t.other.clone();
    t.client.authenticate(&other).await?;
    protected(t).await
}

async fn protected_author(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(70)?;
    start(t).await?;
    let author = t.author.clone();
    t.client.authenticate(&author).await?;
    let plan = t.plan(1, 0).tag(&["-"]).content("protected");
    let (event, answer) = t.publish(plan, &author).await?;
    if answer.accepted {
        return t.expect_set(json!({"ids": [event.id]}), &[&event]).await;
    }
    // A relay may also reject all protected events.
    Err(ProbeEnd::Unsupported(format!("OK false {:?}", answer.message)))
}

async fn repost(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(70)?;
    let event = protected_note(t);
    let author = t.author.clone();
    // The plain repost shows that the relay accepts reposts.
    let plan = t.plan(6, 1).tag(&["e", &event.id]).tag(&["p", &event.pubkey]);
    t.store(plan.clone()).await?;
    let plan = EventPlan { created_at: t.time, ..plan }.content(event.json().to_string());
    let (_, answer) = t.publish(plan, &author).await?;
    ensure(!answer.accepted, || "OK true".into())
}

/// Publishes a gift wrap for the author, signed with keys of its own.
async fn wrap(t: &mut RuleTrial<'_>, kind: u64) -> ProbeResult<ProbeEvent> {
    t.require_any(&[17, 59])?;
    let recipient = text::hex(t.author.public());
    let keys = t.run.keys("wrapper")?;
    let plan = t.plan(kind, 0).tag(&["p", &recipient]).content("AA==");
    let event = t.sign(plan, &keys);
    let author = t.author.clone();
    t.client.store(&event, &author).await?;
    t.remember(&event, &keys);
    Ok(event)
}

/// The filters with which a client may search for a gift wrap.
fn wrap_filters(event: &ProbeEvent) -> [serde_json::Value; 3] {
    let topic = event.value("t");
    [
        json!({"kinds": [1_059], "#p": [event.value("p")], "#t": [topic]}),
        json!({"ids": [event.id]}),
        json!({"authors": [event.pubkey], "#t": [topic]}),
    ]
}

/// Fails if a question of this connection returns the gift wrap.
async fn expect_hidden(client: &mut ProbeClient, event: &ProbeEvent) -> ProbeResult {
    for filter in wrap_filters(event) {
        let answer = client.ask(std::slice::from_ref(&filter)).await?;
        ensure(answer.events.is_empty(), || format!("the gift wrap is returned for {filter}"))?;
    }
    Ok(())
}

async fn wrap_without_auth(t: &mut RuleTrial<'_>) -> ProbeResult {
    let event = wrap(t, 1_059).await?;
    let mut stranger = t.connect().await?;
    expect_hidden(&mut stranger, &event).await
}

async fn wrap_other_key(t: &mut RuleTrial<'_>) -> ProbeResult {
    let event = wrap(t, 1_059).await?;
    start(t).await?;
    let other = t.other.clone();
    t.client.authenticate(&other).await?;
    expect_hidden(&mut t.client, &event).await
}

async fn wrap_recipient(t: &mut RuleTrial<'_>) -> ProbeResult {
    let event = wrap(t, 1_059).await?;
    match start(t).await {
        Ok(_) => {
            let author = t.author.clone();
            t.client.authenticate(&author).await?;
        }
        // A relay without AUTH serves everybody.
        Err(ProbeEnd::Unsupported(_)) => {}
        Err(other) => return Err(other),
    }
    for filter in wrap_filters(&event) {
        t.expect_set(filter, &[&event]).await?;
    }
    Ok(())
}

async fn wrap_live(t: &mut RuleTrial<'_>) -> ProbeResult {
    let mut stranger = t.connect().await?;
    let pubkey = text::hex(t.author.public());
    let filter = t.filter(json!({"kinds": [1, 1_059], "#p": [pubkey]}));
    let answer = stranger.subscribe_paced("wraps", &[filter]).await?;
    wrap(t, 1_059).await?;
    if matches!(answer.end, QuestionEnd::Closed(_)) {
        // The relay refuses gift wraps to strangers.
        stranger.sync().await?;
        return ensure(stranger.live("wraps").is_empty(), || "the gift wrap is delivered".into());
    }
    let note = t.store(t.plan(1, 0).tag(&["p", &pubkey])).await?;
    stranger.wait_for_event("wraps", &note.id).await?;
    stranger.sync().await?;
    let found = stranger.live("wraps");
    ensure(found.len() == 1, || format!("{} events", found.len()))
}

async fn ephemeral_wrap(t: &mut RuleTrial<'_>) -> ProbeResult {
    let event = wrap(t, 21_059).await?;
    if start(t).await.is_ok() {
        let author = t.author.clone();
        t.client.authenticate(&author).await?;
    }
    t.expect_absent(&event.id).await
}

async fn wrap_deletion(t: &mut RuleTrial<'_>) -> ProbeResult {
    let event = wrap(t, 1_059).await?;
    if start(t).await.is_ok() {
        let author = t.author.clone();
        t.client.authenticate(&author).await?;
    }
    t.expect_set(json!({"ids": [event.id]}), &[&event]).await?;
    let plan = EventPlan::new(5, t.time + 1).tag(&["e", &event.id]).tag(&["k", "1059"]);
    t.store(plan).await?;
    t.expect_absent(&event.id).await
}
