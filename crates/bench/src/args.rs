//! The flags and examples of each bench.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
#[cfg(feature = "libp2p")]
use libp2p::Multiaddr;

use crate::report::BenchReport;
use crate::target::BenchTarget;
use crate::websocket::Url;

/// Content topics of generated messages, unless another number is given.
pub(crate) const TOPICS: usize = 1_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench gen events.jsonl                       100,000 events, 110 MB
  hark bench gen million.jsonl --events 1000000     with one author of 200,000 events
  hark bench gen ten.jsonl.zst --events 10000000 --unsigned

Made once and used often: the same count and seed give the same bytes on every machine. Signing takes
some 30 us an event on a core, and all cores sign.")]
pub(crate) struct GenArgs {
    /// The file to write, one event a line; compressed if its name ends in .zst
    #[arg(value_name = "FILE")]
    pub(crate) out: PathBuf,

    /// How many events to make
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) events: u64,

    /// The seed; other seeds give other events of the same authors
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) seed: u64,

    /// Do not sign: repeat the id in place of the signature, which is several times as fast. For
    /// archives that are filled with `hark import --trusted`
    #[arg(long)]
    pub(crate) unsigned: bool,

    /// Draw texts from 60,000 words with natural frequencies instead of 48 words, to measure search
    #[arg(long)]
    pub(crate) natural: bool,
}

/// The target to measure.
#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// The relay to measure
    #[arg(long, value_name = "URL", default_value = "ws://127.0.0.1:7777")]
    pub(crate) url: Url,

    /// The server's process id on this machine, for CPU and memory; may be given several times
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,
}

/// The target to measure, and optionally another server; the two are measured in turns.
#[derive(Debug, Args)]
pub(crate) struct AgainstArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Measure this server too, in turns with the first; adds its figures and the ratios of the two
    #[arg(long, value_name = "URL", conflicts_with = "baseline")]
    against: Option<Url>,

    /// The other server's process id
    #[arg(long, value_name = "PID", requires = "against")]
    against_pid: Vec<u32>,

    /// The other server's name in tables
    #[arg(long, value_name = "NAME", default_value = "other", requires = "against")]
    against_name: String,
}

/// The number of runs and the output of results.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Measure N times and report the median of each figure
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) runs: usize,

    /// Print JSON, as docs/benchmarks.md describes the format
    #[arg(long)]
    json: bool,

    /// Write a report with plots, all in one HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Compare with the JSON of another run; adds the other run's figures and the ratios
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
}

impl TargetArgs {
    pub(crate) fn target(&self) -> anyhow::Result<BenchTarget> {
        BenchTarget::new(&self.url, &self.pid)
    }
}

impl AgainstArgs {
    /// Returns the first target, and the other target if one was given.
    pub(crate) fn targets(&self) -> anyhow::Result<Vec<BenchTarget>> {
        let mut targets = vec![self.target.target()?];
        if let Some(url) = &self.against {
            targets.push(BenchTarget::new(url, &self.against_pid)?);
        }
        Ok(targets)
    }

    pub(crate) fn against_name(&self) -> &str {
        &self.against_name
    }
}

