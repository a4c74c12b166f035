//! `/vac/waku/metadata/1.0.0` (RFC 66/WAKU2-METADATA): the cluster and shards that this node
//! serves.

use std::sync::Arc;
use std::time::Duration;

use futures_util::AsyncReadExt as _;
use hark_codec::waku::protobuf::{put_bytes, put_number, put_varint};

use super::frame;
use super::incoming::IncomingStreams;
use crate::waku::node::WakuNode;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "/vac/waku/metadata/1.0.0";
/// Maximum size of a request, in bytes, as in nwaku.
const REQUEST_MAX: usize = 1_024;
/// How long a peer may take to send its request.
const REQUEST_WAIT: Duration = Duration::from_secs(30);

/// Answers the requests of all peers.
pub(super) fn serve(incoming: &IncomingStreams, waku: &WakuNode) {
    let answer = encode_metadata(waku.config.cluster, &waku.config.shards);
    let answer: Arc<[u8]> = answer.into();
    incoming.serve(PROTOCOL, move |_, mut stream| {
        let answer = Arc::clone(&answer);
        async move {
            // The request contains the peer's cluster and shards, which a store does not use.
            let asked = tokio::time::timeout(REQUEST_WAIT, frame::read(&mut stream, REQUEST_MAX));
            if let Ok(Ok(Some(_))) = asked.await {
                let (mut reader, mut writer) = stream.split();
                let answering = async {
                    // A write error affects only this peer, so the error is ignored.
                    if frame::write(&mut writer, &answer).await.is_ok() {
                        let _ = frame::end(&mut writer).await;
                    }
                };
                frame::discarding(&mut reader, answering).await;
            }
        }
    });
}

/// Encodes the cluster, and the shards twice: js-waku reads the shards from field 2, one by one,
/// and nwaku reads the shards from field 3, packed.
fn encode_metadata(cluster: u16, shards: &[u16]) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, 1, cluster.into());
    let mut packed = Vec::new();
    for &shard in shards {
        put_number(&mut out, 2, shard.into());
        put_varint(&mut packed, shard.into());
    }
    put_bytes(&mut out, 3, &packed);
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn shards_are_said_in_both_fields() {
        assert_eq!(
            super::encode_metadata(16, &[0, 200]),
            [8, 16, 16, 0, 16, 200, 1, 26, 3, 0, 200, 1]
        );
    }
}
