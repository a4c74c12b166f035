//! Makes the frames of questions to a relay, and reads fields of the returned events.

use crate::websocket::{fields, put_text};

/// One REQ and its CLOSE, as frames.
#[derive(Clone)]
pub(crate) struct RequestFrames {
    pub(crate) req: Vec<u8>,
    pub(crate) close: Vec<u8>,
    /// The first bytes of the relay's EOSE.
    pub(crate) eose: Vec<u8>,
    /// The subscription's id.
    pub(crate) sub: String,
    /// The text of the filters in the REQ.
    pub(crate) filters: String,
}

impl RequestFrames {
    /// Whether this EOSE ends the answer to the request.
    pub(crate) fn is_ended_by(&self, eose: &[u8]) -> bool {
        // The second form is that of relays which write spaces between the fields.
        eose.starts_with(&self.eose) || self.is_named_by(eose)
    }

    /// Whether this EVENT belongs to the answer to the request.
    pub(crate) fn is_event(&self, event: &[u8]) -> bool {
        let is_written_alike = |rest: &[u8]| {
            rest.strip_prefix(self.sub.as_bytes()).is_some_and(|rest| rest.starts_with(b"\""))
        };
        event.strip_prefix(b"[\"EVENT\",\"").is_some_and(is_written_alike)
            || self.is_named_by(event)
    }

    /// Whether a message names the subscription of the request.
    pub(crate) fn is_named_by(&self, message: &[u8]) -> bool {
        fields(message).get(1) == Some(&self.sub)
    }
}

/// Makes the frames of a REQ with these filters and the subscription id `q<number>`.
pub(crate) fn request(number: usize, filters: &str) -> RequestFrames {
    request_named(format!("q{number}"), filters)
}

/// Makes the frames of a REQ with these filters.
pub(crate) fn request_named(sub: String, filters: &str) -> RequestFrames {
    let (mut req, mut close) = (Vec::new(), Vec::new());
    put_text(&mut req, &[format!("[\"REQ\",\"{sub}\",{filters}]").as_bytes()]);
    put_text(&mut close, &[format!("[\"CLOSE\",\"{sub}\"]").as_bytes()]);
    let eose = format!("[\"EOSE\",\"{sub}\"").into_bytes();
    RequestFrames { req, close, eose, sub, filters: filters.into() }
}

/// Reads the time of an event from its JSON, without parsing the rest.
pub(crate) fn created_at(text: &[u8]) -> Option<u64> {
    let digits = after(text, b"\"created_at\":")?.iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0u64, |sum, digit| sum.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))))
}

/// Reads the id of an event from its JSON, as hex digits.
pub(crate) fn event_id(text: &[u8]) -> Option<[u8; 64]> {
    after(text, b"\"id\":\"")?.first_chunk().copied()
}

/// Returns the text after the first `name`. A JSON string cannot contain `name`, since its quotes
/// would be escaped.
fn after<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    text.get(memchr::memmem::find(text, name)? + name.len()..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_belong_to_the_request_that_they_name() {
        let request = request(7, "{}");
        for (event, is_own) in [
            ("[\"EVENT\",\"q7\",{}]", true),
            ("[ \"EVENT\", \"q7\", {}]", true),
            ("[\"EVENT\",\"q\\u0037\",{}]", true),
            ("[\"EVENT\",\"q77\",{}]", false),
            ("[\"EVENT\",\"q\",{\"id\":\"q7\"}]", false),
        ] {
            assert_eq!(request.is_event(event.as_bytes()), is_own, "{event}");
        }
        assert!(request.is_named_by(br#"["CLOSED","q7","error: x"]"#));
        assert!(!request.is_named_by(br#"["CLOSED","q6","error: q7"]"#));
        assert!(!request.is_named_by(br#"["NOTICE","q"]"#));
    }

    #[test]
    fn time_and_id_of_an_event_are_read_from_its_json() {
        assert_eq!(
            created_at(br#"["EVENT","a",{"created_at":1750000000,"kind":1}]"#),
            Some(1_750_000_000)
        );
        assert_eq!(created_at(br#"["EVENT","a",{}]"#), None);
        let text = format!("[\"EVENT\",\"a\",{{\"id\":\"{}\"}}]", "0a".repeat(32));
        let id = event_id(text.as_bytes()).map(|id| id[..4].to_vec());
        assert_eq!(id.as_deref(), Some(&b"0a0a"[..]));
        assert_eq!(event_id(br#"["EVENT","a",{"id":"0a"}]"#), None);
    }
}