impl OutputArgs {
    /// Measures `--runs` times and publishes the median.
    pub(crate) fn measure(
        &self,
        mut measure: impl AsyncFnMut() -> anyhow::Result<BenchReport>,
    ) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut runs = Vec::new();
        for _ in 0..self.runs.max(1) {
            runs.push(runtime.block_on(measure())?);
        }
        self.publish(BenchReport::median(runs).context("there was no run")?)
    }

    /// Prints the report in the requested form. The exit code of a doubtful report is a failure, so
    /// that no script mistakes the report for a valid result.
    pub(crate) fn publish(&self, mut report: BenchReport) -> anyhow::Result<ExitCode> {
        if let Some(path) = &self.baseline {
            report.compare_file(path)?;
        }
        report.publish(self.json, self.html.as_deref())?;
        Ok(if report.is_faulty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench query events.jsonl --pid $(pgrep -x hark)
  hark bench query events.jsonl --shape home --shape 'until' --seconds 10
  hark bench query events.jsonl --pid $A --against ws://127.0.0.1:7778 --against-pid $B \\
      --against-name strfry --runs 5 --html report.html

The relay must hold the events of the file: load it with `hark bench ingest` or the relay's own import.
Rate limits must be off (hark serve --unlimited): refusals are no answers, and the run fails if there
are any. Each connection asks its next question when it has the EOSE of the one before, so that times
are those of a relay at full load; what a question costs the server is its CPU.")]
pub(crate) struct BenchQueryArgs {
    /// The events that the relay holds, from which queries are drawn
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) targets: AgainstArgs,

    /// Connections that query at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub(crate) connections: usize,

    /// Inboxes that a connection authenticates for (NIP-42), for the inbox shape and "all mixed";
    /// relays limit the keys of a connection
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub(crate) keys: usize,

    /// How long each shape is measured, in seconds
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Only shapes with this text in their names; may be given several times
    #[arg(long = "shape", value_name = "NAME")]
    pub(crate) shapes: Vec<String>,

    /// Measure searches for words (NIP-50), too; the relay must support searches, and "all mixed"
    /// contains none
    #[arg(long)]
    pub(crate) search: bool,

    /// Leave out the relay that does nothing, which is queried beside the relay where --pid is
    /// given
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
`hark bench query --pid N` and `hark bench fanout --pid N` start this by themselves, and show its figures
beside those of the relay. It reads a REQ and answers it, from memory, with as many events and bytes as
the id of the subscription says: \"n38x41000\" asks for 38 events of 41,000 bytes in all. An EVENT it copies to
the subscriptions to its author. It checks nothing and stores nothing, so only the benches can talk to it.")]
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
  hark bench ingest events.jsonl --duplicates        once more: what a known event costs

Events go out in the order of the file, over all connections in turn, each with so many unanswered.
With --rate they go out at their time, and the time to OK is counted from that, not from when there was
room to send. First of all their signatures are checked here, on all cores: no relay that checks them
can be faster than that on this machine.")]
pub(crate) struct IngestArgs {
    /// The events to send
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Connections that publish at the same time
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

Subscriptions are spread over the connections; Hark lets a connection have 200, unless
limits.subscriptions_max says otherwise, and bounds connections per address unless it runs --unlimited.
Counted is every delivery of every event; latency is from writing the EVENT to reading the delivery.")]
pub(crate) struct FanoutArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Subscriptions that receive events
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = at_least_one)]
    pub(crate) subscriptions: usize,

    /// The number of connections that share the subscriptions
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub(crate) connections: usize,

    /// Subscriptions that each event matches [default: all]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) matches: Option<usize>,

    /// Connections that publish
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub(crate) publishers: usize,

    /// Events a second, over all publishers
    #[arg(long, value_name = "N", default_value_t = 200.0, value_parser = seconds)]
    pub(crate) rate: f64,

    /// How long events are published, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Further subscriptions that are open during the run, each for one author who writes nothing
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) hold: usize,

    /// How many of these further subscriptions a connection has
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_one)]
    pub(crate) per_connection: usize,

    /// Publish ephemeral events, which are delivered and not stored (kind 20001)
    #[arg(long)]
    pub(crate) ephemeral: bool,

    /// Leave out the relay that does nothing, which is measured after the relay where --pid is
    /// given
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

Both sides need `ulimit -Hn` above the number, and Hark has to run --unlimited, as all connections
come from one address.")]
pub(crate) struct IdleArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// How many connections to open
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

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench gen million.jsonl --events 1000000
  hark bench sql million.jsonl --server postgres://me@127.0.0.1:5432 --html sql.html
  hark bench sql million.jsonl --server postgres://me@127.0.0.1:5432 --events 250000 --store bench-data

Makes two databases on the server, hark_bench_nostream with the tables and indices that nostream's
migrations make, and hark_bench_hark; brings in the same events; asks both the same questions, drawn
from them, in turns; and removes both. nostream is asked in its two forms: tags contained in its jsonb
column, and joined with event_tags. All answers must hold the same number of events, or the run fails.
The role must be able to make databases. 1,000,000 events take some 6 GB and ten minutes.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command")]
pub(crate) struct SqlArgs {
    /// The events to load, from which queries are drawn
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The server to measure on
    #[arg(long, value_name = "URL")]
    pub(crate) server: String,

