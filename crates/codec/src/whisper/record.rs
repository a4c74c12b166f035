//! The record of an envelope.

use super::{Envelope, EnvelopeError, HistoryCursor, Topic};
use crate::record::{Id, Record, RecordHeader, RecordWriter};

/// Name of the label with an envelope's topic.
pub const TOPIC: u8 = b't';

/// Appends the record of `envelope`, whose hash is `hash`. The record's time is the time of
/// sending, in s. The record does not expire: after an envelope's expiry, nodes stop forwarding the
/// envelope, but mail servers keep it for later requests.
pub fn encode(envelope: &Envelope<'_>, hash: &Id, out: &mut Vec<u8>) {
    let time = envelope.sent().into();
    let head = RecordHeader { id: *hash, time, author: None, kind: 0, expires: None };
    let mut writer = RecordWriter::begin(out, &head, envelope.rlp_len());
    writer.label(TOPIC, envelope.topic_at(), envelope.topic.len());
    // An envelope has only one encoding, so these bytes equal the received bytes.
    envelope.put(writer.end_labels());
}

/// A record of an envelope.
#[derive(Clone, Copy)]
pub struct EnvelopeRecord<'a>(Record<'a>);

impl<'a> EnvelopeRecord<'a> {
    /// Interprets a record that [`encode`] wrote.
    pub fn new(record: Record<'a>) -> Self {
        Self(record)
    }

    /// The envelope's hash.
    pub fn hash(&self) -> &'a Id {
        self.0.id()
    }

    /// The envelope's RLP, identical to the received bytes.
    pub fn rlp(&self) -> &'a [u8] {
        self.0.wire()
    }

    /// The envelope's topic; `None` if the record is not of an envelope.
    pub fn topic(&self) -> Option<Topic> {
        let (_, topic) = self.0.labels().find(|(name, _)| *name == TOPIC)?;
        topic.try_into().ok()
    }

    /// Reads the envelope.
    pub fn envelope(&self) -> Result<Envelope<'a>, EnvelopeError> {
        Envelope::parse(self.rlp())
    }

    /// The cursor of a page that ends with this envelope.
    pub fn cursor(&self) -> HistoryCursor {
        HistoryCursor::of(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_envelope_and_finds_its_topic_in_it() {
        // The numbers and the data have many lengths, so that the topic's offset varies.
        for (expiry, ttl, data, nonce) in [
            (0, 0, 0, 0),
            (127, 127, 1, 128),
            (128, 50, 32, u64::MAX),
            (1_554_076_850, 50, 33, 7),
            (1_554_076_850, 128, 300, 1 << 40),
            (u32::MAX, 1 << 16, 70_000, 1),
        ] {
            let (topic, data) = ([0x5c, 0x6c, 0x9b, 0x56], vec![0xaa; data]);
            let envelope = Envelope { expiry, ttl, topic, data: &data, nonce };
            let (mut rlp, mut out) = (Vec::new(), b"before".to_vec());
            envelope.write(&mut rlp);
            encode(&envelope, &envelope.hash(), &mut out);
            let record = Record::new(&out[6..]).unwrap();
            record.check().unwrap();
            let sent = u64::from(expiry - ttl);
            let head = RecordHeader {
                id: envelope.hash(),
                time: sent,
                author: None,
                kind: 0,
                expires: None,
            };
            assert_eq!(record.head(), head);
            assert_eq!(record.labels().collect::<Vec<_>>(), [(b't', &topic[..])]);
            let view = EnvelopeRecord::new(record);
            assert_eq!((view.rlp(), view.hash()), (&rlp[..], &envelope.hash()));
            assert_eq!((view.topic(), view.envelope()), (Some(topic), Ok(envelope)));
            let cursor = HistoryCursor { sent: expiry - ttl, hash: envelope.hash() };
            assert_eq!(view.cursor(), cursor);
        }
    }
}
