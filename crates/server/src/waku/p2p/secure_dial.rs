//! The connections with TLS below the secure WebSockets that this node dials. See `secure_web`.

use std::future::Pending;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use libp2p::core::Transport;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, dns, tcp};
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::tls_peer_stream::TlsPeerStream;
use super::web::BoundedMessages;

/// TCP to IP addresses and DNS names.
pub(super) type Tcp = dns::tokio::Transport<tcp::tokio::Transport>;
pub(super) type SharedTcp = Arc<Mutex<Tcp>>;

/// Creates the client's side of TLS. It trusts the authorities of browsers, as the library does.
pub(super) fn connector() -> Result<TlsConnector, rustls::Error> {
    let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
    trusting(roots)
}

/// Like [`connector`], with other authorities.
pub(super) fn trusting(roots: RootCertStore) -> Result<TlsConnector, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config).into())
}

/// Returns the name in the certificate of the node at this address: the name that the address
/// states for TLS, or its host.
pub(super) fn server_name(addr: &Multiaddr) -> Option<ServerName<'static>> {
    let stated = addr.iter().find_map(|part| match part {
        Protocol::Sni(name) => Some(name.into_owned()),
        _ => None,
    });
    if let Some(name) = stated {
        return name.try_into().ok();
    }
    addr.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(ServerName::IpAddress(IpAddr::V4(ip).into())),
        Protocol::Ip6(ip) => Some(ServerName::IpAddress(IpAddr::V6(ip).into())),
        Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => {
            name.into_owned().try_into().ok()
        }
        _ => None,
    })
}

/// Dials one node by TCP, and performs the TLS handshake. Listens on no address.
pub(super) struct TlsDial {
    tcp: SharedTcp,
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsDial {
    /// `name` is the name in the certificate of the node.
    pub(super) fn new(tcp: SharedTcp, connector: TlsConnector, name: ServerName<'static>) -> Self {
        Self { tcp, connector, name }
    }
}

impl Transport for TlsDial {
    type Output = BoundedMessages<TlsPeerStream>;
    type Error = io::Error;
    type ListenerUpgrade = Pending<io::Result<Self::Output>>;
    type Dial = BoxFuture<'static, io::Result<Self::Output>>;

    fn listen_on(
        &mut self,
        _: ListenerId,
        addr: Multiaddr,
    ) -> Result<(), TransportError<io::Error>> {
        Err(TransportError::MultiaddrNotSupported(addr))
    }

    fn remove_listener(&mut self, _: ListenerId) -> bool {
        false
    }

    fn dial(
        &mut self,
        addr: Multiaddr,
        opts: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        let dialling = self.tcp.lock().dial(addr, opts);
        let dialling = dialling.map_err(|error| error.map(io::Error::other))?;
        let (connector, name) = (self.connector.clone(), self.name.clone());
        Ok(Box::pin(async move {
            let stream = dialling.await.map_err(io::Error::other)?;
            let stream = connector.connect(name, stream.0).await?;
            Ok(BoundedMessages::new(TlsPeerStream::new(stream)))
        }))
    }

    fn poll(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Poll::Pending
    }
}
