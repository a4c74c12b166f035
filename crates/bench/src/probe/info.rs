//! The relay's information document (NIP-11), with the headers of its answer.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::websocket::Url;

/// Maximum size of the answer in bytes.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The answer to a request for the information document.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProbeInfo {
    pub(crate) status: u16,
    /// The lines of the head, without the status.
    pub(crate) headers: Vec<String>,
    /// The document; null if the body is not JSON.
    pub(crate) document: Value,
}

impl ProbeInfo {
    /// Requests the document.
    pub(crate) async fn fetch(url: &Url, timeout: Duration) -> anyhow::Result<Self> {
        let fetched = tokio::time::timeout(timeout, Self::fetch_untimed(url)).await;
        fetched.context("no answer to a request for the information document")?
    }

    async fn fetch_untimed(url: &Url) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(&url.authority).await?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: application/nostr+json\r\n\
             Origin: https://client.example\r\nConnection: close\r\n\r\n",
            url.path, url.authority
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        Ok(Self::parse(&String::from_utf8_lossy(&answer)))
    }

    fn parse(answer: &str) -> Self {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines.map(str::to_owned).collect();
        // The body may be chunked. The document is the JSON object in the body.
        let json = body.find('{').zip(body.rfind('}')).and_then(|(from, to)| body.get(from..=to));
        let document = json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        Self { status: status.unwrap_or(0), headers, document }
    }

    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// Whether the document lists the NIP. `None` if the document has no list.
    pub(crate) fn lists(&self, nip: u64) -> Option<bool> {
        let nips = self.document["supported_nips"].as_array()?;
        Some(nips.iter().any(|listed| listed.as_u64() == Some(nip)))
    }

    /// A number of `limitation`.
    pub(crate) fn limit(&self, name: &str) -> Option<u64> {
        self.document["limitation"][name].as_u64()
    }

    /// Software and version, for people.
    pub(crate) fn software(&self) -> String {
        let field = |name: &str| self.document[name].as_str().unwrap_or_default();
        let text = format!("{} {}", field("software"), field("version"));
        if text.trim().is_empty() { "unknown".into() } else { text.trim().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_from_plain_and_chunked_answers() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/nostr+json\r\n";
        let json = r#"{"supported_nips":[1,9],"limitation":{"max_limit":500},"software":"x"}"#;
        for body in [json.to_owned(), format!("46\r\n{json}\r\n0\r\n\r\n")] {
            let info = ProbeInfo::parse(&format!("{head}\r\n{body}"));
            assert_eq!(
                (info.status, info.lists(9), info.lists(40)),
                (200, Some(true), Some(false))
            );
            assert_eq!(info.limit("max_limit"), Some(500));
            assert_eq!(info.header("content-type"), Some("application/nostr+json"));
            assert_eq!(info.software(), "x");
        }
        let none = ProbeInfo::parse("HTTP/1.1 404 Not Found\r\n\r\n");
        assert_eq!((none.status, none.lists(1), none.software().as_str()), (404, None, "unknown"));
    }
}
