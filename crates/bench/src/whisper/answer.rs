//! A buffer for the envelopes of an answer.

/// Size of the buffer in bytes. Like a socket buffer, the buffer is emptied when full.
const BUFFER_BYTES: usize = 1 << 20;

/// A reused buffer that counts the envelopes and bytes of an answer.
#[derive(Debug)]
pub(super) struct AnswerBuffer {
    bytes: Vec<u8>,
    /// Number of envelopes of the answer.
    pub(super) envelopes: u64,
    /// Total size of these envelopes, in bytes.
    pub(super) sent_bytes: u64,
}

impl AnswerBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::with_capacity(BUFFER_BYTES), envelopes: 0, sent_bytes: 0 }
    }

    /// Clears the buffer and the counts for the next answer.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.envelopes, self.sent_bytes) = (0, 0);
    }

    /// Copies an envelope to the buffer and counts the envelope.
    #[inline]
    pub(super) fn push(&mut self, rlp: &[u8]) {
        if self.bytes.len() + rlp.len() > BUFFER_BYTES {
            self.bytes.clear();
        }
        self.bytes.extend_from_slice(rlp);
        self.envelopes += 1;
        self.sent_bytes += rlp.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_counted_and_little_is_kept() {
        let mut answer = AnswerBuffer::new();
        for _ in 0..3 {
            answer.push(&vec![7; BUFFER_BYTES / 2 + 1]);
        }
        assert_eq!((answer.envelopes, answer.sent_bytes), (3, 3 * (BUFFER_BYTES as u64 / 2 + 1)));
        assert!(answer.bytes.len() <= BUFFER_BYTES && answer.bytes.capacity() <= BUFFER_BYTES);
        answer.clear();
        assert_eq!((answer.envelopes, answer.sent_bytes, answer.bytes.len()), (0, 0, 0));
    }
}
