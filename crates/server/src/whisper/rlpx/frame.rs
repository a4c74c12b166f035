//! Frames: the encrypted and authenticated units of all packets after the key exchange.
//!
//! ```text
//! 0    header, encrypted: length of the content in 3 bytes, big endian; c2 80 80; ten zeros
//! 16   authentication code of the header
//! 32   content, encrypted, filled with zeros to a multiple of 16 bytes
//! -16  authentication code of the content
//! ```
//!
//! The cipher is AES-256 in counter mode. Its counter begins at zero and continues from frame to
//! frame. The Keccak-256 of the authentication codes also continues, so a code covers all data sent
//! earlier. Source: the RLPx specification. The specification also divides content among frames,
//! but no program uses this feature.

use aes::Aes256;
use aes::cipher::{BlockEncrypt as _, KeyInit as _};
use ctr::Ctr128BE;
use ctr::cipher::{KeyIvInit as _, StreamCipher as _};
use sha3::{Digest as _, Keccak256};

use super::handshake::RlpxSecrets;

/// Length of a header and its authentication code, in bytes.
pub const HEADER_BYTES: usize = 2 * BLOCK_BYTES;
/// Length of an authentication code, in bytes.
pub const CODE_BYTES: usize = BLOCK_BYTES;
/// Maximum length of a frame's content, in bytes. A header stores the length in three bytes.
pub const CONTENT_BYTES_MAX: usize = (1 << 24) - 1;

const BLOCK_BYTES: usize = 16;
/// The bytes after the length in a header: an empty protocol and an empty context, which nobody
/// reads.
const HEADER_DATA: [u8; 3] = [0xc2, 0x80, 0x80];

type Block = [u8; BLOCK_BYTES];

/// Why a frame is refused. The connection cannot continue after such an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RlpxFrameError {
    /// The authentication code does not match the bytes.
    #[error("a frame was changed on its way, or is not from the peer")]
    Code,
    /// The content is longer than [`CONTENT_BYTES_MAX`].
    #[error("a frame of {0} bytes is too long")]
    Length(usize),
}

/// The running authentication code of one direction.
struct RunningCode {
    state: Keccak256,
    cipher: Aes256,
}

impl RunningCode {
    /// Adds an encrypted header, and returns its authentication code.
    fn header(&mut self, header: &Block) -> Block {
        self.mix(header)
    }

    /// Adds encrypted content, and returns its authentication code.
    fn content(&mut self, content: &[u8]) -> Block {
        self.state.update(content);
        let seed = self.digest();
        self.mix(&seed)
    }

    fn mix(&mut self, seed: &Block) -> Block {
        let mut block = self.digest().into();
        self.cipher.encrypt_block(&mut block);
        let mixed: Block = std::array::from_fn(|at| block[at] ^ seed[at]);
        self.state.update(mixed);
        self.digest()
    }

    /// Returns the first half of the hash of all data so far.
    fn digest(&self) -> Block {
        let hash: [u8; 32] = self.state.clone().finalize().into();
        std::array::from_fn(|at| hash[at])
    }
}

/// Compares codes in constant time.
fn is_same(one: &Block, other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |differing, (one, other)| differing | (one ^ other)) == 0
}

/// One direction of a connection.
struct FrameDirection {
    cipher: Ctr128BE<Aes256>,
    code: RunningCode,
}

impl FrameDirection {
    fn new(aes: &[u8; 32], mac: &[u8; 32], state: Keccak256) -> Self {
        Self {
            cipher: Ctr128BE::new(aes.into(), &[0; BLOCK_BYTES].into()),
            code: RunningCode { state, cipher: Aes256::new(mac.into()) },
        }
    }
}

/// Encrypts this side's frames.
pub struct FrameSealer(FrameDirection);

/// Checks and decrypts the frames of the peer.
pub struct FrameOpener(FrameDirection);

/// Creates both directions of a connection.
pub fn directions(secrets: RlpxSecrets) -> (FrameSealer, FrameOpener) {
    let RlpxSecrets { aes, mac, egress, ingress } = secrets;
    let sealer = FrameSealer(FrameDirection::new(&aes, &mac, egress));
    (sealer, FrameOpener(FrameDirection::new(&aes, &mac, ingress)))
}

/// Returns the number of bytes that pad content to whole blocks.
fn padding(content_bytes: usize) -> usize {
    content_bytes.wrapping_neg() % BLOCK_BYTES
}

impl FrameSealer {
    /// Appends a frame whose content `write` produces.
    pub fn seal(
        &mut self,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), RlpxFrameError> {
        let FrameDirection { cipher, code } = &mut self.0;
        let start = out.len();
        out.resize(start + HEADER_BYTES, 0);
        write(out);
        let content_at = start + HEADER_BYTES;
        let bytes = out.len().saturating_sub(content_at);
        if bytes > CONTENT_BYTES_MAX {
            out.truncate(start);
            return Err(RlpxFrameError::Length(bytes));
        }
        out.resize(out.len() + padding(bytes), 0);
        let mut header = [0; BLOCK_BYTES];
        header[..3].copy_from_slice(&(bytes as u32).to_be_bytes()[1..]);
        header[3..6].copy_from_slice(&HEADER_DATA);
        cipher.apply_keystream(&mut header);
        out[start..start + BLOCK_BYTES].copy_from_slice(&header);
        out[start + BLOCK_BYTES..content_at].copy_from_slice(&code.header(&header));
        let content = &mut out[content_at..];
        cipher.apply_keystream(content);
        let after = code.content(content);
        out.extend_from_slice(&after);
        Ok(())
    }
}

