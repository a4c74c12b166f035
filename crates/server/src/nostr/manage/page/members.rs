//! The members: keys that are allowed in addition to `[policy] allow_keys`, with their roles.

use super::rulings::{entries, show, texts_of};
use super::view::{AdminPage, AdminView, DURATIONS, next_link, options, table};
use crate::moderation::{EntryFilter, Ruling, RulingEntry, RulingSubject, SubjectSort};
use crate::nostr::html::{Html, html};
use crate::nostr::manage::fault::ManageFault;
use crate::nostr::manage::method::ManageMethod;
use crate::words::count;

pub(super) async fn page(view: &AdminView<'_>) -> Result<Html, ManageFault> {
    let listed = view.relay.policy.load().allow_keys.as_ref().map(|keys| keys.len() as u64);
    let rule = match listed {
        None => {
            "Everyone may publish, because [policy] allow_keys is not set. Members are only a list."
                .into()
        }
        Some(keys) => format!(
            "Members may publish. [policy] allow_keys has {} more, which only the configuration changes.",
            count(keys, "key")
        ),
    };
    let list = if view.may_list(SubjectSort::Key, Ruling::Allow) {
        let filter = EntryFilter { ruling: Some(Ruling::Allow), sort: Some(SubjectSort::Key) };
        let page = entries(view, filter).await?;
        let texts = texts_of(view, &page.entries).await?;
        let rows: Vec<Html> = page
            .entries
            .iter()
            .map(|entry| {
                let roles = roles_of(view, entry);
                show(view, (AdminPage::Members, &roles), entry, &texts)
            })
            .collect();
        let next = page.next.map(|after| view.url(AdminPage::Members, &[("after", &after)]));
        let headings = ["member", "note", "until", "by", ""];
        html!(
            "{}{}",
            table("Members", &headings, &rows, "There are no members yet."),
            next_link(next)
        )
    } else {
        Html::default()
    };
    let new = view.may(ManageMethod::AllowPubkey).then(|| new_form(view));
    Ok(html!("<p>{}</p>\n{}{}", rule, list, new))
}

/// The roles of a member.
fn roles_of(view: &AdminView<'_>, entry: &RulingEntry) -> Html {
    let RulingSubject::Key(key) = &entry.subject else { return Html::default() };
    let roles = view.relay.management.roles.load();
    let managers = view.relay.management.managers.load();
    let given = roles.members.iter().filter(|(_, keys)| keys.contains(key)).map(|(id, _)| id);
    let fixed = managers.roles.iter().filter(|role| role.keys.contains(key)).map(|role| &role.id);
    given.chain(fixed).map(|id| html!("<span class=\"tag\">{}</span> ", id)).collect()
}

fn new_form(view: &AdminView<'_>) -> Html {
    let fields = html!(
        "<label class=\"wide\">Key <input name=\"subject\" required maxlength=\"200\" autocomplete=\"off\" \
         spellcheck=\"false\" placeholder=\"npub1…\"></label>\n\
         <label class=\"wide\">Note <input name=\"reason\" maxlength=\"500\"></label>\n\
         <label>For <select name=\"for\">{}</select></label>\n\
         <span class=\"buttons\"><button class=\"main\">Add</button></span>\n",
        options(&DURATIONS, "")
    );
    html!(
        "<section>\n<h2>Add a member</h2>\n<div class=\"fields\">{}</div>\n</section>\n",
        view.form((AdminPage::Members, "allow"), &[], &fields)
    )
}
