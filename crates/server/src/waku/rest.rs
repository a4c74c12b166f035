//! `GET /store/v3/messages` as nwaku has it: the parameters as a request, a page as JSON.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hark_archive::{Record, Store};
use hark_codec::hex;
use hark_codec::nostr::json::{write_string, write_u64};
use hark_codec::record::Id;
use hark_codec::waku::{Message, MessageRecord, Request};
use percent_encoding::percent_decode_str;

use super::history::{self, Page, Refusal};

/// What is asked, owned.
#[derive(Debug, Default)]
struct Parameters {
    include_data: bool,
    pubsub_topic: Option<String>,
    content_topics: Vec<String>,
    time_start: Option<i64>,
    time_end: Option<i64>,
    hashes: Vec<Id>,
    cursor: Option<Id>,
    backward: bool,
    limit: Option<u64>,
}

/// An HTTP answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status code.
    pub status: u16,
    /// JSON for 200, else words.
    pub body: Vec<u8>,
}

impl Answer {
    fn words(status: u16, words: &str) -> Self {
        Self { status, body: words.as_bytes().into() }
    }
}

/// Answers the query part of a URL, visiting so many rows at most.
pub fn messages(store: &dyn Store, query: &str, rows_max: u64) -> Answer {
    let parameters = match Parameters::parse(query) {
        Ok(parameters) => parameters,
        Err(words) => return Answer::words(400, &words),
    };
    match parameters.page(store, rows_max) {
        Ok(page) => Answer { status: 200, body: json(&page, parameters.include_data) },
        Err(refusal @ Refusal::Archive(_)) => Answer::words(503, &refusal.to_string()),
        Err(refusal) => Answer::words(400, &refusal.to_string()),
    }
}

impl Parameters {
    /// Empty ones are as if they were not there, as are times that are not above 0.
    fn parse(query: &str) -> Result<Self, String> {
        let mut all = Self::default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8();
            let value = value.map_err(|_| format!("{name} is not UTF-8"))?;
            if value.is_empty() {
                continue;
            }
            let wrong = |what: &str| format!("{name} must be {what}, not `{value}`");
            let flag = || value.parse::<bool>().map_err(|_| wrong("true or false"));
            let time = || match value.parse::<i64>() {
                Ok(time) => Ok((time > 0).then_some(time)),
                Err(_) => Err(wrong("a time in ns since 1970")),
            };
            let hash = |text: &str| {
                let text = text.strip_prefix("0x").unwrap_or(text).to_ascii_lowercase();
                hex::decode_32(text.as_bytes()).ok_or_else(|| wrong("0x and 64 hex digits"))
            };
            match name {
                "includeData" => all.include_data = flag()?,
                "pubsubTopic" => all.pubsub_topic = Some(value.into_owned()),
                "contentTopics" => {
                    all.content_topics = value.split(',').map(String::from).collect();
                }
                "startTime" => all.time_start = time()?,
                "endTime" => all.time_end = time()?,
                "hashes" => all.hashes = value.split(',').map(hash).collect::<Result<_, _>>()?,
                "cursor" => all.cursor = Some(hash(&value)?),
                "ascending" => all.backward = !flag()?,
                "pageSize" => all.limit = Some(value.parse().map_err(|_| wrong("a number"))?),
                _ => {}
            }
        }
        Ok(all)
    }

    fn page(&self, store: &dyn Store, rows_max: u64) -> Result<Page, Refusal> {
        // By way of the wire's own form, so that both doors mean the same.
        let request = Request {
            request_id: "REST",
            include_data: self.include_data,
            pubsub_topic: self.pubsub_topic.as_deref(),
            time_start: self.time_start,
            time_end: self.time_end,
            cursor: self.cursor.as_ref().map(|cursor| &cursor[..]),
            forward: !self.backward,
            limit: self.limit,
            ..Request::default()
        };
        let topics = self.content_topics.iter().map(String::as_str);
        let hashes = self.hashes.iter().map(|hash| &hash[..]);
        let mut bytes = Vec::new();
        request.write(topics, hashes, &mut bytes);
        let request =
            Request::parse(&bytes).map_err(|error| Refusal::Invalid(error.to_string()))?;
        history::page(store, &request, rows_max)
    }
}

