//! The events that a run has published, and their deletion at the end.

use std::collections::BTreeMap;

use hark_codec::crypto::KeyPair;
use serde_json::json;

use super::client::ProbeClient;
use super::end::ProbeResult;
use super::event::{EventPlan, ProbeEvent};
use super::run::{ProbeRun, now};
use crate::text;

/// Maximum number of events in a deletion request.
const DELETED_MAX: usize = 200;

/// An event that the relay accepted, and the keys that can delete the event.
#[derive(Clone)]
pub(crate) struct LeftEvent {
    pub(crate) event: ProbeEvent,
    pub(crate) keys: KeyPair,
}

/// Deletes these events, and returns the number of events of the same authors that remain.
pub(crate) async fn clean_up(run: &ProbeRun, left: &[LeftEvent]) -> ProbeResult<usize> {
    let mut by_author: BTreeMap<&str, Vec<&LeftEvent>> = BTreeMap::new();
    for event in left {
        by_author.entry(&event.event.pubkey).or_default().push(event);
    }
    let mut client = ProbeClient::open(run).await?;
    let member = run.member.as_ref().map(|keys| text::hex(keys.public()));
    let mut remaining = 0;
    for (author, events) in &by_author {
        let keys = &events[0].keys;
        // A request to vanish deletes all events of a key, so none is made for the key of
        // `--secret`.
        let vanishes = run.info.lists(62) == Some(true) && member.as_deref() != Some(*author);
        // A request to vanish does not delete events that are newer than the request.
        let is_listed = |event: &&&LeftEvent| {
            event.event.kind != 62 && (!vanishes || event.event.created_at > now())
        };
        let listed: Vec<_> = events.iter().filter(is_listed).collect();
        for part in listed.chunks(DELETED_MAX) {
            let plan = part
                .iter()
                .fold(EventPlan::new(5, now()), |plan, event| plan.tag(&["e", &event.event.id]));
            let request = plan.content("events of a test").mine(keys, run.work_bits());
            client.store(&request, keys).await?;
        }
        if vanishes {
            let plan = EventPlan::new(62, now()).tag(&["relay", &run.public_url]);
            let request = plan.content("events of a test").mine(keys, run.work_bits());
            client.store(&request, keys).await?;
        }
        let filter = json!({"authors": [author], "limit": 500});
        let answer = client.ask_as(keys, &[filter]).await?;
        answer.end.require_eose()?;
        remaining += answer.events.len();
    }
    Ok(remaining)
}
