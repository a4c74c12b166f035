//! A request for history: the decrypted payload of an envelope (packet 126), in all forms that
//! clients have used.
//!
//! | form | content |
//! |---|---|
//! | bare (go-ethereum, wnode) | lower, upper; then a bloom filter; then limit; then cursor |
//! | status-go since January 2020 | RLP: lower, upper, bloom, *topics*, limit, cursor, batch |
//! | status-go before | RLP: lower, upper, bloom, limit, cursor, batch |
//! | 8/WAKU-MAIL | RLP: lower, upper, bloom, limit, cursor and topics, which may be left out |
//!
//! In the bare form, numbers have four bytes, big-endian, and the request may end before each
//! `then`. The other forms are lists, which always begin with a byte of 0xc0 or above. The bare
//! form begins with a time, and until 2072 no time begins with such a byte. The types of the fourth
//! and the sixth item show which form a list has.
//!
//! Clients of status-go can also send a request unencrypted. Such a request is identified by an id
//! instead of an envelope's hash; see [`HistoryRequest::parse_open`].

use super::rlp::{
    RlpError, RlpItems, bytes_len, head_len, number_len, put_bytes, put_list, put_number,
};
use super::{Bloom, HistoryCursor, Topic};
use crate::record::Id;

/// Maximum number of envelopes in an answer to a peer, even if [`HistoryRequest::limit`] is higher.
/// Clients request the remaining envelopes with the cursor.
pub const LIMIT_MAX: u32 = 1000;
/// Maximum number of topics. 8/WAKU-MAIL allows 1,000, and clients from 2020 to 2022 add a topic of
/// zeros for each real topic.
pub const TOPICS_MAX: usize = 10_000;

/// Length of a topic in RLP.
const TOPIC_BYTES: usize = 5;

/// Why a request is refused. The texts are for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request begins like RLP but is not a list of the right items.
    #[error("the request cannot be read: {0}")]
    Rlp(#[from] RlpError),
    /// The request is in the bare form, but no combination of its parts has this length.
    #[error("a request of {0} bytes is neither RLP nor times, bloom filter, limit and cursor")]
    Length(usize),
    /// The length of the bloom filter is not 64 bytes.
    #[error("the bloom filter has {0} bytes instead of 64")]
    Bloom(usize),
    /// The cursor does not have the length of a mail server's cursor.
    #[error("the cursor has {0} bytes instead of 36")]
    HistoryCursor(usize),
    /// See [`TOPICS_MAX`].
    #[error("there are {0} topics, more than {TOPICS_MAX}")]
    TooManyTopics(usize),
    /// The request selects nothing.
    #[error("bloom filter and topics are empty")]
    Nothing,
    /// The request's time range ends before it begins.
    #[error("query range is invalid: lower {lower} > upper {upper}")]
    Range {
        /// See [`HistoryRequest::lower`].
        lower: u32,
        /// See [`HistoryRequest::upper`].
        upper: u32,
    },
}

/// A request for the envelopes that were sent in a range of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryRequest<'a> {
    /// Earliest time, in s since 1970, inclusive.
    pub lower: u32,
    /// Latest time, in s since 1970, inclusive. 0 stands for one minute from now.
    pub upper: u32,
    /// A filter that covers the wanted topics. It is ignored unless `topics` is empty, and never
    /// `None` if `topics` is empty. For a bare request without a filter, it is the filter that
    /// covers all topics.
    pub bloom: Option<Bloom>,
    /// The wanted topics.
    pub topics: RequestTopics<'a>,
    /// Maximum number of envelopes. 0 stands for the maximum of the server. Clients of 2019 request
    /// more than [`LIMIT_MAX`] envelopes; they get at most [`LIMIT_MAX`] envelopes, and a cursor.
    pub limit: u32,
    /// The start of the page: the cursor that the server sent at the end of the previous page.
    pub cursor: Option<HistoryCursor>,
    /// Whether a packet of the answer may have more than one envelope.
    pub batch: bool,
}

/// The topics of a request, as encoded in its RLP.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestTopics<'a>(&'a [[u8; TOPIC_BYTES]]);

