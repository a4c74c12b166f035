//! The beginning of a client's message, read before the message is parsed: its type, and the id of
//! a question that is too long to be parsed. Also the bounds of parsing.

use hark_codec::nostr::MessageBuffers;

use super::outbox::RequestKind;
use crate::limits::Limits;

/// Maximum number of bytes of a REQ, COUNT or NEG-OPEN. A question may not be as long as an event,
/// because thousands of short filter values take milliseconds to parse. A filter with the maximum
/// number of ids fits.
pub(super) fn question_bytes_max(limits: &Limits) -> usize {
    (256 << 10)
        .max(limits.filters.filter_values_max.saturating_mul(80))
        .min(limits.message_bytes_max)
}

/// The parser reads at most this many times the maximum number of values of a filter. Clients may
/// repeat values, and may put values of `&t` into `#t` as well (NIP-91). Only distinct values
/// count.
const VALUES_READ: usize = 2;

/// Maximum numbers of filters and values that are read from a message. The rest of a larger message
/// is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterBounds {
    filters_max: usize,
    values_max: usize,
}

impl FilterBounds {
    pub(super) fn of(limits: &Limits) -> Self {
        let values_max = limits.filters.filter_values_max.saturating_mul(VALUES_READ);
        Self { filters_max: limits.filters.filters_max, values_max }
    }

    pub(super) fn buffers(self) -> MessageBuffers {
        MessageBuffers::new(self.filters_max).with_values_max(self.values_max)
    }
}

/// Number of bytes at the beginning of an oversized question that are searched for the question's
/// id. The refusal then names this id.
const QUESTION_HEAD: usize = 4 << 10;

/// Returns the kind of a message that goes to the intake: an EVENT or an AUTH. Neither may be
/// parsed on the runtime's threads. `None` for other messages.
pub(super) fn request_kind(text: &[u8]) -> Option<RequestKind> {
    if is_of(text, b"\"EVENT\"") {
        return Some(RequestKind::Event);
    }
    is_of(text, b"\"AUTH\"").then_some(RequestKind::Proof)
}

/// Whether a message is of a type. `quoted` is the type's name in quotes, as in the message.
fn is_of(text: &[u8], quoted: &[u8]) -> bool {
    let rest = text.trim_ascii_start().strip_prefix(b"[");
    rest.is_some_and(|rest| rest.trim_ascii_start().starts_with(quoted))
}

/// Returns the beginning of a question that is too long to be parsed, up to its first filter.
/// `None` for any other message.
pub(super) fn head_of_long_question(text: &[u8], bytes_max: usize) -> Option<&[u8]> {
    let types: [&[u8]; 3] = [b"\"REQ\"", b"\"COUNT\"", b"\"NEG-OPEN\""];
    let is_long = text.len() > bytes_max && types.iter().any(|of| is_of(text, of));
    let head = is_long.then(|| &text[..QUESTION_HEAD.min(text.len())])?;
    let head = &head[..head.iter().position(|&byte| byte == b'{').unwrap_or(head.len())];
    Some(head.utf8_chunks().next().map_or(&[], |text| text.valid().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_recognised_by_their_first_bytes() {
        for text in [r#"["EVENT",{}]"#, " [ \"EVENT\" , {}]", "\n[\"EVENT\""] {
            assert!(matches!(request_kind(text.as_bytes()), Some(RequestKind::Event)), "{text}");
        }
        assert!(matches!(request_kind(br#"[ "AUTH",{}]"#), Some(RequestKind::Proof)));
        for text in [r#"["REQ","EVENT"]"#, r#"["EVENTS"]"#, r#"["AUTHOR"]"#, "[", "", r#"{"EVENT""#]
        {
            assert!(request_kind(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn a_filter_of_as_many_ids_as_it_may_have_fits_into_a_question() {
        let bytes_max = |values: usize, message: usize| {
            let mut limits = Limits { message_bytes_max: message, ..Limits::default() };
            limits.filters.filter_values_max = values;
            question_bytes_max(&limits)
        };
        assert_eq!(bytes_max(2_500, 1 << 20), 256 << 10);
        assert_eq!(bytes_max(10_000, 1 << 20), 800_000);
        assert_eq!(bytes_max(10_000, 1 << 16), 1 << 16);
    }

    #[test]
    fn of_a_question_that_is_too_long_only_the_beginning_is_read() {
        const BYTES_MAX: usize = 16 << 10;
        let long = |head: &str| head.to_owned() + &" ".repeat(BYTES_MAX - head.len() + 1);
        let read = |text: &str| {
            let head = head_of_long_question(text.as_bytes(), BYTES_MAX)?;
            Some(String::from_utf8(head.to_vec()).unwrap())
        };
        for (text, head) in [
            (r#"["REQ","s",{"ids":["#, Some(r#"["REQ","s","#)),
            (r#" [ "COUNT" , "s" , {"#, Some(r#" [ "COUNT" , "s" , "#)),
            (r#"["NEG-OPEN","n",{}"#, Some(r#"["NEG-OPEN","n","#)),
            (r#"["NEG-MSG","n",""#, None),
            (r#"["EVENT",{"#, None),
        ] {
            assert_eq!(read(&long(text)).as_deref(), head, "{text}");
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read(&long(r#"["REQ","s""#)).map(|head| head.len()), Some(QUESTION_HEAD));
        // The head may end inside a two-byte character. The rest of the head is still read.
        let cut = read(&long(&format!(r#"["REQ", "{}"#, "é".repeat(QUESTION_HEAD)))).unwrap();
        assert_eq!(cut.len(), QUESTION_HEAD - 1);
    }
}
