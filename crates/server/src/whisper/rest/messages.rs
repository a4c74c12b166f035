//! `POST /whisper/messages`: a request for history, as RLP or JSON, with a streamed answer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hark_codec::crypto::keccak256;
use hark_codec::whisper::{HistoryRequest, RequestError};
use hark_networks::whisper::history::{EnvelopeRequest, JsonRequestFault, MailError};

use super::state::{JSON, MailState, RLP, is_json, streamed};
use super::stream::{AnswerFormat, HistoryStream};
use crate::rest::{RestAnswer, source};
use crate::whisper::mail_server::MailServer;
use crate::whisper::metrics::{MailSource, RequestFate};

/// The header of an answer whose first page omits a damaged envelope.
const DAMAGED: HeaderName = HeaderName::from_static("hark-damaged");

/// Answers a request.
pub(super) async fn history(State(rest): MailState, request: Request) -> Response {
    let source = source(&request);
    let (as_json, format) = (is_json(&request), format_of(&request));
    let newest_first = match order(request.uri().query().unwrap_or_default()) {
        Ok(newest_first) => newest_first,
        Err(fault) => return refuse(&rest.mail, &fault),
    };
    let body = match rest.body(request).await {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    if let Err(error) = rest.mail.allow(source) {
        return fail(&rest.mail, &error);
    }
    let mut wanted = match read(&body.bytes, as_json) {
        Ok(wanted) => wanted,
        Err(fault) => return refuse(&rest.mail, &fault),
    };
    wanted.newest_first = newest_first;
    let question = match rest.mail.question(wanted, usize::MAX).await {
        Ok(question) => question,
        Err(error) => return fail(&rest.mail, &error),
    };
    let request = keccak256(&body.bytes);
    drop(body);
    let mut answer = HistoryStream::new(Arc::clone(&rest.mail), source, question, request, format);
    // The first page decides the status.
    let first = match answer.next().await {
        Ok(first) => first.unwrap_or_default(),
        Err(error) => return fail(&rest.mail, &error),
    };
    let content_type = if format == AnswerFormat::Json { JSON } else { RLP };
    let is_damaged = answer.has_met_damage();
    let mut response = streamed(content_type, Body::from_stream(answer.with_first(first)));
    if is_damaged {
        response.headers_mut().insert(DAMAGED, HeaderValue::from_static("true"));
    }
    response
}

/// Why a request is refused. The texts are for clients.
#[derive(Debug, thiserror::Error)]
enum MessagesFault {
    #[error("`{0}` is neither order=oldest nor order=newest")]
    Order(String),
    #[error(transparent)]
    Json(#[from] JsonRequestFault),
    #[error(transparent)]
    Rlp(#[from] RequestError),
}

/// Reads the body of a request.
fn read(body: &[u8], as_json: bool) -> Result<EnvelopeRequest, MessagesFault> {
    if as_json {
        return Ok(EnvelopeRequest::read_json(body)?);
    }
    Ok((&HistoryRequest::parse(body)?).into())
}

fn refuse(mail: &MailServer, fault: &MessagesFault) -> Response {
    mail.count_request(MailSource::Rest, RequestFate::Refused);
    RestAnswer::refused(format!("{fault}\n")).into_response()
}

fn fail(mail: &MailServer, error: &MailError) -> Response {
    mail.count_request(MailSource::Rest, error.into());
    let status = match error {
        MailError::TooMany => StatusCode::TOO_MANY_REQUESTS,
        MailError::TooDear => StatusCode::BAD_REQUEST,
        MailError::Busy | MailError::Gone | MailError::Down | MailError::Archive(_) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    RestAnswer::words(status, format!("{error}\n")).into_response()
}

/// Returns the format that the client wants: RLP, unless the client requests JSON.
fn format_of(request: &Request) -> AnswerFormat {
    let mut accepted = request.headers().get_all(ACCEPT).iter();
    let is_json = accepted.any(|types| {
        let mut types = types.to_str().unwrap_or_default().split(',');
        types.any(|of| of.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(JSON))
    });
    if is_json { AnswerFormat::Json } else { AnswerFormat::Rlp }
}

/// Reads `order` from a query string. Returns whether the newest envelopes come first.
fn order(query: &str) -> Result<bool, MessagesFault> {
    let mut newest_first = false;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter {
            "order=newest" => newest_first = true,
            "order=oldest" => newest_first = false,
            other => return Err(MessagesFault::Order(other.into())),
        }
    }
    Ok(newest_first)
}
