//! Asks a domain for the key of a name, by https on port 443. The addresses of the domain are looked up
//! once, and the connection goes to an address that was checked, so no answer of the DNS can lead to a
//! server of this machine or of its private networks. Redirects are not followed.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hark_codec::record::Key;
use hark_networks::nostr::names::{InternetName, listed_key};
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::fault::NameFault;
use crate::blocking;
use crate::public_address::is_public;
use crate::tls::client_config;

/// The port of https.
const PORT: u16 = 443;
/// Maximum number of addresses of a domain that are tried.
const ADDRESSES_MAX: usize = 4;
/// Maximum number of bytes of the head of an answer, and of its header fields.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 100;
const AGENT: &str = concat!("hark/", env!("CARGO_PKG_VERSION"));

/// Permits for look-ups in the DNS. A look-up cannot be interrupted, so it holds its permit until it
/// ends, even if the check has ended before.
static LOOK_UPS: Semaphore = Semaphore::const_new(16);

/// A client that asks domains for the keys of names.
#[derive(Clone, Default)]
pub struct NameClient {
    /// The settings of TLS, with the certificate authorities of the system, once they were needed.
    tls: Arc<OnceCell<Arc<ClientConfig>>>,
    /// For tests: the address at which all domains are.
    only: Option<SocketAddr>,
}

impl std::fmt::Debug for NameClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameClient").field("only", &self.only).finish_non_exhaustive()
    }
}

impl NameClient {
    /// Makes a client for tests, which connects to `address` for every domain, with the certificate
    /// authorities of `tls`.
    pub fn of_tests(address: SocketAddr, tls: ClientConfig) -> Self {
        Self { tls: Arc::new(OnceCell::from(Arc::new(tls))), only: Some(address) }
    }

    /// Returns the key that the domain of a name lists for this name. `None` if the domain does not
    /// list the name. The check ends after `time_max`.
    pub(super) async fn listed_key(
        &self,
        name: &InternetName,
        bytes_max: usize,
        time_max: Duration,
    ) -> Result<Option<Key>, NameFault> {
        let document = timeout(time_max, self.document(name, bytes_max, time_max)).await;
        let document = document.map_err(|_| NameFault::Timeout)??;
        Ok(listed_key(&document, name.local())?)
    }

    /// Requests the document of a name.
    async fn document(
        &self,
        name: &InternetName,
        bytes_max: usize,
        time_max: Duration,
    ) -> Result<Vec<u8>, NameFault> {
        let addresses = match self.only {
            Some(address) => vec![address],
            None => look_up(name.domain()).await?,
        };
        let stream = connect(&addresses, time_max).await?;
        let tls = TlsConnector::from(self.tls().await?);
        let host = ServerName::try_from(name.domain().to_owned())
            .map_err(|error| NameFault::Handshake(io::Error::other(error)))?;
        let stream = tls.connect(host, stream).await.map_err(NameFault::Handshake)?;
        exchange(stream, name, bytes_max).await
    }

    async fn tls(&self) -> Result<Arc<ClientConfig>, NameFault> {
        let read = async || {
            // The certificates are files.
            let read = blocking::run(client_config).await;
            Ok(Arc::new(read.map_err(|_| NameFault::Interrupted)??))
        };
        self.tls.get_or_try_init(read).await.cloned()
    }
}

/// Looks up the public addresses of a domain.
async fn look_up(domain: &str) -> Result<Vec<SocketAddr>, NameFault> {
    let turn = LOOK_UPS.acquire().await.map_err(|_| NameFault::Interrupted)?;
    // The dot at the end excludes the search list of this machine.
    let host = format!("{domain}.");
    let found = blocking::run(move || {
        let _turn = turn;
        (host.as_str(), PORT).to_socket_addrs()
    });
    let found = found.await.map_err(|_| NameFault::Interrupted)?.map_err(NameFault::Address)?;
    public(found)
}

/// Returns the first public addresses among `found`.
fn public(found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, NameFault> {
    let public = found.filter(|address| is_public(address.ip()));
    let public: Vec<SocketAddr> = public.take(ADDRESSES_MAX).collect();
    if public.is_empty() { Err(NameFault::NotPublic) } else { Ok(public) }
}

/// Connects to the first address that accepts the connection within its share of `time_max`.
async fn connect(addresses: &[SocketAddr], time_max: Duration) -> Result<TcpStream, NameFault> {
    let share = time_max / addresses.len().max(1) as u32;
    let mut last = NameFault::NotPublic;
    for address in addresses {
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = NameFault::Connection(error),
            Err(_) => last = NameFault::Timeout,
        }
    }
    Err(last)
}

/// Sends the request for the document of a name, and reads the answer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    name: &InternetName,
    bytes_max: usize,
) -> Result<Vec<u8>, NameFault> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let request = Request::get(name.path())
        .header(HOST, name.domain())
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "application/json")
        .header(CONNECTION, "close")
        .body(Body::empty())?;
    let mut answer = pin!(async {
        let answer = sender.send_request(request).await?;
        match answer.status().as_u16() {
            200 => read(answer.into_body(), bytes_max).await,
            status => Err(NameFault::Status(status)),
        }
    });
    tokio::select! {
        answer = &mut answer => answer,
        // The connection ends before its answer is read to the end.
        ended = connection => {
            ended?;
            answer.await
        }
    }
}

async fn read(mut body: Incoming, bytes_max: usize) -> Result<Vec<u8>, NameFault> {
    let mut document = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(bytes) = frame?.into_data() else { continue };
        if document.len() + bytes.len() > bytes_max {
            return Err(NameFault::Long(bytes_max));
        }
        document.extend_from_slice(&bytes);
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_of_a_domain_are_dialled() {
        let addresses = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT)).collect()
        };
        let found = addresses(&["127.0.0.1", "1.1.1.1", "::1", "10.0.0.1", "2606:4700::1111"]);
        let dialled = public(found.into_iter()).unwrap();
        assert_eq!(dialled, addresses(&["1.1.1.1", "2606:4700::1111"]));
        for private in [&["127.0.0.1", "::ffff:10.0.0.1", "fe80::1"][..], &[]] {
            let dialled = public(addresses(private).into_iter());
            assert!(matches!(dialled, Err(NameFault::NotPublic)), "{private:?}");
        }
        let many = addresses(&["1.1.1.1"; 100]);
        assert_eq!(public(many.into_iter()).unwrap().len(), ADDRESSES_MAX);
    }
}
