//! Shelves of all networks in a database, with real messages, and the check of these shelves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hark_archive::effects::Rules;
use hark_archive::{Outcome, Query, Record, Store, TextSource, Write};
use hark_codec::crypto::KeyPair;
use hark_codec::nostr::EventDraft;
use hark_networks::nostr::Nostr;
use hark_networks::nostr::texts::TextChoice;
use hark_networks::waku::Waku;
use hark_networks::whisper::Whisper;
use hark_networks::{Network, ReadOptions};
use hark_store_postgres::{
    DatabaseCheck, DatabaseOpenError, PostgresOptions, PostgresStore, check,
};
use hark_testkit::wait::until;

const DAY: u64 = 86_400;
/// The first second of a part.
pub(crate) const START: u64 = 19_700 * DAY;

pub(crate) fn texts() -> Arc<dyn TextSource> {
    TextChoice::default().source(&[])
}

/// The options of a server for a network's shelf.
pub(crate) fn options(network: &dyn Network) -> PostgresOptions {
    let nature = network.nature();
    PostgresOptions {
        part_s: DAY,
        units_per_s: nature.units_per_s,
        one_kind: nature.one_kind,
        common_labels: nature.common_labels,
        listed_labels: nature.listed_labels,
        texts: (network.name() == "nostr").then(texts),
        shards: 6,
        ..PostgresOptions::default()
    }
}

/// Opens a shelf with these rules.
pub(crate) fn open_with(url: &str, network: &dyn Network, rules: Box<dyn Rules>) -> PostgresStore {
    PostgresStore::open(url, network.name(), rules, &options(network)).expect("opens")
}

pub(crate) fn open(url: &str, network: &dyn Network) -> PostgresStore {
    open_with(url, network, network.rules())
}

/// Returns the record of a line.
pub(crate) fn record(network: &dyn Network, line: &str) -> Box<[u8]> {
    let mut record = Vec::new();
    let mut reader = network.lines().reader(&ReadOptions::default());
    reader.read(line.as_bytes(), &|_| false, &mut record).unwrap_or_else(|fault| {
        panic!("{fault}: {line}");
    });
    record.into()
}

/// Returns a signed event.
pub(crate) fn event(who: u8, at: u64, kind: u16, tags: &[&[&str]], content: &str) -> String {
    let keys = KeyPair::from_secret([who; 32]).expect("a key");
    let mut json = Vec::new();
    EventDraft { created_at: START + at, kind, tags, content }.sign(&keys, &mut json);
    String::from_utf8(json).expect("is text")
}

/// The id of an event, in hex digits.
pub(crate) fn id(event: &str) -> String {
    let bytes = record(&Nostr, event);
    let id = *Record::new(&bytes).expect("is a record").id();
    String::from_utf8(hark_codec::hex::encode_32(&id).to_vec()).expect("digits")
}

/// The public key of a person, in hex digits.
pub(crate) fn key(who: u8) -> String {
    let keys = KeyPair::from_secret([who; 32]).expect("a key");
    String::from_utf8(hark_codec::hex::encode_32(keys.public()).to_vec()).expect("digits")
}

/// Stores the records of lines, in batches. Returns how many were stored.
pub(crate) fn put(store: &dyn Store, network: &dyn Network, lines: &[String]) -> usize {
    let mut stored = 0;
    for lines in lines.chunks(100) {
        let writes: Vec<Write> =
            lines.iter().map(|line| Write::Put(record(network, line))).collect();
        let done = store.commit(&writes).expect("commits");
        let is_stored = |outcome: &&Outcome| matches!(outcome, Outcome::Stored { .. });
        stored += done.outcomes.iter().filter(is_stored).count();
    }
    stored
}

