//! The conditions under which envelopes are accepted from peers: the checks of go-ethereum
//! (`Whisper.add`).

use hark_codec::whisper::Envelope;

/// Maximum number of seconds by which an envelope's time of sending may lie in the future, because
/// clocks differ.
pub const AHEAD_MAX_S: u64 = 10;
/// Number of seconds after its expiry within which an envelope may still arrive without a fault of
/// the sending peer.
pub const EXPIRED_MAX_S: u64 = 20;

/// The bounds of envelopes that are accepted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnvelopeBounds {
    /// Maximum of [`Envelope::size`], in bytes.
    pub envelope_bytes_max: usize,
    /// Minimum of [`Envelope::pow`].
    pub pow_min: f64,
}

impl Default for EnvelopeBounds {
    /// The bounds of status-go's nodes since July 2020. Clients of status-go seal messages above 50
    /// KB with a proof of work of only this minimum. go-ethereum's minimum is 0.2.
    fn default() -> Self {
        Self { envelope_bytes_max: 1 << 20, pow_min: 0.000_002 }
    }
}

/// Why an envelope is refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum EnvelopeRefusal {
    /// The envelope would have been sent before 1970.
    #[error("the envelope's ttl of {0} s is more than its expiry of {1}")]
    Ttl(u32, u32),
    /// See [`AHEAD_MAX_S`].
    #[error("the envelope was sent {0} s in the future, more than the allowed {AHEAD_MAX_S} s")]
    Ahead(u64),
    /// The envelope expired on its way, at most [`EXPIRED_MAX_S`] seconds ago.
    #[error("the envelope expired {0} s ago")]
    Expired(u64),
    /// The envelope expired more than [`EXPIRED_MAX_S`] seconds ago, so no node should still send
    /// this envelope.
    #[error("the envelope expired {0} s ago, more than {EXPIRED_MAX_S} s")]
    Old(u64),
    /// See [`EnvelopeBounds::envelope_bytes_max`].
    #[error("the envelope has {0} bytes, more than the allowed {1}")]
    Size(usize, usize),
    /// See [`EnvelopeBounds::pow_min`].
    #[error("the envelope's proof of work is {0}, less than the minimum of {1}")]
    Pow(f64, f64),
}

impl EnvelopeBounds {
    /// Checks whether a received envelope is accepted.
    pub fn admit(&self, envelope: &Envelope<'_>, now_s: u64) -> Result<(), EnvelopeRefusal> {
        self.admit_old(envelope)?;
        let ahead = u64::from(envelope.sent()).saturating_sub(now_s);
        if ahead > AHEAD_MAX_S {
            return Err(EnvelopeRefusal::Ahead(ahead));
        }
        match now_s.saturating_sub(envelope.expiry.into()) {
            0 => {}
            expired if expired <= EXPIRED_MAX_S => return Err(EnvelopeRefusal::Expired(expired)),
            expired => return Err(EnvelopeRefusal::Old(expired)),
        }
        // Nodes forward an envelope from the future for longer than its `ttl`, until its expiry.
        // One more second is added for the transit.
        let longer = if ahead > 0 { ahead as u32 + 1 } else { 0 };
        let pow = envelope.pow_for(envelope.ttl.saturating_add(longer));
        if pow < self.pow_min { Err(EnvelopeRefusal::Pow(pow, self.pow_min)) } else { Ok(()) }
    }

    /// Does the same as [`EnvelopeBounds::admit`], without checking age and proof of work, for an
    /// envelope that another server has accepted before.
    pub fn admit_old(&self, envelope: &Envelope<'_>) -> Result<(), EnvelopeRefusal> {
        if envelope.ttl > envelope.expiry {
            return Err(EnvelopeRefusal::Ttl(envelope.ttl, envelope.expiry));
        }
        let (size, size_max) = (envelope.size(), self.envelope_bytes_max);
        if size > size_max { Err(EnvelopeRefusal::Size(size, size_max)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: u64 = 1_554_076_800;

    fn envelope() -> Envelope<'static> {
        Envelope { expiry: SENT as u32 + 50, ttl: 50, topic: [7; 4], data: &[7; 80], nonce: 3 }
    }

    #[test]
    fn bounds_hold_to_the_last_one() {
        let bounds = EnvelopeBounds { envelope_bytes_max: 100, pow_min: 0.0 };
        let good = envelope();
        for (envelope, now, expected) in [
            (good, SENT, Ok(())),
            (good, SENT - 10, Ok(())),
            (good, SENT - 11, Err(EnvelopeRefusal::Ahead(11))),
            (good, 0, Err(EnvelopeRefusal::Ahead(SENT))),
            (good, SENT + 50, Ok(())),
            (good, SENT + 51, Err(EnvelopeRefusal::Expired(1))),
            (good, SENT + 70, Err(EnvelopeRefusal::Expired(20))),
            (good, SENT + 71, Err(EnvelopeRefusal::Old(21))),
            (good, u64::MAX, Err(EnvelopeRefusal::Old(u64::MAX - SENT - 50))),
            (Envelope { data: &[7; 81], ..good }, SENT, Err(EnvelopeRefusal::Size(101, 100))),
            (Envelope { expiry: 49, ..good }, SENT, Err(EnvelopeRefusal::Ttl(50, 49))),
            (Envelope { expiry: 50, ..good }, 0, Ok(())),
            (Envelope { expiry: u32::MAX, ..good }, u64::from(u32::MAX), Ok(())),
        ] {
            assert_eq!(bounds.admit(&envelope, now), expected, "{envelope:?} at {now}");
        }
        assert_eq!(bounds.admit_old(&good), Ok(()));
    }

    #[test]
    fn one_from_the_future_needs_a_proof_for_the_longer_time() {
        let good = envelope();
        let bounds = EnvelopeBounds { pow_min: good.pow(), ..EnvelopeBounds::default() };
        assert_eq!((bounds.admit(&good, SENT), bounds.admit(&good, SENT + 50)), (Ok(()), Ok(())));
        // The envelope is four seconds ahead, and one second is added for its transit.
        let less = good.pow() * 50.0 / 55.0;
        match bounds.admit(&good, SENT - 4).unwrap_err() {
            EnvelopeRefusal::Pow(pow, minimum) => {
                assert!((pow - less).abs() < 1e-12 && minimum >= good.pow(), "{pow} {minimum}");
            }
            other => panic!("{other}"),
        }
        let bounds = EnvelopeBounds { pow_min: 0.2, ..EnvelopeBounds::default() };
        let said = bounds.admit(&good, SENT).unwrap_err().to_string();
        assert!(said.contains("less than the minimum of 0.2"), "{said}");
        assert_eq!(bounds.admit_old(&Envelope { nonce: 4, ..good }), Ok(()));
    }

    /// status-go seals a message above 50 KB for a ttl of 15 s with a proof of work of 0.000002,
    /// which nearly every nonce provides.
    #[test]
    fn long_messages_of_status_clients_have_enough_work() {
        let data = vec![7; 60_000];
        let of = |nonce| Envelope {
            expiry: SENT as u32 + 15,
            ttl: 15,
            topic: [7; 4],
            data: &data,
            nonce,
        };
        let sealed = (0..1_000_000).map(of).find(|envelope| envelope.pow() >= 0.000_002).unwrap();
        assert!(sealed.pow() < 0.002);
        assert_eq!(EnvelopeBounds::default().admit(&sealed, SENT), Ok(()));
    }
}
