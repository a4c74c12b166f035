//! `hark bench`: loads and measures any relay by its URL, and makes the events to do it with.
//!
//! This crate depends on no server and no store: it measures Hark like any other relay, and the
//! binary passes in the stores. Read `cli` for what can be measured, `events` for what is sent,
//! `report` for the results.

mod args;
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
mod people;
mod process;
mod query;
mod random;
pub mod report;
mod sample;
mod schedule;
mod shapes;
mod sql;
mod store;
mod target;
mod text;
mod waku;
mod websocket;
mod words;

use std::process::ExitCode;

use cli::Bench;
pub use cli::BenchArgs;
pub use store::{BenchStore, BenchStoreOpener};

/// Runs the benchmark that the command line names. `open` opens stores.
pub fn run(args: &BenchArgs, open: BenchStoreOpener<'_>) -> anyhow::Result<ExitCode> {
    match &args.bench {
        Bench::Gen(args) => generate::run(args),
        Bench::Ingest(args) => ingest::run(args),
        Bench::Query(args) => query::run(args),
        Bench::Fanout(args) => fanout::run(args),
        Bench::Idle(args) => idle::run(args),
        Bench::Sql(args) => sql::run(args, open),
        Bench::Hammer(args) => hammer::run(args, open),
        Bench::Waku(args) => waku::run(args),
        Bench::Nostream(args) => sql::nostream(args),
        Bench::Codec(args) => codec::run(args, &[], None),
    }
}
