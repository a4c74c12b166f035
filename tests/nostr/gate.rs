//! For any query by any client on any path: no private event reaches a stranger, and the answer has
//! the public events as if no private events existed. The test derives random queries from a seed,
//! and compares each answer with the result of a loop over the events that the reader may see.
//!
//! `HARK_LONG=1` tests more random worlds, and `HARK_SEED` selects a seed.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use hark_testkit::clock::now_s;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{event, pubkey};
use hark_testkit::random::Random;
use serde_json::{Map, Value, json};

use super::kit::connect;
use crate::served::Relay;

const PRIVATE: [u64; 3] = [4, 1059, 21_059];
const KINDS: [u16; 9] = [1, 1, 1, 7, 4, 4, 1059, 1059, 21_059];
/// The number of people, and of keys. The keys after the people's keys sign wraps.
const PEOPLE: usize = 5;
const KEYS: usize = 9;
const EVENTS: usize = 150;
const QUESTIONS: usize = 200;

/// Public keys, by number.
static PUBKEYS: LazyLock<Vec<String>> = LazyLock::new(|| (1..=KEYS as u8).map(pubkey).collect());

/// Keys, by number from 0.
type Readers = BTreeSet<usize>;

fn hex_of(random: &mut Random, below: usize) -> String {
    PUBKEYS[random.below(below)].clone()
}

fn text<'a>(event: &'a Value, field: &str) -> &'a str {
    event[field].as_str().unwrap()
}

fn number(event: &Value, field: &str) -> u64 {
    event[field].as_u64().unwrap()
}

fn made(random: &mut Random, at: u64) -> Value {
    let kind = *random.pick(&KINDS);
    let who = 1 + random.below(if kind == 1059 { KEYS } else { PEOPLE }) as u8;
    let mut tags: Vec<[String; 2]> = Vec::new();
    for _ in 0..random.below(3) {
        tags.push(["p".into(), hex_of(random, PEOPLE)]);
    }
    if random.once_in(2) {
        tags.push(["t".into(), (*random.pick(&["a", "b"])).into()]);
    }
    let tags: Vec<Vec<&str>> =
        tags.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
    // Several events share a second, so that a limit may separate events of the same second.
    event(who, at - random.below(30) as u64, kind, &tags, &random.bits().to_string())
}

fn some<T>(random: &mut Random, most: usize, mut make: impl FnMut(&mut Random) -> T) -> Vec<T> {
    (0..=random.below(most)).map(|_| make(random)).collect()
}

fn filter(random: &mut Random, events: &[Value], at: u64) -> Value {
    let mut filter = Map::new();
    if random.once_in(6) {
        let ids = some(random, 12, |random| random.pick(events)["id"].clone());
        filter.insert("ids".into(), ids.into());
    }
    if random.once_in(4) {
        filter.insert("authors".into(), some(random, 3, |random| hex_of(random, KEYS)).into());
    }
    if !random.once_in(3) {
        filter.insert("kinds".into(), some(random, 3, |random| *random.pick(&KINDS)).into());
    }
    if random.once_in(3) {
        filter.insert("#p".into(), some(random, 2, |random| hex_of(random, PEOPLE)).into());
    }
    if random.once_in(6) {
        filter.insert("#t".into(), json!([random.pick(&["a", "b"])]));
    }
    if random.once_in(6) {
        filter.insert("since".into(), (at - random.below(30) as u64).into());
    }
    if random.once_in(6) {
        filter.insert("until".into(), (at - random.below(30) as u64).into());
    }
    if random.once_in(2) {
        filter.insert("limit".into(), random.below(20).into());
    }
    filter.into()
}

/// Returns the first values of an event's tags with this name.
fn tagged<'a>(event: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    let tags = event["tags"].as_array().unwrap().iter();
    tags.filter(move |tag| tag[0] == name).map(|tag| &tag[1])
}

fn matches(filter: &Value, event: &Value) -> bool {
    let lists = [("ids", "id"), ("authors", "pubkey"), ("kinds", "kind")];
    let holds =
        |name: &str, value: &Value| filter[name].as_array().is_none_or(|list| list.contains(value));
    let has = |name: &str| {
        let list = filter[&format!("#{name}")].as_array();
        list.is_none_or(|list| tagged(event, name).any(|value| list.contains(value)))
    };
    let at = number(event, "created_at");
    lists.iter().all(|(name, field)| holds(name, &event[field]))
        && has("p")
        && has("t")
        && filter["since"].as_u64().is_none_or(|since| at >= since)
        && filter["until"].as_u64().is_none_or(|until| at <= until)
}

