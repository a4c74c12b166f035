//! Serves plain HTTP connections on separate addresses. The caller provides the answers.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::answers::Answers;
use crate::clients::Clients;
use crate::connections::ConnectionPermit;
use crate::listener::{SessionGuard, accept};
use crate::metrics::ConnectionRefusal;
use crate::patience::TimedStream;
use crate::rate::RateSource;
use crate::roster::{ConnectionForm, CountedStream, RosterEntry, while_serving};
use crate::sockets::ServedSockets;
use crate::stop::StopSignal;
use crate::stream::AcceptedStream;

/// How long a client may stop reading an answer. After that, its connection ends.
const TAKE_MAX: Duration = Duration::from_secs(10);

/// Answers up to this size are always sent, because such answers report health or an error.
const SMALL_BYTES: usize = 1 << 10;

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    /// How long a connection may take to send the head of its next request. This time also bounds
    /// how long a connection may be idle.
    pub(crate) head_timeout: Duration,
    /// How long a connection may last. `None` means no bound.
    pub(crate) connection_max: Option<Duration>,
}

/// Answers requests until the server accepts no more connections and the requests under way are
/// answered. `enter` decides which connections are accepted. `clients` lists the clients'
/// connections and bounds their unread answers: an answer above the bounds is replaced by status
/// 503.
pub(crate) async fn serve<F, A>(
    sockets: ServedSockets,
    stop: StopSignal,
    bounds: ConnectionTimeouts,
    enter: impl Fn(IpAddr) -> Result<ConnectionPermit, ConnectionRefusal>,
    answer: F,
    clients: Option<ServedClients>,
) where
    F: Fn(IpAddr, Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Response> + Send + 'static,
{
    let ended = stop.clone();
    let serve = |accepted: AcceptedStream, peer, entered: (ConnectionPermit, SessionGuard)| {
        let (answer, mut stop) = (answer.clone(), ended.clone());
        let (of_connection, answers) =
            (entered.0.address(), clients.as_ref().map(|clients| clients.answers.clone()));
        let listed = clients.as_ref().map(|clients| clients.list(peer));
        async move {
            let Some(stream) = accepted.open(&mut stop).await else { return };
            stream.send_at_once();
            let entry = listed.as_ref().map(|entry| Arc::clone(entry));
            let answer = move |request: Request<Incoming>| {
                if let Some(entry) = &entry {
                    entry.set_agent_of(request.headers());
                }
                let (answer, answers) = (answer(peer, request), answers.clone());
                async move {
                    let answer = answer.await;
                    let named = answer.extensions().get::<AnsweredClient>();
                    let Some(answers) = answers else { return answer };
                    let client = named.map(|named| named.0.into()).or(of_connection);
                    held(answer, |bytes| match client {
                        Some(client) => answers.reserve(RateSource::Address(client), bytes),
                        // A proxy that names no client may stand for many clients.
                        None => answers.reserve_any(RateSource::Connection(0), bytes),
                    })
                }
            };
            match &listed {
                Some(entry) => {
                    let stream = CountedStream::new(stream, entry);
                    let serving = connection(stream, stop, bounds, answer);
                    tokio::select! {
                        () = while_serving(entry, serving) => {}
                        () = entry.kicked() => {}
                    }
                }
                None => connection(stream, stop, bounds, answer).await,
            }
            drop(entered);
        }
    };
    accept(sockets, stop, enter, serve).await;
}

/// The clients of an interface.
pub(crate) struct ServedClients {
    /// Lists the open connections.
    pub(crate) clients: Clients,
    /// The network of the interface.
    pub(crate) network: &'static str,
    /// Bounds the unread answers.
    pub(crate) answers: Answers,
}

impl ServedClients {
    fn list(&self, peer: IpAddr) -> RosterEntry {
        self.clients.list((self.network, ConnectionForm::Http), peer)
    }
}

/// The client of an answer, as named by a proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredClient(pub(crate) IpAddr);

async fn connection<S, F, A>(stream: S, mut stop: StopSignal, bounds: ConnectionTimeouts, answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Response>,
{
    let service = service_fn(move |request| {
        let answer = answer(request);
        async { Ok::<Response<Body>, Infallible>(answer.await) }
    });
    let stream = TimedStream::new(stream, TAKE_MAX);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_timeout)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let over = async {
        match bounds.connection_max {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // An error affects only this client.
        _ = &mut connection => return,
        () = over => return,
        () = stop.serving() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Returns the answer, or status 503 if `room` grants no permit for its bytes. The permit is held
/// until the bytes are written.
pub(crate) fn held<R>(answer: Response, room: impl FnOnce(usize) -> Option<R>) -> Response
where
    R: Send + Sync + 'static,
{
    let bytes = answer.body().size_hint().lower() as usize;
    if bytes <= SMALL_BYTES {
        return answer;
    }
    let Some(room) = room(bytes) else {
        let words = "too many answers wait to be read; try again later\n";
        return (StatusCode::SERVICE_UNAVAILABLE, words).into_response();
    };
    let room = Arc::new(room);
    answer.map(|body| Body::new(PermitBody { body, room }))
}

/// A body whose pieces hold a permit for its bytes.
struct PermitBody<R> {
    body: Body,
    room: Arc<R>,
}

/// A piece of a [`PermitBody`].
struct PermitChunk<R> {
    bytes: Bytes,
    _room: Arc<R>,
}

impl<R> AsRef<[u8]> for PermitChunk<R> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<R: Send + Sync + 'static> HttpBody for PermitBody<R> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let piece = |bytes| Bytes::from_owner(PermitChunk { bytes, _room: Arc::clone(&self.room) });
        frame.map_ok(|frame| frame.map_data(piece))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
