//! Rules of NIP-45 for COUNT, and of NIP-50 for search.

use serde_json::{Value, json};

use super::rule::RuleForce::{May, Must, Plain, Should};
use super::rule::{Rule, rule};
use super::trial::RuleTrial;
use crate::probe::client::CountEnd;
use crate::probe::end::{ProbeEnd, ProbeResult, ensure};
use crate::probe::event::ProbeEvent;
use crate::probe::refusal::is_policy;

const SEARCH: &str = "Relays SHOULD interpret the query to the best of their ability and return events that match it.";

pub(super) const RULES: &[Rule] = &[
    rule(
        (45, "shape"),
        Plain,
        "Counts are returned using a `COUNT` response in the form `{\"count\": <integer>}`.",
        ("COUNT of three events", "COUNT with an integer"),
        |t| Box::pin(shape(t)),
    ),
    rule(
        (45, "count"),
        Plain,
        "which accepts a query id and filters as specified in [NIP 01](01.md) for the verb `REQ`",
        ("COUNT of three events", "3, or an approximate count"),
        |t| Box::pin(count(t)),
    ),
    rule(
        (45, "none"),
        Plain,
        "which accepts a query id and filters as specified in [NIP 01](01.md) for the verb `REQ`",
        ("COUNT without matches", "0, or an approximate count"),
        |t| Box::pin(none(t)),
    ),
    rule(
        (45, "filters-or"),
        Plain,
        "Multiple filters are OR'd together and aggregated into a single count result.",
        ("COUNT of two filters that match some of the same events", "each event counts once"),
        |t| Box::pin(filters_or(t)),
    ),
    rule(
        (45, "approximate"),
        May,
        "In case a relay uses probabilistic counts, it MAY indicate it in the response with `approximate` key i.e. `{\"count\": <integer>, \"approximate\": <true|false>}`.",
        ("COUNT of three events", "approximate, if present, is a boolean"),
        |t| Box::pin(approximate(t)),
    ),
    rule(
        (45, "closed"),
        Must,
        "Whenever the relay decides to refuse to fulfill the `COUNT` request, it MUST return a `CLOSED` message.",
        ("COUNT with a filter that is no filter", "CLOSED, or a COUNT"),
        |t| Box::pin(closed(t)),
    ),
    rule(
        (45, "hll"),
        Must,
        "The value `hll` value must be the concatenation of the 256 registers, each being a uint8 value (i.e. a byte).",
        ("COUNT of the reactions to an event", "the registers of the authors, if there is hll"),
        |t| Box::pin(hll(t)),
    ),
    rule(
        (50, "word"),
        Should,
        SEARCH,
        ("a search for a word of one of two notes", "this note"),
        |t| Box::pin(word(t)),
    ),
    rule(
        (50, "content"),
        Should,
        "Relays SHOULD perform matching against `content` event field",
        ("a search for two words of a note", "the note"),
        |t| Box::pin(two_words(t)),
    ),
    rule(
        (50, "conditions"),
        Plain,
        "Clients may include `kinds`, `ids` and other filter field to restrict the search results to particular event kinds.",
        ("a search with kinds and a tag", "only events that meet the conditions"),
        |t| Box::pin(conditions(t)),
    ),
    rule(
        (50, "extensions"),
        Should,
        "relays SHOULD ignore extensions they don't support",
        ("a search for a word and an unknown extension", "the note with the word"),
        |t| Box::pin(extensions(t)),
    ),
    rule(
        (50, "filters"),
        Plain,
        "Clients may specify several search filters",
        ("two searches in one question", "the matches of both"),
        |t| Box::pin(filters(t)),
    ),
    rule(
        (50, "limit"),
        Should,
        "The `limit` filter SHOULD be applied after sorting by matching score.",
        ("a search with limit 1, and two matches", "one event"),
        |t| Box::pin(limit(t)),
    ),
];

/// Sends a COUNT, as the author if the relay requires AUTH.
async fn ask(t: &mut RuleTrial<'_>, filters: &[Value]) -> ProbeResult<CountEnd> {
    t.require(45)?;
    let is_listed = t.run.info.lists(45) == Some(true);
    let answer = t.client.count_as(&t.author, filters).await;
    answer.map_err(|end| match end {
        ProbeEnd::Failed(why) if !is_listed => ProbeEnd::Unsupported(why),
        other => other,
    })
}

/// Sends a COUNT whose answer the check needs. A relay may refuse any COUNT with CLOSED.
async fn counted(t: &mut RuleTrial<'_>, filters: &[Value]) -> ProbeResult<Value> {
    let is_listed = t.run.info.lists(45) == Some(true);
    match ask(t, filters).await? {
        CountEnd::Counted(body) => Ok(body),
        CountEnd::Closed(why) if is_listed || is_policy(&why) => {
            Err(ProbeEnd::Undecided(format!("the relay refuses a COUNT: {why}")))
        }
        CountEnd::Closed(why) => Err(ProbeEnd::Unsupported(format!("CLOSED {why:?}"))),
    }
}

/// Fails if the answer has another count, unless the relay calls the count approximate.
fn expect_count(answer: &Value, expected: u64) -> ProbeResult {
    let holds = answer["approximate"] == true || answer["count"] == expected;
    ensure(holds, || format!("{answer} instead of {expected}"))
}

