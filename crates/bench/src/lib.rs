//! `hark bench`: loads and measures any relay by its URL, and makes the events to do it with.
//!
//! It knows no server: what it measures here it measures of other relays alike. Read `cli` for what
//! can be measured, `events` for what is sent, `report` for what comes out.

mod cli;
pub mod codec;
mod events;
mod fanout;
mod generate;
mod html;
mod idle;
mod ingest;
mod latency;
mod meter;
mod people;
mod process;
mod query;
mod random;
pub mod report;
mod sample;
mod shapes;
mod target;
mod text;
mod websocket;
mod words;

use std::process::ExitCode;

use cli::Bench;
pub use cli::BenchArgs;

/// Carries out what was typed.
pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.bench {
        Bench::Gen(args) => generate::run(args),
        Bench::Ingest(args) => ingest::run(args),
        Bench::Query(args) => query::run(args),
        Bench::Fanout(args) => fanout::run(args),
        Bench::Idle(args) => idle::run(args),
        Bench::Codec(args) => codec::run(args, &[], None),
    }
}