    /// Measure with the first N events of the file, then with more; sizes in ascending order
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [250_000, 1_000_000])]
    pub(crate) events: Vec<u64>,

    /// Compare with this store of Hark instead, a directory or a URL; it should be empty
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<String>,

    /// Queries at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub(crate) connections: usize,

    /// How long each shape is measured in each form, in seconds
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Replace existing databases with these names
    #[arg(long)]
    pub(crate) replace: bool,

    /// Query the databases that an earlier run kept with --keep; nothing is loaded or removed
    #[arg(long, conflicts_with_all = ["replace", "store"])]
    pub(crate) again: bool,

    /// Only shapes with this text in their names; may be given several times
    #[arg(long = "shape", value_name = "NAME")]
    pub(crate) shapes: Vec<String>,

    /// Measure Hark alone: neither create nor query nostream's tables
    #[arg(long)]
    pub(crate) alone: bool,

    /// Do not remove the databases afterwards
    #[arg(long)]
    pub(crate) keep: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench hammer events.jsonl ws://127.0.0.1:7777 --rate 500 --insert-rate 1000 --html hammer.html
  hark bench hammer events.jsonl postgres://me@127.0.0.1/hark_test --questions 16 --rate 2000
  hark bench hammer events.jsonl bench-data --rate 5000 --insert-rate 20000 --batch 100

The first half of the file is brought in before (--loaded N: the first N are there already); questions are
drawn from it, of the shapes of `hark bench sql`, and the rest is inserted meanwhile. Questions and
insertions are due at times that do not wait for those before them, and their times count from then: if
the target cannot keep up, the figures say so.")]
pub(crate) struct HammerArgs {
    /// The events to load, insert and query
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// A relay by its ws:// address, or a store of Hark: a directory or a postgres:// URL
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,

    /// Queries at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub(crate) questions: usize,

    /// Queries a second, in all
    #[arg(long, value_name = "N", default_value_t = 200.0, value_parser = seconds)]
    pub(crate) rate: f64,

    /// Insertions at the same time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least_one)]
    pub(crate) inserters: usize,

    /// Events inserted a second, in all
    #[arg(long, value_name = "N", default_value_t = 500.0, value_parser = seconds)]
    pub(crate) insert_rate: f64,

    /// Events of an insertion
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub(crate) batch: usize,

    /// How long to run, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// The target already has the first N events
    #[arg(long, value_name = "N")]
    pub(crate) loaded: Option<u64>,

    /// Only shapes with this text in their names; may be given several times
    #[arg(long = "shape", value_name = "NAME")]
    pub(crate) shapes: Vec<String>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench gen million.jsonl --events 1000000
  hark bench nostream million.jsonl postgres://me@127.0.0.1:5432/nostream
  hark adopt nostream postgres://me@127.0.0.1:5432/nostream

Tables and indices are those of nostream's migrations, but for the full-text index; of versions of the
same, the newest is kept, as nostream does.")]
pub(crate) struct NostreamArgs {
    /// The events to load
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The database to create
    #[arg(value_name = "URL")]
    pub(crate) database: String,

    /// Load only the first N events
    #[arg(long, value_name = "N")]
    pub(crate) events: Option<u64>,

    /// Leave out the table event_tags, which nostream has had since 2024
    #[arg(long)]
    pub(crate) without_event_tags: bool,

