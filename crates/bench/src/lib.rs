//! `hark bench`: loads and measures any relay by its URL, and generates the events.
//!
//! This crate depends on no server and no store: it measures Hark like any other relay, and the
//! binary passes in the stores. `cli` lists the benches, `events` makes the events, and `report`
//! shows the results.

mod args;
mod cases;
mod cli;
pub mod codec;
mod events;
mod fanout;
mod generate;
mod hammer;
mod html;
mod idle;
mod ingest;
mod latency;
mod lines;
mod meter;
mod null;
mod people;
mod process;
mod query;
mod random;
pub mod report;
mod requests;
mod sample;
mod schedule;
mod shapes;
mod sql;
mod store;
mod target;
mod text;
mod waku;
mod websocket;
mod whisper;
mod words;

use std::process::ExitCode;

use cli::Bench;
pub use cli::BenchArgs;
pub use store::{BenchArchive, BenchArchiveOpener, BenchQuestion, BenchStore, BenchStoreOpener};
pub use whisper::{EnvelopeStore, EnvelopeStoreOpener, StoreQuestion, WantedTopics};

/// Opens the stores that are queried in process.
#[derive(Clone, Copy)]
pub struct BenchOpeners<'a> {
    /// Opens a store of events.
    pub events: BenchStoreOpener<'a>,
    /// Opens an archive of events for reading.
    pub archive: BenchArchiveOpener<'a>,
    /// Opens a store of envelopes.
    pub envelopes: EnvelopeStoreOpener<'a>,
}

/// Runs the benchmark that the command line names.
pub fn run(args: &BenchArgs, open: BenchOpeners<'_>) -> anyhow::Result<ExitCode> {
    match &args.bench {
        Bench::Gen(args) => generate::run(args),
        Bench::Ingest(args) => ingest::run(args),
        Bench::Query(args) => query::run(args, open.archive),
        Bench::Null(args) => null::run(args),
        Bench::Fanout(args) => fanout::run(args),
        Bench::Idle(args) => idle::run(args),
        Bench::Sql(args) => sql::run(args, open.events),
        Bench::Cases(args) => cases::run(args, open.events),
        Bench::Hammer(args) => hammer::run(args, open.events),
        Bench::Waku(args) => waku::run(args),
        Bench::Whisper(args) => whisper::run(args, open.envelopes),
        Bench::Nostream(args) => sql::nostream(args),
        Bench::Codec(args) => codec::run(args, &[], None),
    }
}
