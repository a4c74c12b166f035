//! The status, which each side sends first.
//!
//! | sub-protocol | content |
//! |---|---|
//! | `shh/6` (EIP-627) | 6, the minimum proof of work, a bloom filter, whether the node only listens; status-go adds whether the node wants the outcomes of envelopes |
//! | `waku/1` (6/WAKU1) | a list of pairs, each of a key and its value |
//!
//! A proof of work is sent as an integer with the bits of a 64-bit float. Hark's own status
//! requests all envelopes with enough proof of work. Hark checks the same parts of a peer's status
//! as go-ethereum. A peer's wishes for envelopes have no effect, because Hark forwards no
//! envelopes. A changed minimum proof of work is sent in a separate packet.

use hark_codec::whisper::rlp::{
    RlpItems, bytes_len, head_len, number_len, put_bytes, put_list, put_number,
};
use hark_codec::whisper::{Bloom, RlpError};

use super::form::PeerForm;

/// The version in a status of `shh/6`.
const SHH_VERSION: u64 = 6;

/// Keys of the pairs of `waku/1`.
mod key {
    pub(super) const POW: u64 = 0;
    pub(super) const BLOOM: u64 = 1;
    pub(super) const LISTENS: u64 = 2;
    pub(super) const CONFIRMS: u64 = 3;
    pub(super) const PACKET_LIMITS: u64 = 4;
    pub(super) const BYTE_LIMITS: u64 = 6;
}

/// Why a status is refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum StatusError {
    /// The status is not an RLP list of the right items.
    #[error("the status cannot be read: {0}")]
    Rlp(#[from] RlpError),
    /// The version of the status is not supported.
    #[error("the status is of version {0}, not of version {SHH_VERSION}")]
    Version(u64),
    /// The minimum proof of work is not a number, or is negative.
    #[error("the status asks for a proof of work of {0}")]
    Pow(f64),
    /// The bloom filter does not have 64 bytes.
    #[error("the status has a bloom filter of {0} bytes")]
    Bloom(usize),
}

/// Appends the status of a node that wants all envelopes with at least this proof of work.
pub(super) fn write(form: PeerForm, pow_min: f64, out: &mut Vec<u8>) {
    let (pow, bloom) = (pow_min.to_bits(), Bloom::FULL.0);
    match form {
        PeerForm::Shh => {
            let len = number_len(SHH_VERSION) + number_len(pow) + bytes_len(&bloom) + 2;
            put_list(out, len);
            put_number(out, SHH_VERSION);
            put_number(out, pow);
            put_bytes(out, &bloom);
            put_number(out, 0);
            // go-ethereum does not read this item.
            put_number(out, 1);
        }
        PeerForm::Waku => {
            let mut pairs = Vec::new();
            let mut pair = |key: u64, len: usize, value: &dyn Fn(&mut Vec<u8>)| {
                put_list(&mut pairs, number_len(key) + len);
                put_number(&mut pairs, key);
                value(&mut pairs);
            };
            let number = |number| move |out: &mut Vec<u8>| put_number(out, number);
            // No limits, neither per address nor per peer nor per topic.
            let none = |out: &mut Vec<u8>| {
                put_list(out, 3);
                (0..3).for_each(|_| put_number(out, 0));
            };
            pair(key::POW, number_len(pow), &number(pow));
            pair(key::BLOOM, bytes_len(&bloom), &|out| put_bytes(out, &bloom));
            pair(key::LISTENS, 1, &number(0));
            pair(key::CONFIRMS, 1, &number(1));
            pair(key::PACKET_LIMITS, head_len(3) + 3, &none);
            pair(key::BYTE_LIMITS, head_len(3) + 3, &none);
            put_list(out, pairs.len());
            out.extend_from_slice(&pairs);
        }
    }
}

/// Appends the content of the packet for a changed minimum proof of work.
pub(super) fn write_pow(form: PeerForm, pow_min: f64, out: &mut Vec<u8>) {
    let pow = pow_min.to_bits();
    if form == PeerForm::Waku {
        let pair = number_len(key::POW) + number_len(pow);
        put_list(out, head_len(pair) + pair);
        put_list(out, pair);
        put_number(out, key::POW);
    }
    put_number(out, pow);
}

