//! Lists the open connections for `hark clients`, page by page, and closes connections for `hark
//! kick`. Also passes requests about bans and allows to `moderation`.
//!
//! A request for a page names the number of the last connection that the operator has seen, and a
//! filter. A page has a bounded number of connections and of bytes, so a list of any length needs
//! bounded memory. Connections that open or close between two requests do not shift the next page.

use std::sync::Arc;

use hark_codec::hex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::moderation::{Moderation, ModerationRequestError};
use crate::roster::{ConnectionPattern, KEYS_MAX, OpenConnection, Roster, is_listed};
use crate::settings::SharedSettings;

/// Maximum number of connections of a page. The longest row has about 1,700 bytes, so a page fits
/// into an answer.
const PAGE_ROWS_MAX: usize = 512;
/// A page that has reached this number of bytes gets no further row.
const PAGE_BYTES_MAX: usize = 512 << 10;
/// The reason that a client receives if the operator gives no reason.
const REASON: &str = "the operator closed this connection";

/// A request for a page of the list.
#[derive(Deserialize)]
struct PageRequest {
    after: u64,
    filter: String,
}

/// A request to close connections.
#[derive(Deserialize)]
struct KickRequest {
    whom: String,
    reason: Option<String>,
}

/// Why a request about connections failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientsError {
    #[error("a request about connections cannot be read: {0}")]
    Request(#[from] serde_json::Error),
    #[error("`{0}` {1}")]
    Whom(String, String),
    #[error(transparent)]
    Moderation(#[from] ModerationRequestError),
}

/// Lists and closes the open connections of this process.
#[derive(Clone)]
pub(super) struct ClientsDesk {
    pub(super) roster: Arc<Roster>,
    pub(super) moderation: Moderation,
    pub(super) settings: SharedSettings,
    /// Number of earlier processes that still serve their connections after a takeover.
    pub(super) followers: watch::Sender<usize>,
}

impl ClientsDesk {
    /// Returns a page of the list: its rows, the number after which the next page begins (`null`
    /// after the last page), and the number of all open connections.
    pub(super) fn page(&self, body: &[u8]) -> Result<String, ClientsError> {
        let PageRequest { after, filter } = serde_json::from_slice(body)?;
        let settings = self.settings.load();
        let (privacy, groups) = (settings.addresses_shown, &settings.rate_groups);
        let (mut rows, mut bytes, mut last, mut is_full) = (Vec::new(), 0, after, false);
        self.roster.visit(after, |connection| {
            if rows.len() >= PAGE_ROWS_MAX || bytes >= PAGE_BYTES_MAX {
                is_full = true;
                return false;
            }
            last = connection.number();
            if is_listed(connection, &filter, privacy) {
                let mut row = connection.row(privacy, groups);
                row["names"] = self.verified_names(connection).into();
                let row = row.to_string();
                bytes += row.len();
                rows.push(row);
            }
            true
        });
        let next = if is_full { json!(last) } else { Value::Null };
        let (open, earlier) = (self.roster.len(), *self.followers.borrow());
        let rows = rows.join(",");
        Ok(format!(
            "{{\"connections\":[{rows}],\"next\":{next},\"open\":{open},\"earlier_processes\":{earlier}}}"
        ))
    }

    /// Returns the verified names of the keys that a client has proved.
    fn verified_names(&self, connection: &OpenConnection) -> Vec<String> {
        let mut names = Vec::new();
        connection.facts_match(|_, keys| {
            let keys = keys.iter().take(KEYS_MAX);
            let keys = keys.filter_map(|key| hex::decode_32(key.digits.as_bytes()));
            let found = keys.filter_map(|key| self.moderation.name_of(&key));
            names.extend(found.map(|verified| verified.name.to_string()));
            true
        });
        names
    }

    /// Answers a request about bans and allows.
    pub(super) fn moderate(&self, body: &[u8]) -> Result<String, ClientsError> {
        Ok(self.moderation.answer(body)?.to_string())
    }

    /// Closes connections. Returns the number of connections that are being closed.
    pub(super) fn kick(&self, body: &[u8]) -> Result<String, ClientsError> {
        let KickRequest { whom, reason } = serde_json::from_slice(body)?;
        let pattern = ConnectionPattern::parse(&whom);
        let pattern = pattern.map_err(|why| ClientsError::Whom(whom.clone(), why.to_string()))?;
        let closed = self.roster.kick(&pattern, reason.as_deref().unwrap_or(REASON));
        if closed > 0 {
            // `whom` may be an address, which the log may have to hide, so it is not logged.
            tracing::info!(closed, "connections are closed, as the operator asked");
        }
        Ok(json!({ "closed": closed, "earlier_processes": *self.followers.borrow() }).to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::roster::{ConnectionForm, KeyName};

    #[test]
    fn a_list_of_a_hundred_thousand_connections_comes_in_bounded_pages() {
        let roster = Arc::new(Roster::default());
        let open: Vec<_> = (0..100_000_u32)
            .map(|n| {
                let ip = Ipv4Addr::from_bits(n).into();
                let entry = roster.enter(("test", ConnectionForm::Peer), (ip, false));
                if n < 2_000 {
                    entry.set_agent(&"\u{1}\u{10ffff}".repeat(100));
                }
                entry
            })
            .collect();
        for digit in 0..20 {
            open[0].add_key(KeyName { shown: format!("{digit:0128}").into(), digits: "".into() });
        }
        let (settings, followers) = (SharedSettings::default(), watch::Sender::new(0));
        let moderation = Moderation::default();
        let desk = ClientsDesk { roster, moderation, settings, followers };
        let (mut after, mut rows) = (0, 0);
        loop {
            let request = json!({ "after": after, "filter": "" }).to_string();
            let page = desk.page(request.as_bytes()).unwrap();
            assert!(page.len() < 1 << 20, "{}", page.len());
            let page: Value = serde_json::from_str(&page).unwrap();
            rows += page["connections"].as_array().unwrap().len();
            assert_eq!((&page["open"], &page["earlier_processes"]), (&json!(100_000), &json!(0)));
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!(rows, open.len());
        let request = json!({ "after": 0, "filter": "0.1.134.159" }).to_string();
        let page: Value = serde_json::from_str(&desk.page(request.as_bytes()).unwrap()).unwrap();
        assert_eq!(page["connections"][0]["number"], 100_000);
        assert_eq!(page["next"], Value::Null);
        let kick = |body: Value| desk.kick(body.to_string().as_bytes());
        assert!(kick(json!({ "whom": "somebody" })).is_err() && kick(json!({})).is_err());
        let closed = kick(json!({ "whom": "0.0.0.0/16" })).unwrap();
        let closed: Value = serde_json::from_str(&closed).unwrap();
        assert_eq!(closed["closed"], 1 << 16);
        assert_eq!(open[0].kick_reason(), Some(REASON));
    }
}
