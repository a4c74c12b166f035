//! `/vac/waku/metadata/1.0.0` (RFC 66/WAKU2-METADATA): which cluster and shards this node serves.

use std::sync::Arc;
use std::time::Duration;

use hark_codec::waku::protobuf::{put_bytes, put_number, put_varint};

use super::frame;
use super::incoming::Incoming;
use crate::waku::Waku;

/// Its name.
pub(super) const PROTOCOL: &str = "/vac/waku/metadata/1.0.0";
/// Bytes of a request, at most, as nwaku has it.
const REQUEST_MAX: usize = 1_024;
/// How long a peer may take to ask.
const REQUEST_WAIT: Duration = Duration::from_secs(30);

/// Answers whoever asks.
pub(super) fn serve(incoming: &Incoming, waku: &Waku) {
    let answer = said(waku.config.cluster, &waku.config.shards);
    let answer: Arc<[u8]> = answer.into();
    incoming.serve(PROTOCOL, move |_, mut stream| {
        let answer = Arc::clone(&answer);
        async move {
            // What peers say of themselves makes no difference to a store.
            let asked = tokio::time::timeout(REQUEST_WAIT, frame::read(&mut stream, REQUEST_MAX));
            if let Ok(Ok(Some(_))) = asked.await {
                // Whether the peer takes it is its own affair.
                let _ = frame::write(&mut stream, &answer).await;
                let _ = frame::end(&mut stream).await;
            }
        }
    });
}

/// The cluster, and its shards twice: js-waku reads them from field 2, one by one, and nwaku from
/// field 3, packed.
fn said(cluster: u16, shards: &[u16]) -> Vec<u8> {
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
        assert_eq!(super::said(16, &[0, 200]), [8, 16, 16, 0, 16, 200, 1, 26, 3, 0, 200, 1]);
    }
}
