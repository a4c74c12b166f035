//! The start of the next page of a history.

use crate::record::{Id, Record};

/// The position of a page's last envelope, in the order of the mail server's envelopes. Clients
/// send a cursor back unchanged. According to 8/WAKU-MAIL, "What exactly is in the `Cursor` is up
/// to the implementation", but the clients of status-go accept only cursors of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryCursor {
    /// Time at which the envelope was sent, in s since 1970.
    pub sent: u32,
    /// The envelope's hash.
    pub hash: Id,
}

impl HistoryCursor {
    /// Length of a cursor, in bytes.
    pub const BYTES: usize = 36;

    /// Reads a cursor.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (sent, hash) = bytes.split_first_chunk::<4>()?;
        Some(Self { sent: u32::from_be_bytes(*sent), hash: hash.try_into().ok()? })
    }

    /// The cursor as bytes: the time in four bytes, big-endian, and the hash. These bytes are also
    /// the envelope's key in the databases of status-go.
    pub fn bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.sent.to_be_bytes());
        bytes[4..].copy_from_slice(&self.hash);
        bytes
    }

    /// The cursor of an envelope's record.
    pub fn of(record: &Record<'_>) -> Self {
        Self { sent: u32::try_from(record.time()).unwrap_or(u32::MAX), hash: *record.id() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_a_time_and_a_hash() {
        let bytes: Vec<u8> = (0..36).collect();
        let cursor = HistoryCursor::read(&bytes).unwrap();
        assert_eq!((cursor.sent, cursor.hash[0], cursor.hash[31]), (0x0001_0203, 4, 35));
        assert_eq!(cursor.bytes(), *bytes);
        for len in (0..36).chain(37..45) {
            assert_eq!(HistoryCursor::read(&vec![0; len]), None);
        }
    }
}
