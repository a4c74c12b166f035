//! Rules of NIP-62 for requests to vanish. Every check has keys of its own, since a request to
//! vanish deletes all events of its key.

use hark_codec::crypto::KeyPair;
use serde_json::json;

use super::rule::RuleForce::{Must, Plain, Should};
use super::rule::{Rule, rule};
use super::trial::RuleTrial;
use crate::probe::end::{ProbeEnd, ProbeResult};
use crate::probe::event::EventPlan;
use crate::text;

const ALL: &str = "Relays MUST fully delete any events from the `.pubkey` if their service URL is tagged in the event.";

pub(super) const RULES: &[Rule] = &[
    rule(
        (62, "relay-tag"),
        Must,
        "The tag list MUST include at least one `relay` value.",
        ("a request without a relay tag", "the author's events stay"),
        |t| Box::pin(relay_tag(t)),
    ),
    rule(
        (62, "this-relay"),
        Must,
        ALL,
        ("a request that names the relay", "the author's events are gone"),
        |t| Box::pin(this_relay(t)),
    ),
    rule(
        (62, "deletions-too"),
        Plain,
        "Kind `62` requests a specific relay to delete everything, including [NIP-09](09.md) Deletion Events, from the `.pubkey` until its `.created_at`.",
        ("a request after a deletion request", "the deletion request is gone"),
        |t| Box::pin(deletions_too(t)),
    ),
    rule(
        (62, "time"),
        Plain,
        "from the `.pubkey` until its `.created_at`",
        ("a request that is older than an event", "the newer event stays"),
        |t| Box::pin(time(t)),
    ),
    rule(
        (62, "no-return"),
        Must,
        "Relays MUST ensure the deleted events cannot be re-broadcasted into the relay.",
        ("a deleted event once more", "the event is not returned"),
        |t| Box::pin(no_return(t)),
    ),
    rule(
        (62, "other-relay"),
        Must,
        ALL,
        ("a request that names another relay", "the author's events stay"),
        |t| Box::pin(other_relay(t)),
    ),
    rule(
        (62, "other-author"),
        Must,
        ALL,
        ("a request of another author", "the events stay"),
        |t| Box::pin(other_author(t)),
    ),
    rule(
        (62, "all-relays"),
        Must,
        "To request ALL relays to delete everything, the event MUST include a `relay` tag with the value `ALL_RELAYS` in uppercase.",
        ("a request with ALL_RELAYS", "the author's events are gone"),
        |t| Box::pin(all_relays(t)),
    ),
    rule(
        (62, "gift-wraps"),
        Should,
        "Relays SHOULD delete all [NIP-59](59.md) Gift Wraps that p-tagged the `.pubkey` if their service URL is tagged in the event, deleting all DMs to the pubkey.",
        ("a request of a gift wrap's recipient", "the gift wrap is gone"),
        |t| Box::pin(gift_wraps(t)),
    ),
    rule(
        (62, "no-undo"),
        Plain,
        "Publishing a deletion request event (Kind `5`) against a request to vanish has no effect.",
        ("a deletion request for the request, and the event again", "the event is not returned"),
        |t| Box::pin(no_undo(t)),
    ),
];

/// The plan of a request to vanish.
fn request(t: &RuleTrial<'_>, relay: &str) -> EventPlan {
    EventPlan::new(62, t.time).tag(&["relay", relay]).content("test")
}

/// Keys that only this trial uses. The relay must support NIP-62 by its information document, since
/// a relay that does not know kind 62 stores the request like any other event.
fn keys(t: &RuleTrial<'_>) -> ProbeResult<KeyPair> {
    match t.run.info.lists(62) {
        Some(true) => t.keys("vanishes"),
        _ => Err(ProbeEnd::Unsupported("NIP-11 of the relay does not list 62".into())),
    }
}

/// The relay's public address, which is known only from `--relay-url`. A relay ignores a request
/// that names another address.
fn own_url(t: &RuleTrial<'_>) -> ProbeResult<String> {
    if t.run.has_public_url {
        return Ok(t.run.public_url.clone());
    }
    let why = "a request must name the relay's public address: give --relay-url";
    Err(ProbeEnd::Undecided(why.into()))
}

