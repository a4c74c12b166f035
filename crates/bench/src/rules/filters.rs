//! Rules of NIP-01 for the filters of a REQ.

use serde_json::{Value, json};

use super::rule::RuleForce::{May, Must, Plain, Should};
use super::rule::{Rule, rule};
use super::trial::{RuleTrial, by_id};
use crate::probe::client::QuestionEnd;
use crate::probe::end::{ProbeEnd, ProbeResult, ensure};
use crate::probe::event::ProbeEvent;
use crate::probe::refusal::prefix_of;

pub(super) const RULES: &[Rule] = &[
    rule(
        (1, "eose"),
        Plain,
        "`[\"EOSE\", <subscription_id>]`, used to indicate the _end of stored events_ and the beginning of events newly received in real-time.",
        ("a question without matches", "EOSE with the subscription's id"),
        |t| Box::pin(eose(t)),
    ),
    rule(
        (1, "subscription-id"),
        Must,
        "`EVENT` messages MUST be sent only with a subscription ID related to a subscription previously initiated by the client (using the `REQ` message above).",
        ("a subscription, and matching events", "events with the subscription's id only"),
        |t| Box::pin(subscription_id(t)),
    ),
    rule(
        (1, "filter-ids"),
        Plain,
        "\"ids\": <a list of event ids>",
        ("two of three ids", "two events"),
        |t| Box::pin(ids(t)),
    ),
    rule(
        (1, "filter-authors"),
        Plain,
        "\"authors\": <a list of lowercase pubkeys, the pubkey of an event must be one of these>",
        ("one of two authors", "the events of this author"),
        |t| Box::pin(authors(t)),
    ),
    rule(
        (1, "filter-kinds"),
        Plain,
        "\"kinds\": <a list of a kind numbers>",
        ("two of three kinds", "the events of both kinds"),
        |t| Box::pin(kinds(t)),
    ),
    rule(
        (1, "filter-tags"),
        Plain,
        "In the case of tag attributes such as `#e`, for which an event may have multiple values, the event and filter condition values must have at least one item in common.",
        ("a filter with two values of a tag", "the events with one of the values"),
        |t| Box::pin(tags(t)),
    ),
    rule(
        (1, "tag-exact"),
        Plain,
        "At least one of the arrays' values must match the relevant field in an event for the condition to be considered a match.",
        ("values that differ in case, a blank or their end", "only the exact value matches"),
        |t| Box::pin(tag_exact(t)),
    ),
    rule(
        (1, "tag-first-value"),
        Plain,
        "Only the first value in any given tag is indexed.",
        ("a filter for the second value of a tag", "no event"),
        |t| Box::pin(tag_first_value(t)),
    ),
    rule(
        (1, "tag-letters"),
        Plain,
        "all single-letter (only english alphabet letters: a-z, A-Z) key tags are expected to be indexed by relays",
        ("a filter for each letter, of an event with 52 tags", "each filter finds the event"),
        |t| Box::pin(tag_letters(t)),
    ),
    rule(
        (1, "tag-case"),
        Plain,
        "all single-letter (only english alphabet letters: a-z, A-Z) key tags are expected to be indexed by relays",
        ("#k and #K with different values", "the two letters are different tags"),
        |t| Box::pin(tag_case(t)),
    ),
    rule(
        (1, "tag-long"),
        Plain,
        "In the case of tag attributes such as `#e`, for which an event may have multiple values, the event and filter condition values must have at least one item in common.",
        ("tag values of 300 characters with the same beginning", "only the exact value matches"),
        |t| Box::pin(tag_long(t)),
    ),
    rule(
        (1, "filter-and"),
        Plain,
        "All conditions of a filter that are specified must match for an event for it to pass the filter, i.e., multiple conditions are interpreted as `&&` conditions.",
        ("a filter with authors, kinds and two tags", "events that meet all conditions"),
        |t| Box::pin(conditions_and(t)),
    ),
    rule(
        (1, "filters-or"),
        Plain,
        "In this case, events that match any of the filters are to be returned, i.e., multiple filters are to be interpreted as `||` conditions.",
        ("two filters", "events that match one or both"),
        |t| Box::pin(filters_or(t)),
    ),
    rule(
        (1, "filters-once"),
        May,
        "events that match any of the filters are to be returned",
        ("two filters that match the same event", "the event once"),
        |t| Box::pin(filters_once(t)),
    ),
    rule(
        (1, "since"),
        Plain,
        "If a filter includes the `since` property, events with `created_at` greater than or equal to `since` are considered to match the filter.",
        ("since, at the time of an event", "this event and newer events"),
        |t| Box::pin(since(t)),
    ),
    rule(
        (1, "until"),
        Plain,
        "The `until` property is similar except that `created_at` must be less than or equal to `until`.",
        ("until, at the time of an event", "this event and older events"),
        |t| Box::pin(until(t)),
    ),
    rule(
        (1, "since-until"),
        Plain,
        "In short, an event matches a filter if `since <= created_at <= until` holds.",
        ("since and until at the same second, and since after until", "one event, and none"),
        |t| Box::pin(since_until(t)),
    ),
    rule(
        (1, "exact-ids"),
        Must,
        "The `ids`, `authors`, `#e` and `#p` filter lists MUST contain exact 64-character lowercase hex values.",
        ("the first 32 digits of an id, and the id in uppercase", "no event"),
        |t| Box::pin(exact_ids(t)),
    ),
    rule(
        (1, "exact-authors"),
        Must,
        "The `ids`, `authors`, `#e` and `#p` filter lists MUST contain exact 64-character lowercase hex values.",
        ("the first 32 digits of a pubkey", "no event"),
        |t| Box::pin(exact_authors(t)),
    ),
    rule(
        (1, "limit"),
        Should,
        "\"limit\": <maximum number of events relays SHOULD return in the initial query>",
        ("limit 2 of five events", "two events"),
        |t| Box::pin(limit(t)),
    ),
    rule(
        (1, "limit-newest"),
        Plain,
        "When `limit: n` is present it is assumed that the events returned in the initial query will be the last `n` events ordered by the `created_at`.",
        ("limit 2 of five events", "the two newest events"),
        |t| Box::pin(limit_newest(t)),
    ),
    rule(
        (1, "limit-zero"),
        Should,
        "\"limit\": <maximum number of events relays SHOULD return in the initial query>",
        ("limit 0, then a new event", "no stored event, and the new event"),
        |t| Box::pin(limit_zero(t)),
    ),
    rule(
        (1, "limit-initial"),
        Must,
        "The `limit` property of a filter is only valid for the initial query and MUST be ignored afterwards.",
        ("a subscription with limit 1, then three events", "all three events"),
        |t| Box::pin(limit_initial(t)),
    ),
    rule(
        (1, "order"),
        Should,
        "Newer events should appear first, and in the case of ties the event with the lowest id (first in lexical order) should be first.",
        ("a question for five events", "newest first"),
        |t| Box::pin(order(t)),
    ),
    rule(
        (1, "order-ties"),
        Should,
        "in the case of ties the event with the lowest id (first in lexical order) should be first",
        ("a question for six events of one second", "lowest id first"),
        |t| Box::pin(order_ties(t)),
    ),
    rule(
        (1, "limit-ties"),
        Should,
        "in the case of ties the event with the lowest id (first in lexical order) should be first",
        ("limit 3 of six events of one second", "the three lowest ids"),
        |t| Box::pin(limit_ties(t)),
    ),
    rule(
        (1, "closed"),
        Must,
        "`CLOSED` messages MUST be sent in response to a `REQ` when the relay refuses to fulfill it.",
        ("filters that are no filters", "CLOSED, or an answer with EOSE"),
        |t| Box::pin(closed(t)),
    ),
    rule(
        (1, "closed-prefix"),
        Plain,
        "This message uses the same pattern of `OK` messages with the machine-readable prefix and human-readable message.",
        ("filters that are no filters", "CLOSED with a prefix"),
        |t| Box::pin(closed_prefix(t)),
    ),
    rule(
        (1, "unknown-element"),
        May,
        "`[\"CLOSED\", \"sub1\", \"unsupported: filter contains unknown elements\"]`",
        ("a filter with an unknown element", "CLOSED with unsupported:"),
        |t| Box::pin(unknown_element(t)),
    ),
];