    /// Replace an existing database of this name
    #[arg(long)]
    pub(crate) replace: bool,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    mut_arg("url", |arg| {
        arg.help("The node to measure, by the address of its REST API")
            .default_value("http://127.0.0.1:8645")
            .value_parser(Url::http)
    }),
    mut_arg("against", |arg| arg.value_parser(Url::http)),
    after_help = "\
Examples:
  hark bench waku --readers 0                       publish only: 9,000 messages of 1,400 bytes
  hark bench waku --pid $(pgrep -x hark) --payload-bytes 1400,10KiB --html store.html
  hark bench waku --messages 0 --seconds 30 --shape '1 topic'
  hark bench waku --publish-rate 100 --query-rate 50 --against http://127.0.0.1:8646 \\
      --against-name postgres
  hark bench waku --publish-by gossip --pubsub-topic /waku/2/rs/1/0 --publish-rate 100
  hark bench waku gen week.jsonl --messages 1000000

Any node with nwaku's REST API will do. Readers go from page to page by the cursor; topics, times
and hashes to ask for are learned from the node first. At a rate, publications and questions are due
at times that do not wait for those before them, and their times count from then; else each begins
when the one before it is answered. Gossip answers nothing: there, times are until the node gives a
message back. In the end every message that was accepted must be stored, or the run fails. A node takes
only what was made just now: for a history that is days long, bring in a file of `gen` beforehand."
)]
pub(crate) struct WakuBenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<WakuBenchCommand>,

    #[command(flatten)]
    pub(crate) nodes: AgainstArgs,

    /// How messages are published to the node
    #[arg(long, value_name = "DOOR", value_enum, default_value_t = PublishMethod::Rest)]
    pub(crate) publish_by: PublishMethod,

    /// The node's address for peers, as in /ip4/127.0.0.1/tcp/60000/p2p/16U... [default: the first
    /// for TCP that its REST API reports]
    #[cfg(feature = "libp2p")]
    #[arg(long, value_name = "MULTIADDR", requires = "publish_by")]
    pub(crate) peer: Option<Multiaddr>,

    /// The other node's address for peers
    #[cfg(feature = "libp2p")]
    #[arg(long, value_name = "MULTIADDR", requires_all = ["against", "publish_by"])]
    pub(crate) against_peer: Option<Multiaddr>,

    /// Connections that publish at the same time
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = at_least_one)]
    pub(crate) publishers: usize,

    /// Messages to publish, over all publishers; with 0, the bench only queries
    #[arg(long, value_name = "N", default_value_t = 9_000)]
    pub(crate) messages: u64,

    /// Bytes of a payload, like 1400 or 10KiB; several sizes are measured one after the other
    #[arg(long, value_name = "SIZE,SIZE", value_delimiter = ',', default_values_t = [1_400],
        value_parser = size)]
    pub(crate) payload_bytes: Vec<usize>,

    /// Messages a second, over all publishers [default: as fast as they are accepted]
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub(crate) publish_rate: Option<f64>,

    /// Publish under this pubsub topic, as in /waku/2/rs/1/0; required for gossip [default: the
    /// node chooses the topic]
    #[arg(long, value_name = "TOPIC", required_if_eq("publish_by", "gossip"))]
    pub(crate) pubsub_topic: Option<String>,

    /// How long the node may take after the run to store the accepted messages, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) settle: f64,

    /// Connections that query at the same time; with 0, the bench only publishes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) readers: usize,

    /// Maximum number of pages to read of an answer
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub(crate) pages: usize,

    /// Pages requested a second, over all readers [default: as fast as they are answered]
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub(crate) query_rate: Option<f64>,

    /// How long to query, in seconds [default: while messages are published; 10 with --messages 0]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,

    /// Only shapes with this text in their names; may be given several times
    #[arg(long = "shape", value_name = "NAME")]
    pub(crate) shapes: Vec<String>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How messages are published to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PublishMethod {
    /// By its REST API, which answers when a message is stored
    Rest,
    /// By gossip, each publisher as a separate peer; the node does not answer
    #[cfg(feature = "libp2p")]
    Gossip,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WakuBenchCommand {
    /// Make a week of messages to fill a node with; the same seed gives the same messages
    Gen(WakuGenArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark bench waku gen week.jsonl                                  100,000 messages, 210 MB
  hark bench waku gen week.jsonl.zst --messages 1000000 --to 1700000000000000000

Each line is a message as a node answers with it, oldest first: messageHash, message and pubsubTopic. The
same flags give the same bytes on every machine if --to is among them.")]
pub(crate) struct WakuGenArgs {
    /// The file to write, one message a line; compressed if its name ends in .zst
    #[arg(value_name = "FILE")]
    pub(crate) out: PathBuf,

    /// How many messages to make
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) messages: u64,

    /// Bytes of a payload, like 1400 or 10KiB
    #[arg(long, value_name = "SIZE", default_value_t = 1_400, value_parser = size)]
    pub(crate) payload_bytes: usize,

    /// Content topics; the first topics have far more messages than the last
    #[arg(long, value_name = "N", default_value_t = TOPICS,
        value_parser = at_least_one)]
    pub(crate) topics: usize,

    /// The pubsub topic of all messages
    #[arg(long, value_name = "TOPIC", default_value = "/waku/2/rs/1/0")]
    pub(crate) pubsub_topic: String,

    /// The seed; other seeds give other messages
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) seed: u64,

    /// Time of the last message, in ns since 1970; the first is a week older [default: now]
    #[arg(long, value_name = "NS")]
    pub(crate) to: Option<u64>,
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(count) => Ok(count),
        Err(_) => Err("must be a number".into()),
    }
}

/// The units of sizes, and the bytes of each.
const UNITS: [(&str, usize); 7] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("b", 1),
];

/// Parses a size above zero: a number of bytes, or a number with a unit, such as `10KiB`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let lower = text.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((lower.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((&lower, 1));
    match number.trim_end().parse::<usize>().ok().and_then(|number| number.checked_mul(unit)) {
        Some(0) => Err("must be at least 1".into()),
        Some(bytes) => Ok(bytes),
        None => Err("must be a number of bytes, or a size like 10KiB or 2MB".into()),
    }
}

/// Parses a number above zero, with or without a fraction.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1e6 => Ok(number),
        _ => Err("must be a number above 0".into()),
    }
}
