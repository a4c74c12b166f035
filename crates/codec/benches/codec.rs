//! How long a message takes: `cargo bench -p hark-codec`. Nanoseconds, the best of many rounds.

use std::hint::black_box;
use std::time::Instant;

use hark_codec::crypto::{Keys, Verifier, sign};
use hark_codec::nostr::{Arena, ClientMessage, Draft, Encoder, Event, Filter, Inbox};
use hark_codec::{hex, scan};

fn best_ns(mut run: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    let mut times = 1u32;
    let begin = Instant::now();
    while begin.elapsed().as_millis() < 300 {
        let start = Instant::now();
        for _ in 0..times {
            run();
        }
        let took_ns = start.elapsed().as_nanos() as f64;
        best = best.min(took_ns / f64::from(times));
        if took_ns < 50_000.0 {
            times *= 2;
        }
    }
    best
}

/// Makes the compiler believe that the value is needed.
fn keep<T>(value: T) {
    let _ = black_box(value);
}

fn signed(kind: u16, tags: &[&[&str]], content: &str) -> Vec<u8> {
    let keys = Keys::from_secret([7; 32]).expect("a key");
    let mut out = Vec::new();
    Draft { created_at: 1_700_000_000, kind, tags, content }.sign(&keys, &mut out);
    out
}

fn main() {
    let id = "0123456789abcdef".repeat(4);
    let reply: &[&[&str]] = &[
        &["e", &id, "wss://relay.example/", "root"],
        &["e", &id, "wss://relay.example/", "reply"],
        &["p", &id],
    ];
    let text =
        "just setting up my relay, it keeps all of the history and gives it back. ".repeat(2);
    let profile = r#"{"name":"hark","about":"listens now,\nharks back later","picture":"https://example.org/a.png","nip05":"_@example.org","lud16":"a@example.org","website":"https://example.org/"}"#;
    let people: Vec<String> = (0..500).map(|n| format!("{n:064x}")).collect();
    let tags: Vec<[&str; 2]> = people.iter().map(|person| ["p", person.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    let article =
        format!("# Title\n\n{}\n", "A line of a long text with \"quotes\".\n".repeat(210));
    let events = [
        ("note, 3 tags", signed(1, reply, &text)),
        ("profile, escaped", signed(0, &[], profile)),
        ("500 tags", signed(3, &tags, "")),
        ("article", signed(30_023, &[&["d", "a"]], &article)),
    ];
    println!(
        "{:<18}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "ns", "bytes", "parse", "EVENT", "id", "json", "record"
    );
    for (name, json) in &events {
        let message = [b"[\"EVENT\",", &json[..], b"]"].concat();
        let (mut arena, mut inbox) = (Arena::new(), Inbox::new(8));
        let mut out = Vec::new();
        let mut encoder = Encoder::default();
        let parse = best_ns(|| keep(Event::parse(black_box(json), &mut arena)));
        let whole = best_ns(|| {
            keep(ClientMessage::parse(black_box(&message), &mut inbox));
        });
        let event = Event::parse(json, &mut arena).expect("an event");
        let id = best_ns(|| keep(black_box(event).compute_id()));
        let write = best_ns(|| {
            out.clear();
            black_box(event).write_json(&mut out);
            black_box(&out);
        });
        let record = best_ns(|| {
            out.clear();
            encoder.encode(&black_box(event), &[], &mut out);
            black_box(&out);
        });
        let len = json.len();
        println!("{name:<18}{len:>8}{parse:>9.0}{whole:>9.0}{id:>9.0}{write:>9.0}{record:>9.0}");
    }

    let list: Vec<String> = people.iter().map(|person| format!("\"{person}\"")).collect();
    let home =
        format!("{{\"authors\":[{}],\"kinds\":[1,6,30023],\"limit\":50}}", list[..200].join(","));
    let thread = format!("{{\"#e\":[{}],\"limit\":20}}", list[..75].join(","));
    let mut arena = Arena::new();
    let event = Event::parse(&events[0].1, &mut arena).expect("an event");
    for (name, json) in [("home, 200 authors", home), ("thread, 75 ids", thread)] {
        let mut filter = Filter::default();
        let parse = best_ns(|| keep(filter.parse(black_box(json.as_bytes()))));
        let matches = best_ns(|| keep(filter.matches(&black_box(event))));
        println!("{name:<18}{:>8}{parse:>9.0}   matches {matches:.0}", json.len());
    }

    let keys = Keys::from_secret([7; 32]).expect("a key");
    let hash = event.compute_id();
    let signature = sign(&keys, &hash);
    let mut verifier = Verifier::new(16);
    let verify = best_ns(|| keep(verifier.verify(&hash, keys.public(), &signature)));
    let mut forgetful = Verifier::new(1);
    let other = Keys::from_secret([8; 32]).expect("a key");
    let cold = best_ns(|| {
        keep(forgetful.verify(&hash, keys.public(), &signature));
        keep(forgetful.verify(&hash, other.public(), &signature));
    }) / 2.0;
    let digits = hex::encode_32(&hash);
    let decode = best_ns(|| keep(hex::decode_32(black_box(&digits))));
    let encode = best_ns(|| keep(hex::encode_32(black_box(&hash))));
    let plain = vec![b'a'; 4096];
    let find = best_ns(|| keep(scan::find_special(black_box(&plain), 0)));
    println!(
        "verify {verify:.0}, key not known {cold:.0}; hex of 32 bytes: decode {decode:.1}, encode {encode:.1}; scan 4 KiB {find:.0}"
    );
}
