//! The changes that a form makes. Bans, allows and roles change as by calls of NIP-86, and
//! connections close as by `hark kick`.

use std::collections::BTreeSet;
use std::sync::Arc;

use hark_codec::hex;
use hark_codec::nostr::npub;
use serde_json::{Value, json};

use super::form::FormFields;
use crate::blocking;
use crate::moderation::{AuditAct, Ruling, RulingChange, RulingSubject};
use crate::nostr::Relay;
use crate::nostr::manage::call::{ManageCall, ManageRequest, NewRuling};
use crate::nostr::manage::execute::execute;
use crate::nostr::manage::fault::ManageFault;
use crate::nostr::manage::managers::Permissions;
use crate::nostr::manage::method::ManageMethod;
use crate::nostr::manage::ruling_methods::changing_method;
use crate::roster::ConnectionPattern;
use crate::words::{count, moment};

/// The longest duration of a ban or an allow with an end, in seconds: a hundred years.
const DURATION_MAX_S: u64 = 100 * 365 * 86_400;
/// Maximum number of addresses of closed connections in a row of the audit log.
const ADDRESSES_MAX: usize = 3;
/// The reason that a client receives if the manager gives no reason.
const REASON: &str = "the operator closed this connection";

/// Carries out the act of a form for the person `by`, and returns the result as a sentence.
pub(super) async fn carry_out(
    relay: &Arc<Relay>,
    permissions: &Permissions,
    by: &str,
    form: &FormFields,
) -> Result<String, ManageFault> {
    let act = form.get("act");
    if act == "close" {
        return close(relay, permissions, by, form).await;
    }
    let lifts = |ruling: &Ruling| ruling.lifting_name() == act;
    if let Some(ruling) = Ruling::from_name(act) {
        return rule(relay, permissions, by, (ruling, form)).await;
    }
    if let Some(ruling) = Ruling::ALL.into_iter().find(lifts) {
        let subject: RulingSubject = form.get("subject").parse()?;
        let change = RulingChange::Lift(subject.clone(), ruling);
        admit(permissions, &change)?;
        execute(relay, ManageCall::Lift(subject.clone(), ruling), permissions, by).await?;
        let done = if ruling == Ruling::Ban { "banned" } else { "allowed" };
        return Ok(format!("{} is no longer {done}.", subject.shown()));
    }
    change_role(relay, permissions, by, form).await
}

/// Checks that the person may make a change.
fn admit(permissions: &Permissions, change: &RulingChange) -> Result<(), ManageFault> {
    match changing_method(change) {
        _ if *permissions == Permissions::All => Ok(()),
        Some(method) if permissions.include(method) => Ok(()),
        Some(method) => Err(ManageFault::NotAllowed(method)),
        None => Err(ManageFault::NotAdmin),
    }
}

/// Bans or allows a subject.
async fn rule(
    relay: &Arc<Relay>,
    permissions: &Permissions,
    by: &str,
    (ruling, form): (Ruling, &FormFields),
) -> Result<String, ManageFault> {
    let subject: RulingSubject = form.get("subject").parse()?;
    // A reason is shown on terminals and in single lines.
    let reason = form.get("reason").replace(char::is_control, " ");
    let until_s = match form.filled("for") {
        None => None,
        Some(text) => {
            let duration_s: u64 = text.parse().map_err(|_| ManageFault::NoForm)?;
            Some(relay.shelf.clock().now_s() + duration_s.clamp(1, DURATION_MAX_S))
        }
    };
    let (name, until) = (subject.shown(), until_s);
    let change =
        RulingChange::Set { subject: subject.clone(), ruling, reason: reason.clone(), until_s };
    admit(permissions, &change)?;
    let call = ManageCall::Rule(NewRuling { subject, ruling, reason, until_s });
    execute(relay, call, permissions, by).await?;
    let done = if ruling == Ruling::Ban { "banned" } else { "allowed" };
    let until = until.map(|at_s| format!(" until {} UTC", moment(at_s)));
    Ok(format!("{name} is {done}{}.", until.unwrap_or_default()))
}

/// Closes connections, as `hark kick` does.
async fn close(
    relay: &Arc<Relay>,
    permissions: &Permissions,
    by: &str,
    form: &FormFields,
) -> Result<String, ManageFault> {
    if !permissions.include(ManageMethod::BlockIp) {
        return Err(ManageFault::NotAllowed(ManageMethod::BlockIp));
    }
    let whom = form.get("whom");
    let pattern = ConnectionPattern::parse(whom);
    let pattern = pattern.map_err(|fault| ManageFault::Connections(whom.to_owned(), fault))?;
    let reason = form.filled("reason").unwrap_or(REASON).replace(char::is_control, " ");
    let roster = Arc::clone(relay.connections.clients().roster());
    let privacy = relay.settings().addresses_shown;
    let kicked = {
        let reason = reason.clone();
        blocking::run(move || {
            let mut addresses = BTreeSet::new();
            roster.visit(0, |connection| {
                if pattern.matches(connection) {
                    addresses.insert(privacy.show(connection.ip()));
                }
                addresses.len() < ADDRESSES_MAX
            });
            (roster.kick(&pattern, &reason), addresses)
        })
    };
    let (closed, addresses) = kicked.await.map_err(|_| ManageFault::Stopping)?;
    if closed > 0 {
        let act = AuditAct {
            act: "kick".into(),
            subject: addresses.into_iter().collect::<Vec<_>>().join(", "),
            before: Value::Null,
            after: json!({ "closed": closed, "reason": reason }),
        };
        relay.management.moderation.note(act, by).await?;
    }
    Ok(match closed {
        0 => "No open connection matches.".into(),
        closed => format!("{} closed.", count(closed, "connection")),
    })
}

/// Defines, deletes, gives or withdraws a role.
async fn change_role(
    relay: &Arc<Relay>,
    permissions: &Permissions,
    by: &str,
    form: &FormFields,
) -> Result<String, ManageFault> {
    use ManageMethod as M;
    let method = M::from_name(form.get("act")).ok_or(ManageFault::NoForm)?;
    let role = form.get("role");
    let number = |name: &str| form.filled(name).map_or(Value::Null, |digits| json!(digits));
    let key = form.get("key");
    let (params, done) = match method {
        M::CreateRole | M::EditRole => {
            let texts = [role, form.get("label"), form.get("description")].map(|text| json!(text));
            let params = [&texts[..], &[number("color"), number("order")]].concat();
            (params, format!("The role {role} is saved."))
        }
        M::DeleteRole => (vec![json!(role)], format!("The role {role} is deleted.")),
        M::AssignRole | M::UnassignRole => {
            let hex = npub::decode(key).map_or_else(|| key.to_owned(), |key| hex::text_32(&key));
            let done = if method == M::AssignRole { "has" } else { "no longer has" };
            (vec![json!(hex), json!(role)], format!("{key} {done} the role {role}."))
        }
        _ => return Err(ManageFault::NoForm),
    };
    if !permissions.include(method) {
        return Err(ManageFault::NotAllowed(method));
    }
    let call = ManageRequest::new(method, params).call()?;
    execute(relay, call, permissions, by).await?;
    Ok(done)
}
