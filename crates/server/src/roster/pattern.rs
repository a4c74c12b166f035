//! The connections that an operator names by address, range of addresses, key or number.

use ipnet::IpNet;

use super::connection::OpenConnection;
use super::shown::{AddressPrivacy, HASH_MARK};
use crate::ranges;

/// Minimum number of characters of a key.
const KEY_CHARS_MIN: usize = 16;
/// Maximum number of digits of a number of a connection.
const NUMBER_DIGITS_MAX: usize = 18;

/// The connections that an operator names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPattern {
    /// The connection with this number.
    Number(u64),
    /// The clients in this range of addresses.
    Range(IpNet),
    /// The clients whose address has this hash.
    Hash(String),
    /// The clients that have proved this key, in one of its forms.
    Key(String),
}

/// A text names no connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "is no address, no network like 192.0.2.0/24 (with all further bits 0), no whole key and no \
     number of a connection"
)]
pub(crate) struct UnclearPattern;

impl ConnectionPattern {
    /// Parses the text with which the relay's operator names connections.
    pub(crate) fn parse(text: &str) -> Result<Self, UnclearPattern> {
        let text = text.trim();
        let is_number = text.len() <= NUMBER_DIGITS_MAX && text.bytes().all(|b| b.is_ascii_digit());
        if let Some(number) = text.parse().ok().filter(|_| is_number) {
            return Ok(Self::Number(number));
        }
        if let Ok(range) = ranges::read(text) {
            return Ok(Self::Range(range));
        }
        if text.starts_with(HASH_MARK) {
            return Ok(Self::Hash(text.to_ascii_lowercase()));
        }
        let is_key = text.len() >= KEY_CHARS_MIN && text.bytes().all(|b| b.is_ascii_alphanumeric());
        is_key.then(|| Self::Key(text.into())).ok_or(UnclearPattern)
    }

    /// Whether the operator names this connection.
    pub(crate) fn matches(&self, connection: &OpenConnection) -> bool {
        match self {
            Self::Number(number) => connection.number() == *number,
            Self::Range(range) => {
                connection.facts_match(|ip, _| ranges::contain(std::slice::from_ref(range), ip))
            }
            Self::Hash(hash) => {
                connection.facts_match(|ip, _| AddressPrivacy::Hash.show(ip) == *hash)
            }
            Self::Key(text) => connection.facts_match(|_, keys| {
                // Digits and Bech32 may have capital letters; other forms differ by case.
                keys.iter().any(|key| {
                    *key.shown == **text
                        || key.digits.eq_ignore_ascii_case(text)
                        || *key.shown == *text.to_ascii_lowercase()
                })
            }),
        }
    }
}

/// Whether a connection belongs to a list with the filter `text`: a range of addresses, the
/// beginning of an address or of a key, or the name of a messaging network.
pub(crate) fn is_listed(connection: &OpenConnection, text: &str, privacy: AddressPrivacy) -> bool {
    if text.is_empty() || connection.network() == text {
        return true;
    }
    let range = text.contains('/').then(|| ranges::read(text).ok()).flatten();
    connection.facts_match(|ip, keys| {
        range.is_some_and(|range| ranges::contain(&[range], ip))
            || ip.to_string().starts_with(text)
            || privacy.show(ip).starts_with(text)
            || keys.iter().any(|key| key.shown.starts_with(text) || key.digits.starts_with(text))
    })
}
