//! Rules of NIP-01 for replaceable and addressable events.

use serde_json::json;

use super::rule::RuleForce::{Must, Should};
use super::rule::{Rule, rule};
use super::trial::{RuleTrial, by_id};
use crate::probe::end::ProbeResult;
use crate::probe::event::EventPlan;

/// The first of some replaceable kinds that no client uses. Each check has its own kind.
const REPLACEABLE: u64 = 17_031;
/// An addressable kind that no client uses.
const ADDRESSABLE: u64 = 37_031;

const LATEST: &str = "for each combination of `pubkey` and `kind`, only the latest event MUST be stored by relays, older versions MAY be discarded.";
const LATEST_OF_D: &str = "for each combination of `kind`, `pubkey` and the `d` tag value, only the latest event MUST be stored by relays, older versions MAY be discarded.";
const LOWEST: &str = "In case of replaceable events with the same timestamp, the event with the lowest id (first in lexical order) should be retained, and the other discarded.";

pub(super) const RULES: &[Rule] = &[
    rule(
        (1, "replaceable"),
        Should,
        "even if the relay has more than one version stored, it SHOULD return just the latest one",
        ("a newer version after an older one", "the newer version only"),
        |t| Box::pin(replaceable(t)),
    ),
    rule(
        (1, "replaceable-late"),
        Must,
        LATEST,
        ("an older version after the newer one", "the newer version only"),
        |t| Box::pin(replaceable_late(t)),
    ),
    rule(
        (1, "replaceable-0-3"),
        Must,
        "for kind `n` such that `10000 <= n < 20000 || n == 0 || n == 3`, events are **replaceable**, which means that, for each combination of `pubkey` and `kind`, only the latest event MUST be stored by relays",
        ("two versions of a profile and of a follow list", "the newer versions"),
        |t| Box::pin(profiles(t)),
    ),
    rule(
        (1, "replaceable-tie"),
        Should,
        LOWEST,
        ("two versions of the same second, lowest id last", "the lowest id"),
        |t| Box::pin(replaceable_tie(t)),
    ),
    rule(
        (1, "replaceable-tie-first"),
        Should,
        LOWEST,
        ("two versions of the same second, lowest id first", "the lowest id"),
        |t| Box::pin(replaceable_tie_first(t)),
    ),
    rule((1, "replaceable-pubkey"), Must, LATEST, ("versions of two authors", "both"), |t| {
        Box::pin(replaceable_pubkey(t))
    }),
    rule((1, "replaceable-kind"), Must, LATEST, ("versions of two kinds", "both"), |t| {
        Box::pin(replaceable_kind(t))
    }),
    rule(
        (1, "addressable"),
        Must,
        LATEST_OF_D,
        ("two versions with the same d, in both orders", "the newer versions"),
        |t| Box::pin(addressable(t)),
    ),
    rule(
        (1, "addressable-d"),
        Must,
        LATEST_OF_D,
        ("events with different d", "all of them"),
        |t| Box::pin(addressable_d(t)),
    ),
    rule(
        (1, "addressable-tie"),
        Should,
        LOWEST,
        ("two versions of the same second, lowest id last", "the lowest id"),
        |t| Box::pin(addressable_tie(t)),
    ),
    rule(
        (1, "addressable-pubkey"),
        Must,
        LATEST_OF_D,
        ("the same d of two authors", "both"),
        |t| Box::pin(addressable_pubkey(t)),
    ),
];

async fn replaceable(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.store(t.plan(REPLACEABLE, 10)).await?;
    let newer = t.store(t.plan(REPLACEABLE, 0)).await?;
    let filter = json!({"kinds": [REPLACEABLE], "authors": [newer.pubkey]});
    t.expect_set(filter, &[&newer]).await
}

/// Publishes an older version, which the relay may refuse.
async fn publish_old(t: &mut RuleTrial<'_>, plan: EventPlan) -> ProbeResult {
    let keys = t.author.clone();
    t.publish(plan, &keys).await.map(drop)
}

async fn replaceable_late(t: &mut RuleTrial<'_>) -> ProbeResult {
    let newer = t.store(t.plan(REPLACEABLE + 2, 0)).await?;
    publish_old(t, t.plan(REPLACEABLE + 2, 10)).await?;
    let filter = json!({"kinds": [REPLACEABLE + 2], "authors": [newer.pubkey]});
    t.expect_set(filter, &[&newer]).await
}

