//! The fields of new messages that the archive does not keep. Live clients receive a message with
//! these fields once the message is durable.

use std::collections::HashMap;
use std::sync::Arc;

use hark_codec::record::Id;
use hark_codec::waku::{Message, MessageRecord};
use parking_lot::Mutex;

/// Maximum size of a proof that clients get, in bytes. Rate-limit proofs have 300 bytes.
const PROOF_BYTES_MAX: usize = 1_024;

/// The messages that are being stored, by hash. Only messages with fields that their records lack.
#[derive(Debug, Default)]
pub(super) struct ArrivingMessages(Mutex<HashMap<Id, Arrival>>);

/// The fields of a message that its record lacks, and the message's origin.
#[derive(Debug)]
struct Arrival {
    proof: Option<Box<[u8]>>,
    ephemeral: Option<bool>,
    is_old: bool,
}

/// Keeps the fields of a message in memory until the guard is dropped.
pub(super) struct ArrivalGuard<'a>(&'a ArrivingMessages, Id);

impl Drop for ArrivalGuard<'_> {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

impl ArrivingMessages {
    /// Keeps the fields of a message that will be durable soon. `is_old` means that the message is
    /// from another store. Returns `None` if the record has all of the message.
    pub(super) fn expect(
        &self,
        hash: Id,
        message: &Message<'_>,
        is_old: bool,
    ) -> Option<ArrivalGuard<'_>> {
        let is_short = |proof: &&[u8]| !proof.is_empty() && proof.len() <= PROOF_BYTES_MAX;
        let proof = message.proof.filter(is_short);
        if proof.is_none() && message.ephemeral.is_none() && !is_old {
            return None;
        }
        let (proof, ephemeral) = (proof.map(Box::from), message.ephemeral);
        let mut arriving = self.0.lock();
        // The same message may be arriving from a peer and from another store.
        let known = arriving.remove(&hash);
        let is_old = is_old && known.as_ref().is_none_or(|known| known.is_old);
        let proof = proof.or_else(|| known.and_then(|known| known.proof));
        arriving.insert(hash, Arrival { proof, ephemeral, is_old });
        drop(arriving);
        Some(ArrivalGuard(self, hash))
    }

    /// Returns the message of a record with all fields that are known, and whether the message is
    /// from another store.
    pub(super) fn complete(&self, record: &MessageRecord<'_>) -> (Arc<[u8]>, bool) {
        let arriving = self.0.lock();
        let stored = record.message();
        let (Some(arrival), Ok(parsed)) = (arriving.get(record.hash()), Message::parse(stored))
        else {
            return (stored.into(), false);
        };
        let Arrival { proof, ephemeral, is_old } = arrival;
        let mut wire =
            Vec::with_capacity(stored.len() + proof.as_ref().map_or(0, |p| p.len()) + 16);
        Message { proof: proof.as_deref(), ephemeral: *ephemeral, ..parsed }.write(&mut wire);
        (wire.into(), *is_old)
    }
}

#[cfg(test)]
mod tests {
    use hark_archive::Record;
    use hark_codec::waku::MessageEncoder;

    use super::*;

    #[test]
    fn a_message_gets_the_fields_that_its_record_lacks_while_it_arrives() {
        let arriving = ArrivingMessages::default();
        let plain = Message { payload: b"m", content_topic: "c", ..Message::default() };
        let hash = plain.hash("p");
        let mut record = Vec::new();
        MessageEncoder::default().encode(&plain, "p", &hash, &mut record);
        let record = MessageRecord::new(Record::new(&record).unwrap());
        let complete = |sent: &Message<'_>, is_old| {
            let _guard = arriving.expect(hash, sent, is_old);
            let (bytes, is_old) = arriving.complete(&record);
            assert_eq!(Message::parse(&bytes).unwrap(), *sent);
            is_old
        };
        let proved = Message { proof: Some(b"proof"), ephemeral: Some(true), ..plain };
        assert!(!complete(&proved, false));
        assert!(!complete(&plain, false), "the guard has gone");
        assert!(complete(&plain, true));
        assert!(arriving.expect(hash, &plain, false).is_none());
        let long = [7; PROOF_BYTES_MAX + 1];
        for proof in [&b""[..], &long] {
            let sent = Message { proof: Some(proof), ..plain };
            assert!(arriving.expect(hash, &sent, false).is_none());
        }
        assert!(arriving.0.lock().is_empty());
    }
}
