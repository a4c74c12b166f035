//! The binary `hark`: its networks, its stores and its allocator.

use std::process::ExitCode;

/// The allocator. Hark makes many small, short-lived allocations and frees them on other threads.
/// The system's allocator takes 1.5 times as long for this pattern.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    hark::run(hark::NETWORKS, hark::STORES)
}
