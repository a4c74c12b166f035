//! Tests of the bound for the messages of WebSockets.

use futures_util::AsyncReadExt as _;
use libp2p::core::transport::{DialOpts, PortUse};
use libp2p::core::{Endpoint, Transport as _};
use libp2p::{dns, tcp};
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::waku::p2p::secure_dial::trusting;
use crate::waku::p2p::secure_web::SecureWeb;

/// Maximum length of a message.
const MAX: usize = 2 << 20;
/// The beginning of each connection.
const NEGOTIATION: &[u8] = b"\x13/multistream/1.0.0\n\x07/noise\n";
const REFUSED: &str = "a WebSocket message is too long";

/// Encodes a message of `len` bytes, which begins like the messages of peers. A mask of zeros
/// changes no byte.
fn message(len: usize, mask: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x82, if mask.is_empty() { 127 } else { 0xff }];
    bytes.extend((len as u64).to_be_bytes());
    bytes.extend_from_slice(mask);
    let end = bytes.len() + len;
    bytes.extend_from_slice(NEGOTIATION);
    bytes.resize(end, 0);
    bytes
}

/// Accepts a WebSocket, and sends a message of `len` bytes.
async fn accept_and_send(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    len: usize,
) {
    let mut stream = tokio_tungstenite::accept_async(stream).await.unwrap().into_inner();
    // The node may break the connection before it has read all bytes.
    let _ = stream.write_all(&message(len, &[])).await;
    let _ = stream.flush().await;
    // The connection stays open until the test ends.
    std::future::pending::<()>().await;
}

async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_sends_a_longer_message_is_not_admitted() {
    let pair = Pair::shaped("web-accepted", Clients::default(), |config| {
        let p2p = config.p2p.as_mut().unwrap();
        p2p.listen.push("/ip4/127.0.0.1/tcp/0/ws".parse().unwrap());
    })
    .await;
    let addr: Multiaddr = pair.waku.addresses()[1].parse().unwrap();
    let port = addr.iter().find_map(|part| match part {
        libp2p::multiaddr::Protocol::Tcp(port) => Some(port),
        _ => None,
    });
    for (len, is_answered) in [(MAX, true), (MAX + 1, false)] {
        let stream = TcpStream::connect(("127.0.0.1", port.unwrap())).await.unwrap();
        let (web, _) = tokio_tungstenite::client_async("ws://127.0.0.1/", stream).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(web.into_inner());
        let sending = tokio::spawn(async move {
            let _ = writer.write_all(&message(len, &[0; 4])).await;
            writer
        });
        // The first byte of the node's answer, the end, or an error.
        let answered = reader.read_u8().await.is_ok_and(|first| first == 0x82);
        assert_eq!(answered, is_answered, "{len}");
        sending.abort();
    }
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_answers_with_a_longer_message_is_not_connected() {
    let pair = Pair::start("web-dialled").await;
    for (len, is_refused) in [(MAX, false), (MAX + 1, true)] {
        let (listener, port) = listen().await;
        let node = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            accept_and_send(stream, len).await;
        });
        let addr = format!("/ip4/127.0.0.1/tcp/{port}/ws/p2p/{}", PeerId::random());
        let network = pair.waku.network.as_ref().unwrap();
        let why = network.connect(addr.parse().unwrap()).await.unwrap_err().to_string();
        assert_eq!(why.contains(REFUSED), is_refused, "{why}");
        node.abort();
    }
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_message_of_a_dialled_secure_web_socket_is_refused() {
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = issued.signing_key.serialize_der().try_into().unwrap();
    let certificate = issued.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let tcp = tcp::tokio::Transport::new(tcp::Config::default());
    let tcp = Arc::new(Mutex::new(dns::tokio::Transport::system(tcp).unwrap()));
    let mut web = SecureWeb::new(None, trusting(roots).unwrap(), tcp);
    let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    for form in ["wss", "tls/ws", "tls/sni/127.0.0.1/ws"] {
        for (len, is_refused) in [(MAX, false), (MAX + 1, true)] {
            let (listener, port) = listen().await;
            let acceptor = acceptor.clone();
            let node = tokio::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                accept_and_send(acceptor.accept(stream).await.unwrap(), len).await;
            });
            let addr = format!("/ip4/127.0.0.1/tcp/{port}/{form}/p2p/{}", PeerId::random());
            let dialling = web.dial(addr.parse().unwrap(), opts).unwrap();
            let reading = async {
                let mut stream = dialling.await.map_err(|error| format!("{error:?}"))?;
                let read = stream.read_exact(&mut vec![0; len]).await;
                read.map_err(|error| format!("{error:?}"))
            };
            let read = reading.await;
            let refused = read.as_ref().is_err_and(|error| error.contains(REFUSED));
            assert!(refused == is_refused && read.is_err() == is_refused, "{form} {len}: {read:?}");
            node.abort();
        }
    }
}

#[tokio::test]
async fn a_secure_address_is_dialled_by_no_other_transport() {
    let tcp = tcp::tokio::Transport::new(tcp::Config::default());
    let tcp = Arc::new(Mutex::new(dns::tokio::Transport::system(tcp).unwrap()));
    let mut web = SecureWeb::new(None, trusting(RootCertStore::empty()).unwrap(), tcp);
    let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    for (addr, is_secure) in [
        ("/dns4/-/tcp/1/wss", true),
        ("/dns4/a..b/tcp/1/tls/ws", true),
        ("/udp/1/wss", true),
        ("/dnsaddr/a.example/tcp/1/wss", true),
        ("/ip4/127.0.0.1/tcp/1/ws", false),
        ("/ip4/127.0.0.1/tcp/1", false),
    ] {
        let refused = web.dial(addr.parse().unwrap(), opts).err().expect(addr);
        let is_other = matches!(refused, libp2p::TransportError::Other(_));
        assert_eq!(is_other, is_secure, "{addr}");
    }
}
