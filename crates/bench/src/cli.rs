//! The command line of `hark bench`: the list of benches. The flags and examples of each bench are
//! in `args`.

use clap::{Parser, Subcommand};

use crate::args::{
    AnswersArgs, BenchQueryArgs, CrowdArgs, FanoutArgs, GenArgs, HammerArgs, IdleArgs, IngestArgs,
    NostreamArgs, NullArgs, RulesArgs, SqlArgs, WakuBenchArgs,
};
use crate::cases::CasesArgs;
use crate::codec::CodecArgs;
use crate::compare::CompareArgs;
use crate::whisper::WhisperBenchArgs;

/// Measure or test a relay, this one or any other, by its URL
#[derive(Debug, Parser)]
#[command(
    name = "hark bench",
    bin_name = "hark bench",
    version = hark::VERSION,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
From nothing to a comparison:
  hark bench gen events.jsonl
  hark serve --unlimited --data bench-data
  hark bench ingest events.jsonl --pid $(pgrep -x hark)
  hark bench query events.jsonl --pid $(pgrep -x hark) --html report.html

Does a relay keep the NIPs, and answer rightly?
  hark bench rules ws://127.0.0.1:7777
  hark bench answers ws://127.0.0.1:7777

The relay may be any relay, by its ws:// address; for `waku`, the node may be any Waku node, by its
http:// address. docs/benchmarks.md describes the measurements, how to repeat them, and the JSON."
)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Make signed events to load a relay with; the same seed gives the same events
    Gen(GenArgs),
    /// Publish events as fast as the relay accepts them, or at a rate
    Ingest(IngestArgs),
    /// Send the queries that clients send, shape by shape, and measure the time to EOSE
    Query(BenchQueryArgs),
    /// Check the rules of the NIPs against a relay, each with the sentence of the NIP
    Rules(RulesArgs),
    /// Publish hard events, ask random questions, and check every answer
    Answers(AnswersArgs),
    /// Run a relay that does nothing, for comparison in `query` and `fanout`
    Null(NullArgs),
    /// Publish to many subscriptions, and measure the time to delivery
    Fanout(FanoutArgs),
    /// Open many connections, and measure how much memory they take
    Idle(IdleArgs),
    /// Run the same queries on nostream's tables and on Hark's, side by side in one PostgreSQL
    Sql(SqlArgs),
    /// Measure eight cases on one server, several pairs and a growing Citus cluster, all started
    /// here
    Cases(Box<CasesArgs>),
    /// Compare several relays, each started alone on the same events
    Compare(Box<CompareArgs>),
    /// Measure normal clients alone, and beside heavy clients such as a crawler
    Crowd(CrowdArgs),
    /// Query and insert at the same time, each at a rate, and measure how long both take
    Hammer(HammerArgs),
    /// Publish to a Waku node, by REST or gossip, and query its history at the same time
    #[command(alias = "store")]
    Waku(Box<WakuBenchArgs>),
    /// Query a month of Whisper's envelopes, compared with the methods of Status' mail server
    Whisper(Box<WhisperBenchArgs>),
    /// Fill a database as nostream does, to try `hark adopt`
    Nostream(NostreamArgs),
    /// Measure what one message costs to read, write, hash, verify and store; needs no relay
    Codec(CodecArgs),
}