/// Publishes a note, and then the request.
async fn vanish(t: &mut RuleTrial<'_>, keys: &KeyPair, relay: &str) -> ProbeResult<String> {
    let note = t.store_as(t.plan(1, 10), keys).await?;
    t.store_as(request(t, relay), keys).await?;
    Ok(note.id)
}

async fn relay_tag(t: &mut RuleTrial<'_>) -> ProbeResult {
    let keys = keys(t)?;
    let note = t.store_as(t.plan(1, 10), &keys).await?;
    t.publish(EventPlan::new(62, t.time).content("test"), &keys).await?;
    t.expect_set(json!({"ids": [note.id]}), &[&note]).await
}

async fn this_relay(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (keys, url) = (keys(t)?, own_url(t)?);
    t.store_as(t.plan(7, 5), &keys).await?;
    let note = vanish(t, &keys, &url).await?;
    t.expect_absent(&note).await?;
    let filter = json!({"authors": [text::hex(keys.public())], "kinds": [1, 7]});
    t.expect_set(filter, &[]).await
}

async fn deletions_too(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (keys, url) = (keys(t)?, own_url(t)?);
    let plan = EventPlan::new(5, t.time - 5).tag(&["e", &"ab".repeat(32)]);
    let deletion = t.store_as(plan, &keys).await?;
    vanish(t, &keys, &url).await?;
    t.expect_absent(&deletion.id).await
}

async fn time(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (keys, url) = (keys(t)?, own_url(t)?);
    let newer = t.store_as(t.plan(1, 0), &keys).await?;
    let mut plan = request(t, &url);
    plan.created_at -= 10;
    t.store_as(plan, &keys).await?;
    t.expect_set(json!({"ids": [newer.id]}), &[&newer]).await
}

async fn no_return(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (keys, url) = (keys(t)?, own_url(t)?);
    let note = t.store_as(t.plan(1, 10), &keys).await?;
    t.store_as(request(t, &url), &keys).await?;
    t.client.publish(&note.json()).await?;
    t.expect_absent(&note.id).await
}

async fn other_relay(t: &mut RuleTrial<'_>) -> ProbeResult {
    let keys = keys(t)?;
    let note = t.store_as(t.plan(1, 10), &keys).await?;
    t.publish(request(t, "wss://other-relay.example"), &keys).await?;
    t.expect_set(json!({"ids": [note.id]}), &[&note]).await
}

async fn other_author(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (keys, url) = (keys(t)?, own_url(t)?);
    let note = t.notes(&[10]).await?.remove(0);
    vanish(t, &keys, &url).await?;
    t.expect_set(json!({"ids": [note.id]}), &[&note]).await
}

async fn all_relays(t: &mut RuleTrial<'_>) -> ProbeResult {
    let keys = keys(t)?;
    let note = vanish(t, &keys, "ALL_RELAYS").await?;
    t.expect_absent(&note).await
}

async fn gift_wraps(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (keys, url) = (keys(t)?, own_url(t)?);
    let recipient = text::hex(keys.public());
    let wrapper = t.keys("wrapper")?;
    let plan = EventPlan::new(1_059, t.time - 10).tag(&["p", &recipient]).content("AA==");
    let wrap = t.store_as(plan, &wrapper).await?;
    // The recipient may read the gift wrap, so the answer shows whether it is gone.
    if t.client.challenge().is_some() {
        t.client.authenticate(&keys).await?;
    }
    t.expect_set(json!({"kinds": [1_059], "#p": [recipient]}), &[&wrap]).await?;
    t.store_as(request(t, &url), &keys).await?;
    t.expect_set(json!({"kinds": [1_059], "#p": [recipient]}), &[]).await
}

async fn no_undo(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (keys, url) = (keys(t)?, own_url(t)?);
    let note = t.store_as(t.plan(1, 10), &keys).await?;
    let request = t.store_as(request(t, &url), &keys).await?;
    t.publish(EventPlan::new(5, t.time).tag(&["e", &request.id]), &keys).await?;
    t.client.publish(&note.json()).await?;
    t.expect_absent(&note.id).await
}
