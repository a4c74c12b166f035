//! Envelopes that peers forward (packet 1). They are archived, and acknowledged where the protocol
//! has acknowledgements.

use std::sync::atomic::Ordering;

use hark_codec::crypto::keccak256;
use hark_codec::record::Id;
use hark_codec::whisper::rlp::{
    RlpItems, bytes_len, head_len, number_len, put_bytes, put_list, put_number,
};
use hark_networks::whisper::admit::EnvelopeRefusal;
use tokio::io::AsyncWrite;

use super::code;
use super::end::PeerSessionEnd;
use super::session::PeerSession;
use crate::rate::RateSource;
use crate::whisper::intake::{EnvelopeRejection, FAULTS_MAX, PendingEnvelope};
use crate::whisper::metrics::MailSource;

/// Maximum number of a packet's envelopes that are not durable yet.
const TOGETHER_MAX: usize = 4_096;

/// Codes of status-go: for an envelope whose time is not current, and for all other faults.
const NOT_IN_TIME: u64 = 21;
const OTHER_FAULT: u64 = 22;
/// Version of the packet with the outcomes of envelopes.
const OUTCOMES_VERSION: u64 = 1;

/// Why an envelope of a packet was not archived.
struct EnvelopeFault {
    hash: Id,
    code: u64,
    text: String,
}

/// The outcomes of the envelopes of a packet.
#[derive(Default)]
struct BatchOutcome {
    faults: Vec<EnvelopeFault>,
    /// The reason for ending the connection, if the peer is at fault.
    end: Option<String>,
    /// Whether more than [`FAULTS_MAX`] envelopes are refused. If so, the rest of the packet is not
    /// read, and the connection ends.
    is_too_much: bool,
}

impl BatchOutcome {
    fn note(&mut self, rlp: &[u8], why: &EnvelopeRejection) {
        use EnvelopeRefusal::{Ahead, Expired, Old};
        use EnvelopeRejection::{Malformed, TooMany, TooManyTopics};
        let code = match why {
            // The envelope has expired in transit. The peer is not at fault.
            EnvelopeRejection::Refused(Expired(_)) => return,
            EnvelopeRejection::Refused(Ahead(_) | Old(_)) => NOT_IN_TIME,
            _ => OTHER_FAULT,
        };
        let is_full = self.faults.len() == FAULTS_MAX;
        if is_full && matches!(why, TooMany | TooManyTopics) {
            // If the network is flooded, an honest peer may forward more envelopes than a rate
            // limit allows.
            return;
        }
        self.is_too_much = is_full;
        // An honest peer may be unaware of this node's bounds, or have a wrong clock. Envelopes
        // that are refused for these reasons are skipped, and the peer stays connected.
        if (matches!(why, Malformed(_)) || self.is_too_much) && self.end.is_none() {
            self.end = Some(why.to_string());
        }
        if self.is_too_much {
            return;
        }
        self.faults.push(EnvelopeFault { hash: keccak256(rlp), code, text: why.to_string() });
    }
}

