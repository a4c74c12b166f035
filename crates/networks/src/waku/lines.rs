//! Messages as lines: each line is an element of a response of nwaku's REST API for its store.

use hark_archive::{Id, Record};
use hark_codec::waku::{Encoder, MessageRecord};

use super::admit::{Bounds, Refusal};
use super::json::{Kept, put_kept};
use crate::{LineFault, Lines, ReadLine, ReadTerms};

/// Lines of messages.
pub(super) struct Messages;

impl Lines for Messages {
    fn write(&self, record: &Record<'_>, line: &mut Vec<u8>) {
        put_kept(line, &MessageRecord::new(*record), true);
    }

    fn reader(&self, terms: &ReadTerms) -> Box<dyn ReadLine> {
        let bounds = Bounds { message_bytes_max: terms.record_bytes_max, window_ns: None };
        Box::new(Reader { bounds, encoder: Encoder::default() })
    }
}

struct Reader {
    bounds: Bounds,
    encoder: Encoder,
}

impl ReadLine for Reader {
    fn read(
        &mut self,
        line: &[u8],
        is_kept: &dyn Fn(&Id) -> bool,
        record: &mut Vec<u8>,
    ) -> Result<(), LineFault> {
        let kept: Kept = serde_json::from_slice(line)
            .map_err(|error| LineFault::Malformed(error.to_string()))?;
        let message = kept.message.message();
        if message.ephemeral == Some(true) {
            return Err(LineFault::Ephemeral);
        }
        // The message's encoded length is not known, but its payload is nearly all of it.
        match self.bounds.admit_old(&message, message.payload.len()) {
            Ok(_) => {}
            Err(refusal @ Refusal::Size(..)) => {
                return Err(LineFault::TooLarge(refusal.to_string()));
            }
            Err(refusal) => return Err(LineFault::Malformed(refusal.to_string())),
        }
        let (hash, as_said) = kept.hash();
        if !as_said {
            return Err(LineFault::Id);
        }
        if is_kept(&hash) {
            return Err(LineFault::Kept);
        }
        record.clear();
        self.encoder.encode(&message, &kept.pubsub_topic, &hash, record);
        Ok(())
    }
}
