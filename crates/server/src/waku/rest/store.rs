//! `GET /store/v3/messages` as in nwaku: turns parameters into a request, and writes a page as
//! JSON.

use axum::http::StatusCode;
use hark_archive::Record;
use hark_codec::record::Id;
use hark_codec::waku::store::Status;
use hark_codec::waku::{MessageRecord, StoreResponse};
use hark_networks::waku::history::{HistoryError, HistoryPage, MessageRequest};
use hark_networks::waku::json::{put_element, put_hash, put_stored, read_hash};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::rest::RestAnswer;
use crate::waku::peer_status::{NO_PEERS, NoPeerAnswer};

/// The parameters of a request.
#[derive(Debug)]
pub(super) struct StoreParameters {
    /// The address of a peer whose store should answer in place of this node's store.
    pub(super) peer_addr: Option<String>,
    pub(super) request: MessageRequest,
}

/// Why parameters are refused. The texts are for clients.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParameterFault {
    #[error("{0} is given twice; separate several values by commas")]
    Twice(String),
    #[error("{0} is not UTF-8")]
    Utf8(String),
    /// A parameter's value has the wrong form. The fields are the parameter's name, the required
    /// form, and the value.
    #[error("{0} must be {1}, not `{2}`")]
    Value(String, &'static str, String),
}

/// Returns the HTTP answer to a refused request.
pub(super) fn refused(refusal: &HistoryError) -> RestAnswer {
    RestAnswer::words(status(refusal.status()), refusal.to_string())
}

