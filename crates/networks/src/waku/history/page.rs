//! Pages of messages, and the answer to a peer.

use hark_archive::{Position, Record};
use hark_codec::record::Id;
use hark_codec::waku::MessageRecord;
use hark_codec::waku::store::{self, Status};

use super::error::HistoryError;

/// Maximum total size of the messages on a page, in bytes. If messages are long, a page has fewer
/// messages.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// The status description in the answer if a damaged message may be missing from the page. The
/// protocol has no status code for this case, and clients drop the messages of an answer whose code
/// is not 200.
pub const DAMAGED: &str = "OK, but a message that may belong here is damaged and left out";

/// Records, as bytes.
pub(super) type RecordBytes = Vec<Box<[u8]>>;

/// A page of messages. The messages are records, oldest first.
#[derive(Debug, Default)]
pub struct HistoryPage {
    /// Id of the request.
    pub request_id: String,
    /// Whether the answer has the messages (otherwise only their hashes).
    pub include_data: bool,
    /// The records. If the answer does not include the data, each record has only its id and time.
    pub records: RecordBytes,
    /// Position of the message after which the next page begins. `None` on the last page.
    pub end: Option<Position>,
    /// Total size of the records in bytes; 0 if the answer has only hashes.
    pub bytes: usize,
    /// Whether a damaged message may be missing from the page.
    pub damaged: bool,
}

impl HistoryPage {
    /// The description that accompanies the status 200 in the answer. Clients display or ignore the
    /// description.
    pub fn description(&self) -> &'static str {
        if self.damaged { DAMAGED } else { "OK" }
    }

    /// The cursor of the next page. `None` on the last page.
    pub fn cursor(&self) -> Option<Id> {
        self.end.map(|end| end.id)
    }

    /// Upper bound for the size of the answer with this page, in bytes. In JSON, base64 needs four
    /// bytes for three.
    pub fn answer_bytes(&self) -> usize {
        self.bytes / 3 * 4 + 400 * (self.records.len() + 1)
    }
}

/// Encodes the answer to the request of a peer.
pub fn answer(page: Result<&HistoryPage, &HistoryError>) -> Vec<u8> {
    let page = match page {
        Ok(page) => page,
        Err(refusal) => {
            let mut out = Vec::new();
            // Above the rate limit, nwaku answers `N/A`, because it does not parse the request.
            let id = if matches!(refusal, HistoryError::TooMany) { "N/A" } else { "" };
            store::put_answer(&mut out, id, refusal.status(), &refusal.to_string(), None);
            return out;
        }
    };
    let mut out = Vec::with_capacity(page.bytes + 4_096);
    for record in page.records.iter().filter_map(|bytes| Record::new(bytes).ok()) {
        let record = MessageRecord::new(record);
        let data = (record.message(), record.pubsub_topic());
        store::put_message(&mut out, record.hash(), page.include_data.then_some(data));
    }
    let (id, cursor) = (&page.request_id, page.cursor());
    store::put_answer(&mut out, id, Status::Success, page.description(), cursor.as_ref());
    out
}