/// A page as nwaku writes it.
fn json(page: &Page, include_data: bool) -> Vec<u8> {
    let mut out = br#"{"requestId":"","statusCode":200,"statusDesc":"OK","messages":["#.to_vec();
    let records = page.records.iter().filter_map(|bytes| Record::new(bytes).ok());
    for (at, record) in records.map(MessageRecord::new).enumerate() {
        out.extend_from_slice(if at == 0 { b"{\"messageHash\":" } else { b",{\"messageHash\":" });
        put_hash(&mut out, record.hash());
        if include_data && let Ok(message) = Message::parse(record.message()) {
            out.extend_from_slice(b",\"message\":");
            put_message(&mut out, &message);
            out.extend_from_slice(b",\"pubsubTopic\":");
            write_string(&mut out, &String::from_utf8_lossy(record.pubsub_topic()));
        }
        out.push(b'}');
    }
    out.push(b']');
    if let Some(cursor) = &page.cursor {
        out.extend_from_slice(b",\"paginationCursor\":");
        put_hash(&mut out, cursor);
    }
    out.push(b'}');
    out
}

fn put_hash(out: &mut Vec<u8>, hash: &Id) {
    out.extend_from_slice(b"\"0x");
    out.extend_from_slice(&hex::encode_32(hash));
    out.push(b'"');
}

fn put_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(BASE64_STANDARD.encode(bytes).as_bytes());
    out.push(b'"');
}

fn put_message(out: &mut Vec<u8>, message: &Message<'_>) {
    out.extend_from_slice(b"{\"payload\":");
    put_base64(out, message.payload);
    out.extend_from_slice(b",\"contentTopic\":");
    write_string(out, message.content_topic);
    if let Some(meta) = message.meta.filter(|meta| !meta.is_empty()) {
        out.extend_from_slice(b",\"meta\":");
        put_base64(out, meta);
    }
    out.extend_from_slice(b",\"version\":");
    write_u64(out, message.version.unwrap_or_default().into());
    out.extend_from_slice(b",\"timestamp\":");
    // What is kept is not older than 1970.
    write_u64(out, message.timestamp.unwrap_or_default().max(0).cast_unsigned());
    out.extend_from_slice(b",\"ephemeral\":false}");
}

#[cfg(test)]
mod tests {
    use hark_archive::Write;
    use hark_archive::admission::KeepAll;
    use hark_archive::store::memory::MemoryStore;
    use hark_codec::waku::Encoder;
    use serde_json::{Value, json};

    use super::*;

    const PUBSUB: &str = "/waku/2/rs/1/0";

    /// Five messages, a nanosecond apart.
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
            Encoder::default().encode(&message, PUBSUB, &hash, &mut record);
            store.commit(&[Write::Put(record.into())]).unwrap();
            format!("0x{}", String::from_utf8(hex::encode_32(&hash).into()).unwrap())
        });
        let hashes = hashes.collect();
        (store, hashes)
    }

    fn ask(store: &MemoryStore, query: &str) -> Value {
        let answer = messages(store, query, u64::MAX);
        assert_eq!(answer.status, 200, "{query}: {}", String::from_utf8_lossy(&answer.body));
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
            ("startTime=0&endTime=-5", &all[..]),
            (
                &format!("hashes={},{}", all[4], all[0].to_uppercase().replace("0X", "")),
                &[all[0].clone(), all[4].clone()],
            ),
            ("pubsubTopic=/waku/2/rs/1/9", &[]),
            ("unknown=1", &all[..]),
        ] {
            assert_eq!(hashes(&ask(&store, query)), expected, "{query}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        let (store, _) = store();
        for (query, said) in [
            ("pageSize=x", "pageSize must be a number, not `x`"),
            ("startTime=soon", "startTime"),
            ("includeData=2", "true or false"),
            ("ascending=no", "true or false"),
            ("cursor=0x12", "64 hex digits"),
            ("hashes=0x12", "64 hex digits"),
            ("contentTopics=%ff", "UTF-8"),
            ("startTime=5&endTime=4", "INVALID_QUERY"),
            (&format!("cursor={}", "07".repeat(32)), "cursor not found"),
        ] {
            let answer = messages(&store, query, u64::MAX);
            let words = String::from_utf8(answer.body).unwrap();
            assert!(answer.status == 400 && words.contains(said), "{query}: {words}");
        }
    }
}
