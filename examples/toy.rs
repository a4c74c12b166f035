//! A binary that serves one more network than `hark`: the toy network of the test kit. Every
//! command supports this network:
//!
//! ```text
//! HARK_TOY=127.0.0.1:7000 cargo run --example toy -- serve
//! echo 'weather 1700000000 rain' | nc -N 127.0.0.1 7000
//! cargo run --example toy -- query --network toy weather
//! ```

use std::net::SocketAddr;
use std::process::ExitCode;

use hark::{NETWORKS, NetworkService, NetworkSetup, STORES, ShelfConfig};
use hark_archive::retention::{RetentionPolicy, RetentionRule};
use hark_testkit::toy::{Serving, Toy};

/// Returns the address on which the toy network listens, if the variable HARK_TOY has an address.
fn listen() -> Option<SocketAddr> {
    std::env::var("HARK_TOY").ok()?.parse().ok()
}

/// The toy network's entry in the list of networks, with its settings.
const SETUP: NetworkSetup = NetworkSetup {
    network: &Toy,
    shelf: |config| ShelfConfig {
        // Lines are kept for ten years.
        retention: config.retention(&RetentionPolicy {
            rules: vec![RetentionRule {
                older_than_s: 10 * 365 * 86_400,
                ..RetentionRule::default()
            }],
            ..RetentionPolicy::default()
        }),
        part_days: 30,
        record_bytes_max: 1 << 10,
        texts: None,
    },
    is_served: |_| listen().is_some(),
    serve: |_, shelf, at| NetworkService {
        network: Box::new(Serving {
            listen: listen().unwrap_or(([127, 0, 0, 1], 0).into()),
            shelf,
            store_at: at.store_at,
        }),
        reload: Box::new(|_| {}),
    },
};

/// The program.
pub fn main() -> ExitCode {
    let setups: Vec<NetworkSetup> = NETWORKS.iter().copied().chain([SETUP]).collect();
    hark::run(setups.leak(), STORES)
}
