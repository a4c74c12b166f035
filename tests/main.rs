//! The one integration binary: the whole of Hark, driven from outside.

mod bench;
mod cli;
mod crash;
mod delivery;
mod fleet;
/// What the fuzz targets check, on their seeds.
#[path = "../fuzz/src/lib.rs"]
#[allow(dead_code, unreachable_pub)]
mod fuzz;
mod house;
mod moving;
mod nostr;
mod page;
mod public;
mod served;
mod stores;
mod takeover;
mod waku;