/// Checks the status of a peer. Returns whether the peer wants the outcomes of envelopes. Ignores
/// unknown items and keys.
pub(super) fn check(form: PeerForm, payload: &[u8]) -> Result<bool, StatusError> {
    let mut confirms = form == PeerForm::Waku;
    let mut items = RlpItems::of_sequence(payload).list()?;
    match form {
        PeerForm::Shh => {
            let version = items.uint64()?;
            if version != SHH_VERSION {
                return Err(StatusError::Version(version));
            }
            // The following items are optional, and have other types in status-go's versions.
            if let Ok(pow) = items.uint64() {
                check_pow(pow)?;
                if let Ok(bloom) = items.bytes() {
                    check_bloom(bloom)?;
                    confirms = items.flag().is_ok() && items.flag() == Ok(true);
                }
            }
        }
        PeerForm::Waku => {
            while !items.is_empty() {
                let mut pair = items.list()?;
                match pair.uint64()? {
                    key::POW => check_pow(pair.uint64()?)?,
                    key::BLOOM => check_bloom(pair.bytes()?)?,
                    _ => {}
                }
            }
        }
    }
    Ok(confirms)
}

fn check_pow(bits: u64) -> Result<(), StatusError> {
    let pow = f64::from_bits(bits);
    if pow.is_finite() && pow >= 0.0 { Ok(()) } else { Err(StatusError::Pow(pow)) }
}

fn check_bloom(bloom: &[u8]) -> Result<(), StatusError> {
    Bloom::read(bloom).map(drop).ok_or(StatusError::Bloom(bloom.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hark_codec::hex;

    fn digits(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        hex::encode_into(bytes, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn written(form: PeerForm) -> Vec<u8> {
        let mut out = Vec::new();
        write(form, 0.2, &mut out);
        assert_eq!(check(form, &out), Ok(true));
        out
    }

    /// As a 64-bit float, 0.2 has the bits 0x3fc999999999999a.
    #[test]
    fn statuses_are_those_of_go_ethereum_and_status_go() {
        let bloom = format!("b840{}", "ff".repeat(64));
        let shh = format!("f84e06883fc999999999999a{bloom}8001");
        assert_eq!(digits(&written(PeerForm::Shh)), shh);
        let pow = "ca80883fc999999999999a";
        let waku = format!("f862{pow}f84301{bloom}c20280c20301c504c3808080c506c3808080");
        assert_eq!(digits(&written(PeerForm::Waku)), waku);
    }

    #[test]
    fn a_changed_minimum_is_a_number_or_a_pair() {
        for (form, expected) in
            [(PeerForm::Shh, "883fc999999999999a"), (PeerForm::Waku, "cbca80883fc999999999999a")]
        {
            let mut out = Vec::new();
            write_pow(form, 0.2, &mut out);
            assert_eq!(digits(&out), expected);
        }
    }

    #[test]
    fn what_a_peer_leaves_out_or_adds_is_ignored() {
        let read = |form, digits: &str| {
            let mut bytes = Vec::new();
            assert!(hex::decode_into(digits.replace(' ', "").as_bytes(), &mut bytes));
            check(form, &bytes)
        };
        let (shh, waku) = (PeerForm::Shh, PeerForm::Waku);
        for fine in ["c106", "c20680", "c30680c0", "c206c0"] {
            assert_eq!(read(shh, fine), Ok(false), "{fine}");
        }
        // Without the fifth item, or with a fifth item that is not a flag, the peer wants no
        // outcomes.
        let bloom = format!("b840{}", "ff".repeat(64));
        for (rest, confirms) in [
            ("80", false),
            ("8080", false),
            ("8001", true),
            ("8001c3808080", true),
            ("80c0", false),
        ] {
            let items = format!("0680{bloom}{rest}");
            let status = format!("f8{:02x}{items}", items.len() / 2);
            assert_eq!(read(shh, &status), Ok(confirms), "{rest}");
        }
        for fine in ["c0", "c3c24207", "c4c342c105", "c3c28080", "c3c20180"] {
            assert_eq!(read(waku, fine), Ok(true), "{fine}");
        }
        assert_eq!(read(shh, "c105"), Err(StatusError::Version(5)));
        assert_eq!(read(shh, "c0"), Err(StatusError::Rlp(RlpError::Missing)));
        assert_eq!(read(shh, "c50680820102"), Err(StatusError::Bloom(2)));
        assert_eq!(read(waku, "c5c401820102"), Err(StatusError::Bloom(2)));
        assert_eq!(read(waku, "c180"), Err(StatusError::Rlp(RlpError::NoList)));
        let negative = "cbca80 88bff0000000000000";
        assert_eq!(read(waku, negative), Err(StatusError::Pow(-1.0)));
        assert!(matches!(read(shh, "ca0688fff8000000000000"), Err(StatusError::Pow(_))));
        assert!(matches!(read(shh, "ca06887ff0000000000000"), Err(StatusError::Pow(_))));
    }
}
