//! Requests, responses and pushes of Filter v2 (RFC 12/WAKU2-FILTER,
//! `/vac/waku/filter-subscribe/2.0.0-beta1` and `/vac/waku/filter-push/2.0.0-beta1`).

use super::protobuf::{ProtobufError, ProtobufFields, put_bytes, put_number};

/// The action that a subscriber requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// Keep the subscriptions, and report whether there are any.
    Ping,
    /// Add the topics of the request.
    Subscribe,
    /// Remove the topics of the request.
    Unsubscribe,
    /// Remove all topics of the subscriber.
    UnsubscribeAll,
}

impl FilterAction {
    const ALL: [Self; 4] = [Self::Ping, Self::Subscribe, Self::Unsubscribe, Self::UnsubscribeAll];

    /// Returns the action with this number. `None` if the number is unknown.
    fn with_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.number() == number)
    }

    fn number(self) -> u64 {
        match self {
            Self::Ping => 0,
            Self::Subscribe => 1,
            Self::Unsubscribe => 2,
            Self::UnsubscribeAll => 3,
        }
    }
}

/// A FilterSubscribeRequest, as a view over the bytes from which it was read.
#[derive(Clone, Copy, Debug)]
pub struct FilterRequest<'a> {
    /// Id that the response repeats. Field 1.
    pub request_id: &'a str,
    /// `None` if the number of the action is unknown. Field 2.
    pub action: Option<FilterAction>,
    /// Pubsub topic to which the content topics belong. Field 10.
    pub pubsub_topic: Option<&'a str>,
    /// The request's bytes. The content topics are read from these bytes on demand.
    pub bytes: &'a [u8],
}

impl<'a> FilterRequest<'a> {
    /// Reads a request.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let action = Some(FilterAction::Ping);
        let mut request = Self { request_id: "", action, pubsub_topic: None, bytes };
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => request.request_id = field.string()?,
                2 => request.action = FilterAction::with_number(field.varint()?),
                10 => request.pubsub_topic = Some(field.string()?),
                11 => drop(field.string()?),
                _ => {}
            }
        }
        Ok(request)
    }

    /// The content topics. Field 11.
    pub fn content_topics(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let fields = ProtobufFields::new(self.bytes).flatten().filter(|field| field.number == 11);
        fields.filter_map(|field| field.string().ok())
    }

    /// Appends the request with these content topics. An unknown action is written as a ping.
    pub fn write<'t>(&self, content_topics: impl Iterator<Item = &'t str>, out: &mut Vec<u8>) {
        put_bytes(out, 1, self.request_id.as_bytes());
        put_number(out, 2, self.action.map_or(0, FilterAction::number));
        if let Some(topic) = self.pubsub_topic {
            put_bytes(out, 10, topic.as_bytes());
        }
        for topic in content_topics {
            put_bytes(out, 11, topic.as_bytes());
        }
    }
}

/// A FilterSubscribeResponse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterResponse<'a> {
    /// Id of the request. Field 1.
    pub request_id: &'a str,
    /// Status of the request; 200 stands for success. Field 10.
    pub status_code: u32,
    /// Description of the status. Field 11.
    pub status_desc: Option<&'a str>,
}

impl<'a> FilterResponse<'a> {
    /// Reads a response.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut response = Self::default();
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => response.request_id = field.string()?,
                10 => response.status_code = field.uint32()?,
                11 => response.status_desc = Some(field.string()?),
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
    }
}

/// A MessagePush: a message that is sent to a subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterPush<'a> {
    /// The message's bytes. Field 1.
    pub message: &'a [u8],
    /// The topic on which the message was relayed. Field 2.
    pub pubsub_topic: &'a str,
}

impl<'a> FilterPush<'a> {
    /// Reads a push.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut push = Self::default();
        for field in ProtobufFields::new(bytes) {
            let field = field?;
            match field.number {
                1 => push.message = field.bytes()?,
                2 => push.pubsub_topic = field.string()?,
                _ => {}
            }
        }
        Ok(push)
    }

    /// Appends the push.
    pub fn write(&self, out: &mut Vec<u8>) {
        put_bytes(out, 1, self.message);
        put_bytes(out, 2, self.pubsub_topic.as_bytes());
    }
}