/// The content of a frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RlpxFrameHeader {
    /// Length of the content, in bytes.
    pub content: usize,
}

impl RlpxFrameHeader {
    /// Returns the number of bytes after the header: the content, its padding, and its
    /// authentication code.
    pub fn bytes(self) -> usize {
        self.content + padding(self.content) + CODE_BYTES
    }
}

impl FrameOpener {
    /// Checks and decrypts a header. An error ends the connection.
    pub fn header(
        &mut self,
        bytes: &[u8; HEADER_BYTES],
    ) -> Result<RlpxFrameHeader, RlpxFrameError> {
        let FrameDirection { cipher, code } = &mut self.0;
        let mut header = [0; BLOCK_BYTES];
        let (encrypted, given) = bytes.split_at(BLOCK_BYTES);
        header.copy_from_slice(encrypted);
        if !is_same(&code.header(&header), given) {
            return Err(RlpxFrameError::Code);
        }
        cipher.apply_keystream(&mut header);
        let [high, middle, low, ..] = header;
        Ok(RlpxFrameHeader { content: u32::from_be_bytes([0, high, middle, low]) as usize })
    }

    /// Checks the data after a header, decrypts the data in place, and returns the content. An
    /// error ends the connection.
    pub fn content<'a>(
        &mut self,
        header: RlpxFrameHeader,
        bytes: &'a mut [u8],
    ) -> Result<&'a [u8], RlpxFrameError> {
        let FrameDirection { cipher, code } = &mut self.0;
        let wrong = RlpxFrameError::Length(bytes.len());
        if bytes.len() != header.bytes() {
            return Err(wrong);
        }
        let (content, given) = bytes.split_last_chunk_mut::<CODE_BYTES>().ok_or(wrong)?;
        if !is_same(&code.content(content), given) {
            return Err(RlpxFrameError::Code);
        }
        cipher.apply_keystream(content);
        content.get(..header.content).ok_or(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hark_codec::crypto::keccak256;
    use hark_codec::hex;

    fn secrets() -> [RlpxSecrets; 2] {
        let state = |seed: u8| Keccak256::new().chain_update([seed; 32]);
        [(1, 2), (2, 1)].map(|(egress, ingress)| RlpxSecrets {
            aes: [7; 32],
            mac: [9; 32],
            egress: state(egress),
            ingress: state(ingress),
        })
    }

    fn sealed(sealer: &mut FrameSealer, content: &[u8]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        sealer.seal(&mut out, |out| out.extend_from_slice(content)).unwrap();
        assert_eq!(&out[..6], b"before");
        out.split_off(6)
    }

    fn opened(opener: &mut FrameOpener, frame: &[u8]) -> Result<Vec<u8>, RlpxFrameError> {
        let (header, rest) = frame.split_first_chunk().unwrap();
        let header = opener.header(header)?;
        opener.content(header, &mut rest.to_vec()).map(<[u8]>::to_vec)
    }

    #[test]
    fn frames_of_all_lengths_come_out_as_they_went_in() {
        let [one, two] = secrets();
        let (mut sealer, _) = directions(one);
        let (_, mut opener) = directions(two);
        for len in (0..70).chain([1_000, 70_000]) {
            let content: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let frame = sealed(&mut sealer, &content);
            assert_eq!(frame.len() % BLOCK_BYTES, 0);
            assert_eq!(frame.len(), HEADER_BYTES + RlpxFrameHeader { content: len }.bytes());
            assert_eq!(opened(&mut opener, &frame), Ok(content));
        }
    }

    /// From go-ethereum's rlpx_test.go (`TestRLPXFrameFake`). That test replaces the hash of the
    /// authentication codes by a constant, so only the encrypted bytes can be compared.
    #[test]
    fn content_is_encrypted_as_in_go_ethereum() {
        let key = keccak256(b"");
        let state = Keccak256::new();
        let secrets = RlpxSecrets { aes: key, mac: key, egress: state.clone(), ingress: state };
        let frame = sealed(&mut directions(secrets).0, &[8, 0xc4, 1, 2, 3, 4]);
        let [header, content] = [&frame[..16], &frame[32..48]].map(|bytes| {
            let mut digits = Vec::new();
            hex::encode_into(bytes, &mut digits);
            String::from_utf8(digits).unwrap()
        });
        assert_eq!(header, "00828ddae471818bb0bfa6b551d1cb42");
        assert_eq!(content, "ba628a4ba590cb43f7848f41c4382885");
    }

    #[test]
    fn a_changed_frame_is_refused_wherever_it_was_changed() {
        let frame = sealed(&mut directions(secrets().into_iter().next().unwrap()).0, &[5; 20]);
        for at in 0..frame.len() {
            let [_, two] = secrets();
            let mut changed = frame.clone();
            changed[at] ^= 0x10;
            assert_eq!(opened(&mut directions(two).1, &changed), Err(RlpxFrameError::Code));
        }
        let [_, two] = secrets();
        let mut opener = directions(two).1;
        assert_eq!(opened(&mut opener, &frame), Ok(vec![5; 20]));
        assert_eq!(opened(&mut opener, &frame), Err(RlpxFrameError::Code), "it came before");
    }

    #[test]
    fn too_much_is_not_sealed() {
        let [one, _] = secrets();
        let mut out = Vec::new();
        let len = CONTENT_BYTES_MAX + 1;
        let sealed = directions(one).0.seal(&mut out, |out| out.resize(HEADER_BYTES + len, 0));
        assert_eq!((sealed, out.len()), (Err(RlpxFrameError::Length(len)), 0));
    }
}