async fn eose(t: &mut RuleTrial<'_>) -> ProbeResult {
    let answer = t.ask(&[t.filter(json!({"kinds": [1]}))]).await?;
    ensure(answer.events.is_empty(), || "events that do not match".into())
}

async fn subscription_id(t: &mut RuleTrial<'_>) -> ProbeResult {
    let note = t.notes(&[10]).await?.remove(0);
    let filter = t.filter(json!({}));
    let stored = t.subscribe("only this", std::slice::from_ref(&filter)).await?;
    ensure(stored.ids() == [note.id], || "the stored event is not returned".into())?;
    let live = t.notes(&[0]).await?.remove(0);
    t.client.wait_for_event("only this", &live.id).await?;
    t.client.live("only this");
    t.client.sync().await?;
    let others = t.client.unread_subscriptions();
    ensure(others.is_empty(), || format!("events for the subscriptions {others:?}"))
}

async fn ids(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = t.notes(&[2, 1, 0]).await?;
    t.expect_set(json!({"ids": [notes[0].id, notes[2].id]}), &[&notes[0], &notes[2]]).await
}

async fn authors(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = t.notes(&[1, 0]).await?;
    let other = t.other.clone();
    let theirs = t.store_as(t.plan(1, 0), &other).await?;
    let own = [&notes[0], &notes[1]];
    t.expect_set(t.filter(json!({"authors": [notes[0].pubkey]})), &own).await?;
    let both = json!({"authors": [notes[0].pubkey, theirs.pubkey]});
    t.expect_set(t.filter(both), &[&notes[0], &notes[1], &theirs]).await
}

