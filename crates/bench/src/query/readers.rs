//! The owners of inboxes. A connection authenticates as an owner to query the inbox.

use std::collections::HashMap;
use std::time::SystemTime;

use anyhow::bail;
use hark_codec::crypto::KeyPair;
use hark_codec::nostr::EventDraft;
use hark_codec::record::Key;

use crate::args::BenchQueryArgs;
use crate::people;
use crate::requests::request;
use crate::sample::EventSample;
use crate::shapes;
use crate::target::BenchTarget;
use crate::websocket::{RelayConnection, RelayMessage, fields, put_text};

/// Number of authors whose keys are derived to find owners of inboxes.
const READERS: usize = 2_000;

/// The owner of an inbox.
#[derive(Clone, Debug)]
pub(super) struct InboxOwner {
    pub(super) key: Key,
    pub(super) keys: KeyPair,
}

/// Returns the owners of inboxes whose keys can be derived, the largest inbox first.
pub(super) fn readers(sample: &EventSample) -> anyhow::Result<Vec<InboxOwner>> {
    let known = people::all(READERS)?;
    let known: HashMap<Key, KeyPair> =
        known.into_iter().map(|keys| (*keys.public(), keys)).collect();
    let all = sample.inboxes.iter().filter_map(|(key, _)| {
        known.get(key).map(|keys| InboxOwner { key: *key, keys: keys.clone() })
    });
    Ok(all.collect())
}

/// Returns the owners whose keys one connection uses to authenticate.
pub(super) fn own(
    readers: &[InboxOwner],
    connection: usize,
    args: &BenchQueryArgs,
) -> Vec<InboxOwner> {
    readers.iter().skip(connection).step_by(args.connections).take(args.keys).cloned().collect()
}

/// Authenticates a connection as these owners, if the relay sends a challenge (NIP-42).
pub(super) async fn prove(
    connection: &mut RelayConnection,
    target: &BenchTarget,
    readers: Vec<InboxOwner>,
) -> anyhow::Result<()> {
    let Some(first) = readers.first() else { return Ok(()) };
    // A relay that requires AUTH has sent its challenge by the end of this answer.
    let probe = request(0, &shapes::inbox(&first.key));
    connection.send(&probe.req).await?;
    while !matches!(
        connection.next().await?,
        RelayMessage::Eose(_) | RelayMessage::Closed(_) | RelayMessage::Notice(_)
    ) {}
    connection.send(&probe.close).await?;
    let Some(challenge) = connection.challenge.clone() else { return Ok(()) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    for reader in &readers {
        let tags: [&[&str]; 2] = [&["relay", &target.url.text], &["challenge", &challenge]];
        let draft = EventDraft { created_at: now, kind: 22_242, tags: &tags, content: "" };
        let (mut event, mut frame) = (Vec::new(), Vec::new());
        draft.sign(&reader.keys, &mut event);
        put_text(&mut frame, &[b"[\"AUTH\",", &event, b"]"]);
        connection.send(&frame).await?;
        let answer = loop {
            if let RelayMessage::Ok(text) = connection.next().await? {
                break fields(text);
            }
        };
        if answer.get(2).is_none_or(|accepted| accepted != "true") {
            bail!(
                "the relay refuses an AUTH, so inboxes cannot be read: {}",
                answer.last().map_or("", String::as_str)
            );
        }
    }
    Ok(())
}
