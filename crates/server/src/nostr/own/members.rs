//! The members whom the relay lists (NIP-43): the keys that the allow list of the policy or an
//! allow of the archive names, unless they are denied or banned.

use std::collections::BTreeSet;

use hark_codec::hex;
use hark_codec::record::Key;

use crate::moderation::Moderation;
use crate::nostr::manage::RoleList;
use crate::nostr::policy::EventPolicy;

/// Maximum number of members in a list.
pub(super) const LISTED_MAX: usize = 10_000;
/// Maximum number of bytes of the tags of a list.
const LIST_BYTES_MAX: usize = 900_000;
/// Number of bytes of a `member` tag in JSON, beside the key and its roles.
const TAG_BYTES: usize = 16;

/// The `member` tags of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MemberList {
    /// The tags, in the order of the keys.
    pub(super) tags: Vec<Vec<String>>,
    /// Whether there are more members than the list may have. The list then has the first members
    /// in the order of their keys.
    pub(super) is_cut: bool,
}

impl MemberList {
    /// Lists the present members, with their roles.
    pub(super) fn read(policy: &EventPolicy, moderation: &Moderation, roles: &RoleList) -> Self {
        let allowed = moderation.allowed_keys();
        let listed = policy.allow_keys.iter().flatten().copied();
        let keys: BTreeSet<Key> = allowed.into_iter().chain(listed).collect();
        let (check, roles) = (moderation.check(), roles.by_key());
        let members = keys.iter().filter(|key| check.names_member(policy, key));
        let mut list = Self::default();
        let mut bytes = 0;
        for key in members {
            let of_key = roles.get(key).into_iter().flatten().map(|role| (*role).to_owned());
            let tag: Vec<String> =
                ["member".to_owned(), hex::text_32(key)].into_iter().chain(of_key).collect();
            bytes += tag.iter().map(|part| part.len() + TAG_BYTES).sum::<usize>();
            if list.tags.len() == LISTED_MAX || bytes > LIST_BYTES_MAX {
                list.is_cut = true;
                break;
            }
            list.tags.push(tag);
        }
        list
    }
}
