//! `hark bench`: loads and measures any relay by its URL, and generates the events.
//!
//! The program `hark-bench` measures Hark like any other relay, by its URL. Only `archives` opens
//! archives of Hark, for the benches that query a store without a server. `cli` lists the benches,
//! `events` makes the events, and `report` shows the results.

mod answers;
mod archives;
mod args;
mod cases;
mod cli;
pub mod codec;
mod compare;
mod crowd;
mod events;
mod expected;
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
mod openers;
mod page_cache;
mod people;
mod probe;
mod process;
mod progress;
mod query;
mod random;
pub mod report;
mod requests;
mod rules;
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

/// Runs the benchmark that the command line names.
pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let open = archives::OPENERS;
    match &args.bench {
        Bench::Gen(args) => generate::run(args),
        Bench::Ingest(args) => ingest::run(args),
        Bench::Query(args) => query::run(args, open.archive),
        Bench::Rules(args) => rules::run(args),
        Bench::Answers(args) => answers::run(args),
        Bench::Null(args) => null::run(args),
        Bench::Fanout(args) => fanout::run(args),
        Bench::Idle(args) => idle::run(args),
        Bench::Sql(args) => sql::run(args, open.events),
        Bench::Cases(args) => cases::run(args, open.events),
        Bench::Compare(args) => compare::run(args),
        Bench::Crowd(args) => crowd::run(args),
        Bench::Hammer(args) => hammer::run(args, open.events),
        Bench::Waku(args) => waku::run(args),
        Bench::Whisper(args) => whisper::run(args, open.envelopes),
        Bench::Nostream(args) => sql::nostream(args),
        Bench::Codec(args) => codec::run(args, &[], None),
    }
}
