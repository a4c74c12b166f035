//! The line that asks a plugin about an event.

use std::fmt::Write as _;
use std::net::IpAddr;

use hark_codec::hex;
use hark_codec::record::Key;
use serde_json::Value;

/// Where an event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOrigin<'a> {
    /// A client at this address.
    Client(IpAddr),
    /// Another relay, by its URL, on a connection that stays open.
    Stream(&'a str),
    /// Another relay, by its URL, in a single exchange.
    Sync(&'a str),
    /// This archive, to be sent to another relay.
    Stored,
}

impl EventOrigin<'_> {
    /// The value of `sourceType`.
    fn name(self) -> &'static str {
        match self {
            Self::Client(ip) if ip.to_canonical().is_ipv4() => "IP4",
            Self::Client(_) => "IP6",
            Self::Stream(_) => "Stream",
            Self::Sync(_) => "Sync",
            Self::Stored => "Stored",
        }
    }

    /// The value of `sourceInfo`.
    fn info(self) -> String {
        match self {
            Self::Client(ip) => ip.to_canonical().to_string(),
            Self::Stream(url) | Self::Sync(url) => url.to_owned(),
            Self::Stored => String::default(),
        }
    }
}

/// Returns the line for an event, which is given as JSON. `authed` is the key that the sender has
/// proved. The members have the same order as in strfry's lines.
pub fn line(
    event: &[u8],
    received_at_s: u64,
    source: EventOrigin<'_>,
    authed: Option<&Key>,
) -> Vec<u8> {
    let mut line = Vec::with_capacity(event.len() + 200);
    line.push(b'{');
    if let Some(key) = authed {
        line.extend_from_slice(b"\"authed\":\"");
        line.extend_from_slice(&hex::encode_32(key));
        line.extend_from_slice(b"\",");
    }
    line.extend_from_slice(b"\"event\":");
    // JSON allows line ends between an event's tokens, but not within strings.
    line.extend(event.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
    let mut tail = String::new();
    // Writing to a String does not fail.
    let _ = write!(
        tail,
        ",\"receivedAt\":{received_at_s},\"sourceInfo\":{},\"sourceType\":\"{}\",\"type\":\"new\"}}",
        Value::from(source.info()),
        source.name()
    );
    line.extend_from_slice(tail.as_bytes());
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_whole_event_and_its_source() {
        let text = |source, authed| {
            String::from_utf8(line(b"{\"id\":\"\",\n\"kind\":1}", 17, source, authed)).unwrap()
        };
        let ip = |text: &str| EventOrigin::Client(text.parse().unwrap());
        assert_eq!(
            text(ip("192.0.2.7"), None),
            "{\"event\":{\"id\":\"\", \"kind\":1},\"receivedAt\":17,\"sourceInfo\":\"192.0.2.7\",\
             \"sourceType\":\"IP4\",\"type\":\"new\"}\n"
        );
        let authed = text(ip("2001:db8::1"), Some(&[0xab; 32]));
        assert!(authed.starts_with(&format!("{{\"authed\":\"{}\",", "ab".repeat(32))), "{authed}");
        for (source, kind, info) in [
            (ip("::ffff:192.0.2.7"), "IP4", "192.0.2.7"),
            (ip("2001:db8::1"), "IP6", "2001:db8::1"),
            (EventOrigin::Stream("wss://a.example/\"x"), "Stream", "wss://a.example/\"x"),
            (EventOrigin::Sync("wss://a.example"), "Sync", "wss://a.example"),
            (EventOrigin::Stored, "Stored", ""),
        ] {
            let read: Value = serde_json::from_str(&text(source, None)).unwrap();
            assert_eq!((&read["sourceType"], &read["sourceInfo"]), (&kind.into(), &info.into()));
        }
    }
}
