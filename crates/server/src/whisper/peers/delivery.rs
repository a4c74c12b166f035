//! Answers requests for history: pages of envelopes, sent as fast as the peer reads, and then a
//! packet that ends the answer.

use hark_codec::record::Id;
use hark_codec::whisper::request::LIMIT_MAX;
use hark_codec::whisper::rlp::{RlpItems, head_len, put_bytes, put_list, put_number};
use hark_codec::whisper::{Bloom, Completion, HistoryCursor, HistoryRequest, RlpError};
use hark_networks::whisper::history::{EnvelopePage, EnvelopeQuestion, MailError};
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;

use super::code;
use super::end::PeerSessionEnd;
use super::form::PeerForm;
use super::mail::{MailRequest, PeerQuestion};
use super::session::PeerSession;
use crate::rate::{RateSource, RateSubject};
use crate::service::TooManyQuestions;
use crate::whisper::history::PageBytes;
use crate::whisper::metrics::{MailSource, RequestFate};

/// Maximum number of envelopes in the answer to a request without a limit, as in status-go.
const LIMIT_DEFAULT: usize = 1_000;

/// How the envelopes of a page are divided into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageForm {
    /// A list of all envelopes, as in `waku/1`.
    List,
    /// A list of one envelope in each packet, for a request that does not accept batches.
    ListOfOne,
    /// A single envelope in each packet, as in `shh/6`.
    Bare,
    /// A list of all envelopes, in a packet for another mail server.
    Sync,
}

/// The point that an answer has reached: the last envelope sent, and the cursor of the next page.
#[derive(Default)]
struct DeliveredPages {
    last: Option<HistoryCursor>,
    cursor: Option<HistoryCursor>,
}

impl<W: AsyncWrite + Unpin> PeerSession<'_, W> {
    /// Answers requests one after the other.
    pub(super) async fn answer_all(
        &self,
        mut asked: mpsc::Receiver<PeerQuestion>,
    ) -> PeerSessionEnd {
        while let Some(question) = asked.recv().await {
            let answered = match question {
                PeerQuestion::Mail(request) => self.answer(&request).await,
                PeerQuestion::Sync(packet) => self.sync(&packet).await,
            };
            if let Err(end) = answered {
                return end;
            }
        }
        // The reading side ends the session, so this function need not return.
        std::future::pending().await
    }

    /// Refuses a request whose answer was not begun.
    pub(super) async fn refuse(
        &self,
        question: &PeerQuestion,
        why: &str,
    ) -> Result<(), PeerSessionEnd> {
        match question {
            PeerQuestion::Mail(request) => self.fail(&request.id, why).await,
            PeerQuestion::Sync(_) => self.end_sync(None, false, why).await,
        }
    }

    async fn answer(&self, request: &MailRequest) -> Result<(), PeerSessionEnd> {
        if let Err(error) = self.allow() {
            return self.refuse_mail(&request.id, &error).await;
        }
        // go-ethereum's clients cannot request a second page, so they get all envelopes at once.
        let is_whole = self.form == PeerForm::Shh && request.is_bare();
        let limit = if is_whole { usize::MAX } else { LIMIT_DEFAULT };
        let question = match self.state.mail.question(request.wanted.clone(), limit).await {
            Ok(question) => question,
            Err(error) => return self.refuse_mail(&request.id, &error).await,
        };
        let form = match self.form {
            PeerForm::Waku if request.batch => PageForm::List,
            PeerForm::Waku => PageForm::ListOfOne,
            PeerForm::Shh => PageForm::Bare,
        };
        match self.deliver(question, form).await? {
            Ok(sent) => {
                self.state.mail.count_request(MailSource::Peer, RequestFate::Answered);
                let last = sent.last.map_or([0; 32], |last| last.hash);
                let done = Completion::Done { request: request.id, last, cursor: sent.cursor };
                let mut packet = Vec::new();
                done.write(&mut packet);
                self.send(code::COMPLETE, &[&packet]).await
            }
            Err(error) => self.refuse_mail(&request.id, &error).await,
        }
    }

    /// Charges a request to the peer and its address. Fails if either exceeds its limit.
    fn allow(&self) -> Result<(), MailError> {
        let pause = self.state.request_pause;
        if !pause.is_zero() {
            let subject = RateSubject::QuestionsOf(self.key());
            let paused = self.state.mail.service.questions.pause(subject, pause);
            paused.map_err(|TooManyQuestions| MailError::TooMany)?;
        }
        self.state.mail.allow(RateSource::Address(self.address))
    }

    async fn refuse_mail(&self, request: &Id, error: &MailError) -> Result<(), PeerSessionEnd> {
        self.state.mail.count_request(MailSource::Peer, error.into());
        self.fail(request, &error.to_string()).await
    }

    /// Sends the pages of a search. The inner error is reported to the peer, and the outer error
    /// ends the session.
    async fn deliver(
        &self,
        mut question: EnvelopeQuestion,
        form: PageForm,
    ) -> Result<Result<DeliveredPages, MailError>, PeerSessionEnd> {
        let (mut sent, mut bytes) = (DeliveredPages::default(), PageBytes::default());
        loop {
            let from = (MailSource::Peer, RateSource::Address(self.address));
            let found = match self.state.mail.page(from, &question, bytes).await {
                Ok(found) => found,
                Err(error) => return Ok(Err(error)),
            };
            let page = &found.page;
            if !page.is_empty() {
                self.send_page(page, form).await?;
            }
            question.advance(page);
            // A page as a list is one packet, and peers refuse packets above the maximum message
            // size. Pages in the other forms are sent as several packets, so they may grow.
            if form != PageForm::List && form != PageForm::Sync {
                bytes.grow();
            }
            sent = DeliveredPages { last: page.last.or(sent.last), cursor: page.cursor() };
            if sent.cursor.is_none() || question.query.limit == 0 {
                return Ok(Ok(sent));
            }
        }
    }

    async fn send_page(&self, page: &EnvelopePage, form: PageForm) -> Result<(), PeerSessionEnd> {
        let list = |len| {
            let mut head = Vec::new();
            put_list(&mut head, len);
            head
        };
        self.send_with(|packets| match form {
            PageForm::List => packets.add(code::DIRECT, &[&list(page.rlp().len()), page.rlp()]),
            PageForm::ListOfOne => page.envelopes().try_for_each(|envelope| {
                packets.add(code::DIRECT, &[&list(envelope.len()), envelope])
            }),
            PageForm::Bare => {
                page.envelopes().try_for_each(|envelope| packets.add(code::DIRECT, &[envelope]))
            }
            PageForm::Sync => {
                let (head, rest) = around_sync(page.rlp().len(), None, false, "");
                packets.add(code::SYNC_RESPONSE, &[&head, page.rlp(), &rest])
            }
        })
        .await
    }

    /// Answers a mail server that copies this archive.
    async fn sync(&self, packet: &[u8]) -> Result<(), PeerSessionEnd> {
        let request = match sync_request(packet) {
            Ok(request) => request,
            Err(error) => return Err(PeerSessionEnd::Packet(code::SYNC_REQUEST, error)),
        };
        let request = HistoryRequest { limit: request.limit.min(LIMIT_MAX), ..request };
        let delivered = match self.state.mail.question((&request).into(), LIMIT_DEFAULT).await {
            Ok(question) => self.deliver(question, PageForm::Sync).await?,
            Err(error) => Err(error),
        };
        match delivered {
            Ok(sent) => {
                self.state.mail.count_request(MailSource::Peer, RequestFate::Answered);
                self.end_sync(sent.cursor, true, "").await
            }
            Err(error) => {
                self.state.mail.count_request(MailSource::Peer, (&error).into());
                self.end_sync(None, false, &error.to_string()).await
            }
        }
    }

    /// Sends the end of an answer to a mail server.
    pub(super) async fn end_sync(
        &self,
        cursor: Option<HistoryCursor>,
        is_done: bool,
        error: &str,
    ) -> Result<(), PeerSessionEnd> {
        let (head, rest) = around_sync(0, cursor, is_done, error);
        self.send(code::SYNC_RESPONSE, &[&head, &rest]).await
    }
}

