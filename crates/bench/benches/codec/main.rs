//! `hark bench codec` with the parts that are not shipped: the `nostr` crate as a third library,
//! and a counter of allocations.
//!
//!     cargo bench -p hark-bench --bench codec

mod nostr;

use std::process::ExitCode;

use clap::Parser;
use hark_bench::codec::{self, CodecArgs};
use hark_testkit::allocations::{self, Counting};
use mimalloc::MiMalloc;

/// The allocator that Hark is shipped with. A slower allocator would be unfair to libraries that
/// allocate.
#[global_allocator]
static ALLOCATOR: Counting<MiMalloc> = Counting(MiMalloc);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: CodecArgs,
    /// The flag that cargo passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    codec::run(&Cli::parse().args, &[nostr::LIBRARY], Some(allocations::of_this_thread))
}
