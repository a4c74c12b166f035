//! The binary `hark`: the networks that it serves, and its allocator.

use std::process::ExitCode;

/// The allocator. Hark makes many small, short-lived allocations and frees them on other threads,
/// which takes the system's allocator half again as long.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    hark::run(hark::NETWORKS)
}
