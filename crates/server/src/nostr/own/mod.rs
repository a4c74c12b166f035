//! The relay's own key (`self` of NIP-11), and the events that the relay signs.
//!
//! `key` loads the key, and `claim` makes sure that all servers of an archive have the same key.
//! `publish` publishes the members (`members`) and the roles (NIP-43), and the relay's `report` about
//! itself (NIP-66). The servers of an archive publish the members in `turns`. `membership` answers
//! the requests to join and to leave, and `invites` the requests for invites.

mod claim;
mod invites;
mod key;
mod members;
mod membership;
mod options;
mod publish;
mod report;
mod turns;

pub(crate) use claim::claim_key;
pub(crate) use invites::{INVITE_KIND, InviteRequest, MemberInvites};
pub(crate) use key::OwnKey;
pub(crate) use membership::{Membership, MembershipRequest};
pub use options::{OwnEvents, SharedOwnEvents};
pub(crate) use publish::OwnPublisher;
pub(crate) use turns::ListTurns;
