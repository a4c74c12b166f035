//! The roles that managers have defined and assigned (NIP-86, NIP-43), as the archive keeps them:
//! one value for each role, and one for each key with a role.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hark_codec::hex;
use hark_codec::record::Key;
use serde_json::{Value, json};

use super::call::RoleDefinition;
use super::method::ManageMethod;
use crate::moderation::{AuditAct, Moderation, ModerationError, RulingSubject};

/// Maximum number of roles.
pub(super) const ROLES_MAX: usize = 500;
/// Maximum number of keys with one role.
pub(super) const KEYS_OF_ROLE_MAX: usize = 5_000;

/// The beginning of the name of a value that defines a role. The id of the role follows.
const ROLE: &str = "role/";
/// The beginning of the name of a value that assigns a role. The key, a slash and the id follow.
const MEMBER: &str = "member/";

/// The roles, and the keys of each role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleList {
    pub(super) defined: BTreeMap<String, RoleDefinition>,
    pub(super) members: BTreeMap<String, BTreeSet<Key>>,
}

impl RoleList {
    /// Reads the roles from the values in the archive.
    pub(crate) fn read<'a>(kept: impl Iterator<Item = (&'a str, &'a Value)>) -> Self {
        let mut list = Self::default();
        for (name, value) in kept {
            if let Some(id) = name.strip_prefix(ROLE) {
                list.defined.insert(id.to_owned(), RoleDefinition::read(id, value));
            } else if let Some((key, id)) = member(name) {
                list.members.entry(id.to_owned()).or_default().insert(key);
            }
        }
        list
    }

    /// The defined roles, in the order of their ids.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &RoleDefinition> {
        self.defined.values()
    }

    /// The ids of the roles of each key with a role, in order.
    pub(crate) fn by_key(&self) -> HashMap<Key, Vec<&str>> {
        let mut by_key = HashMap::<Key, Vec<&str>>::new();
        for (id, keys) in &self.members {
            for key in keys {
                by_key.entry(*key).or_default().push(id);
            }
        }
        by_key
    }

    /// Whether a key was given a role.
    pub(super) fn is_assigned(&self, id: &str, key: &Key) -> bool {
        self.members.get(id).is_some_and(|keys| keys.contains(key))
    }
}

/// The name of the value that defines a role.
pub(super) fn role_name(id: &str) -> String {
    [ROLE, id].concat()
}

/// The name of the value that gives a role to a key.
pub(crate) fn member_name(id: &str, key: &Key) -> String {
    format!("{MEMBER}{}/{id}", hex::text_32(key))
}

/// Withdraws all roles that managers have given to a key, with a note for each role in the audit
/// log. Waits for the archive.
pub(crate) fn withdraw_roles(
    moderation: &Moderation,
    key: &Key,
    by: &str,
) -> Result<(), ModerationError> {
    moderation.learn_news()?;
    let names = moderation.value_names(&member_name("", key));
    for (name, id) in names.iter().filter_map(|name| Some((name, member(name)?.1))) {
        let act = AuditAct {
            act: ManageMethod::UnassignRole.text().into(),
            subject: RulingSubject::Key(*key).to_string(),
            before: json!(id),
            after: Value::Null,
        };
        moderation.set_values_now(&[(name.clone(), Value::Null)], &act, by)?;
    }
    Ok(())
}

fn member(name: &str) -> Option<(Key, &str)> {
    let (key, id) = name.strip_prefix(MEMBER)?.split_once('/')?;
    Some((hex::decode_32(key.as_bytes())?, id))
}

impl RoleDefinition {
    fn read(id: &str, value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        Self {
            id: id.to_owned(),
            label: text("label"),
            description: text("description"),
            color: value["color"].as_u64().and_then(|hue| u16::try_from(hue).ok()),
            order: value["order"].as_i64(),
        }
    }

    /// The value that the archive keeps.
    pub(super) fn value(&self) -> Value {
        let Self { id: _, label, description, color, order } = self;
        json!({ "label": label, "description": description, "color": color, "order": order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_as_they_are_kept() {
        let king = RoleDefinition {
            id: "a/b".into(),
            label: "king".into(),
            description: "rules".into(),
            color: Some(37),
            order: Some(-1),
        };
        let plain = RoleDefinition { id: "plain".into(), ..RoleDefinition::default() };
        let kept: BTreeMap<String, Value> = [
            (role_name("a/b"), king.value()),
            (role_name("plain"), plain.value()),
            (member_name("a/b", &[7; 32]), json!(true)),
            ("member/xy/plain".into(), json!(true)),
            ("info/name".into(), json!("Relay")),
        ]
        .into();
        let list = RoleList::read(kept.iter().map(|(name, value)| (name.as_str(), value)));
        assert_eq!(list.defined.values().collect::<Vec<_>>(), [&king, &plain]);
        assert!(list.is_assigned("a/b", &[7; 32]) && !list.is_assigned("plain", &[7; 32]));
        assert!(!list.is_assigned("a/b", &[8; 32]));
    }
}
