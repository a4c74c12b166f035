//! `control.sock`, the socket by which other processes write to a running server and follow the
//! server's shelves.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hark_archive::{Outcome, Record};
use hark_codec::nostr::{Event, EventArena, EventEncoder};
use hark_networks::nostr::admit::{OwnUrls, PrivateLabels};
use hark_server::control::{ControlClient, ControlError, FedRecord, WriteRefusal};
use hark_testkit::folder::Folder;
use hark_testkit::nostr::note;
use serde_json::json;

use crate::kit::Relay;

fn record(n: u64) -> Vec<u8> {
    let (json, mut arena, mut bytes) = (note(1, n, "x").to_string(), EventArena::new(), Vec::new());
    let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
    let private = PrivateLabels::of(&event, &OwnUrls::default());
    EventEncoder::default().encode(&event, private.labels(), &mut bytes);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_writes_through_the_server() {
    let folder = Folder::new("control");
    let path = folder.join("control.sock");
    assert!(matches!(ControlClient::connect(&path, "nostr"), Err(ControlError::Absent)));
    // A socket that a dead server left behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(matches!(ControlClient::connect(&path, "nostr"), Err(ControlError::Absent)));
    let relay = Relay::start(|config| config.control = Some(path.clone())).await;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut subscriber = relay.client().await;
    subscriber.ask("s", &[json!({"limit": 0})]).await;

    let socket = path.clone();
    let driving = tokio::task::spawn_blocking(move || {
        let mut client = ControlClient::connect(&socket, "nostr").unwrap();
        let records: Vec<_> = (0..2_000).map(record).collect();
        let answers = client.put_many(&records).unwrap();
        assert_eq!(answers.len(), 2_000);
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Outcome::Stored { .. }))));
        let again = client.put_many(&[&records[0][..], b"no record", &records[1]]).unwrap();
        assert_eq!(again[0], Ok(Outcome::Duplicate));
        assert!(again[1].is_err());
        assert_eq!(again[2], Ok(Outcome::Duplicate));
        assert_eq!(client.stats().unwrap()["records"], 2_000);
        let ids: Vec<_> = records.iter().map(|bytes| *Record::new(bytes).unwrap().id()).collect();
        assert_eq!(client.erase(&ids[..4]).unwrap(), 4);
        assert_eq!(client.erase(&ids[..1_300]).unwrap(), 1_296);
        assert_eq!(client.stats().unwrap()["records"], 700);
        let mut other = ControlClient::connect(&socket, "other").unwrap();
        let refused = other.erase(&ids).unwrap_err();
        let said = "this server does not serve other; it serves nostr";
        assert!(matches!(&refused, ControlError::Refused(why) if why == said), "{refused}");
        assert_eq!(other.put_many(&records[..1]).unwrap(), [Err(WriteRefusal(said.to_owned()))]);
        let mut lines = Vec::new();
        let summary = client.compact(&mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!((summary.as_str(), lines), ("small now", vec!["half".to_owned()]));
    });
    for n in 0..2_000 {
        assert_eq!(subscriber.receive().await[2]["created_at"], n);
    }
    driving.await.unwrap();
    let client = ControlClient::connect(&path, "nostr").unwrap();
    relay.stop().await;
    assert!(!path.exists());
    drop(client);
}

/// A process that follows a shelf gets every record that is stored after the process began to
/// follow, once and in order, until the server ends.
#[tokio::test(flavor = "multi_thread")]
async fn another_process_is_told_of_every_new_record() {
    let folder = Folder::new("follow");
    let path = folder.join("control.sock");
    let relay = Relay::start(|config| config.control = Some(path.clone())).await;
    let mut publisher = relay.client().await;
    publisher.publish(&note(2, 5, "before")).await;
    let client = ControlClient::connect(&path, "nostr").unwrap();
    let refused = ControlClient::connect(&path, "other").unwrap().follow();
    assert!(matches!(refused, Err(ControlError::Refused(_))));
    let socket = path.clone();
    let (told, mut following) = tokio::sync::mpsc::unbounded_channel();
    let mut records = tokio::task::spawn_blocking(move || client.follow().unwrap()).await.unwrap();
    let reading = std::thread::spawn(move || {
        let stop = AtomicBool::new(false);
        records.read_for(Duration::from_millis(50), &stop, &mut |said| match said {
            FedRecord::Record(record) => told.send(record.time()).unwrap(),
            FedRecord::Quiet => {}
            FedRecord::Lagged => panic!("the reader lags"),
        })
    });
    let putting = tokio::task::spawn_blocking(move || {
        let mut client = ControlClient::connect(&socket, "nostr").unwrap();
        let records: Vec<_> = (100..1_100).map(record).collect();
        assert!(client.put_many(&records).unwrap().iter().all(Result::is_ok));
        client.put_many(&records[..3]).unwrap();
    });
    putting.await.unwrap();
    publisher.publish(&note(2, 9_999, "after")).await;
    for time in (100..1_100).chain([9_999]) {
        assert_eq!(following.recv().await, Some(time));
    }
    relay.stop().await;
    assert!(reading.join().unwrap().is_err());
    assert_eq!(following.recv().await, None);
}
