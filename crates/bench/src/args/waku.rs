//! The flags of the bench of a Waku node.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
#[cfg(feature = "libp2p")]
use libp2p::Multiaddr;

use super::common::{AgainstArgs, OutputArgs, at_least_one, seconds, size};
use crate::websocket::Url;

/// Number of content topics of generated messages, unless another number is given.
pub(crate) const TOPICS: usize = 1_000;

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

Any node with nwaku's REST API can be measured. Readers request page after page by the cursor. The
topics, times and hashes for the queries are first read from the node. With a rate, each publication
and each query has a due time, and latencies count from the due time. Without a rate, each request
begins after the answer to the previous request. Gossip has no answers: there, the time ends when a
query finds the message in the node's history. At the end every accepted message must be stored;
otherwise the run fails. A node accepts only new messages: for a history of several days, first
import a file of `gen`."
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
    /// TCP address that its REST API reports]
    #[cfg(feature = "libp2p")]
    #[arg(long, value_name = "MULTIADDR", requires = "publish_by")]
    pub(crate) peer: Option<Multiaddr>,

    /// The other node's address for peers
    #[cfg(feature = "libp2p")]
    #[arg(long, value_name = "MULTIADDR", requires_all = ["against", "publish_by"])]
    pub(crate) against_peer: Option<Multiaddr>,

    /// Number of connections that publish at the same time
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = at_least_one)]
    pub(crate) publishers: usize,

    /// Number of messages to publish, over all publishers; with 0, the bench only queries
    #[arg(long, value_name = "N", default_value_t = 9_000)]
    pub(crate) messages: u64,

    /// Size of a payload, like 1400 or 10KiB; several sizes are measured one after the other
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

    /// Number of connections that query at the same time; with 0, the bench only publishes
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

    /// Only shapes (kinds of queries) with this text in their names; may be given several times
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

Each line is a message in the form of a node's answer: messageHash, message and pubsubTopic. The
oldest message comes first. The same flags give the same bytes on every machine if --to is given.")]
pub(crate) struct WakuGenArgs {
    /// The file to write, one message a line; compressed if its name ends in .zst
    #[arg(value_name = "FILE")]
    pub(crate) out: PathBuf,

    /// Number of messages to make
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) messages: u64,

    /// Size of a payload, like 1400 or 10KiB
    #[arg(long, value_name = "SIZE", default_value_t = 1_400, value_parser = size)]
    pub(crate) payload_bytes: usize,

    /// Number of content topics; the first topics have far more messages than the last
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
