//! The only integration test binary: it drives all of Hark from outside.

mod admin;
mod bad_week;
mod bench;
mod bench_checks;
mod bench_crowd;
mod book;
mod browser;
mod cli;
mod cluster;
mod compare;
mod crash;
mod database;
mod delivery;
mod fleet;
/// Runs the checks of the fuzz targets on their seeds.
#[path = "../fuzz/src/lib.rs"]
#[allow(dead_code, unreachable_pub)]
mod fuzz;
mod go_program;
mod house;
mod manage;
mod member_invites;
mod members;
mod moderation;
mod moving;
mod nostr;
mod page;
mod peers;
mod proxy;
mod public;
mod served;
mod stores;
mod takeover;
#[cfg(feature = "tls")]
mod tls;
mod trust;
mod waku;
mod whisper;
