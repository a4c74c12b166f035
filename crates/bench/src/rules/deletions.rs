//! Rules of NIP-09 for deletion requests, and of NIP-40 for events that expire.

use std::time::Duration;

use serde_json::json;

use super::rule::RuleForce::{May, Plain, Should};
use super::rule::{Rule, rule};
use super::trial::RuleTrial;
use crate::probe::end::{ProbeEnd, ProbeResult, ensure};
use crate::probe::event::{EventPlan, ProbeEvent};
use crate::probe::run::now;

/// A replaceable kind and an addressable kind that no client uses.
const REPLACEABLE: u64 = 17_041;
const ADDRESSABLE: u64 = 37_041;

const OWN: &str = "Relays SHOULD delete or stop publishing any referenced events that have an identical `pubkey` as the deletion request.";
const ADDRESS: &str = "When an `a` tag is used, relays SHOULD delete all versions of the replaceable event up to the `created_at` timestamp of the deletion request event.";

pub(super) const RULES: &[Rule] = &[
    rule(
        (9, "own-event"),
        Should,
        OWN,
        ("a deletion request with the ids of two events", "both events are gone"),
        |t| Box::pin(own_event(t)),
    ),
    rule(
        (9, "own-event-again"),
        Should,
        OWN,
        ("a deleted event once more", "the event is not returned"),
        |t| Box::pin(own_event_again(t)),
    ),
    rule(
        (9, "before-event"),
        Should,
        OWN,
        ("a deletion request, then the event", "the event is not returned"),
        |t| Box::pin(before_event(t)),
    ),
    rule(
        (9, "other-author"),
        Should,
        OWN,
        ("a deletion request for an event of another author", "the event stays"),
        |t| Box::pin(other_author(t)),
    ),
    rule(
        (9, "other-author-first"),
        Should,
        OWN,
        ("a stranger's deletion request, then the event", "the event is returned"),
        |t| Box::pin(other_author_first(t)),
    ),
    rule(
        (9, "request-served"),
        Should,
        "Relays SHOULD continue to publish/share the deletion request events indefinitely",
        ("a deletion request, then a question and a subscription", "the deletion request"),
        |t| Box::pin(request_served(t)),
    ),
    rule(
        (9, "address"),
        Should,
        ADDRESS,
        ("a deletion request with the address of an event", "the event is gone"),
        |t| Box::pin(address(t)),
    ),
    rule(
        (9, "address-replaceable"),
        Should,
        ADDRESS,
        ("a deletion request with the address of a replaceable event", "the event is gone"),
        |t| Box::pin(address_replaceable(t)),
    ),
    rule(
        (9, "address-time"),
        Should,
        ADDRESS,
        ("a deletion request that is older than the event", "the event stays"),
        |t| Box::pin(address_time(t)),
    ),
    rule(
        (9, "address-equal-time"),
        Should,
        ADDRESS,
        ("a deletion request of the same second", "the event is gone"),
        |t| Box::pin(address_equal_time(t)),
    ),
    rule(
        (9, "address-old-version"),
        Should,
        ADDRESS,
        ("an old version after the deletion request", "the version is not returned"),
        |t| Box::pin(address_old_version(t)),
    ),
    rule(
        (9, "address-other-d"),
        Should,
        ADDRESS,
        ("a deletion request with another d", "the event stays"),
        |t| Box::pin(address_other_d(t)),
    ),
    rule(
        (9, "address-other-author"),
        Should,
        OWN,
        ("a stranger's deletion request with the address", "the event stays"),
        |t| Box::pin(address_other_author(t)),
    ),
    rule(
        (9, "no-undo"),
        Plain,
        "Publishing a deletion request event against a deletion request has no effect.",
        (
            "a deletion request for a deletion request, and the event again",
            "the event stays deleted",
        ),
        |t| Box::pin(no_undo(t)),
    ),
    rule(
        (40, "expired-dropped"),
        Should,
        "Relays SHOULD drop any events that are published to them if they are expired.",
        ("an event that has expired", "the event is not returned"),
        |t| Box::pin(expired_dropped(t)),
    ),
    rule(
        (40, "expired-hidden"),
        Should,
        "Relays SHOULD NOT send expired events to clients, even if they are stored.",
        (
            "an event that expires in two seconds, and questions after four",
            "the event is not returned",
        ),
        |t| Box::pin(expired_hidden(t)),
    ),
    rule(
        (40, "not-expired"),
        Plain,
        "should be interpreted as the time at which the message should be deleted by relays",
        ("an event that expires in an hour", "the event is returned"),
        |t| Box::pin(not_expired(t)),
    ),
    rule(
        (40, "ephemeral"),
        May,
        "An expiration timestamp does not affect storage of ephemeral events.",
        ("an ephemeral event that expires in an hour", "the event is delivered, and not stored"),
        |t| Box::pin(ephemeral(t)),
    ),
];

/// The plan of a deletion request.
fn deletion(t: &RuleTrial<'_>, tag: &str, value: &str) -> EventPlan {
    EventPlan::new(5, t.time).tag(&[tag, value]).content("test")
}

/// The address of an event.
fn address_of(event: &ProbeEvent) -> String {
    format!("{}:{}:{}", event.kind, event.pubkey, event.value("d").unwrap_or_default())
}

async fn own_event(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let notes = t.notes(&[12, 11, 10]).await?;
    let plan = deletion(t, "e", &notes[0].id).tag(&["e", &notes[1].id]).tag(&["k", "1"]);
    t.store(plan).await?;
    t.expect_set(t.filter(json!({})), &[&notes[2]]).await?;
    t.expect_absent(&notes[0].id).await
}

