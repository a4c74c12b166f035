//! Tests of requests that arrive in envelopes, in the format of clients.

use hark_codec::whisper::Bloom;
use hark_codec::whisper::message::{SealingKey, seal};

use super::*;

const NOW_S: u64 = 1_800_000_000;

fn key(seed: u8) -> SecretKey {
    SecretKey::new([seed; 32]).unwrap()
}

/// Creates the packet of a signed or unsigned request.
fn packet(payload: &[u8], with: SealingKey<'_>, is_signed: bool) -> Vec<u8> {
    let (signer, mut data, mut rlp) = (key(9), Vec::new(), Vec::new());
    let mut random = |out: &mut [u8]| out.fill(3);
    seal(payload, is_signed.then_some(&signer), with, &mut random, &mut data).unwrap();
    let expiry = NOW_S as u32;
    Envelope { expiry, ttl: 10, data: &data, ..Envelope::default() }.write(&mut rlp);
    rlp
}

fn listed() -> Vec<u8> {
    let mut payload = Vec::new();
    let request = HistoryRequest { bloom: Some(Bloom::FULL), ..HistoryRequest::default() };
    request.write(std::iter::empty(), &mut payload);
    payload
}

#[test]
fn either_key_opens_a_request_and_no_other() {
    let rules = RequestRules {
        password_key: Some([1; 32]),
        secret_key: Some(key(2)),
        bare_range_max_s: None,
    };
    let (mine, other) = (key(2).public(), key(3).public());
    for (with, is_opened) in [
        (SealingKey::Symmetric(&[1; 32]), true),
        (SealingKey::Symmetric(&[2; 32]), false),
        (SealingKey::Public(&mine), true),
        (SealingKey::Public(&other), false),
    ] {
        let packet = packet(&listed(), with, true);
        let id = hark_codec::crypto::keccak256(&packet);
        let opened = rules.open(&packet, 0.0, NOW_S);
        match &opened {
            Ok(request) => assert_eq!((request.id, request.is_bare()), (id, false)),
            Err(refused) => {
                let why = RequestRefusal::Sealed(SealedMessageError::Key);
                assert_eq!(*refused, RefusedRequest { id: Some(id), why });
            }
        }
        assert_eq!(opened.is_ok(), is_opened);
        // Without any key, no request is opened.
        assert!(RequestRules::default().open(&packet, 0.0, NOW_S).is_err());
    }
    let unsigned = packet(&listed(), SealingKey::Public(&mine), false);
    assert_eq!(rules.open(&unsigned, 0.0, NOW_S).unwrap_err().why, RequestRefusal::Unsigned);
    let refused = rules.open(&unsigned, 1e9, NOW_S).unwrap_err().why;
    assert!(matches!(refused, RequestRefusal::Pow(_, minimum) if minimum >= 1e9), "{refused}");
}

#[test]
fn only_the_form_before_rlp_has_a_longest_time() {
    let rules = RequestRules {
        password_key: Some([1; 32]),
        secret_key: None,
        bare_range_max_s: Some(86_400),
    };
    let open = |payload: &[u8]| {
        let packet = packet(payload, SealingKey::Symmetric(&[1; 32]), true);
        rules.open(&packet, 0.0, NOW_S).map(|request| request.is_bare()).map_err(|it| it.why)
    };
    let bare = |lower: u32, upper: u32| [lower.to_be_bytes(), upper.to_be_bytes()].concat();
    let day = NOW_S as u32 - 86_400;
    assert_eq!(open(&bare(day, NOW_S as u32)), Ok(true));
    assert_eq!(open(&bare(day - 1, NOW_S as u32)), Err(RequestRefusal::Range(86_401, 86_400)));
    // A request without an upper bound ends a minute from now.
    assert_eq!(open(&bare(day + 60, 0)), Ok(true));
    assert_eq!(open(&bare(day + 59, 0)), Err(RequestRefusal::Range(86_401, 86_400)));
    assert_eq!(open(&listed()), Ok(false));
}

#[test]
fn what_is_neither_an_envelope_nor_a_request_has_no_id() {
    let rules = RequestRules::default();
    for (packet, id) in [
        (&b""[..], None),
        (&[0xc0], None),
        (&[0x80], None),
        (&[&[0xe1, 0xa0][..], &[7; 32]].concat(), Some([7; 32])),
    ] {
        let refused = rules.open(packet, 0.0, NOW_S).unwrap_err();
        assert_eq!(refused.id, id, "{packet:?}");
        let is_packet = matches!(refused.why, RequestRefusal::Packet(_));
        assert_eq!(is_packet, id.is_none());
    }
}