impl<'a> RequestTopics<'a> {
    fn read(items: RlpItems<'a>) -> Result<Self, RequestError> {
        let (mut rest, mut count) = (items, 0);
        while !rest.is_empty() {
            rest.array::<4>()?;
            count += 1;
        }
        if count > TOPICS_MAX {
            return Err(RequestError::TooManyTopics(count));
        }
        // Each topic is encoded as a length byte and the topic.
        Ok(Self(items.remaining().as_chunks().0))
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no topics.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The topics, in the order of the request. A topic may occur more than once.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Topic> + Clone + use<'a> {
        self.0.iter().map(|[_, a, b, c, d]| [*a, *b, *c, *d])
    }
}

impl std::fmt::Debug for RequestTopics<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> HistoryRequest<'a> {
    /// Reads a request in any of the forms, and refuses requests that no mail server answers.
    pub fn parse(payload: &'a [u8]) -> Result<Self, RequestError> {
        let is_rlp = payload.first().is_some_and(|first| *first >= 0xc0);
        let request = if is_rlp { Self::listed(payload)? } else { Self::bare(payload)? };
        request.checked()
    }

    /// Reads an unencrypted request, and its id.
    pub fn parse_open(packet: &'a [u8]) -> Result<(Id, Self), RequestError> {
        let mut items = RlpItems::of_list(packet)?;
        let id = *items.array()?;
        let request = Self {
            lower: items.uint32()?,
            upper: items.uint32()?,
            limit: items.uint32()?,
            cursor: cursor(items.bytes()?)?,
            bloom: bloom(items.bytes()?)?,
            topics: RequestTopics::read(items.list()?)?,
            batch: true,
        };
        items.end()?;
        Ok((id, request.checked()?))
    }

    fn bare(payload: &[u8]) -> Result<Self, RequestError> {
        let wrong = RequestError::Length(payload.len());
        let (lower, rest) = payload.split_first_chunk().ok_or(wrong)?;
        let (upper, rest) = rest.split_first_chunk().ok_or(wrong)?;
        let mut request = Self {
            lower: u32::from_be_bytes(*lower),
            upper: u32::from_be_bytes(*upper),
            bloom: Some(Bloom::FULL),
            ..Self::default()
        };
        if rest.is_empty() {
            return Ok(request);
        }
        let (bytes, rest) = rest.split_first_chunk().ok_or(wrong)?;
        request.bloom = Some(Bloom(*bytes));
        if rest.is_empty() {
            return Ok(request);
        }
        let (limit, rest) = rest.split_first_chunk().ok_or(wrong)?;
        request.limit = u32::from_be_bytes(*limit);
        if !rest.is_empty() {
            request.cursor = Some(HistoryCursor::read(rest).ok_or(wrong)?);
        }
        Ok(request)
    }

    fn listed(payload: &'a [u8]) -> Result<Self, RequestError> {
        let mut items = RlpItems::of_list(payload)?;
        let mut request = Self {
            lower: items.uint32()?,
            upper: items.uint32()?,
            bloom: bloom(items.bytes()?)?,
            // If a form lacks this flag, servers put many envelopes into a packet.
            batch: true,
            ..Self::default()
        };
        let is_new = items.next_is_list();
        if is_new {
            request.topics = RequestTopics::read(items.list()?)?;
        }
        request.limit = items.uint32()?;
        if is_new || !items.is_empty() {
            request.cursor = cursor(items.bytes()?)?;
        }
        if !is_new && items.next_is_list() {
            request.topics = RequestTopics::read(items.list()?)?;
        } else if is_new || !items.is_empty() {
            request.batch = items.flag()?;
        }
        items.end()?;
        Ok(request)
    }

    /// Performs the same checks as status-go, except the check of the limit.
    fn checked(self) -> Result<Self, RequestError> {
        let Self { lower, upper, .. } = self;
        if upper != 0 && lower > upper {
            return Err(RequestError::Range { lower, upper });
        }
        if self.bloom.is_none() && self.topics.is_empty() {
            return Err(RequestError::Nothing);
        }
        Ok(self)
    }

    /// Appends the request in the form that status-go uses today, with `topics` instead of
    /// `self.topics`.
    pub fn write(&self, topics: impl ExactSizeIterator<Item = Topic>, out: &mut Vec<u8>) {
        let bloom = self.bloom.as_ref().map_or(&[][..], |bloom| &bloom.0);
        let cursor = self.cursor.map(|cursor| cursor.bytes());
        let cursor = cursor.as_ref().map_or(&[][..], |cursor| cursor);
        let topics_len = topics.len() * TOPIC_BYTES;
        let len = number_len(self.lower.into())
            + number_len(self.upper.into())
            + bytes_len(bloom)
            + head_len(topics_len)
            + topics_len
            + number_len(self.limit.into())
            + bytes_len(cursor)
            + number_len(self.batch.into());
        put_list(out, len);
        put_number(out, self.lower.into());
        put_number(out, self.upper.into());
        put_bytes(out, bloom);
        put_list(out, topics_len);
        for topic in topics {
            put_bytes(out, &topic);
        }
        put_number(out, self.limit.into());
        put_bytes(out, cursor);
        put_number(out, self.batch.into());
    }
}

