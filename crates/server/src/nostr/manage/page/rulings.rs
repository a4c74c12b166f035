//! The bans and allows in the archive, as `hark list` shows them, with a form for new ones.

use hark_archive::Key;

use super::names::ShownTexts;
use super::view::{AdminPage, AdminView, DURATIONS, cell, long_id, next_link, options, table};
use crate::blocking;
use crate::moderation::{
    EntryFilter, EntryPage, Ruling, RulingChange, RulingEntry, RulingSubject, SubjectSort,
};
use crate::nostr::html::{Html, html};
use crate::nostr::manage::fault::ManageFault;
use crate::nostr::manage::ruling_methods::changing_method;
use crate::words::moment;

/// Maximum number of entries of a page.
const ROWS_MAX: usize = 50;

/// The list of a sort with a ruling.
const LISTS: [(SubjectSort, &str); 5] = [
    (SubjectSort::Key, "keys"),
    (SubjectSort::Id, "events"),
    (SubjectSort::Kind, "kinds"),
    (SubjectSort::Word, "words"),
    (SubjectSort::Addresses, "addresses"),
];

pub(super) async fn page(view: &AdminView<'_>) -> Result<Html, ManageFault> {
    let of = |ruling: Ruling| {
        LISTS
            .into_iter()
            .filter(move |(sort, _)| view.may_list(*sort, ruling))
            .map(move |(sort, name)| (ruling, sort, name))
    };
    let lists: Vec<_> = Ruling::ALL.into_iter().flat_map(of).collect();
    let asked = (
        Ruling::from_name(view.asked.get("ruling")),
        SubjectSort::from_name(view.asked.get("sort")),
    );
    let chosen = lists
        .iter()
        .find(|(ruling, sort, _)| asked == (Some(*ruling), Some(*sort)))
        .or(lists.first());
    let new = new_form(view);
    let Some((ruling, sort, _)) = chosen.copied() else { return Ok(new) };
    let tabs: Html = Ruling::ALL
        .into_iter()
        .map(|ruling| {
            let links: Html = lists
                .iter()
                .filter(|(of, ..)| *of == ruling)
                .map(|(_, of, name)| {
                    let fields = [("ruling", ruling.name()), ("sort", of.name())];
                    let current = (Some((ruling, *of))
                        == chosen.map(|(ruling, of, _)| (*ruling, *of)))
                    .then(|| html!(" aria-current=\"page\""));
                    html!(
                        "<li><a href=\"{}\"{}>{}</a></li>\n",
                        view.url(AdminPage::Rulings, &fields),
                        current,
                        *name
                    )
                })
                .collect();
            let name = if ruling == Ruling::Ban { "Banned" } else { "Allowed" };
            if links.is_empty() {
                return links;
            }
            html!(
                "<ul aria-label=\"{name}\"><li><b>{name}</b></li>\n{links}</ul>\n",
                name = name,
                links = links
            )
        })
        .collect();
    let filter = EntryFilter { ruling: Some(ruling), sort: Some(sort) };
    let page = entries(view, filter).await?;
    let texts = texts_of(view, &page.entries).await?;
    let rows: Vec<Html> = page
        .entries
        .iter()
        .map(|entry| show(view, (AdminPage::Rulings, &Html::default()), entry, &texts))
        .collect();
    let next = page.next.map(|after| {
        let fields = [("ruling", ruling.name()), ("sort", sort.name()), ("after", after.as_str())];
        view.url(AdminPage::Rulings, &fields)
    });
    let caption = if ruling == Ruling::Ban { "Bans in force" } else { "Allows in force" };
    Ok(html!(
        "<nav class=\"lists\" aria-label=\"Lists\">\n{}</nav>\n{}{}{}\
         <p class=\"remark\">The lists in <code>[policy]</code> of the configuration apply as well.</p>\n",
        tabs,
        table(caption, &["subject", "reason", "until", "by", ""], &rows, "This list is empty."),
        next_link(next),
        new
    ))
}

