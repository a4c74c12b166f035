//! Whisper's requests for history. A request in any form that can be read has the same content
//! after it is written in the current form.

use hark_codec::whisper::HistoryRequest;
use hark_codec::whisper::request::TOPICS_MAX;

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    for request in [
        HistoryRequest::parse(bytes).ok(),
        HistoryRequest::parse_open(bytes).ok().map(|(_, request)| request),
    ] {
        let Some(request) = request else { continue };
        assert!(request.topics.len() <= TOPICS_MAX);
        assert!(request.upper == 0 || request.lower <= request.upper);
        assert!(request.bloom.is_some() || !request.topics.is_empty());
        let mut out = Vec::new();
        request.write(request.topics.iter(), &mut out);
        assert_eq!(HistoryRequest::parse(&out), Ok(request));
    }
}
