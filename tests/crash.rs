//! What the embedded archive keeps if the power, the disk or the process fails, and how it treats
//! changed bytes.

mod backup;
mod beside;
mod damage;
mod follow;
mod kill;
mod salvage;
mod simulation;

/// Whether `scripts/test --long` runs this.
fn long() -> bool {
    std::env::var_os("HARK_LONG").is_some()
}
