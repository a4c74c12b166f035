//! The rule that people whom trusted people follow may publish (`[trust]`).
//!
//! `rules` has the operator's settings, `graph` the trusted keys and the follow lists, `lists` reads
//! a follow list from the archive, `state` is shared by the threads, `keeper` is the thread that
//! keeps the graph up to date, and `gate` refuses events.

mod gate;
mod graph;
mod keeper;
mod lists;
mod rules;
mod state;
#[cfg(test)]
mod tests;

pub use gate::TrustGate;
pub use graph::TrustStats;
pub use keeper::{OpenStore, TrustSource};
pub use rules::{TRUST_DEPTH_MAX, TrustOptions, TrustRules};
pub use state::Trust;
