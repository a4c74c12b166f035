//! Tests of the peer exchange with requests of strangers.

use super::*;
use crate::waku::metrics::{Direction, ExchangeStatus};
use crate::waku::p2p::discovery::NodeRecord;
use crate::waku::p2p::outgoing::OpenFault;

impl Pair {
    /// Sends the bytes of a request, and returns the records of the answer.
    async fn exchange(&self, request: &[u8]) -> Result<Vec<NodeRecord>, ExchangeStatus> {
        let mut stream = self.stream(exchange::PROTOCOL).await;
        stream.write_all(request).await.unwrap();
        stream.flush().await.unwrap();
        let answer = frame::read(&mut stream, 1 << 20).await.unwrap().unwrap();
        let records = exchange::decode_answer(&answer, usize::MAX).unwrap()?;
        Ok(records.iter().map(|record| NodeRecord::decode(record).unwrap()).collect())
    }

    fn exchanges(&self, status: ExchangeStatus) -> u64 {
        self.waku.metrics.exchanges.of(Direction::Sent).of(status).get()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_peer_exchange_answers_requests_and_refuses_floods() {
    let pair = Pair::start("waku-exchange").await;
    // A request for 60 records, and a request for a huge number of records.
    for request in [&[4, 10, 2, 8, 60][..], &[9, 10, 7, 8, 255, 255, 255, 255, 255, 1]] {
        let records = pair.exchange(request).await.unwrap();
        let [own] = records.as_slice() else { panic!("{records:?}") };
        assert_eq!(own.peer, pair.peer);
        let addr = format!("/dns4/node.example/tcp/443/wss/p2p/{}", pair.peer);
        assert_eq!(
            own.addrs,
            [addr.parse::<Multiaddr>().unwrap()],
            "the loopback address is left out"
        );
    }
    assert!(pair.exchange(&[4, 10, 2, 8, 0]).await.unwrap().is_empty());
    // Bytes that are no request, an empty message, and a message above the bound.
    for request in [&[3, 10, 9, 8][..], &[0], &[255, 255, 3]] {
        assert_eq!(pair.exchange(request).await.unwrap_err(), ExchangeStatus::BadRequest);
    }
    assert_eq!(pair.exchanges(ExchangeStatus::BadRequest), 3);
    // The rate allows 30 requests at once.
    let mut refused = 0;
    for _ in 0..30 {
        let answer = pair.exchange(&[4, 10, 2, 8, 60]).await;
        refused += u64::from(answer.is_err_and(|status| status == ExchangeStatus::TooManyRequests));
    }
    assert!(refused > 0);
    assert_eq!(pair.exchanges(ExchangeStatus::TooManyRequests), refused);
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_peer_exchange_offers_none() {
    let shape = |config: &mut crate::waku::NodeConfig| {
        let p2p = config.p2p.as_mut().unwrap();
        p2p.discovery.exchange = false;
    };
    let pair = Pair::shaped("waku-no-exchange", Clients::default(), shape).await;
    let opened = pair.opener.open(pair.peer, exchange::PROTOCOL).await;
    assert!(matches!(opened, Err(OpenFault::Unsupported(_))));
    pair.end().await;
}