fn status(status: Status) -> StatusCode {
    match status {
        Status::Success => StatusCode::OK,
        Status::BadResponse | Status::BadRequest => StatusCode::BAD_REQUEST,
        Status::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        Status::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Maps the answer of another store to HTTP, as nwaku does. Errors of the other store are reported
/// in the JSON.
pub(super) fn from_peer(answer: Result<Vec<u8>, NoPeerAnswer>) -> RestAnswer {
    let answer = match answer {
        Ok(answer) => answer,
        Err(NoPeerAnswer::NoPeers) => {
            return RestAnswer::words(StatusCode::SERVICE_UNAVAILABLE, NO_PEERS);
        }
        Err(NoPeerAnswer::Address(fault)) => {
            return RestAnswer::refused(format!("Failed parsing remote peer info: {fault}"));
        }
        Err(NoPeerAnswer::Forbidden) => {
            return RestAnswer::words(
                StatusCode::FORBIDDEN,
                "peerAddr may name configured peers and addresses of the internet only; [waku] \
                 rest_any_peer allows all",
            );
        }
        Err(NoPeerAnswer::Unreached) => {
            return failed(504, "PEER_DIAL_FAILURE: the peer cannot be reached");
        }
        Err(NoPeerAnswer::Broken(why)) => return failed(300, &format!("BAD_RESPONSE: {why}")),
    };
    let Ok(answer) = StoreResponse::parse(&answer) else {
        return failed(300, "BAD_RESPONSE: decode_rpc_failure");
    };
    let said = answer.status_desc.unwrap_or_default();
    match answer.status_code.unwrap_or_default() {
        200 => {}
        429 => {
            let words = "Request rate limit reached";
            return RestAnswer::words(StatusCode::TOO_MANY_REQUESTS, words);
        }
        code @ 300 => return failed(code, &format!("BAD_RESPONSE: {said}")),
        code @ 400 => return failed(code, &format!("BAD_REQUEST: {said}")),
        code => return failed(code, said),
    }
    let mut out = Vec::new();
    begin(&mut out, if said.is_empty() { "OK" } else { said });
    // Elements without a valid hash are left out.
    let elements =
        answer.messages().filter_map(|one| <Id>::try_from(one.message_hash).ok().zip(Some(one)));
    for (at, (hash, one)) in elements.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        put_element(&mut out, &hash, one.message.zip(one.pubsub_topic));
    }
    end(&mut out, answer.cursor.and_then(|cursor| <Id>::try_from(cursor).ok()).as_ref());
    RestAnswer::json(out)
}

/// Returns an answer without messages.
fn failed(code: u32, words: &str) -> RestAnswer {
    let answer = serde_json::json!({
        "requestId": "", "statusCode": code, "statusDesc": words, "messages": [],
    });
    RestAnswer::json(answer.to_string())
}

/// Parses a flag as nwaku does (Nim's `parseBool`): case and `_` are ignored.
fn flag(text: &str) -> Option<bool> {
    match &*text.replace('_', "").to_ascii_lowercase() {
        "true" | "yes" | "on" | "y" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "0" => Some(false),
        _ => None,
    }
}

impl StoreParameters {
    /// Parses a query string. Ignores empty parameters, and times of 0.
    pub(super) fn parse(query: &str) -> Result<Self, ParameterFault> {
        let (mut peer_addr, mut seen) = (None, Vec::new());
        let mut all = MessageRequest { id: "REST".into(), forward: true, ..Default::default() };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if seen.contains(&name) {
                return Err(ParameterFault::Twice(name.into()));
            }
            seen.push(name);
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8();
            let value = value.map_err(|_| ParameterFault::Utf8(name.into()))?;
            if value.is_empty() {
                continue;
            }
            let wrong = |form| ParameterFault::Value(name.into(), form, value.clone().into_owned());
            let flag = || flag(&value).ok_or_else(|| wrong("true or false"));
            // As in nwaku, 0 stands for no time.
            let time = || match value.parse::<i64>() {
                Ok(time) if time >= 0 => Ok((time > 0).then_some(time)),
                _ => Err(wrong("a time in ns since 1970")),
            };
            let hash = |text: &str| {
                read_hash(text)
                    .ok_or_else(|| wrong("a message's hash: 0x and 64 hex digits, or base64"))
            };
            match name {
                "peerAddr" => peer_addr = Some(value.into_owned()),
                "includeData" => all.include_data = flag()?,
                "pubsubTopic" => all.pubsub_topic = Some(value.into_owned()),
                "contentTopics" => {
                    all.content_topics = value.split(',').map(String::from).collect();
                }
                "startTime" => all.time_start = time()?,
                "endTime" => all.time_end = time()?,
                "hashes" => all.hashes = value.split(',').map(hash).collect::<Result<_, _>>()?,
                "cursor" => all.cursor = Some(hash(&value)?),
                "ascending" => all.forward = flag()?,
                "pageSize" => all.limit = Some(value.parse().map_err(|_| wrong("a number"))?),
                _ => {}
            }
        }
        Ok(Self { peer_addr, request: all })
    }
}

