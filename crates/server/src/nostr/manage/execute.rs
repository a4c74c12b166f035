//! Carries out the calls of managers.

use std::sync::Arc;

use hark_codec::hex;
use hark_networks::nostr::reports::{ReportChoice, ReportQueue, ReportedSubject};
use serde_json::{Value, json};

use super::call::{InfoField, ManageCall, NewRuling, RoleDefinition};
use super::fault::ManageFault;
use super::managers::Permissions;
use super::method::ManageMethod;
use super::roles::{KEYS_OF_ROLE_MAX, ROLES_MAX, member_name, role_name};
use crate::blocking;
use crate::moderation::{
    AuditAct, EntryFilter, Moderation, Ruling, RulingChange, RulingSubject, SubjectSort,
};
use crate::nostr::Relay;

/// Maximum number of entries of a list in an answer.
const LIST_MAX: usize = 50_000;
/// Number of entries that are read at once.
const PAGE: usize = 500;

/// Carries out a call of the manager `by`, and returns its result.
pub(super) async fn execute(
    relay: &Arc<Relay>,
    call: ManageCall,
    permissions: &Permissions,
    by: &str,
) -> Result<Value, ManageFault> {
    let moderation = &relay.management.moderation;
    match call {
        ManageCall::SupportedMethods => {
            let methods = ManageMethod::grantable().filter(|method| permissions.include(*method));
            return Ok(methods.map(ManageMethod::text).collect());
        }
        ManageCall::Rule(NewRuling { subject, ruling, reason, until_s }) => {
            let contrary = if ruling == Ruling::Ban { Ruling::Allow } else { Ruling::Ban };
            let lift = RulingChange::Lift(subject.clone(), contrary);
            let set = RulingChange::Set { subject, ruling, reason, until_s };
            moderation.change(vec![lift, set], by).await?;
        }
        ManageCall::Lift(subject, ruling) => {
            moderation.change(vec![RulingChange::Lift(subject, ruling)], by).await?;
        }
        ManageCall::List(sort, ruling) => return list(moderation, sort, ruling),
        ManageCall::EventsNeedingModeration => return reports(relay).await,
        ManageCall::ChangeInfo(field, text) => change_info(relay, field, text, by).await?,
        ManageCall::DefineRole { role, is_new } => define_role(relay, role, is_new, by).await?,
        ManageCall::DeleteRole(id) => delete_role(relay, &id, permissions, by).await?,
        ManageCall::AssignRole { key, role, is_given } => {
            assign_role(relay, (&key, &role), is_given, permissions, by).await?;
        }
    }
    Ok(true.into())
}

/// Returns the banned or the allowed subjects of one sort, in NIP-86's format for this sort.
fn list(moderation: &Moderation, sort: SubjectSort, ruling: Ruling) -> Result<Value, ManageFault> {
    let filter = EntryFilter { ruling: Some(ruling), sort: Some(sort) };
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = moderation.entries(filter, after.as_deref(), PAGE)?;
        for entry in &page.entries {
            let name = match &entry.subject {
                RulingSubject::Key(key) => ("pubkey", hex::text_32(key)),
                RulingSubject::Id(id) => ("id", hex::text_32(id)),
                RulingSubject::Addresses(_) => ("ip", entry.subject.shown()),
                RulingSubject::Kind(kind) => {
                    rows.push(json!(kind));
                    continue;
                }
                RulingSubject::Word(_) => continue,
            };
            rows.push(row(name, &entry.reason));
        }
        if rows.len() > LIST_MAX {
            return Err(ManageFault::LongList(LIST_MAX));
        }
        let Some(next) = page.next else { return Ok(rows.into()) };
        after = Some(next);
    }
}

/// A row with a subject, and with its reason if the reason is not empty.
fn row((name, subject): (&str, String), reason: &str) -> Value {
    let mut row = json!({ name: subject });
    if !reason.is_empty() {
        row["reason"] = reason.into();
    }
    row
}

/// The reported events that are stored here, and that nobody has decided about.
async fn reports(relay: &Arc<Relay>) -> Result<Value, ManageFault> {
    let queue = report_queue(relay, |subject| matches!(subject, ReportedSubject::Event(_))).await?;
    let rows = queue.items.iter().filter_map(|item| match item.subject {
        ReportedSubject::Event(id) => Some(row(("id", hex::text_32(&id)), &item.reason())),
        ReportedSubject::Key(_) => None,
    });
    Ok(rows.collect())
}

/// The undecided reports: of events that are stored here, and of keys. `is_wanted` selects
/// subjects.
pub(super) async fn report_queue(
    relay: &Arc<Relay>,
    is_wanted: fn(&ReportedSubject) -> bool,
) -> Result<ReportQueue, ManageFault> {
    let relay = Arc::clone(relay);
    let read = blocking::run(move || {
        let moderation = &relay.management.moderation;
        let has = |subject: RulingSubject| {
            Ruling::ALL.iter().any(|ruling| moderation.entry(*ruling, &subject).is_some())
        };
        let choice = ReportChoice {
            is_open: &|subject| {
                let ruled = match subject {
                    ReportedSubject::Event(id) => RulingSubject::Id(*id),
                    ReportedSubject::Key(key) => RulingSubject::Key(*key),
                };
                is_wanted(subject) && !has(ruled)
            },
            is_heard: &|key| moderation.entry(Ruling::Ban, &RulingSubject::Key(*key)).is_none(),
            with_absent: false,
            now_s: relay.shelf.clock().now_s(),
        };
        let mut queue = ReportQueue::read(&**relay.shelf.store(), &choice)?;
        // The events of a banned key are hidden already.
        queue.items.retain(|item| item.author.is_none_or(|key| (choice.is_heard)(&key)));
        Ok::<_, hark_archive::SearchError>(queue)
    });
    let read = read.await.map_err(|_| ManageFault::Stopping)?;
    read.map_err(|error| ManageFault::Search(error.to_string()))
}

