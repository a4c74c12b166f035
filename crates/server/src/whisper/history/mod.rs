//! Answers requests for history: `hark_networks::whisper::history` turns a request into a search,
//! and the records into pages.

use std::time::Instant;

use hark_networks::whisper::history::{
    EnvelopePage, EnvelopeQuestion, EnvelopeRequest, MailError, PageBounds, TopicChoice,
};

use super::mail_server::MailServer;
use super::metrics::MailSource;
use crate::answers::PermittedAnswer;
use crate::rate::RateSource;
use crate::service::{NotAsked, TooManyQuestions};

/// Maximum total size of the envelopes on an answer's first page, in bytes, unless a single
/// envelope is longer.
const PAGE_BYTES: usize = 256 << 10;
/// Maximum total size of the envelopes on each later page of a long answer, in bytes. Each page is
/// a separate search.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Number of bytes of an answer in JSON for each byte of an envelope: two digits, and the names of
/// the fields.
const JSON_EXPANSION: usize = 3;

/// Maximum size of an answer's next page, in bytes. Each page may be twice as long as the previous
/// page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageBytes {
    envelopes: usize,
    /// Number of bytes of the answer for each byte of an envelope.
    expansion: usize,
}

impl Default for PageBytes {
    fn default() -> Self {
        Self { envelopes: PAGE_BYTES, expansion: 1 }
    }
}

impl PageBytes {
    /// Creates the bounds of pages whose envelopes are sent in JSON.
    pub(crate) fn of_json() -> Self {
        Self { expansion: JSON_EXPANSION, ..Self::default() }
    }

    /// Allows a longer next page.
    pub(crate) fn grow(&mut self) {
        self.envelopes = PAGE_BYTES_MAX.min(2 * self.envelopes);
    }
}

/// Returns the error for a request whose search was not run.
fn refusal_error(why: NotAsked) -> MailError {
    match why {
        NotAsked::Line => MailError::Busy,
        NotAsked::Panicked => MailError::Down,
    }
}

impl MailServer {
    /// Charges one request to a client. Fails if the client exceeds a rate limit.
    pub(super) fn allow(&self, from: RateSource) -> Result<(), MailError> {
        let admitted = self.service.questions.admit(from, self.settings().requests);
        admitted.map_err(|TooManyQuestions| MailError::TooMany)
    }

    /// Creates the search for a request. A request without a limit gets `limit_default`.
    pub(super) async fn question(
        &self,
        request: EnvelopeRequest,
        limit_default: usize,
    ) -> Result<EnvelopeQuestion, MailError> {
        if matches!(&request.topics, TopicChoice::Covered(bloom) if !bloom.is_full()) {
            self.news.read(&self.service.shelf).await?;
        }
        let condition = |bloom: &_| self.topics.condition(bloom);
        Ok(EnvelopeQuestion::new(request, condition, self.now_s(), limit_default))
    }

    /// Returns the next page of a search. If the source's share of the memory for pages does not
    /// suffice for a long page, the page has at most the size of an answer's first page.
    pub(super) async fn page(
        &self,
        (from, source): (MailSource, RateSource),
        question: &EnvelopeQuestion,
        PageBytes { envelopes, expansion }: PageBytes,
    ) -> Result<PermittedAnswer<EnvelopePage>, MailError> {
        let (answers, questions) = (&self.service.answers, &self.service.questions);
        let take = |bytes| Some((bytes, answers.reserve(source, bytes * expansion)?));
        let taken = take(envelopes).or_else(|| take(PAGE_BYTES));
        let (bytes, mut room) = taken.ok_or(MailError::Busy)?;
        let began = Instant::now();
        let bounds = PageBounds { envelopes: usize::MAX, bytes };
        let (asked, rows_max) = (question.clone(), self.settings().query_rows_max);
        let found = questions.search(source, rows_max, move |search| asked.page(search, &bounds));
        let found = found.await.map_err(refusal_error)?;
        let time = began.elapsed();
        self.metrics.page.note(time);
        questions.note("MAIL", time, &found, || question.query.clone());
        let page = found.result?;
        room.shrink(page.rlp().len() * expansion);
        self.metrics.sent.of(from).add(page.len() as u64);
        self.metrics.sent_bytes.of(from).add(page.rlp().len() as u64);
        self.metrics.damaged.of(from).add(page.damaged.into());
        Ok(PermittedAnswer { page, room })
    }
}

#[cfg(test)]
mod tests;