/// Reads the page of the entries that the query asks for.
pub(super) async fn entries(
    view: &AdminView<'_>,
    filter: EntryFilter,
) -> Result<EntryPage, ManageFault> {
    let moderation = view.relay.moderation.clone();
    let after = view.asked.filled("after").map(str::to_owned);
    // A sort with few entries may be searched for among very many others.
    let read = blocking::run(move || moderation.entries(filter, after.as_deref(), ROWS_MAX));
    Ok(read.await.map_err(|_| ManageFault::Stopping)??)
}

/// Reads the names and events of entries.
pub(super) async fn texts_of(
    view: &AdminView<'_>,
    entries: &[RulingEntry],
) -> Result<ShownTexts, ManageFault> {
    let keys: Vec<Key> = entries
        .iter()
        .filter_map(|entry| match entry.subject {
            RulingSubject::Key(key) => Some(key),
            _ => None,
        })
        .collect();
    let ids = entries.iter().filter_map(|entry| match entry.subject {
        RulingSubject::Id(id) => Some(id),
        _ => None,
    });
    ShownTexts::read(view.relay, keys, ids.collect()).await
}

/// A row of the list. `tags` follow the subject.
pub(super) fn show(
    view: &AdminView<'_>,
    (page, tags): (AdminPage, &Html),
    entry: &RulingEntry,
    texts: &ShownTexts,
) -> Html {
    let subject = entry.subject.shown();
    let about = match &entry.subject {
        RulingSubject::Key(key) => texts.name(key).map(|name| html!("<b>{}</b><br>", name)),
        RulingSubject::Id(id) => {
            texts.event(id).map(|event| html!("<q class=\"event\">{}</q>", event.text))
        }
        _ => None,
    };
    let until = entry.until_s.map_or("lifted".into(), moment);
    let change = RulingChange::Lift(entry.subject.clone(), entry.ruling);
    let may_lift = changing_method(&change).map_or(view.may_all(), |method| view.may(method));
    let act = entry.ruling.lifting_name();
    let subject_text = entry.subject.to_string();
    let hidden = [("subject", subject_text.as_str())];
    let text = if page == AdminPage::Members { "Remove" } else { "Lift" };
    let lift = may_lift.then(|| view.button((page, act), &hidden, (text, &subject)));
    [
        cell("subject", &html!("{}{} {}", about, long_id(&subject), tags)),
        cell("reason", &html!("{}", *entry.reason)),
        cell("until", &html!("{}", until)),
        cell("by", &html!("{}<br><small>{}</small>", long_id(&entry.by), moment(entry.since_s))),
        html!("<td class=\"acts\">{}</td>", lift),
    ]
    .into_iter()
    .collect()
}

/// The form for a new ban or allow.
fn new_form(view: &AdminView<'_>) -> Html {
    let subject: String = view.asked.get("subject").chars().take(2_000).collect();
    let fields = html!(
        "<label class=\"wide\">Subject <input name=\"subject\" value=\"{subject}\" required maxlength=\"2000\" \
         autocomplete=\"off\" spellcheck=\"false\" aria-describedby=\"forms\"></label>\n\
         <label class=\"wide\">Reason, which refused clients get <input name=\"reason\" maxlength=\"500\"></label>\n\
         <label>For <select name=\"for\">{durations}</select></label>\n\
         <span class=\"buttons\"><button class=\"main\" name=\"act\" value=\"ban\">Ban</button> \
         <button name=\"act\" value=\"allow\">Allow</button></span>\n\
         <p id=\"forms\" class=\"remark\">A key (npub1…), an event (note1…, nevent1… or id:HEX), kind:NUMBER, \
         word:TEXT, an address, or a network like 192.0.2.0/24.</p>\n",
        subject = subject,
        durations = options(&DURATIONS, ""),
    );
    let token =
        html!("<input type=\"hidden\" name=\"token\" value=\"{}\">", view.session.form_token);
    let query = (!view.query.is_empty() && subject.is_empty()).then(|| html!("?{}", view.query));
    html!(
        "<section id=\"new\">\n<h2>Ban or allow</h2>\n\
         <form class=\"fields\" method=\"post\" action=\"{}{}\">{}{}</form>\n</section>\n",
        view.url(AdminPage::Rulings, &[]),
        query,
        token,
        fields
    )
}