async fn change_info(
    relay: &Relay,
    field: InfoField,
    text: Option<String>,
    by: &str,
) -> Result<(), ManageFault> {
    let before = {
        let identity = relay.identity.current();
        match field {
            InfoField::Name => json!(identity.info.name),
            InfoField::Description => json!(identity.info.description),
            InfoField::Icon => json!(identity.info.icon),
        }
    };
    let (method, value) = match field {
        InfoField::Name => (ManageMethod::ChangeRelayName, json!(text)),
        InfoField::Description => (ManageMethod::ChangeRelayDescription, json!(text)),
        InfoField::Icon => (ManageMethod::ChangeRelayIcon, json!(text)),
    };
    let act = AuditAct {
        act: method.text().into(),
        subject: String::new(),
        before,
        after: value.clone(),
    };
    let values = vec![(field.value_name().to_owned(), value)];
    Ok(relay.management.moderation.set_values(values, act, by).await?)
}

async fn define_role(
    relay: &Relay,
    role: RoleDefinition,
    is_new: bool,
    by: &str,
) -> Result<(), ManageFault> {
    let roles = relay.management.roles.load_full();
    let before = roles.defined.get(&role.id);
    match (before, is_new) {
        (Some(_), true) => return Err(ManageFault::RoleExists(role.id)),
        (None, false) => return Err(ManageFault::NoRole(role.id)),
        (None, true) if roles.defined.len() >= ROLES_MAX => {
            return Err(ManageFault::TooManyRoles(ROLES_MAX));
        }
        _ => {}
    }
    let method = if is_new { ManageMethod::CreateRole } else { ManageMethod::EditRole };
    let act = AuditAct {
        act: method.text().into(),
        subject: role.id.clone(),
        before: before.map_or(Value::Null, RoleDefinition::value),
        after: role.value(),
    };
    let values = vec![(role_name(&role.id), role.value())];
    Ok(relay.management.moderation.set_values(values, act, by).await?)
}

async fn delete_role(
    relay: &Relay,
    id: &str,
    permissions: &Permissions,
    by: &str,
) -> Result<(), ManageFault> {
    let management = &relay.management;
    if !permissions.cover(management.managers.load().role(id)) {
        return Err(ManageFault::RoleAbove(id.to_owned()));
    }
    let roles = management.roles.load_full();
    let Some(role) = roles.defined.get(id) else {
        return Err(ManageFault::NoRole(id.to_owned()));
    };
    let members = roles.members.get(id).into_iter().flatten();
    let members: Vec<_> = members.collect();
    let mut before = role.value();
    before["pubkeys"] = members.iter().map(|key| hex::text_32(key)).collect();
    let act = AuditAct {
        act: ManageMethod::DeleteRole.text().into(),
        subject: id.to_owned(),
        before,
        after: Value::Null,
    };
    let names = members.into_iter().map(|key| member_name(id, key));
    let values = names.chain([role_name(id)]).map(|name| (name, Value::Null)).collect();
    Ok(management.moderation.set_values(values, act, by).await?)
}

async fn assign_role(
    relay: &Relay,
    (key, id): (&[u8; 32], &str),
    is_given: bool,
    permissions: &Permissions,
    by: &str,
) -> Result<(), ManageFault> {
    let management = &relay.management;
    let roles = management.roles.load_full();
    {
        let managers = management.managers.load();
        let of_settings = managers.role(id);
        if !permissions.cover(of_settings) {
            return Err(ManageFault::RoleAbove(id.to_owned()));
        }
        if of_settings.is_none() && is_given && !roles.defined.contains_key(id) {
            return Err(ManageFault::NoRole(id.to_owned()));
        }
        if !is_given && of_settings.is_some_and(|role| role.keys.contains(key)) {
            return Err(ManageFault::RoleOfSettings(id.to_owned()));
        }
    }
    let is_assigned = roles.is_assigned(id, key);
    if is_assigned == is_given {
        return Ok(());
    }
    if is_given && roles.members.get(id).is_some_and(|keys| keys.len() >= KEYS_OF_ROLE_MAX) {
        return Err(ManageFault::TooManyKeys(KEYS_OF_ROLE_MAX));
    }
    let method = if is_given { ManageMethod::AssignRole } else { ManageMethod::UnassignRole };
    let role = |has: bool| if has { json!(id) } else { Value::Null };
    let act = AuditAct {
        act: method.text().into(),
        subject: RulingSubject::Key(*key).to_string(),
        before: role(is_assigned),
        after: role(is_given),
    };
    let value = if is_given { json!(true) } else { Value::Null };
    Ok(management.moderation.set_values(vec![(member_name(id, key), value)], act, by).await?)
}
