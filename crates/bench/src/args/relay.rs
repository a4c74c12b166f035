//! The flags of the benches of a relay.

use std::path::PathBuf;

use clap::Args;

use super::common::{AgainstArgs, OutputArgs, TargetArgs, at_least_one, seconds};
use crate::events::SEED;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench gen events.jsonl                       100,000 events, 110 MB
  hark bench gen million.jsonl --events 1000000     with one author of 200,000 events
  hark bench gen ten.jsonl.zst --events 10000000 --unsigned
  hark bench gen small.jsonl --events 30000000 --small

Make the file once and use it often: the same count and seed give the same bytes on every machine.
Signing takes some 30 us for each event on one core; all cores sign. If the command is interrupted,
run it again: it continues at its last checkpoint, which is written every 50,000 events.")]
pub(crate) struct GenArgs {
    /// The file to write, one event a line; compressed if its name ends in .zst
    #[arg(value_name = "FILE")]
    pub(crate) out: PathBuf,

    /// Number of events to make
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) events: u64,

    /// The seed; other seeds give other events of the same authors
    #[arg(long, value_name = "N", default_value_t = SEED)]
    pub(crate) seed: u64,

    /// Do not sign: repeat the id in place of the signature, which is several times as fast. For
    /// archives that are filled with `hark import --trusted`
    #[arg(long)]
    pub(crate) unsigned: bool,

    /// Draw texts from 60,000 words with natural frequencies instead of 48 words, to measure search
    #[arg(long)]
    pub(crate) natural: bool,

    /// Make only short notes and reactions, of about 380 bytes each, to measure the cost of many
    /// events; no event is shorter than 340 bytes
    #[arg(long)]
    pub(crate) small: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench query events.jsonl --pid $(pgrep -x hark)
  hark bench query events.jsonl --shape home --shape 'until' --seconds 10
  hark bench query events.jsonl --pid $A --against ws://127.0.0.1:7778 --against-pid $B \\
      --against-name strfry --runs 5 --html report.html

The relay must hold the events of the file: load them with `hark bench ingest` or with the relay's
own import. Rate limits must be off (hark serve --unlimited): a refusal makes the run fail. Each
connection sends its next query after the EOSE of the previous query, so the times are those of a
relay at full load. The server's CPU shows the cost of a query.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command")]
pub(crate) struct BenchQueryArgs {
    /// The events that the relay holds, from which queries are drawn
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) targets: AgainstArgs,

    /// Number of connections that query at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub(crate) connections: usize,

    /// Number of keys with which each connection authenticates (NIP-42), to query the inboxes of
    /// their owners; relays limit the number of keys
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub(crate) keys: usize,

    /// How long each shape is measured, in seconds
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Only shapes (kinds of queries) with this text in their names; may be given several times
    #[arg(long = "shape", value_name = "NAME")]
    pub(crate) shapes: Vec<String>,

    /// Measure searches for words (NIP-50), too; the relay must support searches, and "all mixed"
    /// contains none
    #[arg(long)]
    pub(crate) search: bool,

    /// Compare the answers with those that the file requires, before each shape is measured. A shape
    /// with a wrong, short or unordered answer gets no times, and the run fails
    #[arg(long)]
    pub(crate) check: bool,

    /// Ask for keys that were never asked for before: drawn from all of the file, each asked once,
    /// without a warm-up. Start the relay before each such run
    #[arg(long)]
    pub(crate) cold: bool,

    /// Drop this machine's caches of files before each shape; requires root
    #[arg(long)]
    pub(crate) drop_caches: bool,

    /// Skip the comparison with a relay that does nothing, which --pid otherwise includes
    #[arg(long)]
    pub(crate) without_null: bool,

    /// The relay's archive on this machine, if Hark wrote the archive: the same searches are also
    /// run in this process, without a relay. The cost of these searches and of the relay that does
    /// nothing is a lower bound for the answers
    #[arg(long, value_name = "DIR")]
    pub(crate) archive: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
`hark bench query --pid N` and `hark bench fanout --pid N` start this relay themselves, and show its
figures beside those of the measured relay. It answers a REQ from memory. The subscription id gives
the number of events and bytes: \"n38x41000\" requests 38 events of 41,000 bytes in all. It copies an
EVENT to the subscriptions to its author. It checks and stores nothing, so it serves only the
benchmarks.")]
pub(crate) struct NullArgs {
    /// The port to listen on, at 127.0.0.1; 0 chooses a free port
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench ingest events.jsonl --pid $(pgrep -x hark)
  hark bench ingest events.jsonl --rate 7500 --events 50000
  hark bench ingest events.jsonl --duplicates        again, to measure known events

The events are sent in the order of the file, over all connections in turn. Each connection has at
most --window unanswered events. With --rate, each event has a due time, and the time to OK counts
from the due time even if the event is sent later. Before the run, all cores check signatures of
these events: no relay that checks signatures can be faster on this machine.")]
pub(crate) struct IngestArgs {
    /// The events to send
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Number of connections that publish at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub(crate) connections: usize,

    /// Maximum number of events of a connection that wait for their OK
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    pub(crate) window: usize,

    /// Events a second, over all connections [default: as fast as they are accepted]
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub(crate) rate: Option<f64>,

    /// Send only the first N events
    #[arg(long, value_name = "N")]
    pub(crate) events: Option<u64>,

    /// Stop sending after S seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,

    /// Measure the cost of known events; the relay must already have all events of the file
    #[arg(long)]
    pub(crate) duplicates: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench fanout --pid $(pgrep -x hark)
  hark bench fanout --subscriptions 1000 --matches 10     each event is for 10 of the 1,000
  hark bench fanout --hold 100000 --matches 10            the same beside 100,000 other subscriptions

Subscriptions are spread over the connections. Hark allows 200 subscriptions for each connection,
unless limits.subscriptions_max says otherwise, and bounds the connections of an address, unless it
runs --unlimited. Every delivery of every event is counted. The latency is the time from writing the
EVENT to reading the delivery.")]
pub(crate) struct FanoutArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Number of subscriptions that receive events
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = at_least_one)]
    pub(crate) subscriptions: usize,

    /// The number of connections that share the subscriptions
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub(crate) connections: usize,

    /// Number of subscriptions that each event matches [default: all]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) matches: Option<usize>,

    /// Number of connections that publish
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub(crate) publishers: usize,

    /// Events a second, over all publishers
    #[arg(long, value_name = "N", default_value_t = 200.0, value_parser = seconds)]
    pub(crate) rate: f64,

    /// How long events are published, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Number of further subscriptions that are open during the run, each for one author who writes
    /// nothing
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) hold: usize,

    /// Number of these further subscriptions that a connection has
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_one)]
    pub(crate) per_connection: usize,

    /// Publish ephemeral events, which are delivered and not stored (kind 20001)
    #[arg(long)]
    pub(crate) ephemeral: bool,

    /// Skip the comparison with a relay that does nothing, which --pid otherwise includes
    #[arg(long)]
    pub(crate) without_null: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench idle --connections 10000 --pid $(pgrep -x hark)
  hark bench idle --connections 10000 --deflate --subscribed --pid $(pgrep -x hark)

`ulimit -Hn` must be above the number of connections, for this program and for the server. Hark must
run with --unlimited, because all connections come from one address.")]
pub(crate) struct IdleArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Number of connections to open
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = at_least_one)]
    pub(crate) connections: usize,

    /// Negotiate permessage-deflate
    #[arg(long)]
    pub(crate) deflate: bool,

    /// Open a subscription on each connection and keep it open
    #[arg(long)]
    pub(crate) subscribed: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
