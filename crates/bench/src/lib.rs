//! `hark bench`: loads and measures any relay by its URL, and makes the events to do it with.
//!
//! It knows no server: what it measures here it measures of other relays alike. Read `cli` for what
//! can be measured, `events` for what is sent, `report` for what comes out.

mod cli;
mod events;
mod generate;
mod html;
mod meter;
mod people;
mod random;
pub mod report;
mod text;
mod words;

use std::process::ExitCode;

use cli::Bench;
pub use cli::BenchArgs;

/// Carries out what was typed.
pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.bench {
        Bench::Gen(args) => generate::run(args),
    }
}