async fn kinds(t: &mut RuleTrial<'_>) -> ProbeResult {
    let note = t.store(t.plan(1, 0)).await?;
    let reaction = t.store(t.plan(7, 0).content("+")).await?;
    t.store(t.plan(1_111, 0)).await?;
    t.expect_set(t.filter(json!({"kinds": [1, 7]})), &[&note, &reaction]).await
}

/// Publishes a note with this value in the tag `x`, after a prefix that only this trial uses.
async fn tagged(t: &mut RuleTrial<'_>, value: &str) -> ProbeResult<ProbeEvent> {
    let value = format!("{}{value}", t.topic);
    t.store(t.plan(1, 0).tag(&["x", &value]).content(value.clone())).await
}

/// A filter for these values of the tag `x`, each with the trial's prefix.
fn tagged_filter(t: &RuleTrial<'_>, values: &[&str]) -> Value {
    let values: Vec<_> = values.iter().map(|value| format!("{}{value}", t.topic)).collect();
    json!({"#x": values})
}

async fn tags(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (one, two) = (tagged(t, "one").await?, tagged(t, "two").await?);
    tagged(t, "three").await?;
    t.expect_set(tagged_filter(t, &["one", "two", "none"]), &[&one, &two]).await
}

async fn tag_exact(t: &mut RuleTrial<'_>) -> ProbeResult {
    let bread = tagged(t, "Bread").await?;
    for other in ["bread", "Brea", "Bread "] {
        tagged(t, other).await?;
    }
    t.expect_set(tagged_filter(t, &["Bread"]), &[&bread]).await
}

async fn tag_first_value(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (first, second) = (format!("{}-first", t.topic), format!("{}-second", t.topic));
    let note = t.store(t.plan(1, 0).tag(&["x", &first, &second])).await?;
    t.expect_set(json!({"#x": [first]}), &[&note]).await?;
    t.expect_set(json!({"#x": [second]}), &[]).await
}

