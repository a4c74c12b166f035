//! `hark bench codec` with what is not shipped: the `nostr` crate beside Hark and serde_json, and a
//! counter of allocations.
//!
//!     cargo bench -p hark-bench --bench codec

mod nostr;

use std::process::ExitCode;

use clap::Parser;
use hark_bench::codec::{self, CodecArgs};
use hark_testkit::allocations::{self, Counting};
use mimalloc::MiMalloc;

/// The allocator that Hark is shipped with, so that libraries that allocate are not worse off.
#[global_allocator]
static ALLOCATOR: Counting<MiMalloc> = Counting(MiMalloc);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: CodecArgs,
    /// What cargo says to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    codec::run(&Cli::parse().args, &[nostr::LIBRARY], Some(allocations::of_this_thread))
}
