//! Events that are longer than a relay reads.

use std::sync::Arc;

use hark_peers::{Direction, RelayAddress};
use hark_testkit::nostr::note;
use hark_testkit::wait::until_async;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::kit::{Here, event, play, play_bounded};
use crate::paged;

/// Twenty events. The second event is the only one that the relay does not read.
fn events() -> Vec<Value> {
    let mut events: Vec<Value> = (0..20).map(|n| event(n, 1_700_000_000 + n)).collect();
    events[1] = note(1, 1_700_000_001, &"x".repeat(100 << 10));
    events
}

/// Starts a relay that ends the connection at a message of more than 80 KiB. Returns its address
/// and its events.
async fn bounded() -> (RelayAddress, Arc<Mutex<Vec<Value>>>) {
    let taken = Arc::<Mutex<Vec<Value>>>::default();
    let url = play_bounded(80 << 10, {
        let taken = Arc::clone(&taken);
        move |message| match message[0].as_str() {
            Some("EVENT") => {
                taken.lock().push(message[1].clone());
                vec![json!(["OK", message[1]["id"], true, ""]).to_string()]
            }
            _ => paged(message, &taken.lock(), 500),
        }
    })
    .await;
    (url, taken)
}

#[tokio::test]
async fn an_event_that_ends_the_connection_holds_up_no_other() {
    let (url, taken) = bounded().await;
    let here = Here::with(&events());
    here.sync(&url, Direction::Up).await.unwrap_err();
    assert_eq!(taken.lock().len(), 19);
}

/// Some relays report a message above their limit by a NOTICE only.
#[tokio::test]
async fn long_events_without_an_answer_hold_up_no_other() {
    let taken = Arc::<Mutex<Vec<Value>>>::default();
    let url = play({
        let taken = Arc::clone(&taken);
        move |message| match message[0].as_str() {
            Some("EVENT") if message.to_string().len() > 80 << 10 => {
                vec![json!(["NOTICE", "too long"]).to_string()]
            }
            Some("EVENT") => {
                taken.lock().push(message[1].clone());
                vec![json!(["OK", message[1]["id"], true, ""]).to_string()]
            }
            _ => paged(message, &taken.lock(), 500),
        }
    })
    .await;
    let long = |n: u64| note(1, 1_700_000_000 + n, &"x".repeat(100 << 10));
    let mut events: Vec<Value> = (0..5).map(long).collect();
    events.push(note(1, 1_700_000_100, &"y".repeat(70 << 10)));
    let here = Here::with(&events);
    here.sync(&url, Direction::Up).await.unwrap();
    let totals = here.finish();
    assert_eq!((taken.lock().len(), totals.refused_there.of("no answer")), (1, 5), "{totals:?}");
}

#[tokio::test]
async fn an_event_that_ends_connections_again_and_again_is_left() {
    let (url, taken) = bounded().await;
    let here = Here::with(&events());
    let (mut stream, status) = here.stream(&url);
    stream.options.direction = Direction::Up;
    let as_expected = async {
        until_async("it is in step", async || status.is_in_step()).await;
        assert_eq!(taken.lock().len(), 19);
        let refused = status.meter.totals().refused_there.of("too large");
        assert_eq!(refused, 1);
    };
    tokio::select! {
        error = stream.run() => panic!("{error}"),
        () = as_expected => {}
    }
}
