//! The flags of the checks of a relay.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use hark_codec::crypto::KeyPair;
use hark_codec::hex;

use super::common::seconds;
use crate::probe::info::ProbeInfo;
use crate::probe::run::{ProbeRun, random_seed};
use crate::websocket::Url;

/// The flags that both checks have.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// The relay's public address, for AUTH (NIP-42) and requests to vanish (NIP-62) [default: the
    /// address of the relay as given]
    #[arg(long, value_name = "URL")]
    relay_url: Option<String>,

    /// A secret key in hex with which the relay lets clients write; without this flag, all keys are
    /// fresh
    #[arg(long, value_name = "HEX", value_parser = secret_key)]
    secret: Option<KeyPair>,

    /// The longest wait for an answer, in seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    timeout: f64,

    /// Pause before each message in milliseconds, for relays that limit rates
    #[arg(long, value_name = "MS", default_value_t = 0)]
    spacing: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench rules ws://127.0.0.1:7777
  hark bench rules ws://127.0.0.1:7777 --only NIP-09 --only NIP-62
  hark bench rules ws://127.0.0.1:7777 --relay-url wss://relay.example --json > rules.json
  hark bench rules --list --md                      the rules, without a relay

Each rule is a sentence of a NIP. A rule is passed, failed, not supported by the relay, or undecided:
then the relay has refused a message that the check needs. A failed rule is shown with its last
messages. The exit code is 1 if a rule has failed whose sentence has MUST or defines the protocol
(plain). Failed rules with SHOULD or MAY are only shown.

All events have keys of the run. At the end, the events are deleted by deletion requests (NIP-09), or
by requests to vanish (NIP-62) if the relay supports them; these requests remain.")]
pub(crate) struct RulesArgs {
    /// The relay to check
    #[arg(value_name = "URL", required_unless_present = "list")]
    pub(crate) url: Option<Url>,

    #[command(flatten)]
    pub(crate) probe: ProbeArgs,

    /// Only rules with this text in their names; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,

    /// Print the rules with their sentences, and check nothing
    #[arg(long)]
    pub(crate) list: bool,

    /// Print JSON, as docs/benchmarks.md describes the format
    #[arg(long, conflicts_with = "md")]
    pub(crate) json: bool,

    /// Print a table in Markdown
    #[arg(long)]
    pub(crate) md: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench answers ws://127.0.0.1:7777
  hark bench answers ws://127.0.0.1:7777 --events 5000 --questions 20000 --seed 3
  hark bench answers ws://127.0.0.1:7777 --seed 3 --load-only   then restart the relay, and
  hark bench answers ws://127.0.0.1:7777 --seed 3 --ask-only

The events are hard ones: many with the same second, replaceable events, deletions, many tags, long
values, several alphabets, extreme kinds and times. All questions name authors or tags of the run, so
the relay may have other events. A small program without the code of any relay computes the right
answers. A wrong answer is shown with its filters, and the exit code is 1. The same seed, time and
numbers give the same events and questions.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command")]
pub(crate) struct AnswersArgs {
    /// The relay to check
    #[arg(value_name = "URL")]
    pub(crate) url: Url,

    #[command(flatten)]
    pub(crate) probe: ProbeArgs,

    /// Number of events to publish
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) events: u64,

    /// Number of questions to ask
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) questions: u64,

    /// The seed of keys, events and questions [default: a random seed, which is shown]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Time of the newest events, in seconds since 1970 [default: the start of today]
    #[arg(long, value_name = "S")]
    pub(crate) to: Option<u64>,

    /// Only publish the events
    #[arg(long, conflicts_with = "ask_only")]
    pub(crate) load_only: bool,

    /// Only ask; the relay has the events of an earlier run with the same seed
    #[arg(long, requires = "seed")]
    pub(crate) ask_only: bool,

    /// Numbers of the events that the relay has refused, as the run with --load-only has printed
    /// the numbers
    #[arg(long, value_name = "N,N", value_delimiter = ',', requires = "ask_only")]
    pub(crate) without: Vec<usize>,

    /// Leave the events in the relay; without this flag, they are deleted at the end
    #[arg(long)]
    pub(crate) leave: bool,

    /// Print JSON, as docs/benchmarks.md describes the format
    #[arg(long)]
    pub(crate) json: bool,
}

impl ProbeArgs {
    /// Reads the relay's information document, and draws the keys of a run.
    pub(crate) async fn start(
        &self,
        url: &Url,
        seed: Option<[u8; 32]>,
    ) -> anyhow::Result<ProbeRun> {
        let timeout = Duration::from_secs_f64(self.timeout);
        let info = ProbeInfo::fetch(url, timeout).await;
        let info = info.with_context(|| format!("no connection to {}", url.text))?;
        Ok(ProbeRun {
            url: url.clone(),
            has_public_url: self.relay_url.is_some(),
            public_url: self.relay_url.clone().unwrap_or_else(|| url.text.clone()),
            info,
            timeout,
            spacing: Duration::from_millis(self.spacing),
            member: self.secret.clone(),
            seed: match seed {
                Some(seed) => seed,
                None => random_seed()?,
            },
        })
    }
}

fn secret_key(text: &str) -> anyhow::Result<KeyPair> {
    let secret = hex::decode_32(text.as_bytes()).and_then(KeyPair::from_secret);
    secret.context("must be a secret key of 64 lowercase hex digits")
}
