//! Compressed messages (permessage-deflate, RFC 7692).
//!
//! The answer to the handshake demands that neither side keeps context from one message to the
//! next. So an idle connection needs no compressor, and all connections share a few compressors.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::SEC_WEBSOCKET_EXTENSIONS;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use parking_lot::Mutex;

use super::frame::CloseFault;

/// The extension header of a handshake's answer that accepts compression.
pub(super) const EXTENSION_PARAMETERS: &str =
    "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

/// Maximum number of idle compressors, and of idle decompressors, kept for all connections
/// together.
const IDLE_MAX: usize = 16;
/// The bytes that end every compressed message, and are removed before it is sent.
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Whether and how messages are compressed.
#[derive(Debug, Default)]
pub struct DeflateOptions(Option<Arc<Compressors>>);

/// Compressors and decompressors that all connections with compression share.
#[derive(Debug)]
pub struct Compressors {
    /// Minimum size of a compressed message, in bytes. Shorter messages are sent uncompressed.
    pub(super) from_bytes: usize,
    out: Mutex<Vec<Compress>>,
    back: Mutex<Vec<Decompress>>,
}

impl DeflateOptions {
    /// Compresses messages of at least `from_bytes` bytes for clients that offer compression. 0
    /// disables compression.
    pub fn new(from_bytes: usize) -> Self {
        let (out, back) = (Mutex::default(), Mutex::default());
        Self((from_bytes > 0).then(|| Arc::new(Compressors { from_bytes, out, back })))
    }

    /// The shared compressors. None if compression is disabled.
    pub fn compressors(&self) -> Option<Arc<Compressors>> {
        self.0.clone()
    }

    /// Returns the compressors if a handshake with these headers agrees on compression.
    pub(super) fn agree(&self, headers: &HeaderMap) -> Option<Arc<Compressors>> {
        self.0.as_ref().filter(|_| is_offer(headers)).cloned()
    }
}

/// Whether the client offers compression on terms that this server supports. An offer with other
/// terms, such as a smaller window for the server's messages, must be declined as a whole.
fn is_offer(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(SEC_WEBSOCKET_EXTENSIONS).iter();
    lists.filter_map(|list| list.to_str().ok()).any(|list| list.split(',').any(is_supported))
}

fn is_supported(offer: &str) -> bool {
    let mut words = offer.split(';').map(str::trim);
    words.next() == Some("permessage-deflate")
        && words.all(|term| {
            let name = term.split('=').next().unwrap_or_default().trim();
            ["client_max_window_bits", "client_no_context_takeover", "server_no_context_takeover"]
                .contains(&name)
        })
}

/// Takes an idle value, or makes a new value.
fn take<T>(idle: &Mutex<Vec<T>>, make: impl FnOnce() -> T) -> T {
    let waiting = idle.lock().pop();
    waiting.unwrap_or_else(make)
}

fn return_idle<T>(idle: &Mutex<Vec<T>>, one: T) {
    let mut idle = idle.lock();
    if idle.len() < IDLE_MAX {
        idle.push(one);
    }
}

impl Compressors {
    /// Appends a compressed message, given in pieces, to `out`. Returns `None` if compression
    /// fails. In this case, the bytes appended to `out` are incomplete.
    pub(super) fn compress(&self, pieces: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
        let mut compress = take(&self.out, || Compress::new(Compression::fast(), false));
        let last = pieces.len().saturating_sub(1);
        for (at, piece) in pieces.iter().enumerate() {
            let flush = if at == last { FlushCompress::Sync } else { FlushCompress::None };
            let (before, mut rest) = (compress.total_in(), *piece);
            loop {
                out.reserve(rest.len() / 2 + 64);
                compress.compress_vec(rest, out, flush).ok()?;
                let taken = (compress.total_in() - before) as usize;
                rest = piece.get(taken..)?;
                // Unused capacity shows that the compressor has written all its output.
                if rest.is_empty() && out.len() < out.capacity() {
                    break;
                }
            }
        }
        compress.reset();
        return_idle(&self.out, compress);
        let end = out.len().checked_sub(TAIL.len()).filter(|end| out[*end..] == TAIL)?;
        out.truncate(end);
        Some(())
    }