async fn profiles(t: &mut RuleTrial<'_>) -> ProbeResult {
    // The keys are fresh, so that the profile of the owner of `--secret` is not replaced.
    let keys = t.keys("profile")?;
    for kind in [0, 3] {
        let content = if kind == 0 { "{\"name\":\"hark\"}" } else { "" };
        t.store_as(t.plan(kind, 10).content(content), &keys).await?;
        let newer = t.store_as(t.plan(kind, 0).content(content), &keys).await?;
        t.expect_set(json!({"kinds": [kind], "authors": [newer.pubkey]}), &[&newer]).await?;
    }
    Ok(())
}

/// Publishes two versions of one second and expects the version with the lowest id.
async fn tie(t: &mut RuleTrial<'_>, plan: EventPlan, lowest_last: bool) -> ProbeResult {
    let keys = t.author.clone();
    let one = t.sign(plan.clone().content("one"), &keys);
    let two = t.sign(plan.content("two"), &keys);
    let (low, high) = by_id(one, two);
    let (first, second) = if lowest_last { (&high, &low) } else { (&low, &high) };
    t.client.store(first, &keys).await?;
    t.remember(first, &keys);
    if t.client.publish(&second.json()).await?.accepted {
        t.remember(second, &keys);
    }
    let filter = json!({"kinds": [low.kind], "authors": [low.pubkey]});
    let filter = t.filter(filter);
    t.expect_set(filter, &[&low]).await
}

async fn replaceable_tie(t: &mut RuleTrial<'_>) -> ProbeResult {
    tie(t, t.plan(REPLACEABLE + 3, 0), true).await
}

async fn replaceable_tie_first(t: &mut RuleTrial<'_>) -> ProbeResult {
    tie(t, t.plan(REPLACEABLE + 1, 0), false).await
}

async fn replaceable_pubkey(t: &mut RuleTrial<'_>) -> ProbeResult {
    let other = t.other.clone();
    let own = t.store(t.plan(REPLACEABLE + 5, 10)).await?;
    let theirs = t.store_as(t.plan(REPLACEABLE + 5, 0), &other).await?;
    t.expect_set(t.filter(json!({})), &[&own, &theirs]).await
}

async fn replaceable_kind(t: &mut RuleTrial<'_>) -> ProbeResult {
    let one = t.store(t.plan(REPLACEABLE + 6, 10)).await?;
    let two = t.store(t.plan(REPLACEABLE + 7, 0)).await?;
    t.expect_set(t.filter(json!({})), &[&one, &two]).await
}

async fn addressable(t: &mut RuleTrial<'_>) -> ProbeResult {
    let d = |plan: EventPlan, d: &str| plan.tag(&["d", d]);
    t.store(d(t.plan(ADDRESSABLE, 10), "one")).await?;
    let one = t.store(d(t.plan(ADDRESSABLE, 0), "one")).await?;
    let two = t.store(d(t.plan(ADDRESSABLE, 0), "two")).await?;
    publish_old(t, d(t.plan(ADDRESSABLE, 10), "two")).await?;
    t.expect_set(t.filter(json!({})), &[&one, &two]).await
}

async fn addressable_d(t: &mut RuleTrial<'_>) -> ProbeResult {
    let mut events = Vec::new();
    for (ago, d) in [(3, ""), (2, "D"), (1, "d"), (0, "d ")] {
        events.push(t.store(t.plan(ADDRESSABLE, ago).tag(&["d", d])).await?);
    }
    let events: Vec<_> = events.iter().collect();
    t.expect_set(t.filter(json!({})), &events).await?;
    t.expect_set(t.filter(json!({"#d": ["d"]})), &[events[2]]).await
}

async fn addressable_tie(t: &mut RuleTrial<'_>) -> ProbeResult {
    tie(t, t.plan(ADDRESSABLE, 0).tag(&["d", "tie"]), true).await
}

async fn addressable_pubkey(t: &mut RuleTrial<'_>) -> ProbeResult {
    let other = t.other.clone();
    let own = t.store(t.plan(ADDRESSABLE, 10).tag(&["d", "x"])).await?;
    let theirs = t.store_as(t.plan(ADDRESSABLE, 0).tag(&["d", "x"]), &other).await?;
    t.expect_set(t.filter(json!({})), &[&own, &theirs]).await
}
