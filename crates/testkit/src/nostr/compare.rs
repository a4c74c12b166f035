//! A client that compares its events with the relay's (NIP-77).

use std::collections::BTreeSet;

use hark_codec::hex;
use hark_codec::nostr::negentropy::{
    NegentropyDifference, NegentropyInitiator, NegentropyItem, SortedItems,
};
use serde_json::{Value, json};

use super::client::Client;
use crate::digits::digits;

/// The result of a comparison, as event ids.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Events that only the client has.
    pub have: BTreeSet<String>,
    /// Events that only the relay has.
    pub need: BTreeSet<String>,
    /// The messages of the relay.
    pub answers: Vec<String>,
}

/// The id of an event.
pub fn id(event: &Value) -> String {
    event["id"].as_str().unwrap().to_owned()
}

/// Returns the set of items of a client that has these events.
pub fn held<'a>(events: impl IntoIterator<Item = &'a Value>) -> SortedItems {
    let item = |event: &Value| NegentropyItem {
        time: event["created_at"].as_u64().unwrap(),
        id: hex::decode_32(event["id"].as_str().unwrap().as_bytes()).unwrap(),
    };
    events.into_iter().map(item).collect::<Vec<_>>().into()
}

/// The first message of a client that has no events.
pub const NOTHING: &str = "6100000200";

/// Compares a client's events with the relay's events that match, and ends the comparison. Messages
/// of the client have at most `frame_bytes_max` bytes. If the relay refuses, returns its refusal as
/// the error.
pub async fn compare(
    client: &mut Client,
    filter: &Value,
    ours: &SortedItems,
    frame_bytes_max: usize,
) -> Result<Compared, Value> {
    let mut initiator = NegentropyInitiator::new(ours, frame_bytes_max);
    let mut compared = Compared::default();
    client.send_text(json!(["NEG-OPEN", "compare", filter, digits(&initiator.open())])).await;
    loop {
        let received = client.receive().await;
        assert_eq!(received[1], "compare", "{received}");
        if received[0] != "NEG-MSG" {
            return Err(received);
        }
        let mut answer = Vec::new();
        assert!(hex::decode_into(received[2].as_str().unwrap().as_bytes(), &mut answer));
        compared.answers.push(digits(&answer));
        let next = initiator.answer(&answer, &mut |difference| match difference {
            NegentropyDifference::Have(id) => drop(compared.have.insert(digits(&id))),
            NegentropyDifference::Need(id) => drop(compared.need.insert(digits(&id))),
        });
        let Some(next) = next.unwrap() else { break };
        client.send_text(json!(["NEG-MSG", "compare", digits(&next)])).await;
    }
    client.send_text(json!(["NEG-CLOSE", "compare"])).await;
    Ok(compared)
}
