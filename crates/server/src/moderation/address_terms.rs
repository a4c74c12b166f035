//! The addresses and networks of all bans, or of all allows.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::terms::{RulingTerm, Terms};

/// A range of addresses, as a key of a map. All bits after the prefix are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RangeKey {
    is_four: bool,
    length: u8,
    bits: u128,
}

/// The ranges of addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct RangeTerms {
    terms: Terms<RangeKey>,
    /// The lengths of the prefixes, by family, each with the number of ranges.
    lengths: BTreeMap<(bool, u8), usize>,
}

/// Returns the bits of an address from its first bit on, and whether it is an address of IPv4.
fn bits(ip: IpAddr) -> (u128, bool) {
    match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, true),
        IpAddr::V6(ip) => (ip.to_bits(), false),
    }
}

/// Keeps the first `length` bits, and sets the others to 0.
fn prefix(bits: u128, length: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

impl RangeTerms {
    /// Number of ranges.
    pub(super) fn len(&self) -> usize {
        self.terms.len()
    }

    /// Adds or replaces the entry of a range, or removes the entry.
    pub(super) fn put(&mut self, range: IpNet, term: Option<RulingTerm>) {
        let ((bits, is_four), length) = (bits(range.addr()), range.prefix_len());
        let key = RangeKey { is_four, length, bits: prefix(bits, length) };
        let is_set = term.is_some();
        match (self.terms.put(&key, term), is_set) {
            (false, true) => *self.lengths.entry((is_four, length)).or_default() += 1,
            (true, false) => {
                if let Some(count) = self.lengths.get_mut(&(is_four, length)) {
                    *count -= 1;
                }
                self.lengths.retain(|_, count| *count > 0);
            }
            _ => {}
        }
    }

    /// Returns the term of the smallest range that contains the address.
    pub(super) fn term(&self, ip: IpAddr, now_s: &impl Fn() -> u64) -> Option<&RulingTerm> {
        let (bits, is_four) = bits(ip.to_canonical());
        let lengths = self.lengths.range((is_four, 0)..=(is_four, u8::MAX)).rev();
        let mut found = lengths.filter_map(|((_, length), _)| {
            self.terms.get(&RangeKey { is_four, length: *length, bits: prefix(bits, *length) })
        });
        found.find(|term| term.holds(now_s))
    }

    /// The lengths of the prefixes of a family.
    #[cfg(test)]
    pub(super) fn lengths(&self, is_four: bool) -> Vec<u8> {
        let lengths = self.lengths.keys().filter(|(of, _)| *of == is_four);
        lengths.map(|(_, length)| *length).collect()
    }
}
