//! Secure WebSockets (`/wss`, `/tls/ws`): this node listens with the certificate of the server, and
//! dials other nodes.
//!
//! The library's transport for WebSockets has TLS of its own, but its certificate cannot be
//! replaced while the node runs, and its messages cannot be bounded ([`BoundedMessages`]). So it
//! listens on plain WebSockets here, over connections whose handshakes [`TlsEndpoint`] has performed,
//! within the time limit and with the counters of all doors. It dials plain WebSockets over
//! connections with TLS, too ([`TlsDial`]). [`SecureWeb`] translates the addresses.

use std::collections::HashMap;
use std::future::Pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::{BoxFuture, Ready};
use libp2p::core::Transport;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::multiaddr::Protocol;
use libp2p::websocket::error::Error;
use libp2p::{Multiaddr, tcp, websocket};
use tokio_rustls::TlsConnector;

use super::secure_dial::{SharedTcp, TlsDial, server_name};
use super::tls_peer_stream::TlsPeerStream;
use super::web::BoundedMessages;
use crate::tls::TlsEndpoint;

/// How an address names a secure WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecureForm {
    /// `/wss`, the older form.
    Wss,
    /// `/tls/ws`.
    TlsWs,
}

impl SecureForm {
    /// Returns the form of an address; `None` if the address names no secure WebSocket.
    pub(super) fn of(addr: &Multiaddr) -> Option<Self> {
        let mut is_after_tls = false;
        addr.iter().find_map(|part| match part {
            Protocol::Wss(_) => Some(Self::Wss),
            Protocol::Ws(_) if is_after_tls => Some(Self::TlsWs),
            Protocol::Tls => {
                is_after_tls = true;
                None
            }
            _ => None,
        })
    }

    /// Returns the address of the plain WebSocket below TLS.
    fn remove(addr: &Multiaddr) -> Multiaddr {
        addr.iter()
            .filter(|part| !matches!(part, Protocol::Tls))
            .map(|part| match part {
                Protocol::Wss(path) => Protocol::Ws(path),
                other => other,
            })
            .collect()
    }

    /// Returns the secure address of a plain WebSocket.
    fn add(self, addr: &Multiaddr) -> Multiaddr {
        let mut secure = Multiaddr::empty();
        for part in addr {
            match (part, self) {
                (Protocol::Ws(path), Self::Wss) => secure.push(Protocol::Wss(path)),
                (part @ Protocol::Ws(_), Self::TlsWs) => {
                    secure.push(Protocol::Tls);
                    secure.push(part);
                }
                (part, _) => secure.push(part),
            }
        }
        secure
    }
}

/// Accepts TCP connections, and performs their TLS handshakes. Dials no address.
pub(super) struct TlsTcp {
    tcp: tcp::tokio::Transport,
    tls: Arc<TlsEndpoint>,
}

impl Transport for TlsTcp {
    type Output = BoundedMessages<TlsPeerStream>;
    type Error = io::Error;
    type ListenerUpgrade = BoxFuture<'static, io::Result<Self::Output>>;
    type Dial = Pending<io::Result<Self::Output>>;

    fn listen_on(
        &mut self,
        id: ListenerId,
        addr: Multiaddr,
    ) -> Result<(), TransportError<io::Error>> {
        self.tcp.listen_on(id, addr)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.tcp.remove_listener(id)
    }

    fn dial(
        &mut self,
        addr: Multiaddr,
        _: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        Err(TransportError::MultiaddrNotSupported(addr))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        let event = ready!(Pin::new(&mut self.tcp).poll(cx));
        let tls = &self.tls;
        Poll::Ready(event.map_upgrade(|accepted| -> Self::ListenerUpgrade {
            Box::pin(open(Arc::clone(tls), accepted))
        }))
    }
}

/// Performs the TLS handshake of an accepted connection.
async fn open(
    tls: Arc<TlsEndpoint>,
    accepted: Ready<io::Result<tcp::tokio::TcpStream>>,
) -> io::Result<BoundedMessages<TlsPeerStream>> {
    let stream = accepted.await?;
    // The endpoint has counted the cause of a failure.
    let stream = tls.accept(stream.0).await.ok_or(io::ErrorKind::ConnectionAborted)?;
    Ok(BoundedMessages::new(TlsPeerStream::new(stream)))
}

/// Listens on secure WebSockets, and dials secure WebSockets.
pub(super) struct SecureWeb {
    /// Listens on plain WebSockets over TLS. `None` if the server has no certificate.
    web: Option<websocket::Config<TlsTcp>>,
    /// How the address of each listener names a secure WebSocket.
    forms: HashMap<ListenerId, SecureForm>,
    /// Dials the connections below TLS.
    tcp: SharedTcp,
    connector: TlsConnector,
}

