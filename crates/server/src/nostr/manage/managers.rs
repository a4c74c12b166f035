//! The keys that may manage the relay, and the methods that each of them may call.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hark_codec::record::Key;

use super::method::ManageMethod;

/// The managers in force. They can be replaced while the relay runs.
pub type SharedManagers = Arc<ArcSwap<Managers>>;

/// The operator's settings of who may manage the relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Managers {
    /// Keys that may call every method.
    pub admins: HashSet<Key>,
    /// Roles whose keys may call some methods.
    pub roles: Vec<ManagerRole>,
    /// Whether the relay has the page `/admin`.
    pub has_page: bool,
}

impl Default for Managers {
    fn default() -> Self {
        Self { admins: HashSet::new(), roles: Vec::new(), has_page: true }
    }
}

/// A role of managers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerRole {
    /// The id of the role.
    pub id: String,
    /// The methods that a key with this role may call.
    pub methods: Vec<ManageMethod>,
    /// Keys with this role. The method `assignrole` gives the role to further keys.
    pub keys: Vec<Key>,
}

impl Managers {
    /// Whether nobody may manage the relay.
    pub fn is_empty(&self) -> bool {
        self.admins.is_empty() && self.roles.is_empty()
    }

    /// Whether a key may manage the relay. `is_assigned` returns whether `assignrole` has given the key
    /// the role with an id.
    pub(crate) fn include(&self, key: &Key, is_assigned: impl Fn(&str) -> bool) -> bool {
        self.permissions(key, is_assigned).is_some()
    }

    /// The role with this id, if the settings have such a role.
    pub(super) fn role(&self, id: &str) -> Option<&ManagerRole> {
        self.roles.iter().find(|role| role.id == id)
    }

    /// The permissions of a key. `is_assigned` returns whether `assignrole` has given the key the
    /// role with an id. `None` if the key is no manager.
    pub(super) fn permissions(
        &self,
        key: &Key,
        is_assigned: impl Fn(&str) -> bool,
    ) -> Option<Permissions> {
        if self.admins.contains(key) {
            return Some(Permissions::All);
        }
        let has = |role: &&ManagerRole| role.keys.contains(key) || is_assigned(&role.id);
        let mut roles = self.roles.iter().filter(has).peekable();
        roles.peek()?;
        let methods = roles.flat_map(|role| &role.methods).copied().collect();
        Some(Permissions::Some(methods))
    }
}

/// The methods that a manager may call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Permissions {
    All,
    Some(Vec<ManageMethod>),
}

impl Permissions {
    /// Whether the manager may call a method.
    pub(super) fn include(&self, method: ManageMethod) -> bool {
        match self {
            Self::All => true,
            Self::Some(methods) => {
                method == ManageMethod::SupportedMethods || methods.contains(&method)
            }
        }
    }

    /// Whether the manager may give a role to others, or withdraw the role: only if the manager may
    /// call all methods of the role.
    pub(super) fn cover(&self, role: Option<&ManagerRole>) -> bool {
        role.is_none_or(|role| role.methods.iter().all(|method| self.include(*method)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_call_the_methods_of_its_roles_and_an_admin_every_method() {
        use ManageMethod::{AssignRole, BanEvent, BanPubkey, SupportedMethods};
        let role = |id: &str, methods: &[ManageMethod], keys: &[Key]| ManagerRole {
            id: id.into(),
            methods: methods.to_vec(),
            keys: keys.to_vec(),
        };
        let [admin, both, one, given, nobody] = [1, 2, 3, 4, 5].map(|number| [number; 32]);
        let managers = Managers {
            admins: [admin].into(),
            roles: vec![
                role("moderator", &[BanEvent], &[both, one]),
                role("guard", &[BanPubkey, AssignRole], &[both]),
                role("guest", &[], &[]),
            ],
            ..Managers::default()
        };
        let may = |key: &Key| {
            let is_assigned = |id: &str| *key == given && id == "guest";
            let permissions = managers.permissions(key, is_assigned)?;
            Some([SupportedMethods, BanEvent, BanPubkey].map(|method| permissions.include(method)))
        };
        assert_eq!(may(&admin), Some([true, true, true]));
        assert_eq!(may(&both), Some([true, true, true]));
        assert_eq!(may(&one), Some([true, true, false]));
        assert_eq!(may(&given), Some([true, false, false]));
        assert_eq!(may(&nobody), None);
        // A manager cannot give a role with more methods than the manager has.
        let covers = |key: &Key, id: &str| {
            managers.permissions(key, |_| false).unwrap().cover(managers.role(id))
        };
        assert!(covers(&admin, "guard") && covers(&both, "moderator") && covers(&one, "moderator"));
        assert!(!covers(&one, "guard"));
        assert!(covers(&one, "guest") && covers(&one, "a label that the settings do not have"));
        assert!(Managers::default().is_empty() && !managers.is_empty());
    }
}
