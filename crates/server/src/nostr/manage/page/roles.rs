//! The roles (NIP-43), with their methods and keys.

use std::collections::BTreeSet;

use hark_archive::Key;
use hark_codec::nostr::npub;

use super::names::ShownTexts;
use super::view::{AdminPage, AdminView, long_id};
use crate::nostr::html::{Html, html};
use crate::nostr::manage::call::RoleDefinition;
use crate::nostr::manage::fault::ManageFault;
use crate::nostr::manage::method::ManageMethod;
use crate::words::count;

/// Maximum number of keys of a role that are shown, and of roles.
const KEYS_MAX: usize = 100;
const ROLES_MAX: usize = 100;

pub(super) async fn page(view: &AdminView<'_>) -> Result<Html, ManageFault> {
    let management = &view.relay.management;
    let (roles, managers) = (management.roles.load_full(), management.managers.load_full());
    let of_settings = managers.roles.iter().map(|role| role.id.as_str());
    let ids: BTreeSet<&str> = roles.defined.keys().map(String::as_str).chain(of_settings).collect();
    let shown: Vec<&str> = ids.iter().copied().take(ROLES_MAX).collect();
    let keys_of = |id: &str| {
        let given = roles.members.get(id).into_iter().flatten().map(|key| (*key, true));
        let fixed = managers.role(id).into_iter().flat_map(|role| &role.keys);
        given.chain(fixed.map(|key| (*key, false))).take(KEYS_MAX).collect::<Vec<(Key, bool)>>()
    };
    let keys = shown.iter().flat_map(|id| keys_of(id)).map(|(key, _)| key).collect();
    let texts = ShownTexts::read(view.relay, keys, Vec::new()).await?;
    let sections: Html = shown
        .iter()
        .map(|id| {
            let methods = managers.role(id).map(|role| role.methods.as_slice());
            let given = roles.members.get(*id).map_or(0, BTreeSet::len) as u64;
            let members = show_members(view, id, &keys_of(id), &texts);
            show_role(view, (id, roles.defined.get(*id)), methods, (given, members))
        })
        .collect();
    let admins = count(managers.admins.len() as u64, "key");
    let cut = (ids.len() > ROLES_MAX).then(|| {
        html!("<p class=\"remark\">The first {} roles are shown.</p>\n", ROLES_MAX as u64)
    });
    let new = view.may(ManageMethod::CreateRole).then(|| {
        let id = html!("<label>Id <input name=\"role\" required maxlength=\"200\" autocomplete=\"off\"></label>\n");
        let fields = html!("{}{}", id, definition_fields(&RoleDefinition::default(), "Create"));
        html!(
            "<section>\n<h2>New role</h2>\n<div class=\"fields\">{}</div>\n</section>\n",
            view.form((AdminPage::Roles, "createrole"), &[], &fields)
        )
    });
    Ok(html!(
        "<p>A role has methods only if <code>[manage] roles</code> has a role with the same id. Any other role \
         is a label. {} in <code>[manage] keys</code> may do everything.</p>\n{}{}{}",
        admins,
        sections,
        cut,
        new
    ))
}

fn show_role(
    view: &AdminView<'_>,
    (id, defined): (&str, Option<&RoleDefinition>),
    methods: Option<&[ManageMethod]>,
    (given, members): (u64, Html),
) -> Html {
    let label = defined.map(|role| role.label.as_str()).filter(|label| !label.is_empty());
    let label = label.map(|label| html!(" <small>{}</small>", label));
    let description = defined.map(|role| html!("<p>{}</p>\n", role.description));
    let methods = methods.map(|methods| {
        let names: Html = methods
            .iter()
            .map(|method| html!("<span class=\"tag\">{}</span> ", method.text()))
            .collect();
        html!("<p>{}</p>\n", names)
    });
    let assign = view.may(ManageMethod::AssignRole).then(|| {
        let fields = html!(
            "<label>Key <input name=\"key\" required maxlength=\"200\" autocomplete=\"off\" spellcheck=\"false\" \
             placeholder=\"npub1…\"></label> <span class=\"buttons\"><button>Give the role</button></span>"
        );
        html!("<div class=\"fields\">{}</div>\n", view.form((AdminPage::Roles, "assignrole"), &[("role", id)], &fields))
    });
    let edit = defined.filter(|_| view.may(ManageMethod::EditRole)).map(|role| {
        let fields = definition_fields(role, "Save");
        html!(
            "<details><summary>Change the role</summary><div class=\"fields\">{}</div></details>\n",
            view.form((AdminPage::Roles, "editrole"), &[("role", id)], &fields)
        )
    });
    let delete = (defined.is_some() && view.may(ManageMethod::DeleteRole)).then(|| {
        let button =
            view.button((AdminPage::Roles, "deleterole"), &[("role", id)], ("Delete the role", id));
        let from = format!("The role is withdrawn from {}.", count(given, "key"));
        html!("<details><summary>Delete the role</summary><p>{}</p>{}</details>\n", from, button)
    });
    html!(
        "<section class=\"role\">\n<h2>{}{}</h2>\n{}{}{}{}{}{}</section>\n",
        id,
        label,
        description,
        methods,
        members,
        assign,
        edit,
        delete
    )
}

/// The keys of a role. The keys of the settings cannot be withdrawn here.
fn show_members(view: &AdminView<'_>, id: &str, keys: &[(Key, bool)], texts: &ShownTexts) -> Html {
    if keys.is_empty() {
        return html!("<p class=\"none\">No key has this role.</p>\n");
    }
    let items: Html = keys
        .iter()
        .map(|(key, is_given)| {
            let text = npub::encode(key);
            let name = texts.name(key).map(|name| html!("<b>{}</b> ", name));
            let act = if *is_given && view.may(ManageMethod::UnassignRole) {
                let hidden = [("role", id), ("key", text.as_str())];
                view.button((AdminPage::Roles, "unassignrole"), &hidden, ("Withdraw", &text))
            } else if *is_given {
                Html::default()
            } else {
                html!("<small>in the configuration</small>")
            };
            html!("<li><span>{}{}</span> {}</li>\n", name, long_id(&text), act)
        })
        .collect();
    html!("<ul class=\"keys\">\n{}</ul>\n", items)
}

fn definition_fields(role: &RoleDefinition, button: &str) -> Html {
    let number = |number: Option<i64>| number.map(|number| number.to_string());
    html!(
        "<label>Label <input name=\"label\" value=\"{}\" maxlength=\"200\"></label>\n\
         <label class=\"wide\">Description <input name=\"description\" value=\"{}\" maxlength=\"4000\"></label>\n\
         <label>Hue, 0 to 360 <input name=\"color\" value=\"{}\" inputmode=\"numeric\" maxlength=\"3\"></label>\n\
         <label>Order <input name=\"order\" value=\"{}\" inputmode=\"numeric\" maxlength=\"18\"></label>\n\
         <span class=\"buttons\"><button class=\"main\">{}</button></span>\n",
        role.label,
        role.description,
        number(role.color.map(i64::from)),
        number(role.order),
        button
    )
}