/// Events of every sort, `rounds` times: notes, profiles, articles, deletions, gift wraps, requests
/// to vanish, and events that expire. The notes of person 1 have the word `about`.
pub(crate) fn events(rounds: u64) -> Vec<String> {
    let mut all = Vec::new();
    for n in 0..rounds {
        let (at, who) = (n * 900, 1 + (n % 5) as u8);
        let number = n.to_string();
        let note =
            event(who, at, 1, &[&["t", "news"], &["t", &number]], &format!("note about {n}"));
        let name = format!(r#"{{"name":"person {n}"}}"#);
        all.push(event(who, at + 1, 0, &[], &name));
        let slug = format!("article {}", n % 7);
        let tags: &[&[&str]] = &[&["d", &slug], &["title", "A title"]];
        all.push(event(who, at + 2, 30_023, tags, "a long text about the weather"));
        let expires = (START + at + 100_000_000).to_string();
        all.push(event(who, at + 3, 1, &[&["expiration", &expires]], "soon away"));
        all.push(event(7, at + 4, 1059, &[&["p", &key(8)]], "sealed"));
        if n % 6 == 5 {
            all.push(event(who, at + 5, 5, &[&["e", &id(&note)]], "not so"));
            let address = format!("30023:{}:{slug}", key(who));
            all.push(event(who, at + 6, 5, &[&["a", &address]], ""));
        }
        if n % 40 == 39 {
            all.push(event(6, at + 7, 1, &[], "to vanish"));
            all.push(event(6, at + 8, 62, &[&["relay", "ALL_RELAYS"]], ""));
            all.push(event(8, at + 9, 62, &[&["relay", "ALL_RELAYS"]], ""));
        }
        all.push(note);
    }
    all
}

/// Runs `work` while a thread stores and deletes events of person 9, the first at the time `from`.
pub(crate) fn beside_a_writer(store: &PostgresStore, from: u64, work: impl FnOnce()) {
    let count = || store.count(&Query::default()).expect("counts");
    let (before, ended) = (count(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64.. {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let at = from + number;
                let note = event(9, at, 1, &[&["t", "beside"]], &format!("about {number}"));
                let profile = event(9, at, 0, &[], "{}");
                let deletion = event(9, at, 5, &[&["e", &id(&note)]], "");
                let kept = event(9, at, 1, &[&["t", "kept"]], &format!("kept {number}"));
                put(store, &Nostr, &[note, profile, kept]);
                put(store, &Nostr, &[deletion]);
            }
        });
        until("the writer has begun", || count() > before);
        work();
        ended.store(true, Ordering::Relaxed);
    });
}

/// Messages of a few content topics.
pub(crate) fn messages(count: u64) -> Vec<String> {
    let message = |n: u64| {
        let at = (START + n * 600) * 1_000_000_000 + n;
        let topic = n % 8;
        format!(
            r#"{{"pubsubTopic":"/waku/2/rs/1/{topic}","message":{{"payload":"AP8=","contentTopic":"/a/1/{topic}/proto","timestamp":{at}}}}}"#
        )
    };
    (0..count).map(message).collect()
}

/// Envelopes of a few topics.
pub(crate) fn envelopes(count: u64) -> Vec<String> {
    let envelope = |n: u64| {
        let (expiry, topic) = (START + n * 600, n % 12);
        format!(
            r#"{{"expiry":{expiry},"ttl":50,"topic":"0x0000000{topic:x}","data":"0x{n:08x}","nonce":{n}}}"#
        )
    };
    (0..count).map(envelope).collect()
}

/// Checks a shelf.
pub(crate) fn try_check(
    url: &str,
    network: &dyn Network,
    options: &PostgresOptions,
) -> Result<DatabaseCheck, DatabaseOpenError> {
    let mut message = network.lines().record_check();
    let mut message = |record: &Record<'_>| message(record).err().map(|fault| fault.to_string());
    let (name, rules) = (network.name(), network.rules());
    check(url, name, rules, options, &mut message, &mut |progress| {
        assert!(progress.done <= progress.total, "{progress:?}");
    })
}

/// Checks a shelf with the options of its server.
pub(crate) fn checked(url: &str, network: &dyn Network) -> DatabaseCheck {
    try_check(url, network, &options(network)).expect("checks")
}

/// Returns the numbers of faults by the names of their sorts.
pub(crate) fn counts(report: &DatabaseCheck) -> BTreeMap<&'static str, u64> {
    report.counts.iter().map(|(sort, count)| (sort.name(), *count)).collect()
}

/// The fault counts of a shelf without faults: none.
pub(crate) fn no_faults() -> BTreeMap<&'static str, u64> {
    BTreeMap::new()
}

/// All networks, each with lines of its records.
pub(crate) fn shelves(rounds: u64) -> [(&'static dyn Network, Vec<String>); 3] {
    [(&Nostr, events(rounds)), (&Waku, messages(rounds * 2)), (&Whisper, envelopes(rounds * 2))]
}
