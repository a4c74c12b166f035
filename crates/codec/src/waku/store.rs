//! Requests and responses of Store v3 (RFC 13/WAKU2-STORE, `/vac/waku/store-query/3.0.0`).

use super::protobuf::{
    ProtobufError, ProtobufFields, ProtobufValue, bytes_len, put_bytes, put_number, put_sint64,
    put_varint,
};
use crate::record::Id;

/// Number of messages in a response if the request has no limit.
pub const PAGE_DEFAULT: usize = 20;
/// Maximum number of messages in a response.
pub const PAGE_MAX: usize = 100;

/// A StoreQueryRequest, as a view over the bytes from which it was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreRequest<'a> {
    /// Id that the response repeats. Field 1.
    pub request_id: &'a str,
    /// Whether the response has the messages (otherwise only their hashes). Field 2.
    pub include_data: bool,
    /// The wanted pubsub topic; without this field, every topic matches. Field 10.
    pub pubsub_topic: Option<&'a str>,
    /// Earliest time, in ns, inclusive. Field 12.
    pub time_start: Option<i64>,
    /// Latest time, in ns, inclusive. Field 13.
    pub time_end: Option<i64>,
    /// Hash of the message after which the response continues. Field 51.
    pub cursor: Option<&'a [u8]>,
    /// Whether pages go forward from the oldest message (otherwise back from the newest message).
    /// Field 52.
    pub forward: bool,
    /// Maximum number of messages in the response. Field 53.
    pub limit: Option<u64>,
    /// The request's bytes. The topics and hashes, of which there may be many, are read from these
    /// bytes on demand.
    pub bytes: &'a [u8],
}

impl<'a> StoreRequest<'a> {
    /// Reads a request.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut request = Self { bytes, ..Self::default() };
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => request.request_id = field.string()?,
                2 => request.include_data = field.varint()? != 0,
                10 => request.pubsub_topic = Some(field.string()?),
                11 => drop(field.string()?),
                12 => request.time_start = Some(field.sint64()?),
                13 => request.time_end = Some(field.sint64()?),
                20 => drop(field.bytes()?),
                51 => request.cursor = Some(field.bytes()?),
                52 => request.forward = field.varint()? != 0,
                53 => request.limit = Some(field.varint()?),
                _ => {}
            }
        }
        Ok(request)
    }

    /// Content topics. A message must have one of them; without topics, every message matches.
    /// Field 11.
    pub fn content_topics(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let fields = ProtobufFields::new(self.bytes).flatten().filter(|field| field.number == 11);
        fields.filter_map(|field| field.string().ok())
    }

    /// Hashes of the wanted messages; without hashes, every message matches. Field 20.
    pub fn message_hashes(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        let fields = ProtobufFields::new(self.bytes).flatten().filter(|field| field.number == 20);
        fields.filter_map(|field| field.bytes().ok())
    }

    /// Appends the request, with these topics and hashes.
    pub fn write<'t>(
        &self,
        content_topics: impl Iterator<Item = &'t str>,
        message_hashes: impl Iterator<Item = &'t [u8]>,
        out: &mut Vec<u8>,
    ) {
        put_bytes(out, 1, self.request_id.as_bytes());
        put_number(out, 2, u64::from(self.include_data));
        if let Some(topic) = self.pubsub_topic {
            put_bytes(out, 10, topic.as_bytes());
        }
        for topic in content_topics {
            put_bytes(out, 11, topic.as_bytes());
        }
        if let Some(time) = self.time_start {
            put_sint64(out, 12, time);
        }
        if let Some(time) = self.time_end {
            put_sint64(out, 13, time);
        }
        for hash in message_hashes {
            put_bytes(out, 20, hash);
        }
        if let Some(cursor) = self.cursor {
            put_bytes(out, 51, cursor);
        }
        // The field is always written, because implementations disagree about the default value.
        put_number(out, 52, u64::from(self.forward));
        if let Some(limit) = self.limit {
            put_number(out, 53, limit);
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Answered.
    Success,
    /// The query could not be answered.
    BadResponse,
    /// The request could not be read.
    BadRequest,
    /// Too many requests.
    TooManyRequests,
    /// The archive is unavailable.
    Unavailable,
}

impl Status {
    /// The number of the status.
    pub fn code(self) -> u32 {
        match self {
            Self::Success => 200,
            Self::BadResponse => 300,
            Self::BadRequest => 400,
            Self::TooManyRequests => 429,
            Self::Unavailable => 503,
        }
    }
}

/// Appends a message to a response. `message` has the message's bytes and its pubsub topic. If it
/// is `None`, only the hash is appended.
pub fn put_message(out: &mut Vec<u8>, hash: &Id, message: Option<(&[u8], &[u8])>) {
    let data = message
        .map_or(0, |(message, topic)| bytes_len(2, message.len()) + bytes_len(3, topic.len()));
    put_varint(out, 20 << 3 | 2);
    put_varint(out, (bytes_len(1, hash.len()) + data) as u64);
    put_bytes(out, 1, hash);
    if let Some((message, topic)) = message {
        put_bytes(out, 2, message);
        put_bytes(out, 3, topic);
    }
}

/// Appends all fields of a response except its messages. Clients require all these fields except
/// the cursor.
pub fn put_answer(
    out: &mut Vec<u8>,
    request_id: &str,
    status: Status,
    description: &str,
    cursor: Option<&Id>,
) {
    put_bytes(out, 1, request_id.as_bytes());
    put_number(out, 10, u64::from(status.code()));
    put_bytes(out, 11, description.as_bytes());
    if let Some(cursor) = cursor {
        put_bytes(out, 51, cursor);
    }
}

/// A StoreQueryResponse, as a view over the bytes from which it was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreResponse<'a> {
    /// Id of the request. Field 1.
    pub request_id: &'a str,
    /// Status of the request; see [`Status::code`]. Field 10.
    pub status_code: Option<u32>,
    /// Description of the status. Field 11.
    pub status_desc: Option<&'a str>,
    /// Hash of the message after which the next page begins. Field 51.
    pub cursor: Option<&'a [u8]>,
    bytes: &'a [u8],
}

/// A message of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValue<'a> {
    /// The message's hash. Field 1.
    pub message_hash: &'a [u8],
    /// The message's bytes. Field 2.
    pub message: Option<&'a [u8]>,
    /// The topic on which the message was relayed. Field 3.
    pub pubsub_topic: Option<&'a str>,
}

impl<'a> KeyValue<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut one = Self::default();
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => one.message_hash = field.bytes()?,
                2 => one.message = Some(field.bytes()?),
                3 => one.pubsub_topic = Some(field.string()?),
                _ => {}
            }
        }
        Ok(one)
    }
}

impl<'a> StoreResponse<'a> {
    /// Reads a response.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut response = Self { bytes, ..Self::default() };
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => response.request_id = field.string()?,
                10 => response.status_code = Some(field.uint32()?),
                11 => response.status_desc = Some(field.string()?),
                20 => drop(KeyValue::parse(field.bytes()?)?),
                51 => response.cursor = Some(field.bytes()?),
                _ => {}
            }
        }
        Ok(response)
    }

    /// The response's messages. Field 20.
    pub fn messages(&self) -> impl Iterator<Item = KeyValue<'a>> + Clone + use<'a> {
        let fields = ProtobufFields::new(self.bytes).flatten();
        fields.filter_map(|field| match (field.number, field.value) {
            (20, ProtobufValue::Bytes(bytes)) => KeyValue::parse(bytes).ok(),
            _ => None,
        })
    }
}
