//! The settings of who may manage the relay (NIP-86).

use hark_codec::hex;
use hark_server::nostr::{ManageMethod, ManagerRole};

use super::keys;
use super::setting_type::{SettingType, quoted, wanted};
use super::value::{TypedValue, did_you_mean};

impl SettingType for Vec<ManagerRole> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let roles: Self = match value.entries() {
            Some(list) => list.iter().map(role).collect::<Result<_, _>>()?,
            None => return wanted("a list of roles in TOML", value),
        };
        for (at, role) in roles.iter().enumerate() {
            if roles[..at].iter().any(|other| other.id == role.id) {
                return Err(format!("has two roles with the id {:?}", role.id));
            }
        }
        Ok(roles)
    }

    fn show(&self) -> String {
        let roles: Vec<String> = self.iter().map(show_role).collect();
        format!("[{}]", roles.join(", "))
    }
}

fn role(value: &TypedValue) -> Result<ManagerRole, String> {
    const KEYS: [&str; 3] = ["id", "methods", "keys"];
    let TypedValue::Table(table) = value else {
        let what =
            "a role like { id = \"moderator\", methods = [\"banevent\"], keys = [\"npub1…\"] }";
        return wanted(what, value);
    };
    let mut role = ManagerRole::default();
    for (key, line, value) in table {
        let read = match key.as_str() {
            "id" => text(value).map(|id| id.trim().clone_into(&mut role.id)),
            "methods" => list(value, method).map(|methods| role.methods = methods),
            "keys" => list(value, keys::public_key).map(|keys| role.keys = keys),
            _ => Err(format!("unknown{}", did_you_mean(key, KEYS.into_iter()))),
        };
        read.map_err(|fault| format!("`{key}` of a role, line {line}: {fault}"))?;
    }
    if role.id.is_empty() {
        return Err("has a role without `id`, e.g. \"moderator\"".into());
    }
    Ok(role)
}

fn text(value: &TypedValue) -> Result<String, String> {
    match value {
        TypedValue::Text(text) => Ok(text.clone()),
        _ => wanted("text", value),
    }
}

fn list<T>(value: &TypedValue, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let TypedValue::List(list) = value else { return wanted("a list of texts", value) };
    list.iter().map(|value| read(&text(value)?)).collect()
}

fn method(name: &str) -> Result<ManageMethod, String> {
    let known = ManageMethod::from_name(name);
    known.filter(|method| *method != ManageMethod::SupportedMethods).ok_or_else(|| {
        let names = ManageMethod::grantable().map(ManageMethod::text);
        format!("{name:?} is no method of NIP-86{}", did_you_mean(name, names))
    })
}

fn show_role(role: &ManagerRole) -> String {
    let quoted_list =
        |texts: Vec<String>| texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ");
    let methods = role.methods.iter().map(|method| method.text().to_owned()).collect();
    let keys = role.keys.iter().map(hex::text_32).collect();
    let id = quoted(&role.id);
    let (methods, keys) = (quoted_list(methods), quoted_list(keys));
    format!("{{ id = {id}, methods = [{methods}], keys = [{keys}] }}")
}