async fn tag_letters(t: &mut RuleTrial<'_>) -> ProbeResult {
    let letters: Vec<String> = ('a'..='z').chain('A'..='Z').map(String::from).collect();
    // The values of `e` and `p` must be hex, and some relays require an address as the value of
    // `a`.
    let value = "ab".repeat(32);
    let address = format!("30023:{value}:d");
    let of = |letter: &str| if matches!(letter, "a" | "A") { &address } else { &value };
    let plan = letters.iter().fold(t.plan(1, 0), |plan, letter| plan.tag(&[letter, of(letter)]));
    let note = t.store(plan).await?;
    for letter in &letters {
        let filter = json!({"authors": [note.pubkey], format!("#{letter}"): [of(letter)]});
        t.expect_set(filter, &[&note]).await.map_err(|end| match end {
            ProbeEnd::Failed(why) => ProbeEnd::Failed(format!("#{letter}: {why}")),
            other => other,
        })?;
    }
    Ok(())
}

async fn tag_case(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (small, large) = (format!("{}-k", t.topic), format!("{}-K", t.topic));
    let note = t.store(t.plan(1, 0).tag(&["k", &small]).tag(&["K", &large])).await?;
    t.expect_set(json!({"#k": [small]}), &[&note]).await?;
    t.expect_set(json!({"#K": [small]}), &[]).await?;
    t.expect_set(json!({"#K": [large]}), &[&note]).await
}

async fn tag_long(t: &mut RuleTrial<'_>) -> ProbeResult {
    let long = "long".repeat(75);
    let (one, two) = (format!("{long}1"), format!("{long}2"));
    let note = tagged(t, &one).await?;
    tagged(t, &two).await?;
    t.expect_set(tagged_filter(t, &[&one]), &[&note]).await
}

async fn conditions_and(t: &mut RuleTrial<'_>) -> ProbeResult {
    let other = t.other.clone();
    let both = t.plan(1, 0).tag(&["x", "yes"]);
    let wanted = t.store(both.clone()).await?;
    t.store(t.plan(1, 1)).await?;
    t.store(t.plan(7, 0).tag(&["x", "yes"])).await?;
    t.store_as(both, &other).await?;
    let filter = json!({"authors": [wanted.pubkey], "kinds": [1], "#x": ["yes"]});
    t.expect_set(t.filter(filter), &[&wanted]).await
}

async fn filters_or(t: &mut RuleTrial<'_>) -> ProbeResult {
    let note = t.store(t.plan(1, 0)).await?;
    let reaction = t.store(t.plan(7, 0)).await?;
    t.store(t.plan(1_111, 0)).await?;
    let filters = [t.filter(json!({"kinds": [1]})), t.filter(json!({"kinds": [7]}))];
    t.expect_set_of(&filters, &[&note, &reaction]).await
}

async fn filters_once(t: &mut RuleTrial<'_>) -> ProbeResult {
    let note = t.notes(&[0]).await?.remove(0);
    let filters = [json!({"ids": [note.id]}), t.filter(json!({"kinds": [1]}))];
    let found = t.ask(&filters).await?.ids();
    ensure(found.len() == 1, || format!("{} events", found.len()))
}

async fn since(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = t.notes(&[20, 10, 0]).await?;
    let filter = t.filter(json!({"since": notes[1].created_at}));
    t.expect_set(filter, &[&notes[1], &notes[2]]).await
}

async fn until(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = t.notes(&[20, 10, 0]).await?;
    let filter = t.filter(json!({"until": notes[1].created_at}));
    t.expect_set(filter, &[&notes[0], &notes[1]]).await
}

async fn since_until(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = t.notes(&[11, 10, 9]).await?;
    let time = notes[1].created_at;
    t.expect_set(t.filter(json!({"since": time, "until": time})), &[&notes[1]]).await?;
    // A relay may also refuse a range that is empty.
    let filter = t.filter(json!({"since": time + 1, "until": time}));
    expect_no_event(t, filter).await
}

/// Fails if the relay returns an event for the filter. The relay may refuse the question in any
/// way, also by ending the connection.
async fn expect_no_event(t: &mut RuleTrial<'_>, filter: Value) -> ProbeResult {
    match t.client.ask_as(&t.author, &[filter]).await {
        Ok(answer) => ensure(answer.events.is_empty(), || "an event is returned".into()),
        Err(ProbeEnd::Failed(_)) => {
            t.client = t.connect().await?;
            Ok(())
        }
        Err(other) => Err(other),
    }
}

