//! Messages as lines: each line is an element of a response of nwaku's REST API for its store.

use hark_archive::{Id, Record};
use hark_codec::waku::{MessageEncoder, MessageRecord};

use super::admit::{MessageBounds, MessageRefusal};
use super::json::{put_stored, read_stored};
use crate::{LineFault, LineFormat, LineReader, ReadOptions};

/// Lines of messages.
pub(super) struct MessageLines;

impl LineFormat for MessageLines {
    fn write(&self, record: &Record<'_>, line: &mut Vec<u8>) {
        put_stored(line, &MessageRecord::new(*record), true);
    }

    fn reader(&self, options: &ReadOptions) -> Box<dyn LineReader> {
        let bounds = MessageBounds {
            message_bytes_max: options.record_bytes_max,
            window_ns: None,
            ..MessageBounds::default()
        };
        Box::new(MessageLineReader { bounds, encoder: MessageEncoder::default() })
    }
}

struct MessageLineReader {
    bounds: MessageBounds,
    encoder: MessageEncoder,
}

impl LineReader for MessageLineReader {
    fn read(
        &mut self,
        line: &[u8],
        is_kept: &dyn Fn(&Id) -> bool,
        record: &mut Vec<u8>,
    ) -> Result<(), LineFault> {
        let kept = read_stored(line).map_err(|error| LineFault::Malformed(error.to_string()))?;
        let message = kept.message.message();
        if message.ephemeral == Some(true) {
            return Err(LineFault::Ephemeral);
        }
        // The message's encoded length is not known yet. The payload's length is checked instead,
        // since nearly all bytes of a message are its payload.
        match self.bounds.admit_old(&message, message.payload.len()) {
            Ok(_) => {}
            Err(refusal @ MessageRefusal::Size(..)) => {
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