/// Writes the beginning of an answer with messages.
fn begin(out: &mut Vec<u8>, description: &str) {
    out.extend_from_slice(br#"{"requestId":"","statusCode":200,"statusDesc":"#);
    out.extend_from_slice(Value::from(description).to_string().as_bytes());
    out.extend_from_slice(br#","messages":["#);
}

/// Writes the end of an answer.
fn end(out: &mut Vec<u8>, cursor: Option<&Id>) {
    out.push(b']');
    if let Some(cursor) = cursor {
        out.extend_from_slice(b",\"paginationCursor\":");
        put_hash(out, cursor);
    }
    out.push(b'}');
}

/// Encodes a page in nwaku's format.
pub(super) fn json(page: &HistoryPage) -> Vec<u8> {
    let mut out = Vec::with_capacity(page.answer_bytes());
    begin(&mut out, page.description());
    let records = page.records.iter().filter_map(|bytes| Record::new(bytes).ok());
    for (at, record) in records.map(MessageRecord::new).enumerate() {
        if at > 0 {
            out.push(b',');
        }
        put_stored(&mut out, &record, page.include_data);
    }
    end(&mut out, page.cursor().as_ref());
    out
}

#[cfg(test)]
mod tests {
    use hark_archive::effects::KeepAll;
    use hark_archive::store::memory::MemoryStore;
    use hark_archive::{Store as _, Write};
    use hark_codec::hex;
    use hark_codec::waku::{Message, MessageEncoder};
    use hark_networks::search::{AnswerWaiter, BoundedSearch};
    use hark_networks::waku::history::HistoryQuery;
    use serde_json::json;

    use super::*;
    use crate::waku::history::{PositionCache, page};

    const PUBSUB: &str = "/waku/2/rs/1/0";

    /// A store with five messages, a nanosecond apart.
    fn store() -> (MemoryStore, Vec<String>) {
        let store = MemoryStore::new(KeepAll);
        let hashes = (0..5).map(|at| {
            let message = Message {
                payload: &[at, 255],
                content_topic: if at < 3 { "/a/1/\"b\"/proto" } else { "/c/1/d/proto" },
                version: (at == 1).then_some(1),
                timestamp: Some(1_700_000_000_000_000_000 + i64::from(at)),
                meta: (at == 1).then_some(b"m"),
                ..Message::default()
            };
            let (hash, mut record) = (message.hash(PUBSUB), Vec::new());
            MessageEncoder::default().encode(&message, PUBSUB, &hash, &mut record);
            store.commit(&[Write::Put(record.into())]).unwrap();
            format!("0x{}", String::from_utf8(hex::encode_32(&hash).into()).unwrap())
        });
        let hashes = hashes.collect();
        (store, hashes)
    }

    #[test]
    fn an_answer_of_a_peer_is_json_though_its_first_hash_is_none() {
        // A StoreQueryResponse: status_code 200, and elements that have only a message_hash.
        let mut bytes = vec![0x50, 0xc8, 1];
        for hash in [&[1; 31][..], &[2; 32], &[3; 32]] {
            let len = hash.len() as u8;
            bytes.extend([0xa2, 1, len + 2, 0x0a, len]);
            bytes.extend(hash);
        }
        let answer = from_peer(Ok(bytes));
        let json: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
        let hashes: Vec<_> = json["messages"].as_array().unwrap().iter().collect();
        let of = |byte: &str| json!({ "messageHash": format!("0x{}", byte.repeat(32)) });
        assert_eq!(hashes, [&of("02"), &of("03")]);
    }

    fn answered(store: &MemoryStore, query: &str) -> RestAnswer {
        match StoreParameters::parse(query) {
            Ok(parameters) => {
                let (positions, waiter) = (PositionCache::default(), AnswerWaiter::default());
                let mut search = BoundedSearch::new(store, &waiter, u64::MAX);
                let query = HistoryQuery::new(parameters.request);
                match query.and_then(|query| page(&mut search, &positions, &query)) {
                    Ok(page) => RestAnswer::json(json(&page)),
                    Err(refusal) => refused(&refusal),
                }
            }
            Err(fault) => RestAnswer::refused(fault.to_string()),
        }
    }

    fn ask(store: &MemoryStore, query: &str) -> Value {
        let answer = answered(store, query);
        assert_eq!(
            answer.status,
            StatusCode::OK,
            "{query}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        serde_json::from_slice(&answer.body).unwrap()
    }

    fn hashes(answer: &Value) -> Vec<&str> {
        let messages = answer["messages"].as_array().unwrap().iter();
        messages.map(|one| one["messageHash"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_page_is_as_nwaku_writes_it() {
        let (store, all) = store();
        let answer =
            ask(&store, "includeData=true&pageSize=2&pubsubTopic=%2Fwaku%2F2%2Frs%2F1%2F0");
        let first = json!({
            "messageHash": all[0],
            "message": {
                "payload": "AP8=", "contentTopic": "/a/1/\"b\"/proto", "version": 0,
                "timestamp": 1_700_000_000_000_000_000_u64, "ephemeral": false,
            },
            "pubsubTopic": PUBSUB,
        });
        let second = json!({
            "messageHash": all[1],
            "message": {
                "payload": "Af8=", "contentTopic": "/a/1/\"b\"/proto", "meta": "bQ==", "version": 1,
                "timestamp": 1_700_000_000_000_000_001_u64, "ephemeral": false,
            },
            "pubsubTopic": PUBSUB,
        });
        let expected = json!({
            "requestId": "", "statusCode": 200, "statusDesc": "OK", "messages": [first, second],
            "paginationCursor": all[1],
        });
        assert_eq!(answer, expected);
        let bare = ask(&store, "hashes=");
        assert_eq!(bare["messages"][0], json!({ "messageHash": all[0] }));
    }

    #[test]
    fn parameters_mean_what_they_mean_to_nwaku() {
        let (store, all) = store();
        for (query, expected) in [
            ("", &all[..]),
            ("ascending=false&pageSize=2", &all[3..]),
            (&format!("cursor={}", all[2]), &all[3..]),
            (&format!("ascending=false&cursor={}&pageSize=1", all[2]), &all[1..2]),
            ("contentTopics=%2Fa%2F1%2F%22b%22%2Fproto,/x", &all[..3]),
            ("startTime=1700000000000000001&endTime=1700000000000000003", &all[1..4]),
            ("startTime=0&endTime=0", &all[..]),
            (
                &format!("hashes={},{}", all[4], all[0].to_uppercase().replace("0X", "")),
                &[all[0].clone(), all[4].clone()],
            ),
            ("pubsubTopic=/waku/2/rs/1/9", &[]),
            // The start may be after the end.
            ("startTime=1700000000000000003&endTime=1700000000000000001", &[]),
            ("unknown=1", &all[..]),
        ] {
            assert_eq!(hashes(&ask(&store, query)), expected, "{query}");
        }
    }

    #[test]
    fn flags_are_read_as_nim_reads_them() {
        let (store, all) = store();
        for (on, off) in [
            ("true", "false"),
            ("True", "False"),
            ("TRUE", "FALSE"),
            ("1", "0"),
            ("yes", "no"),
            ("on", "off"),
            ("Y", "N"),
            ("t_r_u_e", "o_f_f"),
        ] {
            let last = ask(&store, &format!("ascending={off}&pageSize=1&includeData={on}"));
            assert_eq!(hashes(&last), [&all[4]], "{on} {off}");
            assert!(last["messages"][0]["message"].is_object(), "{on}");
            let first = ask(&store, &format!("ascending={on}&pageSize=1&includeData={off}"));
            assert_eq!(hashes(&first), [&all[0]], "{on} {off}");
            assert!(first["messages"][0]["message"].is_null(), "{off}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        let (store, _) = store();
        for (query, said) in [
            ("pageSize=x", "pageSize must be a number, not `x`"),
            ("startTime=soon", "startTime must be a time in ns since 1970, not `soon`"),
            ("startTime=-5", "startTime must be a time in ns since 1970, not `-5`"),
            ("endTime=1.7e18", "endTime must be a time in ns since 1970"),
            ("includeData=2", "true or false"),
            ("ascending=banana", "true or false"),
            ("cursor=0x12", "64 hex digits"),
            ("hashes=0x12", "64 hex digits"),
            ("contentTopics=%ff", "UTF-8"),
            ("contentTopics=/a&contentTopics=/b", "contentTopics is given twice"),
            ("hashes=&hashes=", "hashes is given twice"),
            ("pageSize=1&ascending=true&pageSize=2", "pageSize is given twice"),
            (&format!("cursor={}", "07".repeat(32)), "cursor not found"),
        ] {
            let answer = answered(&store, query);
            let words = String::from_utf8(answer.body.into()).unwrap();
            assert!(
                answer.status == StatusCode::BAD_REQUEST && words.contains(said),
                "{query}: {words}"
            );
        }
    }
}
