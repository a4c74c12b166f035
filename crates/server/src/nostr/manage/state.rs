//! The state of the relay management API: managers, used signatures, roles, and the managers'
//! changes of the relay's description.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hark_codec::record::Key;
use serde_json::Value;

use super::call::InfoField;
use super::fault::ManageResult;
use super::http_auth::SeenSignatures;
use super::managers::SharedManagers;
use super::page::AdminSessions;
use super::roles::RoleList;
use crate::metrics::ByLabel;
use crate::moderation::Moderation;
use crate::nostr::identity::{InfoChanges, SharedIdentity};

/// The keys of all managers, which can change while the relay runs.
#[derive(Clone, Default)]
pub struct ManagerKeys {
    managers: SharedManagers,
    roles: Arc<ArcSwap<RoleList>>,
}

impl ManagerKeys {
    /// The keys of these managers, without roles that are kept in an archive.
    pub fn new(managers: SharedManagers) -> Self {
        Self { managers, roles: Arc::default() }
    }

    /// Whether a key is the key of a manager.
    pub(crate) fn have(&self, key: &Key) -> bool {
        let roles = self.roles.load();
        self.managers.load().permissions(key, |role| roles.is_assigned(role, key)).is_some()
    }
}

/// The state of the relay management API.
pub(crate) struct Management {
    pub(super) managers: SharedManagers,
    pub(super) seen: SeenSignatures,
    pub(crate) roles: Arc<ArcSwap<RoleList>>,
    pub(super) moderation: Moderation,
    /// The people who have logged in to the page.
    pub(super) sessions: AdminSessions,
    /// The number of requests, by result.
    pub(crate) results: ByLabel<ManageResult>,
}

impl Management {
    /// Creates the state at the time `now_s`, in seconds since 1970. From now on, the identity and
    /// the roles follow the values that the archive keeps.
    pub(crate) fn new(
        managers: SharedManagers,
        moderation: Moderation,
        identity: SharedIdentity,
        now_s: u64,
    ) -> Self {
        let roles = Arc::<ArcSwap<RoleList>>::default();
        let in_force = Arc::clone(&roles);
        moderation.on_values(Box::new(move |values| {
            let named = values.iter().map(|(name, value)| (name.as_str(), value));
            in_force.store(Arc::new(RoleList::read(named)));
            identity.change_info(info_changes(values));
        }));
        let (seen, results) = (SeenSignatures::new(now_s), ByLabel::default());
        let sessions = AdminSessions::default();
        Self { managers, seen, roles, moderation, sessions, results }
    }

    /// The keys of the managers.
    pub(crate) fn keys(&self) -> ManagerKeys {
        ManagerKeys { managers: Arc::clone(&self.managers), roles: Arc::clone(&self.roles) }
    }

    /// Whether the page for managers is on.
    pub(crate) fn has_page(&self) -> bool {
        self.managers.load().has_page
    }

    /// Whether somebody may manage the relay.
    pub(crate) fn is_offered(&self) -> bool {
        !self.managers.load().is_empty()
    }
}

impl InfoField {
    /// The name of the value in the archive.
    pub(super) fn value_name(self) -> &'static str {
        match self {
            Self::Name => "info/name",
            Self::Description => "info/description",
            Self::Icon => "info/icon",
        }
    }
}

/// The changes of the relay's description that the archive keeps.
fn info_changes(values: &BTreeMap<String, Value>) -> InfoChanges {
    let text = |field: InfoField| {
        let value = values.get(field.value_name())?;
        value.as_str().map(str::to_owned)
    };
    InfoChanges {
        name: text(InfoField::Name),
        description: text(InfoField::Description),
        icon: text(InfoField::Icon),
    }
}
