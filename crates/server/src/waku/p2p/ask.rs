//! Requests to the stores of peers, by `/vac/waku/store-query/3.0.0`.

use std::time::Duration;

use hark_codec::waku::StoreResponse;
use hark_codec::waku::store::PAGE_MAX;
use hark_networks::waku::history::MessageRequest;
use libp2p::{PeerId, StreamProtocol};
use libp2p_stream::Control;

use super::error::AskFault;
use super::frame;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "/vac/waku/store-query/3.0.0";
/// Maximum size of another store's answer, in bytes: 100 messages of 150 KiB with their other
/// fields.
const ANSWER_MAX: usize = 16 << 20;
/// How long another store may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(20);

/// Sends a request to a peer. Returns the bytes of a valid answer, or the reason why there is no
/// valid answer.
pub(super) async fn ask(
    mut control: Control,
    peer: PeerId,
    request: &MessageRequest,
) -> Result<Vec<u8>, AskFault> {
    let mut bytes = Vec::new();
    request.write(&mut bytes);
    let asking = async {
        let mut stream = control.open_stream(peer, StreamProtocol::new(PROTOCOL)).await?;
        frame::write(&mut stream, &bytes).await?;
        frame::end(&mut stream).await?;
        let answer = frame::read(&mut stream, ANSWER_MAX).await?;
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
