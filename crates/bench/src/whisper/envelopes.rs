//! The envelopes that a run loads: from a file, or generated during the load.

use std::io::{self, BufRead, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use hark_codec::whisper::Envelope;

use super::args::WhisperBenchArgs;
use super::generate::EnvelopeGenerator;
use crate::lines;

/// Maximum size of an envelope in Whisper, in bytes.
const ENVELOPE_BYTES_MAX: u32 = 10 << 20;

/// A source of envelopes in the order of sending.
pub(super) enum EnvelopeSource {
    File(EnvelopeFile),
    Made(EnvelopeGenerator),
}

impl EnvelopeSource {
    /// Opens the envelopes that the command line names, from the first envelope.
    pub(super) fn open(args: &WhisperBenchArgs) -> anyhow::Result<Self> {
        Ok(match &args.file {
            Some(path) => Self::File(EnvelopeFile::open(path)?),
            None => Self::Made(EnvelopeGenerator::new(args.made.envelopes, args.made.seed)?),
        })
    }

    /// Number of envelopes; 0 if unknown.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::File(_) => 0,
            Self::Made(made) => made.count(),
        }
    }

    /// Reads the RLP of the next envelope into `rlp`, which is cleared first. Returns false if no
    /// envelope is left.
    pub(super) fn next(&mut self, rlp: &mut Vec<u8>) -> anyhow::Result<bool> {
        rlp.clear();
        match self {
            Self::File(file) => file.next(rlp),
            Self::Made(made) => {
                let envelope = made.draw();
                Ok(envelope.map(|envelope| envelope.write(rlp)).is_some())
            }
        }
    }
}

/// A file of envelopes: a length of four bytes, big endian, before each.
pub(super) struct EnvelopeFile {
    path: PathBuf,
    file: Box<dyn BufRead + Send>,
    read: u64,
}

impl EnvelopeFile {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = lines::open(path, "hark bench whisper gen")?;
        Ok(Self { path: path.into(), file, read: 0 })
    }

    fn next(&mut self, rlp: &mut Vec<u8>) -> anyhow::Result<bool> {
        let found = read_one(&mut *self.file, rlp)
            .with_context(|| lines::unreadable(&self.path))
            .and_then(|more| {
                if more {
                    Envelope::parse(rlp)?;
                }
                Ok(more)
            });
        self.read += 1;
        found.with_context(|| format!("{}, envelope {}", self.path.display(), self.read))
    }
}

/// Reads a length, and then this number of bytes. Returns false at the end of the file.
fn read_one(file: &mut dyn BufRead, rlp: &mut Vec<u8>) -> anyhow::Result<bool> {
    if file.fill_buf()?.is_empty() {
        return Ok(false);
    }
    let mut length = [0; 4];
    file.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > ENVELOPE_BYTES_MAX {
        bail!("an envelope of {length} bytes, and none may have more than {ENVELOPE_BYTES_MAX}");
    }
    if file.take(length.into()).read_to_end(rlp)? < length as usize {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_lengths_and_envelopes() {
        let mut rlp = Vec::new();
        let mut file: &[u8] = b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c";
        for expected in [&b"ab"[..], b"", b"c"] {
            rlp.clear();
            assert!(read_one(&mut file, &mut rlp).unwrap());
            assert_eq!(rlp, expected);
        }
        assert!(!read_one(&mut file, &mut rlp).unwrap());
        for bad in [&b"\0\0"[..], b"\0\0\0\x02a", b"\xff\0\0\0"] {
            assert!(read_one(&mut &*bad, &mut rlp).is_err(), "{bad:?}");
        }
    }
}
