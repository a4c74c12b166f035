//! Counts the refusals of a client: in the metrics, on the client's connection, and in the log if
//! there are many. Also sends the reason for which the operator disconnects a client.

use hark_networks::nostr::{NostrRefusal, NostrVerdict};

use super::metrics::{ConnectionEnd, RelayMetrics, Verb};
use crate::metrics::MetricLabel as _;
use crate::rate::RatedConnection;
use crate::roster::{ClientRefusal, OpenConnection};
use crate::websocket::Socket;

/// The code of the close frame for a client that the operator disconnects (RFC 6455, section 7.4).
const POLICY_VIOLATION: u16 = 1008;

/// The refusal of frames that break the protocol.
const BROKEN: ClientRefusal<'_> = ClientRefusal {
    verb: "frame",
    verdict: "invalid",
    reason: "the client breaks the protocol of WebSockets",
    is_of_record: false,
    is_logged: true,
};

/// Counts a refused message of a client.
pub(super) fn note_refusal(
    metrics: &RelayMetrics,
    client: &RatedConnection,
    verb: Verb,
    refusal: &NostrRefusal,
) {
    metrics.refused(verb, refusal.verdict);
    let listed = client.listed();
    if verb == Verb::Event && refusal.verdict.is_accepted() {
        return listed.counts.accepted.add(1);
    }
    listed.refuse(&ClientRefusal {
        verb: verb.name(),
        verdict: refusal.verdict.prefix(),
        reason: &refusal.words,
        is_of_record: verb == Verb::Event,
        is_logged: is_logged(refusal.verdict),
    });
}

/// Counts the end of a session, which is the client's fault if the client breaks the protocol.
pub(super) fn note_end(metrics: &RelayMetrics, client: &RatedConnection, end: ConnectionEnd) {
    metrics.ended.of(end).add(1);
    if end == ConnectionEnd::Protocol {
        client.listed().refuse(&BROKEN);
    }
}

/// Buffers the operator's reason for closing a connection, as a NOTICE and in the close frame.
pub(super) fn feed_kick(socket: &mut Socket, listed: &OpenConnection) {
    let reason = listed.kick_reason().unwrap_or_default().to_owned();
    let (refusal, mut notice) = (NostrVerdict::Blocked.because(reason), Vec::new());
    refusal.write_notice(&mut notice);
    socket.feed_text(&[&notice]);
    socket.feed_close_text(POLICY_VIOLATION, &refusal.to_string());
}

/// Whether a refusal may be logged with its client. The other refusals are a part of normal use, or
/// the server's own faults.
fn is_logged(verdict: NostrVerdict) -> bool {
    use NostrVerdict::{Blocked, Invalid, Pow, RateLimited, Restricted, Unsupported};
    matches!(verdict, Blocked | Invalid | Pow | RateLimited | Restricted | Unsupported)
}
