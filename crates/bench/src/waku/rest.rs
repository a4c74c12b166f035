//! A client for the measured part of a Waku node's REST API: a persistent connection, and pages of
//! history.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::websocket::Url;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// Maximum number of characters of a reason in the report.
const REASON_MAX: usize = 200;

/// A connection to a node, for one request at a time. After the node has closed the connection, the
/// next request opens a new connection.
pub(crate) struct RestConnection {
    url: Url,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// A connection that belongs to one thread, with its runtime.
pub(crate) struct RestClient {
    runtime: Runtime,
    connection: RestConnection,
}

/// The result of a request: the body of an answer with status 200, or the failure.
pub(crate) type RestResult = Result<Bytes, RestFailure>;

/// A failed request: the kind (another status, a timeout or a broken connection) and the known
/// reason.
#[derive(Debug)]
pub(crate) struct RestFailure {
    pub(crate) what: String,
    pub(crate) reason: String,
}

/// A page of messages. `T` has the fields that the bench reads of each message.
#[derive(Deserialize)]
pub(crate) struct RestPage<T> {
    pub(crate) messages: Vec<T>,
    /// The cursor of the next page. `None` on the last page.
    #[serde(rename = "paginationCursor")]
    pub(crate) cursor: Option<String>,
}

/// The fields that the bench reads of a stored message.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredFields {
    pub(crate) message_hash: String,
    pub(crate) message: HistoryBody,
    pub(crate) pubsub_topic: String,
}

/// See [`StoredFields`].
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryBody {
    pub(crate) content_topic: String,
    #[serde(default)]
    pub(crate) timestamp: i64,
}

/// Percent-encodes text for a part of a path or of a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Creates the runtime that drives the connections of one thread.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

impl RestClient {
    pub(crate) fn open(url: &Url) -> anyhow::Result<Self> {
        let runtime = runtime()?;
        let connection = runtime.block_on(RestConnection::open(url))?;
        Ok(Self { runtime, connection })
    }

    pub(crate) fn get(&mut self, path: &str) -> anyhow::Result<RestResult> {
        self.runtime.block_on(self.connection.get(path))
    }

    pub(crate) fn post(&mut self, path: &str, json: Vec<u8>) -> anyhow::Result<RestResult> {
        self.runtime.block_on(self.connection.post(path, json))
    }

    /// See [`RestConnection::messages`].
    pub(crate) fn messages(&mut self, query: &str) -> anyhow::Result<RestResult> {
        self.runtime.block_on(self.connection.messages(query))
    }

    /// Requests and parses a page of history. A refusal is an error here.
    pub(crate) fn page<T: DeserializeOwned>(&mut self, query: &str) -> anyhow::Result<RestPage<T>> {
        match self.messages(query)? {
            Ok(body) => page(&body),
            Err(RestFailure { what, reason }) => bail!("{query:.100}: {what}: {reason}"),
        }
    }
}

impl RestConnection {
    pub(crate) async fn open(url: &Url) -> anyhow::Result<Self> {
        Ok(Self { url: url.clone(), sender: Some(connect(url).await?) })
    }

    async fn get(&mut self, path: &str) -> anyhow::Result<RestResult> {
        let request = Request::get(self.at(path)).header(HOST, &self.url.authority);
        let request = request.body(Full::default())?;
        self.send(request).await
    }

    async fn post(&mut self, path: &str, json: Vec<u8>) -> anyhow::Result<RestResult> {
        let request = Request::post(self.at(path)).header(HOST, &self.url.authority);
        let request = request.header(CONTENT_TYPE, "application/json");
        let request = request.body(Full::from(json))?;
        self.send(request).await
    }

    /// Requests a page of history. `query` is the part of the URL after the question mark.
    pub(crate) async fn messages(&mut self, query: &str) -> anyhow::Result<RestResult> {
        self.get(&format!("/store/v3/messages?{query}")).await
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url.path.trim_end_matches('/'))
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<RestResult> {
        let kept = match self.sender.take() {
            Some(mut kept) => kept.ready().await.is_ok().then_some(kept),
            None => None,
        };
        let mut open = match kept {
            Some(kept) => kept,
            None => connect(&self.url).await?,
        };
        let whole = async {
            let answer = open.send_request(request).await?;
            let status = answer.status();
            hyper::Result::Ok((status, answer.into_body().collect().await?.to_bytes()))
        };
        let (what, reason) = match tokio::time::timeout(PATIENCE, whole).await {
            Err(_) => ("no answer".into(), format!("in {} s", PATIENCE.as_secs())),
            Ok(Err(error)) => ("a broken connection".into(), error.to_string()),
            Ok(Ok((status, body))) => {
                self.sender = Some(open);
                if status == 200 {
                    return Ok(Ok(body));
                }
                let words = String::from_utf8_lossy(&body);
                let words = words.trim().chars().take(REASON_MAX).collect();
                (format!("status {}", status.as_u16()), words)
            }
        };
        Ok(Err(RestFailure { what, reason }))
    }
}

async fn connect(url: &Url) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let connect = async {
        let stream = TcpStream::connect(&url.authority)
            .await
            .context("is the node running, and is this the address of its REST API?")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // The sender of a request gets the error that ended the connection.
        tokio::spawn(async { drop(connection.await) });
        anyhow::Ok(sender)
    };
    connect.await.with_context(|| format!("no connection to {}", url.text))
}

/// Returns the number of messages in an answer and the cursor of the next page. A load needs only
/// these two values. A scan uses less CPU than a JSON parser, which leaves more CPU to a node on
/// the same machine. The scan searches for names with their quotes, since quotes within JSON
/// strings are escaped.
pub(crate) fn count_messages(body: &[u8]) -> anyhow::Result<(u64, Option<String>)> {
    const CURSOR: &[u8] = b"\"paginationCursor\"";
    if !(body.starts_with(b"{") && body.ends_with(b"}")) {
        bail!("the node's answer is no page of messages");
    }
    let count = memmem::find_iter(body, b"\"messageHash\"").count() as u64;
    let Some(at) = memmem::rfind(body, CURSOR) else { return Ok((count, None)) };
    let value = body[at + CURSOR.len()..].trim_ascii_start();
    let value = value.strip_prefix(b":").unwrap_or(value);
    let cursor = serde_json::Deserializer::from_slice(value).into_iter().next();
    let cursor: Option<String> =
        cursor.transpose().context("the node's cursor is no text")?.flatten();
    Ok((count, cursor.filter(|cursor| !cursor.is_empty())))
}

/// Parses an answer.
pub(crate) fn page<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<RestPage<T>> {
    let mut page: RestPage<T> =
        serde_json::from_slice(body).context("the node's answer is no page of messages")?;
    page.cursor = page.cursor.filter(|cursor| !cursor.is_empty());
    Ok(page)
}
