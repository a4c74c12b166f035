//! `POST /whisper/messages`: a request for history, as RLP or JSON, with a streamed answer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hark_archive::{Order, Query};
use hark_codec::crypto::keccak256;
use hark_codec::whisper::request::TOPICS_MAX;
use hark_codec::whisper::{Bloom, HistoryCursor, HistoryRequest, RequestError, Topic};
use hark_networks::object;
use hark_networks::whisper::digits;
use serde::Deserialize;

use super::stream::{AnswerFormat, HistoryStream};
use super::{JSON, MailState, RLP, is_json, source, streamed};
use crate::rest::RestAnswer;
use crate::whisper::MailServer;
use crate::whisper::history::{EnvelopeQuestion, MailError};
use crate::whisper::metrics::{MailSource, RequestFate};

/// The header of an answer whose first page lacks a damaged envelope.
const DAMAGED: HeaderName = HeaderName::from_static("hark-damaged");

/// Answers a request.
pub(super) async fn history(State(rest): MailState, request: Request) -> Response {
    let source = source(&request);
    let (as_json, format) = (is_json(&request), format_of(&request));
    let newest_first = match order(request.uri().query().unwrap_or_default()) {
        Ok(newest_first) => newest_first,
        Err(words) => return refuse(&rest.mail, words),
    };
    let body = match rest.body(request).await {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    if let Err(error) = rest.mail.allow(source) {
        return fail(&rest.mail, &error);
    }
    let question = if as_json {
        read_json(&rest.mail, &body.bytes)
    } else {
        HistoryRequest::parse(&body.bytes)
            .map(|request| rest.mail.question(&request, usize::MAX))
            .map_err(|error| error.to_string())
    };
    let mut question = match question {
        Ok(question) => question,
        Err(words) => return refuse(&rest.mail, words),
    };
    if newest_first {
        question.query.order = Order::NewestFirst;
    }
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

fn refuse(mail: &MailServer, words: String) -> Response {
    mail.count_request(MailSource::Rest, RequestFate::Refused);
    RestAnswer::refused(words + "\n").into_response()
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
fn order(query: &str) -> Result<bool, String> {
    let mut newest_first = false;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter {
            "order=newest" => newest_first = true,
            "order=oldest" => newest_first = false,
            other => {
                return Err(format!("`{other}` is neither order=oldest nor order=newest"));
            }
        }
    }
    Ok(newest_first)
}

/// A request in JSON. Omitted keys match all envelopes. Times are seconds since 1970, inclusive.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonHistoryRequest {
    topics: Option<Vec<String>>,
    bloom: Option<String>,
    from: Option<u64>,
    to: Option<u64>,
    limit: Option<usize>,
    cursor: Option<String>,
}

fn read_json(mail: &MailServer, body: &[u8]) -> Result<EnvelopeQuestion, String> {
    let request: JsonHistoryRequest = object::read(body).map_err(|error| error.to_string())?;
    let query = Query {
        from: request.from.unwrap_or(0),
        // 0 means no bound, as in peers' requests.
        to: request.to.filter(|to| *to > 0).unwrap_or(u64::MAX),
        order: Order::OldestFirst,
        limit: request.limit.filter(|limit| *limit > 0).unwrap_or(usize::MAX),
        ..Query::default()
    };
    let mut question = EnvelopeQuestion { query, filter: None };
    if let Some(cursor) = request.cursor {
        let bytes = digits::read_array::<{ HistoryCursor::BYTES }>(&cursor);
        let cursor = bytes.and_then(|bytes| HistoryCursor::read(&bytes));
        question.go_on(cursor.ok_or("`cursor` is not 36 bytes in hex digits")?);
    }
    match (request.topics, request.bloom) {
        (Some(_), Some(_)) => return Err("`topics` and `bloom` exclude each other".into()),
        (Some(topics), None) if topics.len() > TOPICS_MAX => {
            return Err(RequestError::TooManyTopics(topics.len()).to_string());
        }
        (Some(topics), None) => {
            let read = |topic: &String| {
                let read = digits::read_array::<4>(topic);
                read.ok_or_else(|| format!("`topics` has {topic:?}, which is not 4 bytes"))
            };
            question.want(topics.iter().map(read).collect::<Result<Vec<Topic>, _>>()?);
        }
        (None, Some(bloom)) => {
            let bloom =
                digits::read_array(&bloom).ok_or("`bloom` is not 64 bytes in hex digits")?;
            question.cover(&Bloom(bloom), &mail.topics);
        }
        (None, None) => {}
    }
    Ok(question)
}