async fn shape(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[2, 1, 0]).await?;
    let answer = counted(t, &[t.filter(json!({}))]).await?;
    ensure(answer["count"].is_u64(), || answer.to_string())
}

async fn count(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[2, 1, 0]).await?;
    expect_count(&counted(t, &[t.filter(json!({}))]).await?, 3)
}

async fn none(t: &mut RuleTrial<'_>) -> ProbeResult {
    expect_count(&counted(t, &[t.filter(json!({}))]).await?, 0)
}

async fn filters_or(t: &mut RuleTrial<'_>) -> ProbeResult {
    let notes = t.notes(&[3, 2, 1, 0]).await?;
    let filters = [
        t.filter(json!({"since": notes[1].created_at})),
        t.filter(json!({"until": notes[2].created_at})),
    ];
    expect_count(&counted(t, &filters).await?, 4)
}

async fn approximate(t: &mut RuleTrial<'_>) -> ProbeResult {
    t.notes(&[2, 1, 0]).await?;
    let answer = counted(t, &[t.filter(json!({}))]).await?;
    let is_right = answer.get("approximate").is_none_or(Value::is_boolean);
    ensure(is_right, || answer.to_string())
}

async fn closed(t: &mut RuleTrial<'_>) -> ProbeResult {
    for filter in [json!({"kinds": "1"}), json!("text")] {
        ask(t, &[filter]).await?;
    }
    Ok(())
}

async fn hll(t: &mut RuleTrial<'_>) -> ProbeResult {
    let note = t.notes(&[9]).await?.remove(0);
    let mut expected = [0u8; 256];
    let digit = note.id.as_bytes()[32] as char;
    let offset = digit.to_digit(16).unwrap_or(0) as usize + 8;
    for number in 0..5 {
        let keys = t.run.keys(&format!("reader {number}"))?;
        t.store_as(t.plan(7, number).tag(&["e", &note.id]).content("+"), &keys).await?;
        let pubkey = keys.public();
        let zeros = pubkey[offset + 1..]
            .iter()
            .scan(false, |has_ended, byte| {
                (!std::mem::replace(has_ended, *byte != 0)).then_some(byte.leading_zeros())
            })
            .sum::<u32>();
        let register = &mut expected[usize::from(pubkey[offset])];
        *register = (*register).max(zeros as u8 + 1);
    }
    let answer = counted(t, &[json!({"kinds": [7], "#e": [note.id]})]).await?;
    let Some(found) = answer.get("hll") else {
        return Err(ProbeEnd::Unsupported("the answer has no hll".into()));
    };
    let mut hex = Vec::new();
    hark_codec::hex::encode_into(&expected, &mut hex);
    let is_right = found.as_str().is_some_and(|found| found.as_bytes() == hex);
    ensure(is_right, || format!("hll is {found}"))
}

/// Publishes a note with this content after the trial's own word. Returns the note and the word.
async fn worded(t: &mut RuleTrial<'_>, ago: u64, rest: &str) -> ProbeResult<(ProbeEvent, String)> {
    // A relay that does not support NIP-50 may ignore `search` and return other events.
    if t.run.info.lists(50) != Some(true) {
        return Err(ProbeEnd::Unsupported("NIP-11 of the relay does not list 50".into()));
    }
    let word = format!("word{}", t.topic.replace('-', ""));
    let note = t.store(t.plan(1, ago).content(format!("{word} {rest}"))).await?;
    Ok((note, word))
}

async fn word(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (note, word) = worded(t, 0, "orange bread").await?;
    t.store(t.plan(1, 1).content("purple bread")).await?;
    t.expect_set(json!({"search": word}), &[&note]).await?;
    t.expect_set(t.filter(json!({"search": "orange"})), &[&note]).await
}

async fn two_words(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (note, word) = worded(t, 0, "orange bread").await?;
    t.expect_set(json!({"search": format!("{word} bread")}), &[&note]).await
}

async fn conditions(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (note, word) = worded(t, 0, "orange").await?;
    t.store(t.plan(1_111, 0).content(format!("{word} orange"))).await?;
    let other = t.other.clone();
    t.store_as(t.plan(1, 0).content(format!("{word} orange")), &other).await?;
    let filter = json!({"search": word, "kinds": [1], "authors": [note.pubkey]});
    t.expect_set(t.filter(filter), &[&note]).await
}

async fn extensions(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (note, word) = worded(t, 0, "orange").await?;
    t.expect_set(json!({"search": format!("{word} harkunknown:value")}), &[&note]).await
}

async fn filters(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (orange, _) = worded(t, 0, "orange").await?;
    let (purple, _) = worded(t, 1, "purple").await?;
    worded(t, 2, "green").await?;
    let search = |word: &str| t.filter(json!({"search": word}));
    let filters = [search("orange"), search("purple")];
    t.expect_set_of(&filters, &[&orange, &purple]).await
}

async fn limit(t: &mut RuleTrial<'_>) -> ProbeResult {
    let (_, word) = worded(t, 0, "orange").await?;
    worded(t, 1, "purple").await?;
    let found = t.ask(&[json!({"search": word, "limit": 1})]).await?.ids();
    ensure(found.len() == 1, || format!("{} events", found.len()))
}
