//! The messages of clients: `["EVENT",…]`, `["REQ",…]` and so on (NIP-01, 42, 45, 77), read in one
//! pass.

use super::event::{Event, EventArena, EventError, recover_id};
use super::filter::Filter;
use super::filter_error::FilterError;
use super::json_error::JsonError;
use super::read::JsonReader;
use super::span::Span;
use crate::record::Id;

/// Longest subscription id, in characters (NIP-01).
pub const SUB_LEN_MAX: usize = 64;

/// One message of a client, as a view over its bytes and a [`MessageBuffers`].
///
/// ```
/// use hark_codec::nostr::{ClientMessage, MessageBuffers, RefusalSubject};
///
/// let mut buffers = MessageBuffers::new(20);
/// let message = ClientMessage::parse(br#"["REQ","home",{"kinds":[1]}]"#, &mut buffers);
/// let Ok(ClientMessage::Req { sub, filters }) = message else { panic!("this is a REQ") };
/// assert_eq!((sub, filters[0].kinds()), ("home", Some(&[1][..])));
///
/// // The error names the event or the subscription that the answer must name.
/// let refused = ClientMessage::parse(br#"["REQ","home"]"#, &mut buffers).unwrap_err();
/// assert_eq!(refused.about, RefusalSubject::Sub("home"));
/// ```
#[derive(Clone, Copy, Debug)]
pub enum ClientMessage<'a> {
    /// Publishes an event. Only the event's form has been checked.
    Event(Event<'a>),
    /// Requests the stored and future events that match any of the filters.
    Req {
        /// Subscription id.
        sub: &'a str,
        /// At least one filter.
        filters: &'a [Filter],
    },
    /// Requests the number of events that match any of the filters (NIP-45).
    Count {
        /// Query id.
        sub: &'a str,
        /// At least one filter.
        filters: &'a [Filter],
    },
    /// Ends a subscription.
    Close {
        /// Subscription id.
        sub: &'a str,
    },
    /// A signed answer to the relay's challenge (NIP-42). Only its form has been checked.
    Auth(Event<'a>),
    /// Begins a comparison of sets of events (NIP-77).
    NegOpen {
        /// Id of the comparison. Comparisons and subscriptions may have the same id.
        sub: &'a str,
        /// Filter of the events in the set.
        filter: &'a Filter,
        /// The first message, hex.
        message: &'a str,
    },
    /// Continues a comparison.
    NegMsg {
        /// Id of the comparison.
        sub: &'a str,
        /// The next message, hex.
        message: &'a str,
    },
    /// Ends a comparison.
    NegClose {
        /// Id of the comparison.
        sub: &'a str,
    },
}

/// The event, subscription or comparison of a refused message. It determines the type of the
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalSubject<'a> {
    /// Unknown: the answer is a NOTICE.
    Nothing,
    /// The event with this id, from an EVENT or AUTH: the answer is an OK.
    Event(Id),
    /// The subscription or count with this name: the answer is a CLOSED.
    Sub(&'a str),
    /// The comparison with this name: the answer is a NEG-ERR.
    Neg(&'a str),
}

/// A message that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct MessageError<'a> {
    /// The event, subscription or comparison that the answer must name.
    pub about: RefusalSubject<'a>,
    /// The reason for the refusal.
    pub reason: MessageErrorKind,
}

/// Why a message cannot be parsed. The text is for people and has none of the prefixes of NIP-01,
/// such as `invalid:`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageErrorKind {
    /// The message is not valid JSON.
    #[error("{0}")]
    Json(#[from] JsonError),
    /// Not an array that begins with a string.
    #[error("message is not an array that begins with its type")]
    NoMessage,
    /// The relay does not know the message's type.
    #[error("message type {0:?}")]
    Type(Box<str>),
    /// The subscription id is missing or not a string.
    #[error("subscription id is not a string")]
    NoSub,
    /// The subscription id is empty.
    #[error("subscription id is empty")]
    EmptySub,
    /// The subscription id is longer than [`SUB_LEN_MAX`].
    #[error("subscription id is longer than {SUB_LEN_MAX} characters")]
    LongSub,
    /// A REQ or COUNT without a filter.
    #[error("no filter")]
    NoFilter,
    /// Too many filters.
    #[error("more than {0} filters")]
    TooManyFilters(usize),
    /// A comparison message that is not lowercase hex.
    #[error("comparison message is not lowercase hex")]
    NegHex,
    /// The event is malformed.
    #[error(transparent)]
    Event(#[from] EventError),
    /// A filter is malformed or not supported.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// Buffers for one message at a time. They are reused: once they have grown, parsing allocates
/// nothing.
#[derive(Debug)]
pub struct MessageBuffers {
    arena: EventArena,
    /// The first `used` filters belong to the current message; the others are kept for reuse.
    filters: Vec<Filter>,
    used: usize,
    filters_max: usize,
    values_max: usize,
}

/// The parts of a message, as spans that refer to the text and the buffers.
enum MessageSpans {
    Event,
    Auth,
    Req(Span),
    Count(Span),
    Close(Span),
    NegOpen(Span, Span),
    NegMsg(Span, Span),
    NegClose(Span),
}

/// A [`RefusalSubject`], as a span that refers to the text and the buffers.
enum UnresolvedSubject {
    Nothing,
    Event(Id),
    Sub(Span),
    Neg(Span),
}

type RefusedMessage = (UnresolvedSubject, MessageErrorKind);

impl MessageBuffers {
    /// Makes buffers for messages with up to `filters_max` filters.
    pub fn new(filters_max: usize) -> Self {
        Self {
            arena: EventArena::new(),
            filters: Vec::new(),
            used: 0,
            filters_max: filters_max.max(1),
            values_max: usize::MAX,
        }
    }

    /// Limits each filter to `values_max` values, including repeated values. Reading stops at the
    /// first value beyond the limit, and the filter is refused.
    #[must_use]
    pub fn with_values_max(self, values_max: usize) -> Self {
        Self { values_max, ..self }
    }
}

impl<'a> ClientMessage<'a> {
    /// Reads `bytes`, which must be exactly one message.
    pub fn parse(bytes: &'a [u8], inbox: &'a mut MessageBuffers) -> Result<Self, MessageError<'a>> {
        let mut reader = JsonReader::new(bytes).map_err(|error| MessageError {
            about: RefusalSubject::Nothing,
            reason: error.into(),
        })?;
        let text = reader.text();
        let parts = inbox.read(&mut reader);
        let inbox: &'a MessageBuffers = inbox;
        let string = |span: Span| span.get(text, &inbox.arena.scratch);
        let filters = inbox.filters.get(..inbox.used).unwrap_or_default();
        match parts {
            Ok(MessageSpans::Event) => Ok(Self::Event(inbox.arena.event(text))),
            Ok(MessageSpans::Auth) => Ok(Self::Auth(inbox.arena.event(text))),
            Ok(MessageSpans::Req(sub)) => Ok(Self::Req { sub: string(sub), filters }),
            Ok(MessageSpans::Count(sub)) => Ok(Self::Count { sub: string(sub), filters }),
            Ok(MessageSpans::Close(sub)) => Ok(Self::Close { sub: string(sub) }),
            Ok(MessageSpans::NegOpen(sub, message)) => match filters.first() {
                Some(filter) => {
                    Ok(Self::NegOpen { sub: string(sub), filter, message: string(message) })
                }
                None => Err(MessageError {
                    about: RefusalSubject::Neg(string(sub)),
                    reason: MessageErrorKind::NoFilter,
                }),
            },
            Ok(MessageSpans::NegMsg(sub, message)) => {
                Ok(Self::NegMsg { sub: string(sub), message: string(message) })
            }
            Ok(MessageSpans::NegClose(sub)) => Ok(Self::NegClose { sub: string(sub) }),
            Err((failed, reason)) => {
                let about = match failed {
                    UnresolvedSubject::Nothing => RefusalSubject::Nothing,
                    UnresolvedSubject::Event(id) => RefusalSubject::Event(id),
                    UnresolvedSubject::Sub(sub) => RefusalSubject::Sub(string(sub)),
                    UnresolvedSubject::Neg(sub) => RefusalSubject::Neg(string(sub)),
                };
                Err(MessageError { about, reason })
            }
        }
    }
}

impl MessageBuffers {
    fn read(&mut self, reader: &mut JsonReader<'_>) -> Result<MessageSpans, RefusedMessage> {
        let nothing = |reason: MessageErrorKind| (UnresolvedSubject::Nothing, reason);
        self.used = 0;
        self.arena.scratch.clear();
        reader.skip_space();
        if !reader.eat(b'[') {
            return Err(nothing(MessageErrorKind::NoMessage));
        }
        reader.skip_space();
        if reader.peek() != b'"' {
            return Err(nothing(MessageErrorKind::NoMessage));
        }
        let name = reader.string(&mut self.arena.scratch).map_err(|error| nothing(error.into()))?;
        match name.get(reader.text(), &self.arena.scratch) {
            "EVENT" => self.read_event(reader).map(|()| MessageSpans::Event),
            "AUTH" => self.read_event(reader).map(|()| MessageSpans::Auth),
            "REQ" => self
                .read_question(reader, UnresolvedSubject::Sub, Self::read_filters)
                .map(MessageSpans::Req),
            "COUNT" => self
                .read_question(reader, UnresolvedSubject::Sub, Self::read_filters)
                .map(MessageSpans::Count),
            "CLOSE" => self
                .read_question(reader, UnresolvedSubject::Sub, |_, _| Ok(()))
                .map(MessageSpans::Close),
            "NEG-CLOSE" => self
                .read_question(reader, UnresolvedSubject::Neg, |_, _| Ok(()))
                .map(MessageSpans::NegClose),
            "NEG-MSG" => {
                let mut message = Span::default();
                let sub = self.read_question(reader, UnresolvedSubject::Neg, |inbox, reader| {
                    message = inbox.read_hex(reader)?;
                    Ok(())
                })?;
                Ok(MessageSpans::NegMsg(sub, message))
            }
            "NEG-OPEN" => {
                let mut message = Span::default();
                let sub = self.read_question(reader, UnresolvedSubject::Neg, |inbox, reader| {
                    comma(reader)?;
                    inbox.read_filter(reader)?;
                    message = inbox.read_hex(reader)?;
                    Ok(())
                })?;
                Ok(MessageSpans::NegOpen(sub, message))
            }
            other => Err(nothing(MessageErrorKind::Type(other.chars().take(32).collect()))),
        }
    }

    fn read_event(&mut self, reader: &mut JsonReader<'_>) -> Result<(), RefusedMessage> {
        comma(reader).map_err(|error| (UnresolvedSubject::Nothing, error.into()))?;
        let start = reader.clone();
        let read = self.arena.read(reader).map_err(MessageErrorKind::from);
        read.and_then(|()| end(reader)).map_err(|reason| {
            let id = recover_id(start, &mut self.arena.scratch);
            (id.map_or(UnresolvedSubject::Nothing, UnresolvedSubject::Event), reason)
        })
    }

    /// Reads a subscription id, calls `rest` for all that follows, and checks that the message then
    /// ends. An error names the id.
    fn read_question(
        &mut self,
        reader: &mut JsonReader<'_>,
        failed: fn(Span) -> UnresolvedSubject,
        rest: impl FnOnce(&mut Self, &mut JsonReader<'_>) -> Result<(), MessageErrorKind>,
    ) -> Result<Span, RefusedMessage> {
        comma(reader).map_err(|error| (UnresolvedSubject::Nothing, error.into()))?;
        if reader.peek() != b'"' {
            return Err((UnresolvedSubject::Nothing, MessageErrorKind::NoSub));
        }
        let sub = reader.string(&mut self.arena.scratch);
        let sub = sub.map_err(|error| (UnresolvedSubject::Nothing, error.into()))?;
        let text = sub.get(reader.text(), &self.arena.scratch);
        if text.is_empty() {
            return Err((failed(sub), MessageErrorKind::EmptySub));
        }
        if text.len() > SUB_LEN_MAX && text.chars().nth(SUB_LEN_MAX).is_some() {
            return Err((failed(sub), MessageErrorKind::LongSub));
        }
        let read = rest(self, reader).and_then(|()| end(reader));
        read.map(|()| sub).map_err(|reason| (failed(sub), reason))
    }

    fn read_filters(&mut self, reader: &mut JsonReader<'_>) -> Result<(), MessageErrorKind> {
        reader.skip_space();
        while reader.eat(b',') {
            reader.skip_space();
            self.read_filter(reader)?;
            reader.skip_space();
        }
        if self.used == 0 { Err(MessageErrorKind::NoFilter) } else { Ok(()) }
    }

    fn read_filter(&mut self, reader: &mut JsonReader<'_>) -> Result<(), MessageErrorKind> {
        if self.used == self.filters_max {
            return Err(MessageErrorKind::TooManyFilters(self.filters_max));
        }
        if self.used == self.filters.len() {
            self.filters.push(Filter::default());
        }
        if let Some(filter) = self.filters.get_mut(self.used) {
            filter.read(reader, self.values_max)?;
            self.used += 1;
        }
        Ok(())
    }

    fn read_hex(&mut self, reader: &mut JsonReader<'_>) -> Result<Span, MessageErrorKind> {
        comma(reader)?;
        if reader.peek() != b'"' {
            return Err(MessageErrorKind::NegHex);
        }
        let span = reader.string(&mut self.arena.scratch)?;
        let hex = span.get(reader.text(), &self.arena.scratch);
        let good = hex.len() % 2 == 0
            && hex.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'));
        if good { Ok(span) } else { Err(MessageErrorKind::NegHex) }
    }
}

fn comma(reader: &mut JsonReader<'_>) -> Result<(), JsonError> {
    reader.skip_space();
    reader.expect(b',', "a comma and another element")?;
    reader.skip_space();
    Ok(())
}

fn end(reader: &mut JsonReader<'_>) -> Result<(), MessageErrorKind> {
    reader.skip_space();
    reader.expect(b']', "the end of the message")?;
    Ok(reader.end()?)
}
