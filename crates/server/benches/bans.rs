//! Measures the cost of bans: for an event, the time of the check with no ban and with 100,000 bans
//! of each sort, and for a question, the time to search and copy a page of 500 events. For
//! comparison, also measures the time to parse an event and to verify its id and its signature.
//!
//!     cargo bench -p hark-server --bench bans
//!     cargo bench -p hark-server --bench bans -- --count CASE SORT N
//!
//! The second command makes no measurement. It runs a case (`note`, `follows` or `page`) N times,
//! with bans of a sort (`none`, `keys`, `ids`, `kinds`, `words`, `addresses` or `all`). The
//! instructions are counted by `valgrind --tool=callgrind --toggle-collect='*counted*'`.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_archive::{Query, Store, Write};
use hark_codec::crypto::{KeyPair, SignatureVerifier, sha256};
use hark_codec::nostr::{Event, EventArena, EventDraft, EventEncoder, VerifiedEvent};
use hark_networks::Network as _;
use hark_networks::nostr::Nostr;
use hark_server::moderation::{Moderation, ModerationNetwork, Ruling, RulingChange, RulingSubject};
use hark_server::nostr::policy::EventPolicy;
use hark_testkit::folder::Folder;

/// Number of bans of each sort.
const BANS: u32 = 100_000;
/// Number of rounds, of which the quickest counts.
const ROUNDS: u32 = 20;
/// Number of stored events, of their authors, and of the events of a page.
const STORED: u64 = 5_000;
const AUTHORS: u64 = 250;
const PAGE: usize = 500;
/// The sorts of bans, by their names in commands.
const SORTS: [&str; 7] = ["none", "keys", "ids", "kinds", "words", "addresses", "all"];

fn digest(n: u32) -> [u8; 32] {
    sha256(&n.to_le_bytes())
}

/// The subject with this number: a key, an id, a kind, a word, or an address.
fn subject(sort: &str, n: u32) -> RulingSubject {
    match sort {
        "keys" => RulingSubject::Key(digest(n)),
        "ids" => RulingSubject::Id(digest(!n)),
        // No event of this bench has one of these kinds.
        "kinds" => RulingSubject::Kind(40_000 + n as u16 % 20_000),
        "words" => RulingSubject::Word(format!("{:x}{n}", n.wrapping_mul(2_654_435_761))),
        _ => Ipv4Addr::from_bits(n << 8).to_string().parse().expect("an address"),
    }
}

/// Makes 100,000 bans of a sort, or of all sorts, in an archive.
fn banned(sort: &str, directory: &Folder) -> Moderation {
    let store = hark_testkit::embedded::store(&directory.join(sort), ModerationNetwork.rules());
    let moderation = Moderation::over(store).expect("an empty shelf");
    let sorts = SORTS[1..6].iter().filter(|of| sort == "all" || sort == **of);
    for sort in sorts {
        let ban = |n| RulingChange::Set {
            subject: subject(sort, n),
            ruling: Ruling::Ban,
            reason: String::new(),
            until_s: None,
        };
        let changes: Vec<_> = (0..BANS).map(ban).collect();
        moderation.change_now(&changes, "bench").expect("changes");
    }
    moderation
}

fn signed(kind: u16, created_at: u64, tags: &[&[&str]], content: &str) -> Vec<u8> {
    let mut secret = [7; 32];
    secret[..8].copy_from_slice(&(created_at % AUTHORS).to_le_bytes());
    let keys = KeyPair::from_secret(secret).expect("a key");
    let mut json = Vec::new();
    EventDraft { created_at, kind, tags, content }.sign(&keys, &mut json);
    json
}

