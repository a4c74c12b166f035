//! Requests to the stores of peers, by `/vac/waku/store-query/3.0.0`.

use std::time::Duration;

use hark_codec::waku::StoreResponse;
use hark_codec::waku::store::PAGE_MAX;
use hark_networks::waku::history::MessageRequest;
use libp2p::PeerId;

use super::error::AskFault;
use super::frame;
use super::outgoing::StreamOpener;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "/vac/waku/store-query/3.0.0";
/// Maximum size of another store's answer, in bytes, unless a single message can be longer: 100
/// messages of 150 KiB with their other fields.
const ANSWER_MAX: usize = 16 << 20;
/// Maximum size of the other fields of a message in an answer, in bytes: a hash, and a topic of
/// 1,024 bytes.
const FIELDS_MAX: usize = 2_048;
/// Maximum size of an answer without its messages, in bytes.
const HEAD_MAX: usize = 62 << 10;
/// How long another store may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(20);

/// Returns the maximum size of an answer in a network with messages of up to `message_bytes` bytes.
/// One message always fits.
fn answer_max(message_bytes: usize) -> usize {
    ANSWER_MAX.max(message_bytes + FIELDS_MAX + HEAD_MAX)
}

/// Returns the number of messages to request at once, so that an answer with the longest messages
/// is not too long. Other stores do not bound the size of an answer.
pub(super) fn page_max(message_bytes: usize) -> u64 {
    (ANSWER_MAX / (message_bytes + FIELDS_MAX)).clamp(1, PAGE_MAX) as u64
}

/// Sends a request to a peer in a network with messages of up to `message_bytes` bytes. Returns the
/// bytes of a valid answer, or the reason why there is no valid answer.
pub(super) async fn ask(
    opener: &StreamOpener,
    peer: PeerId,
    request: &MessageRequest,
    message_bytes: usize,
) -> Result<Vec<u8>, AskFault> {
    let mut bytes = Vec::new();
    request.write(&mut bytes);
    let asking = async {
        let mut stream = opener.open(peer, PROTOCOL).await?;
        frame::write(&mut stream, &bytes).await?;
        frame::end(&mut stream).await?;
        let answer = frame::read(&mut stream, answer_max(message_bytes)).await?;
        answer.ok_or(AskFault::Silent)
    };
    let answer = match tokio::time::timeout(ANSWER_WAIT, asking).await {
        Ok(answer) => answer?,
        Err(_) => return Err(AskFault::Slow(ANSWER_WAIT.as_secs())),
    };
    let parsed = StoreResponse::parse(&answer)?;
    // A peer may send many more messages than requested. A message can take three bytes in the
    // answer, and far more in memory.
    if parsed.messages().nth(PAGE_MAX).is_some() {
        return Err(AskFault::TooLong);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_the_longest_messages_is_within_the_bound_of_an_answer() {
        for (message_bytes, page) in [
            (1, 100),
            (150 << 10, 100),
            (200 << 10, 81),
            (1 << 20, 15),
            (4 << 20, 3),
            (10 << 20, 1),
            (16 << 20, 1),
        ] {
            assert_eq!(page_max(message_bytes), page, "{message_bytes}");
            let longest = page as usize * (message_bytes + FIELDS_MAX);
            assert!(longest <= answer_max(message_bytes), "{message_bytes}");
        }
        assert_eq!(answer_max(1 << 20), 16 << 20);
        assert_eq!(answer_max(16 << 20), (16 << 20) + (64 << 10));
    }
}
