//! The relay's own key (`self` of NIP-11), and the events that the relay signs.
//!
//! `key` loads the key, and `claim` makes sure that all servers of an archive have the same key.

mod claim;
mod key;

pub(crate) use claim::claim_key;
pub(crate) use key::OwnKey;
