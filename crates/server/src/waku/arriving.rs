//! The messages that this node has accepted and that are not durable yet, with the fields that the
//! archive does not keep. Live clients receive a message with these fields once the message is
//! durable.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use hark_codec::record::Id;
use hark_codec::waku::{Message, MessageRecord};
use parking_lot::Mutex;

/// Maximum size of a proof that clients get, in bytes. Rate-limit proofs have 300 bytes.
const PROOF_BYTES_MAX: usize = 1_024;

/// The messages that are being stored, by hash.
#[derive(Debug, Default)]
pub(super) struct ArrivingMessages(Mutex<HashMap<Id, Arrival>>);

/// The fields of a message that its record lacks, and the message's origin.
#[derive(Debug)]
struct Arrival {
    proof: Option<Box<[u8]>>,
    ephemeral: Option<bool>,
    is_old: bool,
    /// Number of guards: the same message may arrive several times at once.
    guards: usize,
}

/// How a durable message came to the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageArrival {
    /// This node has accepted the message as new.
    New,
    /// This node has fetched the old message from another store.
    FromStore,
    /// An import or another node of the database has stored the message.
    Elsewhere,
}

/// Keeps a message in the list until the guard is dropped.
pub(super) struct ArrivalGuard<'a>(&'a ArrivingMessages, Id);

impl Drop for ArrivalGuard<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut arrival) = self.0.0.lock().entry(self.1) {
            arrival.get_mut().guards -= 1;
            if arrival.get().guards == 0 {
                arrival.remove();
            }
        }
    }
}

impl ArrivingMessages {
    /// Lists a message that will be durable soon. `is_old` means that the message is from another
    /// store.
    pub(super) fn expect(&self, hash: Id, message: &Message<'_>, is_old: bool) -> ArrivalGuard<'_> {
        let is_short = |proof: &&[u8]| !proof.is_empty() && proof.len() <= PROOF_BYTES_MAX;
        let proof = message.proof.filter(is_short).map(Box::from);
        let mut arriving = self.0.lock();
        let new = || Arrival { proof: None, ephemeral: None, is_old: true, guards: 0 };
        // The same message may be arriving from a peer and from another store.
        let arrival = arriving.entry(hash).or_insert_with(new);
        arrival.proof = proof.or_else(|| arrival.proof.take());
        arrival.ephemeral = message.ephemeral.or(arrival.ephemeral);
        arrival.is_old &= is_old;
        arrival.guards += 1;
        drop(arriving);
        ArrivalGuard(self, hash)
    }

    /// Returns how a message that is durable now came to the archive.
    pub(super) fn arrival(&self, hash: &Id) -> MessageArrival {
        match self.0.lock().get(hash) {
            Some(Arrival { is_old: false, .. }) => MessageArrival::New,
            Some(_) => MessageArrival::FromStore,
            None => MessageArrival::Elsewhere,
        }
    }

    /// Returns the message of a record with all fields that are known.
    pub(super) fn complete(&self, record: &MessageRecord<'_>) -> Arc<[u8]> {
        let arriving = self.0.lock();
        let stored = record.message();
        let known = arriving.get(record.hash());
        let known = known.filter(|known| known.proof.is_some() || known.ephemeral.is_some());
        let (Some(Arrival { proof, ephemeral, .. }), Ok(parsed)) = (known, Message::parse(stored))
        else {
            return stored.into();
        };
        let mut wire =
            Vec::with_capacity(stored.len() + proof.as_ref().map_or(0, |p| p.len()) + 16);
        Message { proof: proof.as_deref(), ephemeral: *ephemeral, ..parsed }.write(&mut wire);
        wire.into()
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
            assert_eq!(Message::parse(&arriving.complete(&record)).unwrap(), *sent);
            arriving.arrival(&hash)
        };
        let proved = Message { proof: Some(b"proof"), ephemeral: Some(true), ..plain };
        assert_eq!(complete(&proved, false), MessageArrival::New);
        assert_eq!(complete(&plain, false), MessageArrival::New, "the guard has gone");
        assert_eq!(complete(&plain, true), MessageArrival::FromStore);
        let long = [7; PROOF_BYTES_MAX + 1];
        for proof in [&b""[..], &long] {
            let _guard = arriving.expect(hash, &Message { proof: Some(proof), ..plain }, false);
            assert_eq!(Message::parse(&arriving.complete(&record)).unwrap(), plain);
        }
        assert_eq!(arriving.arrival(&hash), MessageArrival::Elsewhere);
        // The message comes from a store, and then from a peer, which fails.
        let fetched = arriving.expect(hash, &plain, true);
        let relayed = arriving.expect(hash, &proved, false);
        drop(relayed);
        assert_eq!(arriving.arrival(&hash), MessageArrival::New);
        drop(fetched);
        assert!(arriving.0.lock().is_empty());
    }
}