async fn own_event_again(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let note = t.notes(&[10]).await?.remove(0);
    t.store(deletion(t, "e", &note.id)).await?;
    t.client.publish(&note.json()).await?;
    t.expect_absent(&note.id).await
}

async fn before_event(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let note = t.sign(t.plan(1, 10), &t.author);
    t.store(deletion(t, "e", &note.id)).await?;
    t.client.publish(&note.json()).await?;
    t.expect_absent(&note.id).await
}

async fn other_author(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let note = t.notes(&[10]).await?.remove(0);
    let other = t.other.clone();
    t.publish(deletion(t, "e", &note.id), &other).await?;
    t.expect_set(json!({"ids": [note.id]}), &[&note]).await
}

async fn other_author_first(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let note = t.sign(t.plan(1, 10), &t.author);
    let other = t.other.clone();
    t.publish(deletion(t, "e", &note.id), &other).await?;
    let author = t.author.clone();
    t.client.store(&note, &author).await?;
    t.remember(&note, &author);
    t.expect_set(json!({"ids": [note.id]}), &[&note]).await
}

async fn request_served(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let note = t.notes(&[10]).await?.remove(0);
    let filter = json!({"kinds": [5], "authors": [note.pubkey], "#e": [note.id]});
    t.subscribe("deletions", std::slice::from_ref(&filter)).await?;
    let request = t.store(deletion(t, "e", &note.id)).await?;
    t.client.wait_for_event("deletions", &request.id).await?;
    t.expect_set(filter, &[&request]).await
}

/// Publishes an addressable event, `ago` seconds before the trial's time.
async fn article(t: &mut RuleTrial<'_>, ago: u64) -> ProbeResult<ProbeEvent> {
    let plan = t.plan(ADDRESSABLE, ago).tag(&["d", &t.topic]);
    t.store(plan).await
}

async fn address(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let event = article(t, 10).await?;
    t.store(deletion(t, "a", &address_of(&event))).await?;
    t.expect_absent(&event.id).await
}

async fn address_replaceable(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let event = t.store(t.plan(REPLACEABLE, 10)).await?;
    t.store(deletion(t, "a", &address_of(&event))).await?;
    t.expect_absent(&event.id).await
}

async fn address_time(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let event = article(t, 0).await?;
    let mut plan = deletion(t, "a", &address_of(&event));
    plan.created_at -= 10;
    t.store(plan).await?;
    t.expect_set(json!({"ids": [event.id]}), &[&event]).await
}

async fn address_equal_time(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let event = article(t, 0).await?;
    t.store(deletion(t, "a", &address_of(&event))).await?;
    t.expect_absent(&event.id).await
}

async fn address_old_version(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let event = article(t, 10).await?;
    t.store(deletion(t, "a", &address_of(&event))).await?;
    let author = t.author.clone();
    let plan = t.plan(ADDRESSABLE, 5).tag(&["d", &t.topic]);
    let (old, _) = t.publish(plan, &author).await?;
    t.expect_absent(&old.id).await
}

async fn address_other_d(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let event = article(t, 10).await?;
    let other = format!("{}-other", address_of(&event));
    t.store(deletion(t, "a", &other)).await?;
    t.expect_set(json!({"ids": [event.id]}), &[&event]).await
}

async fn address_other_author(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let event = article(t, 10).await?;
    let other = t.other.clone();
    t.publish(deletion(t, "a", &address_of(&event)), &other).await?;
    t.expect_set(json!({"ids": [event.id]}), &[&event]).await
}

async fn no_undo(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(9)?;
    let note = t.notes(&[20]).await?.remove(0);
    let mut plan = deletion(t, "e", &note.id);
    plan.created_at -= 10;
    let request = t.store(plan).await?;
    t.client.publish(&note.json()).await?;
    if !t.ask(&[json!({"ids": [note.id]})]).await?.events.is_empty() {
        let why = "the relay returns a deleted event that was published again";
        return Err(ProbeEnd::Undecided(why.into()));
    }
    let author = t.author.clone();
    t.publish(deletion(t, "e", &request.id), &author).await?;
    t.client.publish(&note.json()).await?;
    t.expect_absent(&note.id).await
}

/// The plan of an event that expires at this time.
fn expiring(t: &RuleTrial<'_>, kind: u64, at: u64) -> EventPlan {
    t.plan(kind, 0).tag(&["expiration", &at.to_string()])
}

async fn expired_dropped(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(40)?;
    let author = t.author.clone();
    let (event, _) = t.publish(expiring(t, 1, now() - 10), &author).await?;
    t.expect_absent(&event.id).await
}

async fn expired_hidden(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(40)?;
    let event = t.store(expiring(t, 1, now() + 2)).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    t.expect_absent(&event.id).await?;
    t.expect_set(t.filter(json!({})), &[]).await
}

async fn not_expired(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(40)?;
    let event = t.store(expiring(t, 1, now() + 3_600)).await?;
    t.expect_set(json!({"ids": [event.id]}), &[&event]).await
}

async fn ephemeral(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.require(40)?;
    let filter = t.filter(json!({}));
    t.subscribe("ephemeral", &[filter]).await?;
    let event = t.store(expiring(t, 20_001, now() + 3_600)).await?;
    t.client.wait_for_event("ephemeral", &event.id).await?;
    let stored = t.ask(&[json!({"ids": [event.id]})]).await?;
    ensure(stored.events.is_empty(), || "the event is stored".into())
}
