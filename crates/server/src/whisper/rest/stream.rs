//! A streamed answer. Its pages are searched one by one, as fast as the client reads.
//!
//! An answer in RLP is a sequence of frames. Each frame is a length in four bytes, big endian, and
//! the content of this length:
//!
//! | length | content |
//! |---|---|
//! | n > 0 | an envelope |
//! | 0 | the end: the [`Completion`] of 8/WAKU-MAIL follows, up to the end of the body |
//!
//! An answer in JSON is `{"envelopes": [...], "damaged": true, "cursor": "0x..."}`, with each
//! envelope as in exports. `damaged` is present only if an envelope that may belong to the answer
//! is damaged and therefore left out. The RLP format has no field for damage.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use hark_codec::record::Id;
use hark_codec::whisper::{Completion, Envelope, HistoryCursor};
use hark_networks::whisper::history::{EnvelopeQuestion, MailError};
use hark_networks::whisper::{digits, write_envelope};

use crate::answers::{PermittedAnswer, PermittedBytes};
use crate::rate::RateSource;
use crate::whisper::history::PageBytes;
use crate::whisper::mail_server::MailServer;
use crate::whisper::metrics::{MailSource, RequestFate};

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerFormat {
    /// Frames of RLP.
    Rlp,
    /// JSON.
    Json,
}

/// An answer in progress.
pub(super) struct HistoryStream {
    mail: Arc<MailServer>,
    source: RateSource,
    question: EnvelopeQuestion,
    /// The hash of the request.
    request: Id,
    format: AnswerFormat,
    page_bytes: PageBytes,
    /// Position of the last envelope.
    last: Option<HistoryCursor>,
    /// Whether any page so far omits a damaged envelope.
    damaged: bool,
    began: bool,
    ended: bool,
}

/// The parts of an answer.
type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes, MailError>> + Send>>;

impl HistoryStream {
    pub(super) fn new(
        mail: Arc<MailServer>,
        source: RateSource,
        question: EnvelopeQuestion,
        request: Id,
        format: AnswerFormat,
    ) -> Self {
        let page_bytes = match format {
            AnswerFormat::Rlp => PageBytes::default(),
            AnswerFormat::Json => PageBytes::of_json(),
        };
        Self {
            mail,
            source,
            question,
            request,
            format,
            page_bytes,
            last: None,
            damaged: false,
            began: false,
            ended: false,
        }
    }

    /// Whether any page so far omits a damaged envelope.
    pub(super) fn has_met_damage(&self) -> bool {
        self.damaged
    }

    /// Returns the next part of the answer, or `None` after the last part.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, MailError> {
        if self.ended {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let is_first = !self.began;
        self.began = true;
        if is_first && self.format == AnswerFormat::Json {
            bytes.extend_from_slice(b"{\"envelopes\":[");
        }
        let from = (MailSource::Rest, self.source);
        let (page, room) = match self.mail.page(from, &self.question, self.page_bytes).await {
            Ok(PermittedAnswer { page, room }) => (page, room),
            Err(error) => {
                self.ended = true;
                if is_first {
                    return Err(error);
                }
                self.mail.count_request(MailSource::Rest, RequestFate::from(&error));
                // The status was sent long ago. In JSON, only an incomplete body can show the
                // error.
                if self.format == AnswerFormat::Json {
                    return Err(error);
                }
                let text = error.to_string();
                end(&mut bytes, &Completion::Failed { request: self.request, text: &text });
                return Ok(Some(bytes.into()));
            }
        };
        self.page_bytes.grow();
        bytes.reserve(page.rlp().len() + 4 * page.len() + 128);
        for (at, envelope) in page.envelopes().enumerate() {
            match self.format {
                AnswerFormat::Rlp => {
                    bytes.extend_from_slice(&(envelope.len() as u32).to_be_bytes());
                    bytes.extend_from_slice(envelope);
                }
                AnswerFormat::Json => {
                    if !is_first || at > 0 {
                        bytes.push(b',');
                    }
                    // The envelope was stored, so it is valid.
                    let read = Envelope::parse(envelope).unwrap_or_default();
                    write_envelope(&read, &read.hash(), &mut bytes);
                }
            }
        }
        self.last = page.last.or(self.last);
        self.damaged |= page.damaged;
        self.question.advance(&page);
        let more = page.more;
        if !more || self.question.query.limit == 0 {
            self.ended = true;
            self.mail.count_request(MailSource::Rest, RequestFate::Answered);
            let cursor = self.last.filter(|_| more);
            match self.format {
                AnswerFormat::Rlp => {
                    let last = self.last.map_or([0; 32], |last| last.hash);
                    end(&mut bytes, &Completion::Done { request: self.request, last, cursor });
                }
                AnswerFormat::Json => {
                    bytes.push(b']');
                    if self.damaged {
                        bytes.extend_from_slice(b",\"damaged\":true");
                    }
                    if let Some(cursor) = cursor {
                        bytes.extend_from_slice(b",\"cursor\":");
                        digits::put(&mut bytes, &cursor.bytes());
                    }
                    bytes.push(b'}');
                }
            }
        }
        Ok(Some(PermittedBytes::body(bytes, room)))
    }

    /// Returns the whole answer. `first` is its first part.
    pub(super) fn with_first(self, first: Bytes) -> Chunks {
        Box::pin(unfold((Some(first), self), |(first, mut rest)| async move {
            let next = match first {
                Some(first) => Ok(Some(first)),
                None => rest.next().await,
            };
            next.transpose().map(|next| (next, (None, rest)))
        }))
    }
}

/// Writes the end of an answer in RLP.
fn end(bytes: &mut Vec<u8>, completion: &Completion<'_>) {
    bytes.extend_from_slice(&[0; 4]);
    completion.write(bytes);
}
