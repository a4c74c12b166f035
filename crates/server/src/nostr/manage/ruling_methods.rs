//! The methods of NIP-86 that stand for the changes and lists of bans and allows.

use super::method::ManageMethod;
use crate::moderation::{Ruling, RulingChange, SubjectSort};

/// The method that a manager must be allowed to call for a change. `None`: NIP-86 has no such
/// method, so only managers who may call every method make the change. A method that makes a ruling
/// also lifts the contrary ruling.
pub(super) fn changing_method(change: &RulingChange) -> Option<ManageMethod> {
    use ManageMethod as M;
    use SubjectSort::{Addresses, Id, Key, Kind, Word};
    let is_set = matches!(change, RulingChange::Set { .. });
    Some(match (change.subject().sort(), change.ruling(), is_set) {
        (Key, Ruling::Ban, true) => M::BanPubkey,
        (Key, Ruling::Ban, false) => M::UnbanPubkey,
        (Key, Ruling::Allow, true) => M::AllowPubkey,
        (Key, Ruling::Allow, false) => M::UnallowPubkey,
        (Id, Ruling::Ban, true) | (Id, Ruling::Allow, false) => M::BanEvent,
        (Id, Ruling::Allow, true) | (Id, Ruling::Ban, false) => M::AllowEvent,
        (Kind, Ruling::Ban, true) | (Kind, Ruling::Allow, false) => M::DisallowKind,
        (Kind, Ruling::Allow, true) | (Kind, Ruling::Ban, false) => M::AllowKind,
        (Addresses, Ruling::Ban, true) => M::BlockIp,
        (Addresses, Ruling::Ban, false) => M::UnblockIp,
        (Addresses, Ruling::Allow, _) | (Word, ..) => return None,
    })
}

/// The method that lists the subjects of one sort with one ruling. `None`: NIP-86 has no such
/// method.
pub(super) fn listing_method(sort: SubjectSort, ruling: Ruling) -> Option<ManageMethod> {
    use ManageMethod as M;
    Some(match (sort, ruling) {
        (SubjectSort::Key, Ruling::Ban) => M::ListBannedPubkeys,
        (SubjectSort::Key, Ruling::Allow) => M::ListAllowedPubkeys,
        (SubjectSort::Id, Ruling::Ban) => M::ListBannedEvents,
        (SubjectSort::Kind, Ruling::Allow) => M::ListAllowedKinds,
        (SubjectSort::Addresses, Ruling::Ban) => M::ListBlockedIps,
        _ => return None,
    })
}