async fn exact_ids(t: &mut RuleTrial<'_>) -> ProbeResult {
    let note = t.notes(&[0]).await?.remove(0);
    for value in [note.id[..32].to_owned(), note.id.to_uppercase()] {
        expect_no_event(t, json!({"ids": [value]})).await?;
    }
    Ok(())
}

async fn exact_authors(t: &mut RuleTrial<'_>) -> ProbeResult {
    let note = t.notes(&[0]).await?.remove(0);
    let filter = t.filter(json!({"authors": [note.pubkey[..32]]}));
    expect_no_event(t, filter).await
}

async fn limit(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[4, 3, 2, 1, 0]).await?;
    let found = t.ask(&[t.filter(json!({"limit": 2}))]).await?.ids();
    ensure(found.len() == 2, || format!("{} events", found.len()))
}

async fn limit_newest(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = t.notes(&[2, 0, 4, 1, 3]).await?;
    t.expect_set(t.filter(json!({"limit": 2})), &[&notes[1], &notes[3]]).await
}

async fn limit_zero(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[2]).await?;
    let filter = t.filter(json!({"limit": 0}));
    let stored = t.subscribe("none", &[filter]).await?;
    ensure(stored.events.is_empty(), || "stored events".into())?;
    let live = t.notes(&[0]).await?.remove(0);
    t.client.wait_for_event("none", &live.id).await
}

async fn limit_initial(t: &mut RuleTrial<'_>) -> ProbeResult {
    let filter = t.filter(json!({"limit": 1}));
    t.subscribe("one", &[filter]).await?;
    for note in t.notes(&[2, 1, 0]).await? {
        t.client.wait_for_event("one", &note.id).await?;
    }
    Ok(())
}

async fn order(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = t.notes(&[2, 0, 4, 1, 3]).await?;
    let expected = [&notes[1], &notes[3], &notes[0], &notes[4], &notes[2]];
    t.expect_order(t.filter(json!({"kinds": [1]})), &expected).await
}

/// Six notes of one second, sorted by id.
async fn ties(t: &mut RuleTrial<'_>) -> ProbeResult<Vec<ProbeEvent>> {
    let mut notes = t.notes(&[0; 6]).await?;
    notes.sort_by(|one, two| one.id.cmp(&two.id));
    Ok(notes)
}

async fn order_ties(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = ties(t).await?;
    let expected: Vec<_> = notes.iter().collect();
    t.expect_order(t.filter(json!({})), &expected).await
}

async fn limit_ties(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = ties(t).await?;
    let (first, second) = by_id(notes[0].clone(), notes[1].clone());
    t.expect_set(t.filter(json!({"limit": 3})), &[&first, &second, &notes[2]]).await
}

/// Filters that no relay can fulfill.
fn no_filters() -> [Value; 4] {
    [json!({"kinds": "1"}), json!({"ids": 7}), json!("text"), json!({"since": "yesterday"})]
}

async fn closed(t: &mut RuleTrial<'_>) -> ProbeResult {
    for filter in no_filters() {
        t.client.ask(&[filter]).await?;
    }
    Ok(())
}

async fn closed_prefix(t: &mut RuleTrial<'_>) -> ProbeResult {
    let mut is_closed = false;
    for filter in no_filters() {
        if let QuestionEnd::Closed(why) = t.client.ask(&[filter]).await?.end {
            is_closed = true;
            ensure(prefix_of(&why).is_some(), || format!("the message is {why:?}"))?;
        }
    }
    if is_closed {
        return Ok(());
    }
    Err(ProbeEnd::Undecided("the relay refuses none of these questions".into()))
}

async fn unknown_element(t: &mut RuleTrial<'_>) -> ProbeResult {
    let filter = t.filter(json!({"unknown_element": ["x"]}));
    match t.client.ask_as(&t.author, &[filter]).await?.end {
        QuestionEnd::Closed(why) if prefix_of(&why).is_some() => Ok(()),
        QuestionEnd::Closed(why) => Err(ProbeEnd::Failed(format!("the message is {why:?}"))),
        QuestionEnd::Eose(_) => Err(ProbeEnd::Failed("the element is ignored".into())),
    }
}