    /// Decompresses a message, which may be up to `len_max` bytes long.
    pub(super) fn decompress(&self, payload: &[u8], len_max: usize) -> Result<Vec<u8>, CloseFault> {
        let mut decompress = take(&self.back, || Decompress::new(false));
        let mut out = Vec::new();
        'all: for piece in [payload, &TAIL] {
            let (before, mut rest) = (decompress.total_in(), piece);
            loop {
                let had = out.len();
                let room = (payload.len() * 4).max(had).max(256);
                out.reserve_exact(room.min(len_max + 1 - had));
                let status = decompress.decompress_vec(rest, &mut out, FlushDecompress::Sync);
                if out.len() > len_max {
                    return Err(CloseFault::LENGTH);
                }
                match status.map_err(|_| CloseFault::DEFLATE)? {
                    // A final block ends the message as well.
                    Status::StreamEnd => break 'all,
                    Status::Ok | Status::BufError => {}
                }
                let taken = (decompress.total_in() - before) as usize;
                let left = piece.get(taken..).ok_or(CloseFault::DEFLATE)?;
                // The output had capacity, so a decompressor that neither consumes nor produces
                // bytes is done with its input. A call may consume nothing and still produce output
                // that did not fit into the previous call's buffer.
                if left.len() == rest.len() && out.len() == had {
                    if left.is_empty() {
                        break;
                    }
                    return Err(CloseFault::DEFLATE);
                }
                rest = left;
            }
        }
        decompress.reset(false);
        return_idle(&self.back, decompress);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use hark_testkit::deflate::{self as zlib, Content, LEVELS, WINDOW_BITS};
    use hark_testkit::random::Random;

    use super::*;

    /// The offers of a client are a list, in one header or in several (RFC 7692, section 5).
    #[test]
    fn an_offer_is_found_wherever_it_stands_among_others() {
        let is_agreed = |lists: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for &list in lists {
                headers.append(SEC_WEBSOCKET_EXTENSIONS, HeaderValue::from_static(list));
            }
            DeflateOptions::new(1).agree(&headers).is_some()
        };
        for lists in [
            &["x-webkit-deflate-frame, permessage-deflate; client_max_window_bits"][..],
            &["x-webkit-deflate-frame,permessage-deflate"],
            &["permessage-deflate; server_max_window_bits=10, permessage-deflate"],
            &["x-webkit-deflate-frame", "permessage-deflate"],
        ] {
            assert!(is_agreed(lists), "{lists:?}");
        }
        for lists in [
            &["x-webkit-deflate-frame; permessage-deflate"][..],
            &["permessage-deflate-frame, x-permessage-deflate"],
            &["permessage-deflate; server_max_window_bits=10", "permessage-deflate; unheard_of"],
        ] {
            assert!(!is_agreed(lists), "{lists:?}");
        }
    }

    /// A decompressor holds back output that does not fit, so some calls consume nothing and
    /// produce much.
    #[test]
    fn what_clients_compress_comes_back_whatever_it_is_and_however_it_was_compressed() {
        let shared = DeflateOptions::new(1).0.unwrap();
        let mut random = Random::new(11);
        let mut refused = Vec::new();
        for (level, bits) in LEVELS.flat_map(|level| WINDOW_BITS.map(move |bits| (level, bits))) {
            for content in Content::ALL {
                let len = zlib::length(&mut random);
                let message = content.make(&mut random, len);
                let payload = zlib::deflate(&message, level, bits);
                let is_whole = shared.decompress(&payload, message.len()).as_ref() == Ok(&message);
                let is_bounded =
                    shared.decompress(&payload, message.len() - 1) == Err(CloseFault::LENGTH);
                if !is_whole || !is_bounded {
                    refused.push((content, message.len(), payload.len(), level, bits));
                }
            }
        }
        assert!(refused.is_empty(), "{} of 350 messages: {:?}", refused.len(), refused[0]);
    }

    #[test]
    fn what_is_compressed_comes_back_however_it_is_cut() {
        let shared = DeflateOptions::new(1).0.unwrap();
        let mut random = Random::new(7);
        for len in [1, 10, 300, 70_000, 200_000] {
            let noise = random.below(256) + 1;
            let message: Vec<u8> = (0..len).map(|_| random.below(noise) as u8).collect();
            let (one, rest) = message.split_at(random.below(len + 1));
            let mut out = b"before".to_vec();
            shared.compress(&[one, rest, b"]"], &mut out).unwrap();
            let back = shared.decompress(&out[6..], len + 1).unwrap();
            assert_eq!(back, [&message[..], b"]"].concat());
            assert_eq!(shared.decompress(&out[6..], len), Err(CloseFault::LENGTH));
        }
    }

    #[test]
    fn what_is_not_compressed_is_refused_and_costs_no_compressor() {
        let shared = DeflateOptions::new(1).0.unwrap();
        assert_eq!(shared.decompress(&[0xff; 100], 1_000), Err(CloseFault::DEFLATE));
        let mut out = Vec::new();
        shared.compress(&[b"hark"], &mut out).unwrap();
        assert_eq!(shared.decompress(&out, 1_000).unwrap(), b"hark");
    }
}