fn may_see(readers: &Readers, event: &Value) -> bool {
    let party = |who: &usize| {
        let key = &PUBKEYS[*who];
        text(event, "pubkey") == key || tagged(event, "p").any(|value| value == key)
    };
    !PRIVATE.contains(&number(event, "kind")) || readers.iter().any(party)
}

/// The expected answer to a query.
struct Expected {
    /// The ids of each filter, in order.
    ids: Vec<Vec<String>>,
    count: u64,
    hint: Option<Value>,
    /// Whether the query names only private kinds.
    private_only: bool,
}

fn expected(filters: &[Value], stored: &[Value], readers: &Readers) -> Expected {
    let mut all = BTreeSet::new();
    let (mut ids, mut more, mut unasked) = (Vec::new(), false, false);
    for filter in filters {
        let seen = |event: &&Value| may_see(readers, event) && matches(filter, event);
        let mut found: Vec<&Value> = stored.iter().filter(seen).collect();
        found.sort_by_key(|event| {
            (std::cmp::Reverse(number(event, "created_at")), text(event, "id").to_owned())
        });
        let found: Vec<String> = found.iter().map(|event| text(event, "id").to_owned()).collect();
        let limit = filter["limit"].as_u64().map_or(usize::MAX, |limit| limit as usize);
        all.extend(found.iter().cloned());
        unasked |= limit == 0;
        more |= limit > 0 && found.len() > limit;
        ids.push(found.into_iter().take(limit).collect());
    }
    let hint = match (more, unasked) {
        (true, _) => Some(json!(["more"])),
        (false, true) => None,
        (false, false) => Some(json!(["finish"])),
    };
    let private = |kind: &Value| PRIVATE.contains(&kind.as_u64().unwrap());
    let private_only = filters
        .iter()
        .all(|filter| filter["kinds"].as_array().is_some_and(|kinds| kinds.iter().all(private)));
    Expected { ids, count: all.len() as u64, hint, private_only }
}

fn message(verb: &str, name: &str, filters: &[Value]) -> Value {
    let mut message = vec![json!(verb), json!(name)];
    message.extend_from_slice(filters);
    message.into()
}

/// A connection and its subscriptions: each with its filters, and the readers at the time of the
/// REQ.
struct Guest {
    client: Client,
    readers: Readers,
    subs: HashMap<String, (Vec<Value>, Readers)>,
}

impl Guest {
    async fn ask(&mut self, filters: &[Value], stored: &[Value], sub: &str) {
        let expected = expected(filters, stored, &self.readers);
        let who = format!("{:?} asks {}", self.readers, json!(filters));
        self.client.send_text(message("REQ", sub, filters)).await;
        self.subs.remove(sub);
        let (mut events, mut hint) = (Vec::new(), None);
        let open = loop {
            let mut received = self.client.receive().await;
            match text_of(&received[0]) {
                "EVENT" => events.push(received[2].take()),
                "EOSE" => {
                    hint = received.get_mut(2).map(Value::take);
                    break true;
                }
                _ => break self.is_closed(&expected, &received, &who),
            }
        };
        for event in &events {
            assert!(may_see(&self.readers, event), "{who}: {event}");
            assert!(stored.contains(event), "{who}: {event}");
        }
        let ids: Vec<&str> = events.iter().map(|event| text(event, "id")).collect();
        if open {
            self.subs.insert(sub.to_owned(), (filters.to_vec(), self.readers.clone()));
            assert!(!expected.private_only || !self.readers.is_empty(), "{who}: not refused");
            assert_eq!(hint, expected.hint, "{who}");
            if let [list] = &expected.ids[..] {
                assert_eq!(ids, *list, "{who}");
            }
            let returned: BTreeSet<&str> = ids.iter().copied().collect();
            assert_eq!(returned.len(), ids.len(), "{who}: a duplicate");
            let all: BTreeSet<&str> = expected.ids.iter().flatten().map(String::as_str).collect();
            assert_eq!(returned, all, "{who}");
        }
        self.client.send_text(message("COUNT", "count", filters)).await;
        let received = self.client.receive().await;
        if received[0] == "COUNT" {
            assert!(open, "{who}: {received}");
            assert_eq!(received[2]["count"], expected.count, "{who}");
        } else {
            self.is_closed(&expected, &received, &who);
            assert!(!open, "{who}: {received}");
        }
    }

