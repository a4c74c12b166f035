//! The form in which logs and lists show the addresses of clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use hark_codec::crypto::sha256;
use hark_codec::hex;

/// How logs and lists show the addresses of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressPrivacy {
    /// The whole address.
    #[default]
    Whole,
    /// The network of the address: the first 24 bits of IPv4, the first 48 bits of IPv6.
    Prefix,
    /// A hash, with a key that this process makes at its start. So one client has one hash until
    /// the server restarts, and nobody can compute the address from the hash.
    Hash,
}

/// The mark at the beginning of a hash.
pub(super) const HASH_MARK: char = '#';
/// Number of bytes of a hash that are shown.
const HASH_BYTES: usize = 8;

/// The key of the hashes of this process. `None` if the system has no random bytes.
static HASH_KEY: OnceLock<Option<[u8; 32]>> = OnceLock::new();

impl AddressPrivacy {
    /// Returns the address in this form. IPv4-mapped IPv6 addresses are shown as IPv4 addresses.
    pub(crate) fn show(self, ip: IpAddr) -> String {
        let ip = ip.to_canonical();
        match (self, ip) {
            (Self::Whole, _) => ip.to_string(),
            (Self::Prefix, IpAddr::V4(ip)) => {
                format!("{}/24", Ipv4Addr::from_bits(ip.to_bits() & (u32::MAX << 8)))
            }
            (Self::Prefix, IpAddr::V6(ip)) => {
                format!("{}/48", Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 80)))
            }
            (Self::Hash, _) => hash(ip),
        }
    }
}

/// Returns the keyed hash of an address. Without a key, all addresses have the same text.
fn hash(ip: IpAddr) -> String {
    let key = HASH_KEY.get_or_init(|| {
        let mut key = [0; 32];
        getrandom::fill(&mut key).is_ok().then_some(key)
    });
    let Some(key) = key else { return format!("{HASH_MARK}hidden") };
    // This needs no HMAC: the key has a fixed length and comes first, and only prefixes of the hash
    // are shown.
    let digest = sha256(&[&key[..], ip.to_string().as_bytes()].concat());
    let digits = hex::encode_32(&digest);
    format!("{HASH_MARK}{}", String::from_utf8_lossy(&digits[..2 * HASH_BYTES]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_whole_as_prefixes_or_as_hashes() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        for (address, whole, prefix) in [
            ("192.0.2.77", "192.0.2.77", "192.0.2.0/24"),
            ("::ffff:192.0.2.77", "192.0.2.77", "192.0.2.0/24"),
            ("2001:db8:1:2::3", "2001:db8:1:2::3", "2001:db8:1::/48"),
        ] {
            assert_eq!(AddressPrivacy::Whole.show(ip(address)), whole);
            assert_eq!(AddressPrivacy::Prefix.show(ip(address)), prefix);
        }
        let hash = |address| AddressPrivacy::Hash.show(ip(address));
        let one = hash("192.0.2.77");
        assert_eq!((one.len(), one.starts_with(HASH_MARK)), (1 + 2 * HASH_BYTES, true));
        assert_eq!(one, hash("::ffff:192.0.2.77"));
        assert_ne!(one, hash("192.0.2.78"));
        let plain = hex::encode_32(&sha256(b"192.0.2.77"));
        assert_ne!(one.as_bytes()[1..], plain[..2 * HASH_BYTES], "the hash has a key");
    }
}