type PlainWeb = websocket::Config<TlsTcp>;

impl SecureWeb {
    /// Listens with `tls`, and dials with `connector`, through `dialled`.
    pub(super) fn new(
        tls: Option<Arc<TlsEndpoint>>,
        connector: TlsConnector,
        dialled: SharedTcp,
    ) -> Self {
        let tcp = || tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
        let web = tls.map(|tls| websocket::Config::new(TlsTcp { tcp: tcp(), tls }));
        Self { web, forms: HashMap::new(), tcp: dialled, connector }
    }
}

impl Transport for SecureWeb {
    type Output = <PlainWeb as Transport>::Output;
    type Error = <PlainWeb as Transport>::Error;
    type ListenerUpgrade = <PlainWeb as Transport>::ListenerUpgrade;
    type Dial = <websocket::Config<TlsDial> as Transport>::Dial;

    fn listen_on(
        &mut self,
        id: ListenerId,
        addr: Multiaddr,
    ) -> Result<(), TransportError<Self::Error>> {
        let (Some(web), Some(form)) = (&mut self.web, SecureForm::of(&addr)) else {
            return Err(TransportError::MultiaddrNotSupported(addr));
        };
        match web.listen_on(id, SecureForm::remove(&addr)) {
            Ok(()) => {
                self.forms.insert(id, form);
                Ok(())
            }
            Err(TransportError::MultiaddrNotSupported(_)) => {
                Err(TransportError::MultiaddrNotSupported(addr))
            }
            Err(error) => Err(error),
        }
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.web.as_mut().is_some_and(|web| web.remove_listener(id))
    }

    fn dial(
        &mut self,
        addr: Multiaddr,
        opts: DialOpts,
    ) -> Result<Self::Dial, TransportError<Self::Error>> {
        if SecureForm::of(&addr).is_none() {
            return Err(TransportError::MultiaddrNotSupported(addr));
        }
        // No other transport may dial this address: the library's TLS has no bound for messages.
        let Some(name) = server_name(&addr) else {
            return Err(TransportError::Other(Error::InvalidMultiaddr(addr)));
        };
        let below = TlsDial::new(Arc::clone(&self.tcp), self.connector.clone(), name);
        let plain = SecureForm::remove(&addr);
        let plain = plain.iter().filter(|part| !matches!(part, Protocol::Sni(_))).collect();
        websocket::Config::new(below).dial(plain, opts).map_err(|error| match error {
            TransportError::MultiaddrNotSupported(_) => {
                TransportError::Other(Error::InvalidMultiaddr(addr))
            }
            other @ TransportError::Other(_) => other,
        })
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        let Self { web: Some(web), forms, .. } = &mut *self else { return Poll::Pending };
        let mut event = ready!(Pin::new(web).poll(cx));
        let translate = |id: &ListenerId, addr: &mut Multiaddr| {
            if let Some(form) = forms.get(id) {
                *addr = form.add(addr);
            }
        };
        match &mut event {
            TransportEvent::NewAddress { listener_id, listen_addr }
            | TransportEvent::AddressExpired { listener_id, listen_addr } => {
                translate(listener_id, listen_addr);
            }
            TransportEvent::Incoming { listener_id, local_addr, send_back_addr, .. } => {
                translate(listener_id, local_addr);
                translate(listener_id, send_back_addr);
            }
            TransportEvent::ListenerClosed { listener_id, .. } => {
                forms.remove(listener_id);
            }
            TransportEvent::ListenerError { .. } => {}
        }
        Poll::Ready(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_secure_address_are_translated_and_come_back() {
        for (secure, plain, form) in [
            ("/ip4/127.0.0.1/tcp/1/wss", "/ip4/127.0.0.1/tcp/1/ws", SecureForm::Wss),
            ("/ip6/::1/tcp/1/tls/ws", "/ip6/::1/tcp/1/ws", SecureForm::TlsWs),
        ] {
            let (secure, plain): (Multiaddr, Multiaddr) =
                (secure.parse().unwrap(), plain.parse().unwrap());
            assert_eq!(SecureForm::of(&secure), Some(form));
            assert_eq!(SecureForm::remove(&secure), plain);
            assert_eq!(form.add(&plain), secure);
            assert_eq!(SecureForm::of(&plain), None);
        }
        assert_eq!(SecureForm::of(&"/ip4/1.2.3.4/tcp/1".parse().unwrap()), None);
        assert_eq!(SecureForm::of(&"/ip4/1.2.3.4/tcp/1/tls".parse().unwrap()), None);
    }
}