    /// Asserts that a refusal is correct: a stranger has queried only private kinds. Returns false,
    /// since the subscription is not open.
    fn is_closed(&self, expected: &Expected, received: &Value, who: &str) -> bool {
        assert_eq!(received[0], "CLOSED", "{who}: {received}");
        assert!(text_of(&received[2]).starts_with("auth-required: "), "{who}: {received}");
        assert!(expected.private_only && self.readers.is_empty(), "{who}: {received}");
        false
    }

    /// Checks the live events since the last call. Events may still be held back for a new
    /// subscription, so the test waits for all expected events. Unexpected events would arrive
    /// before the answer to a COUNT.
    async fn live(&mut self, news: &[Value]) {
        let mut expected = BTreeSet::new();
        for (sub, (filters, readers)) in &self.subs {
            for event in news.iter().filter(|event| may_see(readers, event)) {
                if filters.iter().any(|filter| matches(filter, event)) {
                    expected.insert((sub.clone(), text(event, "id").to_owned()));
                }
            }
        }
        let (mut received, mut is_counted) = (BTreeSet::new(), false);
        while !is_counted {
            if expected.is_subset(&received) {
                self.client.send_text(json!(["COUNT", "barrier", {"ids": []}])).await;
                is_counted = true;
            }
            loop {
                let message = self.client.receive().await;
                if message[0] == "COUNT" {
                    break;
                }
                assert_eq!(message[0], "EVENT", "live, to {:?}: {message}", self.readers);
                let of = (text_of(&message[1]).to_owned(), text(&message[2], "id").to_owned());
                assert!(received.insert(of), "a duplicate: {message}");
                if !is_counted && expected.is_subset(&received) {
                    break;
                }
            }
        }
        assert_eq!(received, expected, "live, to {:?}", self.readers);
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap()
}

async fn world(seed: u64) {
    let mut random = Random::new(seed);
    let random = &mut random;
    // One reader thread, so that the answer to a COUNT comes after all earlier answers.
    let settings = "[server]\nread_threads = 1\n[archive]\nseal_records = 40\n";
    let relay = Relay::start(&format!("gate-{seed}"), settings);
    let at = now_s();
    let mut events: Vec<Value> = (0..EVENTS).map(|_| made(random, at)).collect();
    let mut sender = connect(&relay).await;
    for event in &events {
        sender.publish_new(event).await;
    }
    let mut stored: Vec<Value> =
        events.iter().filter(|event| event["kind"] != 21_059).cloned().collect();
    let mut guests = Vec::new();
    for _ in 0..4 {
        let client = connect(&relay).await;
        guests.push(Guest { client, readers: Readers::new(), subs: HashMap::new() });
    }
    for n in 0..QUESTIONS {
        // The first guest never authenticates.
        let which = random.below(guests.len());
        if which > 0 && random.once_in(10) && guests[which].readers.len() < 3 {
            let who = random.below(KEYS);
            guests[which].client.auth(1 + who as u8).await;
            guests[which].readers.insert(who);
        }
        let filters = some(random, 3, |random| filter(random, &events, at));
        guests[which].ask(&filters, &stored, &format!("sub {}", n % 7)).await;
        if random.once_in(4) {
            let news: Vec<Value> = (0..3).map(|_| made(random, at)).collect();
            for event in &news {
                sender.publish_new(event).await;
            }
            for guest in &mut guests {
                guest.live(&news).await;
            }
            stored.extend(news.iter().filter(|event| event["kind"] != 21_059).cloned());
            events.extend(news);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_private_reaches_a_stranger_and_what_is_public_is_answered_as_if_it_were_all() {
    let first = std::env::var("HARK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let worlds = if std::env::var_os("HARK_LONG").is_some() { 200 } else { 4 };
    for seed in first..first + worlds {
        world(seed).await;
    }
    println!("{worlds} worlds of {EVENTS} events and {QUESTIONS} questions, from seed {first}");
}
