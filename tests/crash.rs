//! What the embedded archive keeps when the power, the disk or the process goes, and what it does
//! about bytes that have changed.

mod beside;
mod damage;
mod follow;
mod kill;
mod simulation;

/// Whether `scripts/test --long` runs this.
fn long() -> bool {
    std::env::var_os("HARK_LONG").is_some()
}
