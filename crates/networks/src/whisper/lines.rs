//! Envelopes as lines of JSON: a key for each field, and the hash. Bytes are hex digits.

use std::borrow::Cow;

use hark_archive::{Id, Record};
use hark_codec::nostr::json::write_u64;
use hark_codec::whisper::record::encode;
use hark_codec::whisper::{Envelope, EnvelopeRecord};
use serde::Deserialize;

use super::admit::{EnvelopeBounds, EnvelopeRefusal};
use super::digits;
use crate::{LineFault, LineFormat, LineReader, ReadOptions, object};

/// Lines of envelopes.
pub(super) struct EnvelopeLines;

impl LineFormat for EnvelopeLines {
    fn write(&self, record: &Record<'_>, line: &mut Vec<u8>) {
        let record = EnvelopeRecord::new(*record);
        // The record was made from an envelope, so reading it succeeds.
        write_envelope(&record.envelope().unwrap_or_default(), record.hash(), line);
    }

    fn reader(&self, options: &ReadOptions) -> Box<dyn LineReader> {
        let bounds = EnvelopeBounds { envelope_bytes_max: options.record_bytes_max, pow_min: 0.0 };
        Box::new(EnvelopeLineReader { bounds, data: Vec::new() })
    }
}

/// Appends the line of an envelope with this hash.
pub fn write_envelope(envelope: &Envelope<'_>, hash: &Id, line: &mut Vec<u8>) {
    line.extend_from_slice(b"{\"hash\":");
    digits::put(line, hash);
    line.extend_from_slice(b",\"expiry\":");
    write_u64(line, envelope.expiry.into());
    line.extend_from_slice(b",\"ttl\":");
    write_u64(line, envelope.ttl.into());
    line.extend_from_slice(b",\"topic\":");
    digits::put(line, &envelope.topic);
    line.extend_from_slice(b",\"data\":");
    digits::put(line, envelope.data);
    line.extend_from_slice(b",\"nonce\":");
    write_u64(line, envelope.nonce);
    line.push(b'}');
}

/// The keys that are read from a line. Other keys are ignored.
#[derive(Deserialize)]
struct EnvelopeLine<'a> {
    #[serde(borrow)]
    hash: Option<Cow<'a, str>>,
    expiry: u32,
    ttl: u32,
    #[serde(borrow)]
    topic: Cow<'a, str>,
    #[serde(borrow)]
    data: Cow<'a, str>,
    nonce: u64,
}

struct EnvelopeLineReader {
    bounds: EnvelopeBounds,
    data: Vec<u8>,
}