/// The events that are checked: a note, and a list of 500 follows.
fn events() -> [(&'static str, Vec<u8>); 2] {
    let key = |n: u32| {
        let digits = hark_codec::hex::encode_32(&digest(n | 1 << 31));
        String::from_utf8_lossy(&digits).into_owned()
    };
    let (root, author) = (key(1), key(2));
    let people: Vec<String> = (0..500).map(key).collect();
    let people: Vec<[&str; 2]> = people.iter().map(|person| ["p", person.as_str()]).collect();
    let people: Vec<&[&str]> = people.iter().map(|tag| &tag[..]).collect();
    let text = "Just setting up my relay, it keeps all of the history and gives it back. ";
    let tags: &[&[&str]] = &[&["e", &root, "wss://relay.example/"], &["p", &author]];
    let note = signed(1, 1_700_000_000, tags, &text.repeat(2));
    [("note", note), ("follows", signed(3, 1_700_000_000, &people, ""))]
}

/// Makes an archive with notes of many authors.
fn archive(directory: &Folder) -> Arc<dyn Store> {
    let store = hark_testkit::embedded::store(&directory.join("events"), Nostr.rules());
    let mut writes = Vec::new();
    for n in 0..STORED {
        let json = signed(1, 1_700_000_000 + n, &[&["t", "bread"]], &"Good morning. ".repeat(10));
        let (mut arena, mut record) = (EventArena::new(), Vec::new());
        let event = Event::parse(&json, &mut arena).expect("an event");
        EventEncoder::default().encode(&event, &[], &mut record);
        writes.push(Write::Put(record.into()));
    }
    store.commit(&writes).expect("the events are stored");
    store
}

/// Searches for the newest events of a kind, and copies a page of these events, as the relay does.
fn read_page(store: &dyn Store, moderation: &Moderation, page: &mut Vec<u8>) {
    let hidden = Some(moderation.hidden());
    let query = Query { kinds: Some(vec![1]), limit: PAGE, hidden, ..Query::default() };
    let mut search = store.search(&query).expect("a search");
    page.clear();
    let progress = search.slice(u64::MAX, &mut |record| {
        page.extend_from_slice(record.wire());
        ControlFlow::Continue(())
    });
    progress.expect("a page");
}

/// Returns the time of one call, in the quickest round.
fn timed(calls: u32, mut work: impl FnMut()) -> Duration {
    let round = |work: &mut dyn FnMut()| {
        let began = Instant::now();
        (0..calls).for_each(|_| work());
        began.elapsed() / calls
    };
    (0..ROUNDS).map(|_| round(&mut work)).min().unwrap_or_default()
}

/// Runs work whose instructions callgrind counts.
#[inline(never)]
fn counted(count: u32, work: &mut dyn FnMut()) {
    (0..count).for_each(|_| work());
}

fn main() {
    let mut args = std::env::args().skip_while(|arg| arg != "--count").skip(1);
    let counts = args.next().zip(args.next()).zip(args.next().and_then(|count| count.parse().ok()));
    let (directory, mut page) = (Folder::new("bans"), Vec::new());
    let store = archive(&directory);
    let policy = EventPolicy::default();
    let mut whole = [Duration::ZERO; 2];
    let mut unbanned: Vec<Duration> = Vec::new();
    for sort in SORTS {
        if counts.as_ref().is_some_and(|((_, counted), _)| counted != sort) {
            continue;
        }
        let began = Instant::now();
        let moderation = banned(sort, &directory);
        let made = began.elapsed().as_secs_f64();
        let mut times = Vec::new();
        for (at, (name, json)) in events().into_iter().enumerate() {
            let mut arena = EventArena::new();
            let event = Event::parse(&json, &mut arena).expect("an event");
            let mut check = || {
                black_box(moderation.event_refusal(&policy, black_box(&event)));
            };
            match &counts {
                Some(((case, _), count)) if case == name => counted(*count, &mut check),
                Some(_) => {}
                None => times.push(timed(2_000, check)),
            }
            if counts.is_none() && sort == "none" {
                let mut verifier = SignatureVerifier::new(16);
                whole[at] = timed(2_000, || {
                    let mut arena = EventArena::new();
                    let event = Event::parse(black_box(&json), &mut arena).expect("an event");
                    black_box(VerifiedEvent::check(event, &mut verifier).is_ok());
                });
            }
        }
        let mut read = || read_page(&*store, &moderation, &mut page);
        match &counts {
            Some(((case, _), count)) if case == "page" => {
                read();
                counted(*count, &mut read);
            }
            Some(_) => {}
            None => times.push(timed(100, read)),
        }
        if counts.is_some() {
            continue;
        }
        if sort == "none" {
            unbanned.clone_from(&times);
            println!("an event is verified in: note {:?}, follows {:?}", whole[0], whole[1]);
        }
        let more = |at: usize, of: Duration| {
            let more = times[at].as_secs_f64() - unbanned[at].as_secs_f64();
            format!("{:?} ({:+.1} %)", times[at], more / of.as_secs_f64() * 100.0)
        };
        let (note, follows) = (more(0, whole[0]), more(1, whole[1]));
        let question = more(2, unbanned[2]);
        println!(
            "bans: {sort}, made in {made:.1} s: note {note}, follows {follows}, page {question}"
        );
    }
}
