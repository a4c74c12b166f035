//! The address of a relay.

use std::fmt;
use std::str::FromStr;

use tokio_tungstenite::tungstenite::http::uri::Authority;

/// The address of a relay: `ws://` or `wss://`, a host, and perhaps a port and a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelayAddress(String);

impl RelayAddress {
    /// The URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.0.starts_with("wss://")
    }
}

impl FromStr for RelayAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let example = "give one like wss://relay.example or ws://127.0.0.1:7777";
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("a relay's URL begins with wss:// or ws://; {example}"));
        };
        let scheme = scheme.to_ascii_lowercase();
        if scheme != "ws" && scheme != "wss" {
            return Err(format!(
                "a relay's URL begins with wss:// or ws://, not {scheme}://; {example}"
            ));
        }
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        if host.contains('@') {
            return Err("a relay's URL may not contain a user or a password".into());
        }
        if host.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("the URL names no host; {example}"));
        }
        let authority: Authority =
            host.parse().map_err(|_| format!("`{host}` is not a host; {example}"))?;
        // An IPv6 address has colons within its brackets.
        let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
        if authority.host().is_empty() {
            return Err(format!("the URL names no host; {example}"));
        }
        if has_port && authority.port_u16().is_none_or(|port| port == 0) {
            return Err("a port is a number from 1 to 65535".into());
        }
        if rest.contains('#') {
            return Err("a relay's URL may not contain a fragment (#)".into());
        }
        Ok(Self(format!("{scheme}://{rest}")))
    }
}

impl fmt::Display for RelayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused_with_advice() {
        for good in ["ws://127.0.0.1:7777", "wss://relay.example/path?x=1", "ws://[::1]:80/"] {
            assert_eq!(good.parse::<RelayAddress>().unwrap().as_str(), good);
        }
        assert_eq!(" WSS://a ".parse::<RelayAddress>().unwrap().as_str(), "wss://a");
        for bad in
            ["relay.example", "https://a", "ws://", "ws:///x", "ws://u:p@a", "ws://a b", "ws://a#x"]
        {
            assert!(bad.parse::<RelayAddress>().is_err(), "{bad}");
        }
        for bad in
            ["ws://a:", "ws://a:0", "ws://a:99999", "ws://a:x", "ws://[::1]:70000", "ws://:1"]
        {
            let why = bad.parse::<RelayAddress>().unwrap_err();
            assert!(why.contains("port") || why.contains("host"), "{bad}: {why}");
        }
        assert!("ws://[::1".parse::<RelayAddress>().unwrap_err().contains("`[::1`"));
    }
}