impl LineReader for EnvelopeLineReader {
    fn read(
        &mut self,
        line: &[u8],
        is_kept: &dyn Fn(&Id) -> bool,
        record: &mut Vec<u8>,
    ) -> Result<(), LineFault> {
        let malformed = |text: &str| LineFault::Malformed(text.into());
        let line: EnvelopeLine<'_> =
            object::read(line).map_err(|error| malformed(&error.to_string()))?;
        let topic = digits::read_array(&line.topic)
            .ok_or_else(|| malformed("`topic` is not 4 bytes in hex digits"))?;
        if !digits::read(&line.data, &mut self.data) {
            return Err(malformed("`data` is not bytes in hex digits"));
        }
        let EnvelopeLine { expiry, ttl, nonce, .. } = line;
        let envelope = Envelope { expiry, ttl, topic, data: &self.data, nonce };
        self.bounds.admit_old(&envelope).map_err(|refusal| match refusal {
            EnvelopeRefusal::Size(..) => LineFault::TooLarge(refusal.to_string()),
            _ => LineFault::Malformed(refusal.to_string()),
        })?;
        let hash = envelope.hash();
        if line.hash.is_some_and(|said| digits::read_array(&said) != Some(hash)) {
            return Err(LineFault::Id);
        }
        if is_kept(&hash) {
            return Err(LineFault::Kept);
        }
        record.clear();
        encode(&envelope, &hash, record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = concat!(
        r#"{"hash":"0x888e0c462975694631c1fedde7c7e44885f176096b03ffeb06439e368899d07d","#,
        r#""expiry":4294967295,"ttl":4294967295,"topic":"0xffffffff","data":"0x7f","#,
        r#""nonce":18446744073709551615}"#
    );

    fn read(line: &str, is_kept: bool) -> Result<Vec<u8>, LineFault> {
        let options = ReadOptions { record_bytes_max: 120, ..ReadOptions::default() };
        let mut record = b"before".to_vec();
        EnvelopeLines
            .reader(&options)
            .read(line.as_bytes(), &|_| is_kept, &mut record)
            .map(|()| record)
    }

    #[test]
    fn a_line_is_read_as_the_same_bytes() {
        for (data, ttl, nonce) in [(0, 0, 0), (1, 50, 127), (100, 1 << 20, u64::MAX)] {
            let (topic, data) = ([0, 0xab, 0xff, 0x22], vec![0x5c; data]);
            let envelope = Envelope { expiry: 1_554_076_850, ttl, topic, data: &data, nonce };
            let (mut rlp, mut record, mut line) = (Vec::new(), Vec::new(), Vec::new());
            envelope.write(&mut rlp);
            encode(&envelope, &envelope.hash(), &mut record);
            EnvelopeLines.write(&Record::new(&record).unwrap(), &mut line);
            let again = read(str::from_utf8(&line).unwrap(), false).unwrap();
            assert_eq!(again, record);
            assert_eq!(Record::new(&again).unwrap().wire(), rlp);
            let mut check = EnvelopeLines.record_check();
            assert_eq!(check(&Record::new(&record).unwrap()), Ok(()));
            let mut changed = record.clone();
            // The last byte of the nonce.
            *changed.last_mut().unwrap() ^= 1;
            assert_eq!(check(&Record::new(&changed).unwrap()), Err(LineFault::Id));
        }
        let mut line = Vec::new();
        let record = read(LINE, false).unwrap();
        EnvelopeLines.write(&Record::new(&record).unwrap(), &mut line);
        assert_eq!(String::from_utf8(line).unwrap(), LINE);
    }

    #[test]
    fn lines_with_faults_say_which() {
        assert_eq!(read(LINE, true), Err(LineFault::Kept));
        assert_eq!(read(&LINE.replace("0x888e", "0x888f"), false), Err(LineFault::Id));
        assert_eq!(read(&LINE.replace("0x888e", "0x88"), false), Err(LineFault::Id));
        assert_eq!(read(&LINE.replace("0x7f", "0x7e"), false), Err(LineFault::Id));
        // Other spellings of the same line, a line without a hash, and a line with unknown keys.
        let bare = LINE.replace("0xff", "0xFF").replace("0x7f", "7F").replace("0x888e", "888E");
        let short = LINE.replace("\"hash\"", "\"was\"");
        for line in [&bare, &short, &LINE.replace("\"ttl\"", "\"sent\":[1], \"ttl\"")] {
            assert_eq!(read(line, false), read(LINE, false), "{line}");
        }
        let large = LINE.replace("0x7f", &format!("0x{}", "7f".repeat(101)));
        let said = "the envelope has 121 bytes, more than the allowed 120";
        assert_eq!(read(&large, false), Err(LineFault::TooLarge(said.into())));
        for (from, to, word) in [
            ("\"ttl\":4294967295", "\"ttl\":4294967296", "u32"),
            ("\"expiry\":4294967295", "\"expiry\":4294967294", "more than its expiry"),
            ("18446744073709551615", "18446744073709551616", "u64"),
            ("18446744073709551615", "-1", "u64"),
            ("0xffffffff", "0xffffff", "`topic`"),
            ("0x7f", "0x7", "`data`"),
            ("\"0x7f\"", "7", "string"),
            ("\"nonce\"", "\"once\"", "missing field `nonce`"),
            ("}", "", "EOF"),
        ] {
            match read(&LINE.replace(from, to), false) {
                Err(LineFault::Malformed(said)) => assert!(said.contains(word), "{said}"),
                other => panic!("{to}: {other:?}"),
            }
        }
    }
}
