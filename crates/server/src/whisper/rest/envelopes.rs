//! `POST /whisper/envelopes`: one envelope, or a list of envelopes, as RLP.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use hark_codec::crypto::keccak256;
use hark_codec::whisper::rlp::{RlpError, RlpItems};
use hark_networks::whisper::digits;
use serde_json::json;

use super::state::{MailState, is_json};
use crate::rate::RateSource;
use crate::rest::{RestAnswer, source};
use crate::service::Archived;
use crate::whisper::intake::{EnvelopeRejection, FAULTS_MAX};
use crate::whisper::mail_server::MailServer;
use crate::whisper::metrics::MailSource;

/// Stores envelopes. Answers with the outcomes, after all accepted envelopes are durable.
pub(super) async fn publish(State(rest): MailState, request: Request) -> RestAnswer {
    let sender = source(&request);
    if is_json(&request) {
        return RestAnswer::refused("envelopes are sent as RLP, application/octet-stream\n");
    }
    let body = match rest.body(request).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match split(&body.bytes) {
        Ok(envelopes) => store(&rest.mail, Some(sender), envelopes).await,
        Err(error) => {
            let words = format!("this is neither an envelope nor a list of envelopes: {error}\n");
            RestAnswer::refused(words)
        }
    }
}

/// Returns the RLP of each envelope. An envelope is itself a list, but its first item is not a
/// list.
fn split(body: &[u8]) -> Result<Vec<&[u8]>, RlpError> {
    let mut items = RlpItems::of_list(body)?;
    if !items.next_is_list() && !items.is_empty() {
        return Ok(vec![body]);
    }
    let mut envelopes = Vec::new();
    while !items.is_empty() {
        let before = items.remaining();
        items.list()?;
        envelopes.push(&before[..before.len() - items.remaining().len()]);
    }
    Ok(envelopes)
}

/// Stores envelopes until [`FAULTS_MAX`] envelopes are refused.
async fn store(
    mail: &MailServer,
    sender: Option<RateSource>,
    mut envelopes: Vec<&[u8]>,
) -> RestAnswer {
    let (mut pending, mut faults) = (Vec::new(), 0);
    for rlp in &envelopes {
        let envelope = mail.submit(MailSource::Rest, sender, rlp).await;
        faults += usize::from(envelope.is_err());
        pending.push(envelope);
        if faults == FAULTS_MAX {
            break;
        }
    }
    let unread = envelopes.len() - pending.len();
    // The unread envelopes may be a million entries of one byte each. The list of these entries
    // need not stay in memory until the read envelopes are durable.
    envelopes.truncate(pending.len());
    envelopes.shrink_to_fit();
    let (mut stored, mut duplicates, mut refused) = (0, 0, Vec::new());
    let (mut failed, mut too_many) = (false, false);
    for (at, pending) in pending.into_iter().enumerate() {
        let archived = match pending {
            Ok(pending) => mail.wait_until_durable(pending).await,
            Err(rejection) => Err(rejection),
        };
        match archived {
            Ok(Archived::Stored) => stored += 1,
            Ok(Archived::Duplicate) => duplicates += 1,
            Err(rejection) => {
                use EnvelopeRejection::{Down, Store, TooMany, TooManyTopics};
                failed |= matches!(rejection, Store(_) | Down);
                too_many |= matches!(rejection, TooMany | TooManyTopics);
                let hash = digits::text(&keccak256(envelopes[at]));
                refused.push(json!({ "at": at, "hash": hash, "reason": rejection.to_string() }));
            }
        }
    }
    let status = match (failed, stored + duplicates, refused.len()) {
        (true, ..) => StatusCode::SERVICE_UNAVAILABLE,
        (_, 0, 1..) if too_many => StatusCode::TOO_MANY_REQUESTS,
        (_, 0, 1..) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    };
    let mut answer = json!({ "stored": stored, "duplicates": duplicates });
    answer["refused"] = refused.into();
    if unread > 0 {
        answer["unread"] = unread.into();
    }
    RestAnswer { status, ..RestAnswer::json(answer.to_string()) }
}