impl<W: AsyncWrite + Unpin> PeerSession<'_, W> {
    /// Archives the envelopes of a packet. On return, the archived envelopes are durable.
    pub(super) async fn store_packet(&self, packet: &[u8]) -> Result<(), PeerSessionEnd> {
        let unread = |error| PeerSessionEnd::Packet(code::MESSAGES, error);
        let mut items = RlpItems::of_list(packet).map_err(unread)?;
        let (mut outcome, mut pending) = (BatchOutcome::default(), Vec::new());
        // A node that may fetch all envelopes may also send envelopes without a rate limit.
        let sender = (!self.is_trusted()).then_some(RateSource::Address(self.address));
        while !items.is_empty() {
            let rlp = items.raw().map_err(unread)?;
            match self.state.mail.submit(MailSource::Peer, sender, rlp).await {
                Ok(envelope) => pending.push((rlp, envelope)),
                Err(why) => outcome.note(rlp, &why),
            }
            if pending.len() == TOGETHER_MAX {
                self.wait_until_durable(&mut pending, &mut outcome).await;
            }
            if outcome.is_too_much {
                break;
            }
        }
        self.wait_until_durable(&mut pending, &mut outcome).await;
        if self.confirms.load(Ordering::Relaxed) {
            self.acknowledge(packet, &outcome.faults).await?;
        }
        outcome.end.map_or(Ok(()), |why| Err(PeerSessionEnd::Envelope(why)))
    }

    /// Waits until envelopes are durable.
    async fn wait_until_durable(
        &self,
        pending: &mut Vec<(&[u8], PendingEnvelope)>,
        outcome: &mut BatchOutcome,
    ) {
        for (rlp, envelope) in pending.drain(..) {
            if let Err(why) = self.state.mail.wait_until_durable(envelope).await {
                outcome.note(rlp, &why);
            }
        }
    }

    /// Reports to the peer which envelopes of a packet were not archived. All others are durable.
    async fn acknowledge(
        &self,
        packet: &[u8],
        faults: &[EnvelopeFault],
    ) -> Result<(), PeerSessionEnd> {
        let batch = keccak256(packet);
        let (mut outcomes, mut hash) = (Vec::new(), Vec::new());
        write_outcomes(&batch, faults, &mut outcomes);
        put_bytes(&mut hash, &batch);
        self.send_with(|packets| {
            packets.add(code::OUTCOMES, &[&outcomes])?;
            packets.add(code::BATCH_ACKNOWLEDGED, &[&hash])
        })
        .await
    }
}

/// Appends the outcomes of the envelopes of a packet: `[1, [hash of the packet, [[hash of the
/// envelope, code, text], ...]]]`.
fn write_outcomes(batch: &Id, faults: &[EnvelopeFault], out: &mut Vec<u8>) {
    let with_head = |len| head_len(len) + len;
    let fault_len = |fault: &EnvelopeFault| {
        bytes_len(&fault.hash) + number_len(fault.code) + bytes_len(fault.text.as_bytes())
    };
    let faults_len: usize = faults.iter().map(|fault| with_head(fault_len(fault))).sum();
    let response_len = bytes_len(batch) + with_head(faults_len);
    put_list(out, number_len(OUTCOMES_VERSION) + with_head(response_len));
    put_number(out, OUTCOMES_VERSION);
    put_list(out, response_len);
    put_bytes(out, batch);
    put_list(out, faults_len);
    for fault in faults {
        put_list(out, fault_len(fault));
        put_bytes(out, &fault.hash);
        put_number(out, fault.code);
        put_bytes(out, fault.text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_bounded_and_end_the_connection() {
        let late = EnvelopeRejection::Refused(EnvelopeRefusal::Old(99));
        let mut outcome = BatchOutcome::default();
        for _ in 0..FAULTS_MAX {
            outcome.note(b"an envelope", &late);
        }
        assert_eq!((outcome.faults.len(), &outcome.end), (FAULTS_MAX, &None));
        outcome.note(b"one more", &EnvelopeRejection::TooMany);
        assert_eq!((outcome.faults.len(), &outcome.end), (FAULTS_MAX, &None));
        outcome.note(b"one more", &late);
        assert_eq!((outcome.faults.len(), outcome.end.is_some()), (FAULTS_MAX, true));
    }

    #[test]
    fn outcomes_are_lists_within_lists() {
        let fault =
            |code| EnvelopeFault { hash: [7; 32], code, text: "the envelope is too old".into() };
        for faults in [vec![], vec![fault(NOT_IN_TIME)], vec![fault(OTHER_FAULT), fault(1)]] {
            let mut out = Vec::new();
            write_outcomes(&[9; 32], &faults, &mut out);
            let mut items = RlpItems::of_list(&out).unwrap();
            assert_eq!(items.uint64(), Ok(1));
            let mut response = items.list().unwrap();
            assert_eq!((response.array(), items.end()), (Ok(&[9; 32]), Ok(())));
            let mut listed = response.list().unwrap();
            assert_eq!(response.end(), Ok(()));
            for fault in &faults {
                let mut read = listed.list().unwrap();
                assert_eq!((read.array(), read.uint64()), (Ok(&fault.hash), Ok(fault.code)));
                assert_eq!((read.bytes(), read.end()), (Ok(fault.text.as_bytes()), Ok(())));
            }
            assert_eq!(listed.end(), Ok(()));
        }
    }
}