fn bloom(bytes: &[u8]) -> Result<Option<Bloom>, RequestError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    Bloom::read(bytes).map(Some).ok_or(RequestError::Bloom(bytes.len()))
}

fn cursor(bytes: &[u8]) -> Result<Option<HistoryCursor>, RequestError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    HistoryCursor::read(bytes).map(Some).ok_or(RequestError::HistoryCursor(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    const TIMES: &str = "845ca15480845ca2a600";
    const BLOOM: &str = "b840000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122\
                         232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f";
    const CURSOR: &str =
        "a4f0efeeedecebeae9e8e7e6e5e4e3e2e1e0dfdedddcdbdad9d8d7d6d5d4d3d2d1d0cfcecd";

    fn bytes(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(hex::decode_into(text.as_bytes(), &mut out), "{text}");
        out
    }

    fn list(items: &[&str]) -> Vec<u8> {
        let items = bytes(&items.concat());
        let mut out = Vec::new();
        put_list(&mut out, items.len());
        [out, items].concat()
    }

    fn whole() -> HistoryRequest<'static> {
        HistoryRequest {
            lower: 1_554_076_800,
            upper: 1_554_163_200,
            bloom: Some(Bloom(std::array::from_fn(|at| at as u8))),
            topics: RequestTopics::default(),
            limit: 100,
            cursor: HistoryCursor::read(&bytes(&CURSOR[2..])),
            batch: true,
        }
    }

    fn read(payload: &[u8]) -> (HistoryRequest<'_>, Vec<Topic>) {
        let request = HistoryRequest::parse(payload).unwrap();
        (
            HistoryRequest { topics: RequestTopics::default(), ..request },
            request.topics.iter().collect(),
        )
    }

    /// The payloads are structures of status-go, encoded with the rlp package of go-ethereum
    /// 1.9.20.
    #[test]
    fn all_forms_are_told_apart() {
        let topics = ["ca", "8401020304", "845c6c9b56"].concat();
        let new = list(&[TIMES, BLOOM, &topics, "8203e8", CURSOR, "01"]);
        assert_eq!((new.len(), &new[..2]), (130, &[0xf8, 0x80][..]));
        let both = vec![[1, 2, 3, 4], [0x5c, 0x6c, 0x9b, 0x56]];
        assert_eq!(read(&new), (HistoryRequest { limit: 1000, ..whole() }, both.clone()));
        let mut out = Vec::new();
        HistoryRequest { limit: 1000, ..whole() }.write(both.into_iter(), &mut out);
        assert_eq!(out, new);

        let old = list(&[TIMES, BLOOM, "64", CURSOR, "01"]);
        assert_eq!((old.len(), read(&old)), (117, (whole(), vec![])));
        let few = list(&["01", "02", BLOOM, "80", "80", "80"]);
        let plain = HistoryRequest {
            lower: 1,
            upper: 2,
            bloom: whole().bloom,
            ..HistoryRequest::default()
        };
        assert_eq!((few.len(), read(&few)), (73, (plain, vec![])));

        let one = vec![[1, 2, 3, 4]];
        let specified = list(&[TIMES, BLOOM, "64", CURSOR, "c5", "8401020304"]);
        assert_eq!((specified.len(), read(&specified)), (122, (whole(), one.clone())));
        let shorter = list(&[TIMES, BLOOM, "64", CURSOR]);
        assert_eq!(read(&shorter), (whole(), vec![]));
        let shortest = list(&[TIMES, BLOOM, "64"]);
        assert_eq!(read(&shortest), (HistoryRequest { cursor: None, ..whole() }, vec![]));
        let no_cursor = list(&[TIMES, BLOOM, "64", "80", "c5", "8401020304"]);
        assert_eq!(read(&no_cursor), (HistoryRequest { cursor: None, ..whole() }, one.clone()));

        let id = [&["a0"][..], &["77"; 32]].concat().concat();
        let open = list(&[&id, TIMES, "64", CURSOR, BLOOM, "c5", "8401020304"]);
        let (id, request) = HistoryRequest::parse_open(&open).unwrap();
        assert_eq!((id, request.topics.iter().collect()), ([0x77; 32], one));
        assert_eq!(HistoryRequest { topics: RequestTopics::default(), ..request }, whole());
    }

    #[test]
    fn bare_requests_end_after_any_part() {
        let text = ["5ca15480", "5ca2a600", &BLOOM[4..], "00000064", &CURSOR[2..]].concat();
        let payload = bytes(&text);
        let whole = HistoryRequest { batch: false, ..whole() };
        let fewer = HistoryRequest { cursor: None, ..whole };
        let full = Some(Bloom::FULL);
        for (len, request) in [
            (8, HistoryRequest { bloom: full, limit: 0, ..fewer }),
            (72, HistoryRequest { limit: 0, ..fewer }),
            (76, fewer),
            (112, whole),
        ] {
            assert_eq!(HistoryRequest::parse(&payload[..len]), Ok(request));
        }
        let more = [&payload[..], &[0; 8]].concat();
        for len in (0..120).filter(|len| ![8, 72, 76, 112].contains(len)) {
            assert_eq!(HistoryRequest::parse(&more[..len]), Err(RequestError::Length(len)));
        }
    }

    #[test]
    fn what_status_go_refuses_is_refused_but_for_a_limit_that_is_too_high() {
        let parse = |items: &[&str]| HistoryRequest::parse(&list(items)).map(drop);
        let rlp = |fault| Err(RequestError::Rlp(fault));
        let (tail, one) = (["80", "01"], "c58401020304");
        let with = |times: &str, bloom: &str, topics: &str, limit: &str| {
            parse(&[times, bloom, topics, limit, tail[0], tail[1]])
        };
        assert_eq!(with(TIMES, "80", one, "80"), Ok(()));
        assert_eq!(with(TIMES, "80", "c0", "80"), Err(RequestError::Nothing));
        assert_eq!(with(TIMES, BLOOM, "c0", "8207d0"), Ok(()));
        let range = RequestError::Range { lower: 3, upper: 2 };
        assert_eq!(with("0302", BLOOM, "c0", "80"), Err(range));
        assert_eq!(
            (with("0303", BLOOM, "c0", "80"), with("0380", BLOOM, "c0", "80")),
            (Ok(()), Ok(()))
        );
        assert_eq!(with(TIMES, "820102", "c0", "80"), Err(RequestError::Bloom(2)));
        assert_eq!(with(TIMES, BLOOM, "c483010203", "80"), rlp(RlpError::Width(3, 4)));
        assert_eq!(
            parse(&[TIMES, BLOOM, "c0", "80", "820102", "01"]),
            Err(RequestError::HistoryCursor(2))
        );
        assert_eq!(parse(&[TIMES, BLOOM, "c0", "80", "80", "02"]), rlp(RlpError::Large));
        assert_eq!(parse(&[TIMES, BLOOM, "c0", "80", "80"]), rlp(RlpError::Missing));
        assert_eq!(parse(&[TIMES, BLOOM, "c0", "80", "80", "01", "01"]), rlp(RlpError::Excess));
        assert_eq!(parse(&[TIMES, BLOOM, "80", "80", "c0", "01"]), rlp(RlpError::Excess));
        let many = |count| {
            let mut out = Vec::new();
            HistoryRequest::default().write(vec![[7; 4]; count].into_iter(), &mut out);
            HistoryRequest::parse(&out).map(|request| request.topics.len())
        };
        let too_many = TOPICS_MAX + 1;
        assert_eq!(many(TOPICS_MAX), Ok(TOPICS_MAX));
        assert_eq!(many(too_many), Err(RequestError::TooManyTopics(too_many)));
    }
}
