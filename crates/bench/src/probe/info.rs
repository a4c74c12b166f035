//! The relay's information document (NIP-11), with the headers of its answer.

use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::websocket::Url;

/// Maximum size of the answer in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;

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
    /// Requests the document. After the timeout, the part that has arrived is used.
    pub(crate) async fn fetch(url: &Url, timeout: Duration) -> anyhow::Result<Self> {
        let mut answer = Vec::new();
        match tokio::time::timeout(timeout, Self::read(url, &mut answer)).await {
            Err(_) if answer.is_empty() => bail!("no answer to an HTTP request"),
            Err(_) => {}
            Ok(read) => read?,
        }
        Ok(Self::parse(&String::from_utf8_lossy(&answer)))
    }

    /// Sends the preflight request of a browser (CORS). Without an answer, the result is empty.
    pub(crate) async fn preflight(url: &Url, timeout: Duration) -> Self {
        let mut answer = Vec::new();
        // Of an incomplete answer, the part that has arrived is used.
        let _ = tokio::time::timeout(timeout, Self::read_preflight(url, &mut answer)).await;
        Self::parse(&String::from_utf8_lossy(&answer))
    }

    /// Reads the head of the answer to a preflight request.
    async fn read_preflight(url: &Url, answer: &mut Vec<u8>) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(&url.authority).await?;
        let request = format!(
            "OPTIONS {} HTTP/1.1\r\nHost: {}\r\nOrigin: https://client.example\r\n\
             Access-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: accept\r\n\
             Connection: close\r\n\r\n",
            url.path, url.authority
        );
        stream.write_all(request.as_bytes()).await?;
        while answer.len() < ANSWER_BYTES_MAX
            && stream.read_buf(answer).await? > 0
            && !answer.windows(4).any(|four| four == b"\r\n\r\n")
        {}
        Ok(())
    }

    /// Reads until the document is complete, or until the connection ends.
    async fn read(url: &Url, answer: &mut Vec<u8>) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(&url.authority).await?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: application/nostr+json\r\n\
             Origin: https://client.example\r\nConnection: close\r\n\r\n",
            url.path, url.authority
        );
        stream.write_all(request.as_bytes()).await?;
        while answer.len() < ANSWER_BYTES_MAX
            && stream.read_buf(answer).await? > 0
            && !Self::parse(&String::from_utf8_lossy(answer)).document.is_object()
        {}
        Ok(())
    }

    fn parse(answer: &str) -> Self {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines.map(str::to_owned).collect();
        let mut info = Self { status: status.unwrap_or(0), headers, document: Value::Null };
        let is_chunked =
            info.header("transfer-encoding").is_some_and(|how| how.contains("chunked"));
        let body = if is_chunked { joined(body) } else { body.to_owned() };
        info.document = serde_json::from_str(&body).unwrap_or_default();
        info
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
        let software = if field("software").is_empty() { "name" } else { "software" };
        let text = format!("{} {}", field(software), field("version"));
        if text.trim().is_empty() { "unknown".into() } else { text.trim().into() }
    }
}

/// Joins the chunks of a body.
fn joined(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16);
        let Some(chunk) = size.ok().filter(|size| *size > 0).and_then(|size| rest.get(..size))
        else {
            break;
        };
        out.push_str(chunk);
        body = rest[chunk.len()..].trim_start_matches("\r\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_from_plain_and_chunked_answers() {
        let json = r#"{"supported_nips":[1,9],"limitation":{"max_limit":500},"software":"x"}"#;
        let (one, two) = json.split_at(30);
        let chunked = "Transfer-Encoding: chunked\r\n";
        let chunks = format!("1e\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n", two.len());
        for (header, body) in [("", json.to_owned()), (chunked, chunks)] {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/nostr+json\r\n";
            let info = ProbeInfo::parse(&format!("{head}{header}\r\n{body}"));
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
