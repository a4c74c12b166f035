//! The binary `hark`: the networks that it serves, and its allocator.

use std::process::ExitCode;

/// Many small, short-lived pieces, freed by other threads than made them: the system's allocator
/// spends half again as long on them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    hark::run(hark::NETWORKS)
}