/// Encodes the parts around the envelopes in an answer to a mail server. `envelopes` is the size of
/// the envelopes in bytes. The format is `[[envelope, ...], cursor, is_end, error]`.
fn around_sync(
    envelopes: usize,
    cursor: Option<HistoryCursor>,
    is_done: bool,
    error: &str,
) -> (Vec<u8>, Vec<u8>) {
    let cursor = cursor.map(|cursor| cursor.bytes());
    let (mut head, mut rest) = (Vec::new(), Vec::new());
    put_bytes(&mut rest, cursor.as_ref().map_or(&[][..], |cursor| cursor));
    put_number(&mut rest, is_done.into());
    put_bytes(&mut rest, error.as_bytes());
    put_list(&mut head, head_len(envelopes) + envelopes + rest.len());
    put_list(&mut head, envelopes);
    (head, rest)
}

/// Parses the request of a mail server: `[lower, upper, bloom, limit, cursor]`.
fn sync_request(packet: &[u8]) -> Result<HistoryRequest<'static>, RlpError> {
    let mut items = RlpItems::of_list(packet)?;
    let (lower, upper) = (items.uint32()?, items.uint32()?);
    let bloom = items.bytes()?;
    let wrong = RlpError::Width(bloom.len(), hark_codec::whisper::bloom::BYTES);
    let bloom = Some(Bloom::read(bloom).ok_or(wrong)?);
    let limit = items.uint32()?;
    let cursor = items.bytes()?;
    let wrong = RlpError::Width(cursor.len(), HistoryCursor::BYTES);
    let cursor = match cursor {
        [] => None,
        cursor => Some(HistoryCursor::read(cursor).ok_or(wrong)?),
    };
    items.end()?;
    Ok(HistoryRequest {
        lower,
        upper,
        bloom,
        limit,
        cursor,
        batch: true,
        ..HistoryRequest::default()
    })
}
