//! Converts rows to records. Each envelope is parsed like a newly received envelope, and its key is
//! compared with the key that a mail server derives from the envelope.

use hark_archive::Id;
use hark_codec::whisper::record::encode;
use hark_codec::whisper::{Envelope, HistoryCursor};
use hark_networks::whisper::admit::{EnvelopeBounds, EnvelopeRefusal};

use super::source::EnvelopeRow;
use crate::commands::adopt::rows::{ConvertedRows, text};
use crate::commands::refusal::RefusalReason;

/// Length of the topic in a key. Older keys have no topic.
const TOPIC_BYTES: usize = 4;
/// Maximum number of bytes that a report shows of a key that is not in a mail server's format.
const SHOWN_BYTES: usize = 32;

/// Reads the time of sending and the envelope's hash from a key. Returns `None` if the key is not
/// in a mail server's format.
pub(super) fn position(key: &[u8]) -> Option<HistoryCursor> {
    let (position, topic) = key.split_at_checked(HistoryCursor::BYTES)?;
    if matches!(topic.len(), 0 | TOPIC_BYTES) { HistoryCursor::read(position) } else { None }
}

/// Converts rows to records, in order.
pub(super) fn convert(rows: &[EnvelopeRow], bounds: &EnvelopeBounds) -> ConvertedRows {
    let mut converted = ConvertedRows::default();
    for row in rows {
        match convert_row(row, bounds) {
            Ok((hash, record)) => {
                converted.ids.push(text(&hash));
                converted.records.push(record);
            }
            Err((reason, words)) => {
                let shown = row.key.get(..SHOWN_BYTES).unwrap_or(&row.key);
                let id =
                    position(&row.key).map_or_else(|| text(shown), |position| text(&position.hash));
                converted.refused.push((reason, id, words));
            }
        }
    }
    converted
}

/// The reason why a row is no envelope, and details, which may be empty.
type RowRefusal = (RefusalReason, String);

fn convert_row(row: &EnvelopeRow, bounds: &EnvelopeBounds) -> Result<(Id, Box<[u8]>), RowRefusal> {
    let key = position(&row.key).ok_or((RefusalReason::Foreign, String::new()))?;
    let envelope = Envelope::parse(&row.value)
        .map_err(|error| (RefusalReason::Malformed, error.to_string()))?;
    bounds.admit_old(&envelope).map_err(|refusal| match refusal {
        EnvelopeRefusal::Size(..) => (RefusalReason::TooLarge, refusal.to_string()),
        _ => (RefusalReason::Malformed, refusal.to_string()),
    })?;
    let hash = envelope.hash();
    if hash != key.hash {
        return Err((RefusalReason::BadId, format!("the hash is {}", text(&hash))));
    }
    let mut record = Vec::with_capacity(row.value.len() + 64);
    encode(&envelope, &hash, &mut record);
    Ok((hash, record.into()))
}

#[cfg(test)]
mod tests {
    use hark_archive::Record;

    use super::*;

    fn row(envelope: &Envelope<'_>, topic: &[u8]) -> EnvelopeRow {
        let position = HistoryCursor { sent: envelope.sent(), hash: envelope.hash() };
        let mut value = Vec::new();
        envelope.write(&mut value);
        EnvelopeRow { key: [&position.bytes(), topic].concat(), value }
    }

    #[test]
    fn rows_become_the_envelopes_they_were_byte_for_byte() {
        let topic = [1, 2, 3, 4];
        let envelope = Envelope { expiry: 150, ttl: 50, topic, data: &[7; 80], nonce: 9 };
        let rows = [row(&envelope, &[]), row(&envelope, &topic)];
        let converted = convert(&rows, &EnvelopeBounds::default());
        assert!(converted.refused.is_empty(), "{:?}", converted.refused);
        for (record, row) in converted.records.iter().zip(&rows) {
            let record = Record::new(record).unwrap();
            assert_eq!((record.wire(), record.time()), (&row.value[..], 100));
        }
        assert_eq!(converted.ids, [text(&envelope.hash()), text(&envelope.hash())]);
    }

    #[test]
    fn what_is_no_envelope_or_another_one_is_refused_by_its_reason() {
        let envelope = Envelope { expiry: 150, ttl: 50, data: &[7; 80], ..Envelope::default() };
        let good = row(&envelope, &[]);
        let large = Envelope { data: &[7; 81], ..envelope };
        let early = Envelope { ttl: 151, ..envelope };
        let rows = [
            EnvelopeRow { value: b"else".to_vec(), ..good.clone() },
            EnvelopeRow { value: [&good.value[..], &[0]].concat(), ..good.clone() },
            EnvelopeRow { key: row(&large, &[]).key, ..good.clone() },
            row(&large, &[]),
            row(&early, &[]),
            EnvelopeRow { key: b"version".to_vec(), ..good.clone() },
            row(&envelope, &[1]),
            good,
        ];
        let bounds = EnvelopeBounds { envelope_bytes_max: 100, pow_min: 5.0 };
        let converted = convert(&rows, &bounds);
        let reasons: Vec<_> = converted.refused.iter().map(|(reason, ..)| *reason).collect();
        let expected = [
            RefusalReason::Malformed,
            RefusalReason::Malformed,
            RefusalReason::BadId,
            RefusalReason::TooLarge,
            RefusalReason::Malformed,
            RefusalReason::Foreign,
            RefusalReason::Foreign,
        ];
        assert_eq!((&reasons[..], converted.records.len()), (&expected[..], 1));
    }
}
