//! Requests and responses of light push (RFC 19/WAKU2-LIGHTPUSH), with which a client publishes a
//! message without taking part in gossip: `/vac/waku/lightpush/3.0.0` and
//! `/vac/waku/lightpush/2.0.0-beta1`.

use super::protobuf::{ProtobufError, ProtobufFields, put_bytes, put_number};

/// A LightpushRequest of version 3, as a view over the bytes from which it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LightPushRequest<'a> {
    /// Id that the response repeats. Field 1.
    pub request_id: &'a str,
    /// The topic on which the message is relayed. Without this field, the service computes the
    /// topic from the content topic. Field 20.
    pub pubsub_topic: Option<&'a str>,
    /// The message's bytes. Field 21.
    pub message: Option<&'a [u8]>,
}

impl<'a> LightPushRequest<'a> {
    /// Reads a request.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut request = Self::default();
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => request.request_id = field.string()?,
                20 => request.pubsub_topic = Some(field.string()?),
                21 => request.message = Some(field.bytes()?),
                _ => {}
            }
        }
        Ok(request)
    }

    /// Appends the request.
    pub fn write(&self, out: &mut Vec<u8>) {
        put_bytes(out, 1, self.request_id.as_bytes());
        if let Some(topic) = self.pubsub_topic {
            put_bytes(out, 20, topic.as_bytes());
        }
        if let Some(message) = self.message {
            put_bytes(out, 21, message);
        }
    }
}

/// A LightpushResponse of version 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LightPushResponse<'a> {
    /// Id of the request. Field 1.
    pub request_id: &'a str,
    /// Status of the request; 200 stands for success. Field 10.
    pub status_code: u32,
    /// Description of the status. Field 11.
    pub status_desc: Option<&'a str>,
    /// Number of nodes that have the message. Field 12.
    pub relay_peer_count: Option<u32>,
}

impl<'a> LightPushResponse<'a> {
    /// Reads a response.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut response = Self::default();
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => response.request_id = field.string()?,
                10 => response.status_code = field.uint32()?,
                11 => response.status_desc = Some(field.string()?),
                12 => response.relay_peer_count = Some(field.uint32()?),
                _ => {}
            }
        }
        Ok(response)
    }

    /// Appends the response. Clients require the id and the status.
    pub fn write(&self, out: &mut Vec<u8>) {
        put_bytes(out, 1, self.request_id.as_bytes());
        put_number(out, 10, u64::from(self.status_code));
        if let Some(words) = self.status_desc {
            put_bytes(out, 11, words.as_bytes());
        }
        if let Some(count) = self.relay_peer_count {
            put_number(out, 12, u64::from(count));
        }
    }
}

/// A PushRPC of version 2: a request or a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegacyPush<'a> {
    /// Id of the request. Field 1.
    pub request_id: &'a str,
    /// The request, if this is a request. Field 2.
    pub request: Option<LegacyPushRequest<'a>>,
    /// The response, if this is a response. Field 3.
    pub response: Option<LegacyPushResponse<'a>>,
}

/// A PushRequest of version 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegacyPushRequest<'a> {
    /// The topic on which the message is relayed. Field 1.
    pub pubsub_topic: &'a str,
    /// The message's bytes. Field 2.
    pub message: &'a [u8],
}

/// A PushResponse of version 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegacyPushResponse<'a> {
    /// Whether the message was accepted. Field 1.
    pub is_success: bool,
    /// The reason for a refusal. Field 2.
    pub info: &'a str,
}

impl<'a> LegacyPush<'a> {
    /// Reads a request or a response.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut push = Self::default();
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => push.request_id = field.string()?,
                2 => push.request = Some(LegacyPushRequest::parse(field.bytes()?)?),
                3 => push.response = Some(LegacyPushResponse::parse(field.bytes()?)?),
                _ => {}
            }
        }
        Ok(push)
    }

    /// Appends the request or response.
    pub fn write(&self, out: &mut Vec<u8>) {
        put_bytes(out, 1, self.request_id.as_bytes());
        let mut part = Vec::new();
        if let Some(request) = &self.request {
            put_bytes(&mut part, 1, request.pubsub_topic.as_bytes());
            put_bytes(&mut part, 2, request.message);
            put_bytes(out, 2, &part);
        }
        if let Some(response) = &self.response {
            part.clear();
            put_number(&mut part, 1, u64::from(response.is_success));
            put_bytes(&mut part, 2, response.info.as_bytes());
            put_bytes(out, 3, &part);
        }
    }
}

impl<'a> LegacyPushRequest<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut request = Self::default();
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => request.pubsub_topic = field.string()?,
                2 => request.message = field.bytes()?,
                _ => {}
            }
        }
        Ok(request)
    }
}

impl<'a> LegacyPushResponse<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut response = Self::default();
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => response.is_success = field.varint()? != 0,
                2 => response.info = field.string()?,
                _ => {}
            }
        }
        Ok(response)
    }
}
