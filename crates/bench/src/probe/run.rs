//! The settings and keys of one run against a relay.

use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use hark_codec::crypto::{KeyPair, sha256};

use super::info::ProbeInfo;
use crate::websocket::Url;

/// The settings and keys of one run.
#[derive(Debug)]
pub(crate) struct ProbeRun {
    pub(crate) url: Url,
    /// The relay's public address, for AUTH and for requests to vanish.
    pub(crate) public_url: String,
    /// Whether the public address is known, and not only assumed.
    pub(crate) has_public_url: bool,
    pub(crate) info: ProbeInfo,
    /// The longest wait for an answer.
    pub(crate) timeout: Duration,
    /// The pause before each message.
    pub(crate) spacing: Duration,
    /// The key with which the relay lets clients write. `None` if every key may write.
    pub(crate) member: Option<KeyPair>,
    /// The secret of all other keys of the run.
    pub(crate) seed: [u8; 32],
}

impl ProbeRun {
    /// Derives the keys of this name. Runs with different seeds have different keys.
    pub(crate) fn keys(&self, name: &str) -> anyhow::Result<KeyPair> {
        let mut bytes = self.seed.to_vec();
        bytes.extend_from_slice(name.as_bytes());
        KeyPair::from_secret(sha256(&bytes)).context("a hash that is no secret key")
    }

    /// The bits of work that the relay requires (NIP-13). At most 24 bits are computed.
    pub(crate) fn work_bits(&self) -> u32 {
        self.info.limit("min_pow_difficulty").map_or(0, |bits| bits.min(24) as u32)
    }

    /// A short name of this run for the values of tags.
    pub(crate) fn name(&self) -> String {
        crate::text::hex(&sha256(&self.seed))[..12].to_owned()
    }
}

/// The current Unix time in seconds.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Draws a secret for the keys of a run.
pub(crate) fn random_seed() -> anyhow::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).context("the operating system has no random bytes")?;
    Ok(seed)
}
