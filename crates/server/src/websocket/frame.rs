//! Reads and writes the frames of a WebSocket (RFC 6455, section 5) on the server's side.

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// Why a connection is closed: the code and the text of the close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CloseFault(pub(super) u16, pub(super) &'static str);

impl CloseFault {
    pub(super) const LENGTH: Self = Self(1009, "a message is longer than it may be");
    pub(super) const DEFLATE: Self = Self(1007, "a message is not compressed as agreed");

    pub(super) const fn protocol(text: &'static str) -> Self {
        Self(1002, text)
    }
}

/// The beginning of a client's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Whether the frame is the last frame of its message.
    pub(super) fin: bool,
    /// RSV1: whether the message is compressed.
    pub(super) compressed: bool,
    pub(super) opcode: Opcode,
    pub(super) mask: [u8; 4],
    /// Size of the head and of the payload that follows the head, in bytes.
    pub(super) size: usize,
    pub(super) len: usize,
}

impl FrameHeader {
    /// Reads a head from the front of `bytes`. None if more bytes are needed.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>, CloseFault> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let opcode = match first & 0xf {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return Err(CloseFault::protocol("no such opcode")),
        };
        let (fin, short) = (first & 0x80 != 0, second & 0x7f);
        if first & 0x30 != 0 {
            return Err(CloseFault::protocol("reserved bits are set"));
        }
        if second & 0x80 == 0 {
            return Err(CloseFault::protocol("a client's frame is not masked"));
        }
        if opcode.is_control() && (!fin || short > 125) {
            return Err(CloseFault::protocol("a control frame is fragmented or too long"));
        }
        let (len, rest) = match short {
            126 => {
                let Some((len, rest)) = rest.split_first_chunk() else { return Ok(None) };
                (u64::from(u16::from_be_bytes(*len)), rest)
            }
            127 => {
                let Some((len, rest)) = rest.split_first_chunk() else { return Ok(None) };
                (u64::from_be_bytes(*len), rest)
            }
            short => (u64::from(short), rest),
        };
        let Some((mask, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let len = usize::try_from(len).map_err(|_| CloseFault::LENGTH)?;
        let size = bytes.len() - rest.len();
        Ok(Some(Self { fin, compressed: first & 0x40 != 0, opcode, mask: *mask, size, len }))
    }
}

/// Removes a client's mask.
pub(super) fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let long = u64::from_le_bytes([a, b, c, d, a, b, c, d]);
    let (chunks, rest) = bytes.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = (u64::from_le_bytes(*chunk) ^ long).to_le_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// Maximum size of the head of a server's frame, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 10;

/// Writes the head of a server's frame, which is never masked or fragmented.
pub(super) fn write_head(out: &mut Vec<u8>, opcode: Opcode, compressed: bool, len: usize) {
    out.push(0x80 | if compressed { 0x40 } else { 0 } | opcode as u8);
    match len {
        0..126 => out.push(len as u8),
        126..65_536 => {
            out.push(126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

/// Returns the code with which to answer a client's close frame: the client's own code. Fails if
/// the frame is malformed.
pub(super) fn closing(payload: &[u8]) -> Result<Option<u16>, CloseFault> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() {
            Ok(None)
        } else {
            Err(CloseFault::protocol("a close frame has an incomplete code"))
        };
    };
    let code = u16::from_be_bytes(*code);
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(CloseFault::protocol("no such close code"));
    }
    if str::from_utf8(reason).is_err() {
        return Err(CloseFault(1007, "a reason is not UTF-8"));
    }
    Ok(Some(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_once_they_are_whole() {
        for len in [0_usize, 1, 125, 126, 65_535, 65_536, 1 << 40] {
            let mut bytes = Vec::new();
            write_head(&mut bytes, Opcode::Text, true, len);
            bytes[1] |= 0x80;
            bytes.extend_from_slice(&[1, 2, 3, 4]);
            for cut in 0..bytes.len() {
                assert_eq!(FrameHeader::read(&bytes[..cut]), Ok(None), "{len} {cut}");
            }
            let size = bytes.len();
            bytes.extend_from_slice(b"more");
            let (opcode, mask) = (Opcode::Text, [1, 2, 3, 4]);
            let expected = FrameHeader { fin: true, compressed: true, opcode, mask, size, len };
            assert_eq!(FrameHeader::read(&bytes), Ok(Some(expected)));
        }
    }

    #[test]
    fn what_no_client_may_send_is_refused_at_once() {
        for (bytes, what) in [
            ([0x83, 0x80], "opcode"),
            ([0x8b, 0x80], "opcode of control"),
            ([0xa1, 0x80], "RSV2"),
            ([0x91, 0x80], "RSV3"),
            ([0x81, 0x05], "no mask"),
            ([0x09, 0x80], "a ping in pieces"),
            ([0x89, 0xfe], "a long ping"),
        ] {
            assert!(matches!(FrameHeader::read(&bytes), Err(CloseFault(1002, _))), "{what}");
        }
    }

    #[test]
    fn a_mask_comes_off_whatever_the_length() {
        for len in 0..40 {
            let plain: Vec<u8> = (0..len).collect();
            let mask = [0x37, 0xfa, 0x21, 0x3d];
            let mut bytes: Vec<u8> =
                plain.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
            unmask(&mut bytes, mask);
            assert_eq!(bytes, plain);
        }
    }

    #[test]
    fn a_close_frame_is_answered_in_kind() {
        assert_eq!(closing(b""), Ok(None));
        assert_eq!(closing(&[0x03, 0xe8]), Ok(Some(1000)));
        assert_eq!(closing(&[0x0b, 0xb8, b'x']), Ok(Some(3000)));
        for (payload, code) in
            [(&[3][..], 1002), (&[0x03, 0xed], 1002), (&[0, 0], 1002), (&[0x03, 0xe8, 0xff], 1007)]
        {
            assert_eq!(closing(payload).map_err(|fault| fault.0), Err(code), "{payload:?}");
        }
    }
}
