//! Measures the cost of bans for an event: the time of the check with no ban, and with 100,000 bans
//! of each sort. For comparison, also measures the time to parse the event and to verify its id and
//! its signature.
//!
//!     cargo bench -p hark-server --bench bans
//!     cargo bench -p hark-server --bench bans -- --check N     # N checks, for callgrind to count
//!
//! The second command makes no measurement. `valgrind --tool=callgrind --toggle-collect='*checks'`
//! counts the instructions of its checks.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use hark_archive::clock::Clock;
use hark_codec::crypto::{KeyPair, SignatureVerifier, sha256};
use hark_codec::nostr::{Event, EventArena, EventDraft, VerifiedEvent};
use hark_server::moderation::{Moderation, Ruling, RulingChange, RulingSubject};
use hark_server::nostr::policy::EventPolicy;

/// Number of bans of each sort.
const BANS: u32 = 100_000;
/// Number of rounds, of which the quickest counts, and number of events in a round.
const ROUNDS: u32 = 20;
const EVENTS: u32 = 2_000;

fn digest(n: u32) -> [u8; 32] {
    sha256(&n.to_le_bytes())
}

/// The subject with this number: a key, an id, a kind, a word, or an address.
fn subject(sort: u32, n: u32) -> RulingSubject {
    match sort {
        0 => RulingSubject::Key(digest(n)),
        1 => RulingSubject::Id(digest(!n)),
        // No event of this bench has one of these kinds.
        2 => RulingSubject::Kind(40_000 + n as u16 % 20_000),
        3 => RulingSubject::Word(format!("{:x}{n}", n.wrapping_mul(2_654_435_761))),
        _ => Ipv4Addr::from_bits(n << 8).to_string().parse().expect("an address"),
    }
}

fn banned() -> Moderation {
    let moderation = Moderation::in_memory(Clock::System);
    let began = Instant::now();
    for sort in 0..5 {
        let changes: Vec<_> = (0..BANS)
            .map(|n| RulingChange::Set {
                subject: subject(sort, n),
                ruling: Ruling::Ban,
                reason: String::new(),
                until_s: None,
            })
            .collect();
        for some in changes.chunks(200) {
            moderation.change_now(some, "bench").expect("a change");
        }
    }
    println!("{BANS} bans of each sort were made in {:.1} s", began.elapsed().as_secs_f64());
    moderation
}

fn signed(kind: u16, tags: &[&[&str]], content: &str) -> Vec<u8> {
    let keys = KeyPair::from_secret([7; 32]).expect("a key");
    let mut json = Vec::new();
    EventDraft { created_at: 1_700_000_000, kind, tags, content }.sign(&keys, &mut json);
    json
}

/// Returns the time of one call, in the quickest round.
fn timed(mut work: impl FnMut()) -> Duration {
    let round = |work: &mut dyn FnMut()| {
        let began = Instant::now();
        (0..EVENTS).for_each(|_| work());
        began.elapsed() / EVENTS
    };
    (0..ROUNDS).map(|_| round(&mut work)).min().unwrap_or_default()
}

/// Runs checks that callgrind counts.
#[inline(never)]
fn checks(moderation: &Moderation, event: &Event<'_>, count: u32) {
    let policy = EventPolicy::default();
    for _ in 0..count {
        black_box(moderation.event_refusal(&policy, black_box(event)));
    }
}

fn main() {
    let mut args = std::env::args().skip_while(|arg| arg != "--check").skip(1);
    let count: Option<u32> = args.next().and_then(|count| count.parse().ok());
    let key = |n: u32| {
        let digits = hark_codec::hex::encode_32(&digest(n | 1 << 31));
        String::from_utf8_lossy(&digits).into_owned()
    };
    let (root, author) = (key(1), key(2));
    let people: Vec<String> = (0..500).map(key).collect();
    let people: Vec<[&str; 2]> = people.iter().map(|person| ["p", person.as_str()]).collect();
    let people: Vec<&[&str]> = people.iter().map(|tag| &tag[..]).collect();
    let text = "Just setting up my relay, it keeps all of the history and gives it back. ";
    let note =
        signed(1, &[&["e", &root, "wss://relay.example/"], &["p", &author]], &text.repeat(2));
    let (empty, banned) = (Moderation::in_memory(Clock::System), banned());
    for (name, json) in [("note", note), ("500-tag follow list", signed(3, &people, ""))] {
        let mut arena = EventArena::new();
        let event = Event::parse(&json, &mut arena).expect("an event");
        if let Some(count) = count {
            checks(&banned, &event, count);
            continue;
        }
        let mut verifier = SignatureVerifier::new(16);
        let whole = timed(|| {
            let mut arena = EventArena::new();
            let event = Event::parse(black_box(&json), &mut arena).expect("an event");
            black_box(VerifiedEvent::check(event, &mut verifier).is_ok());
        });
        let (none, many) =
            (timed(|| checks(&empty, &event, 1)), timed(|| checks(&banned, &event, 1)));
        let share = (many.as_secs_f64() - none.as_secs_f64()) / whole.as_secs_f64() * 100.0;
        println!(
            "{name}: verified in {} ns; check {} ns, with bans {} ns: {share:.1} % more",
            whole.as_nanos(),
            none.as_nanos(),
            many.as_nanos()
        );
    }
}
