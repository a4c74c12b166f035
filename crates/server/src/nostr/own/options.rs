//! The operator's settings of the events that the relay signs.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// The settings in force. They can be replaced while the relay runs.
pub type SharedOwnEvents = Arc<ArcSwap<OwnEvents>>;

/// The events that the relay signs with its own key, if it has a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnEvents {
    /// Whether the relay publishes its members and its roles (NIP-43).
    pub members: bool,
    /// Whether the relay publishes a report about itself (NIP-66).
    pub report: bool,
    /// Number of invites that a member may make a day. 0: members make no invites.
    pub member_invites: u32,
}
