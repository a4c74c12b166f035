//! The server is killed under load: every event that got its OK is stored afterwards.

use std::path::PathBuf;
use std::time::Duration;

use hark_archive::{Id, Store as _};
use hark_codec::crypto::KeyPair;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::disk::scratch;
use hark_testkit::random::Random;

use crate::served::{Server, Socket, hark, now_s, publication, publish};

/// Publishes until the server is killed. Returns the ids of the events that got their OK.
fn load(address: &str, round: u64, now: u64) -> Vec<Id> {
    let keys = KeyPair::from_secret([9; 32]).expect("a key");
    let mut acknowledged = Vec::new();
    let mut numbers = 0u64..;
    publish(
        Socket::connect(address),
        400,
        || {
            let n = numbers.next()?;
            let content = format!("round {round}, note {n} {}", "x".repeat((n % 200) as usize));
            Some(publication(&keys, now - n % 1_000, 1, &[&["t", "load"]], &content).0)
        },
        |id, verdict| {
            assert!(verdict.starts_with(b"\",true"), "{}", String::from_utf8_lossy(verdict));
            acknowledged.push(id);
        },
    );
    acknowledged
}

#[test]
fn every_event_that_got_its_ok_is_there_after_kill_9() {
    let root = scratch("kill");
    let data: PathBuf = root.join("data");
    std::fs::create_dir_all(&root).expect("is made");
    let config = root.join("hark.toml");
    // Heads are small, so that the kill also interrupts sealing and merging.
    std::fs::write(&config, "[archive]\nseal_records = 1000\n").expect("is written");
    let mut random = Random::new(2);
    let mut acknowledged: Vec<Id> = Vec::new();
    let rounds = if super::long() { 20 } else { 5 };
    let now = now_s();
    for round in 0..rounds {
        let mut server = Server::start(&data, &config);
        let address = server.address.clone();
        let loading = std::thread::spawn(move || load(&address, round, now));
        std::thread::sleep(Duration::from_millis(300 + random.below(700) as u64));
        server.kill();
        let fresh = loading.join().expect("the client goes on to the end");
        assert!(!fresh.is_empty(), "no event was acknowledged");
        acknowledged.extend(fresh);

        let server = Server::start(&data, &config);
        let reader = EmbeddedStore::open_read_only(&data.join("nostr"), EmbeddedOptions::default())
            .expect("opens beside the server");
        let known = |id: &&Id| !reader.knows(id).expect("answers");
        let lost = acknowledged.iter().filter(known).count();
        assert_eq!(lost, 0, "of {} events with an OK, round {round}", acknowledged.len());
        let checked = hark(&data).arg("check").output().expect("runs");
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success() && said.contains("no faults"), "{said}");
        drop(server);
    }
    println!("{rounds} kills, {} events acknowledged", acknowledged.len());
    // What is left behind in the temporary directory harms nobody.
    let _ = std::fs::remove_dir_all(&root);
}
