//! The end of an answer, which a mail server sends after the envelopes (packet 125).

use super::cursor::HistoryCursor;
use super::rlp::{RlpError, RlpItems, put_string};
use crate::record::Id;

/// Prefix of the answer to a request that failed.
const ERROR: &[u8] = b"ERROR=";

/// The end of an answer: one RLP string. 8/WAKU-MAIL describes a list instead, but clients cannot
/// read a list here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion<'a> {
    /// All envelopes of the page have been sent.
    Done {
        /// Hash of the request's envelope.
        request: Id,
        /// Hash of the last envelope; all zero if there was no envelope.
        last: Id,
        /// Start of the next page; `None` if there is no next page.
        cursor: Option<HistoryCursor>,
    },
    /// The request was refused, or failed.
    Failed {
        /// Hash of the request's envelope.
        request: Id,
        /// The reason, as text for people.
        text: &'a str,
    },
}

/// Why bytes are not the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// The bytes are not an RLP string.
    #[error("this is not the end of an answer: {0}")]
    Rlp(#[from] RlpError),
    /// The string has neither the length of two hashes nor the length of two hashes and a cursor.
    #[error("the end of an answer has {0} bytes")]
    Length(usize),
    /// The text is not UTF-8.
    #[error("the text of an error is not UTF-8")]
    Text,
}

impl<'a> Completion<'a> {
    /// Reads a packet.
    pub fn parse(packet: &'a [u8]) -> Result<Self, CompletionError> {
        let bytes = RlpItems::of_string(packet)?;
        // A request's hash begins with these six bytes only with a probability of 2^-48.
        let failed = bytes.strip_prefix(ERROR).and_then(|rest| rest.split_first_chunk());
        if let Some((request, text)) = failed {
            let text = str::from_utf8(text).map_err(|_| CompletionError::Text)?;
            return Ok(Self::Failed { request: *request, text });
        }
        let wrong = CompletionError::Length(bytes.len());
        let (request, rest) = bytes.split_first_chunk().ok_or(wrong)?;
        let (last, rest) = rest.split_first_chunk().ok_or(wrong)?;
        let cursor = match rest {
            [] => None,
            cursor => Some(HistoryCursor::read(cursor).ok_or(wrong)?),
        };
        Ok(Self::Done { request: *request, last: *last, cursor })
    }

    /// Appends the packet.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Done { request, last, cursor: None } => string(out, &[request, last]),
            Self::Done { request, last, cursor: Some(cursor) } => {
                string(out, &[request, last, &cursor.bytes()]);
            }
            Self::Failed { request, text } => string(out, &[ERROR, request, text.as_bytes()]),
        }
    }
}

/// Appends the string that consists of `parts`. The string must be longer than one byte.
fn string(out: &mut Vec<u8>, parts: &[&[u8]]) {
    put_string(out, parts.iter().map(|part| part.len()).sum());
    for part in parts {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::keccak256;
    use crate::hex;

    fn packet(completion: &Completion<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        completion.write(&mut out);
        assert_eq!(Completion::parse(&out), Ok(*completion));
        out
    }

    /// The expected bytes are the result of status-go's CreateMailServerRequestCompletedPayload,
    /// encoded by go-ethereum.
    #[test]
    fn the_end_of_a_page_is_status_gos() {
        let (request, last) = (keccak256(b"a"), keccak256(b"b"));
        let cursor: Vec<u8> = (0..36).map(|at| 0xf0 - at).collect();
        let done = Completion::Done { request, last, cursor: HistoryCursor::read(&cursor) };
        let mut digits = Vec::new();
        hex::encode_into(&packet(&done), &mut digits);
        let expected = "b8643ac225168df54212a25c1c01fd35bebfea408fdac2e31ddd6f80a4bbf9a5f1cbb5553de\
                        315e0edf504d9150af82dafa5c4667fa618ed0a6f19c69b41166c5510f0efeeedecebeae9e8\
                        e7e6e5e4e3e2e1e0dfdedddcdbdad9d8d7d6d5d4d3d2d1d0cfcecd";
        assert_eq!(String::from_utf8(digits).unwrap(), expected);
        let over = packet(&Completion::Done { request, last: [0; 32], cursor: None });
        assert_eq!(over, [&[0xb8, 64], &request[..], &[0; 32]].concat());
    }

    #[test]
    fn a_failure_has_its_reason() {
        let request = keccak256(b"a");
        let failed = Completion::Failed { request, text: "rate limit exceeded" };
        let expected = [&[0xb8, 57], &b"ERROR="[..], &request, b"rate limit exceeded"].concat();
        assert_eq!(packet(&failed), expected);
        packet(&Completion::Failed { request, text: "" });
    }

    #[test]
    fn other_bytes_are_refused() {
        let parse = |bytes: &[u8]| {
            let mut out = Vec::new();
            crate::whisper::rlp::put_bytes(&mut out, bytes);
            Completion::parse(&out).map(|_| ())
        };
        for len in (0..64).chain(65..100).chain(101..140) {
            assert_eq!(parse(&vec![7; len]), Err(CompletionError::Length(len)));
        }
        assert_eq!((parse(&[7; 64]), parse(&[7; 100])), (Ok(()), Ok(())));
        assert_eq!(parse(&[b"ERROR=", &[7; 32][..], &[0xff]].concat()), Err(CompletionError::Text));
        assert_eq!(Completion::parse(&[0xc0]), Err(CompletionError::Rlp(RlpError::NoBytes)));
    }
}
