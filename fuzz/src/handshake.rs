//! The beginning of a connection between Ethereum nodes (RLPx): packets of the key exchange, with
//! and without valid encryption, and hello messages.

use hark_codec::whisper::ecies;
use hark_codec::whisper::keys::SecretKey;
use hark_server::whisper::rlpx::handshake::{
    ACK_BYTES, AUTH_BYTES, OpenedPacket, PACKET_BYTES_MAX, PacketProgress, RlpxInitiator, answer,
    open,
};
use hark_server::whisper::rlpx::hello::{DisconnectReason, Hello};

/// Opens a packet as it arrives: first with the number of bytes that the old encoding has, and then
/// the whole packet.
fn opened(key: &SecretKey, packet: &[u8], fixed_bytes: usize) -> Option<OpenedPacket> {
    match open(key, packet.get(..fixed_bytes)?, fixed_bytes).ok()? {
        PacketProgress::Whole(opened) => Some(opened),
        PacketProgress::Needs(bytes) => {
            assert!(bytes > fixed_bytes && bytes <= PACKET_BYTES_MAX);
            match open(key, packet.get(..bytes)?, fixed_bytes).ok()? {
                PacketProgress::Whole(opened) => Some(opened),
                PacketProgress::Needs(more) => panic!("{more} bytes after {bytes}"),
            }
        }
    }
}

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    let mut count = 0u8;
    let mut random = |out: &mut [u8]| {
        count = count.wrapping_add(1);
        out.fill(count);
    };
    let key = SecretKey::draw(&mut random);
    let initiator = RlpxInitiator::new(&key, &key.public(), &mut random);
    for fixed_bytes in [AUTH_BYTES, ACK_BYTES] {
        // A peer that does not know the key can send these bytes.
        let _ = opened(&key, bytes, fixed_bytes);
        // A peer that knows the key can send these packets.
        let mut old = Vec::new();
        ecies::encrypt(&key.public(), bytes, &[], &mut random, &mut old);
        let mut new = ((bytes.len() + ecies::OVERHEAD) as u16).to_be_bytes().to_vec();
        let prefix = new.clone();
        ecies::encrypt(&key.public(), bytes, &prefix, &mut random, &mut new);
        for packet in [old, new] {
            let Some(opened) = opened(&key, &packet, fixed_bytes) else { continue };
            if fixed_bytes == ACK_BYTES {
                let _ = initiator.finish(&packet, &opened);
            } else if let Ok(answer) = answer(&key, &packet, &opened, &mut random) {
                assert!(answer.ack.len() >= ACK_BYTES && answer.ack.len() <= PACKET_BYTES_MAX);
            }
        }
    }
    if let Ok(hello) = Hello::read(bytes) {
        let mut out = Vec::new();
        hello.write(&mut out);
        assert_eq!(Hello::read(&out), Ok(hello));
    }
    let mut out = Vec::new();
    DisconnectReason::read(bytes).write(&mut out);
    assert!(out.len() == 2);
}
