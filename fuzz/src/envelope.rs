//! Whisper's envelopes, and the completions that end an answer. If an envelope or a completion is
//! parsed and written again, the bytes are the same. An envelope also becomes a record with the
//! same content.

use hark_codec::crypto::keccak256;
use hark_codec::record::Record;
use hark_codec::whisper::record::encode;
use hark_codec::whisper::{Bloom, Completion, Envelope, EnvelopeRecord, bloom};

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    if let Ok(envelope) = Envelope::parse(bytes) {
        let mut out = Vec::new();
        envelope.write(&mut out);
        assert_eq!((&out[..], envelope.rlp_len()), (bytes, bytes.len()));
        let hash = envelope.hash();
        assert_eq!(hash, keccak256(bytes));
        assert!(envelope.pow() > 0.0 && envelope.pow().is_finite());
        let mut record = Vec::new();
        encode(&envelope, &hash, &mut record);
        let record = Record::new(&record).expect("a record");
        record.check().expect("a whole one");
        assert_eq!(record.time(), u64::from(envelope.sent()));
        let kept = EnvelopeRecord::new(record);
        assert_eq!((kept.hash(), kept.rlp(), kept.topic()), (&hash, bytes, Some(envelope.topic)));
        assert_eq!((kept.envelope(), kept.cursor().hash), (Ok(envelope), hash));
        let own = Bloom::of_topic(envelope.topic);
        assert!(own.has(bloom::bits(envelope.topic)));
        assert!(Bloom::of_topic_or(envelope.topic).covers(&own));
    }
    if let Ok(completion) = Completion::parse(bytes) {
        let mut out = Vec::new();
        completion.write(&mut out);
        assert_eq!(out, bytes);
    }
}
