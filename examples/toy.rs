//! A binary that serves one more network than `hark` does: the toy of the test kit. Every command knows it:
//!
//! ```text
//! HARK_TOY=127.0.0.1:7000 cargo run --example toy -- serve
//! echo 'weather 1700000000 rain' | nc -N 127.0.0.1 7000
//! cargo run --example toy -- query --network toy weather
//! ```

use std::net::SocketAddr;
use std::process::ExitCode;

use hark::{NETWORKS, Room, Served, ShelfConfig};
use hark_archive::retention::{Policy, Rule};
use hark_testkit::toy::{Serving, Toy};

/// Where the toy listens, if it does.
fn listen() -> Option<SocketAddr> {
    std::env::var("HARK_TOY").ok()?.parse().ok()
}

/// The network, as this program serves it.
const ROOM: Room = Room {
    network: &Toy,
    shelf: |config| ShelfConfig {
        // Lines stay for ten years.
        retention: config.retention(&Policy {
            rules: vec![Rule { older_than_s: 10 * 365 * 86_400, ..Rule::default() }],
            ..Policy::default()
        }),
        part_days: 30,
        record_bytes_max: 1 << 10,
    },
    is_served: |_| listen().is_some(),
    serve: |_, shelf, _| Served {
        network: Box::new(Serving {
            listen: listen().unwrap_or(([127, 0, 0, 1], 0).into()),
            shelf,
        }),
        reload: Box::new(|_| {}),
    },
};

/// The program.
pub fn main() -> ExitCode {
    let rooms: Vec<Room> = NETWORKS.iter().copied().chain([ROOM]).collect();
    hark::run(rooms.leak())
}
