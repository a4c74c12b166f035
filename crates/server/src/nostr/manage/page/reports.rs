//! The reported events and keys that nobody has decided about (NIP-56), with buttons that decide.

use hark_archive::{Id, Key};
use hark_codec::nostr::npub;
use hark_networks::nostr::reports::{ReportedItem, ReportedSubject};

use super::names::ShownTexts;
use super::view::{AdminPage, AdminView, cell, long_id, next_link, table};
use crate::moderation::{Ruling, RulingChange, RulingSubject};
use crate::nostr::html::{Html, html};
use crate::nostr::manage::execute::report_queue;
use crate::nostr::manage::fault::ManageFault;
use crate::nostr::manage::ruling_methods::changing_method;
use crate::words::{count, moment};

/// Maximum number of subjects of a page.
const ROWS_MAX: usize = 50;

pub(super) async fn page(view: &AdminView<'_>) -> Result<Html, ManageFault> {
    let queue = report_queue(view.relay, |_| true).await?;
    let from: usize = view.asked.get("from").parse().unwrap_or(0);
    let items: Vec<&ReportedItem> = queue.items.iter().skip(from).take(ROWS_MAX).collect();
    let (mut keys, mut ids) = (Vec::<Key>::new(), Vec::<Id>::new());
    for item in &items {
        match item.subject {
            ReportedSubject::Event(id) => ids.push(id),
            ReportedSubject::Key(key) => keys.push(key),
        }
    }
    let texts = ShownTexts::read(view.relay, keys, ids).await?;
    let rows: Vec<Html> = items.iter().map(|item| show(view, item, &texts)).collect();
    let end = from.saturating_add(ROWS_MAX);
    let next = (queue.items.len() > end)
        .then(|| view.url(AdminPage::Reports, &[("from", &end.to_string())]));
    let cut = queue.is_cut.then(|| html!("<p class=\"remark\">Older reports were not read.</p>\n"));
    Ok(html!(
        "<p class=\"count\">{} reported. Reports alone ban nothing; a ban or an allow settles them.</p>\n{}{}{}",
        count(queue.items.len() as u64, "subject"),
        table("Reports", &["reported", "reports", "newest", ""], &rows, "Nothing is reported."),
        next_link(next),
        cut
    ))
}

fn show(view: &AdminView<'_>, item: &ReportedItem, texts: &ShownTexts) -> Html {
    let name = |key: &Key| {
        let name = texts.name(key).map(|name| html!("<b>{}</b> ", name));
        html!("{}{}", name, long_id(&npub::encode(key)))
    };
    let (subject, about) = match &item.subject {
        ReportedSubject::Key(key) => (RulingSubject::Key(*key), html!("key {}", name(key))),
        ReportedSubject::Event(id) => {
            let subject = RulingSubject::Id(*id);
            let text = texts.event(id).map(|event| {
                html!(
                    "<q class=\"event\">{}</q><small>kind {}, {}, by</small> {}",
                    event.text,
                    u64::from(event.kind),
                    moment(event.created_at),
                    name(&event.author)
                )
            });
            let id = long_id(&subject.shown());
            (subject, html!("{}<br><small>event</small> {}", text, id))
        }
    };
    // The reason of a ban has the types of the reports, and no text of strangers.
    let types: Vec<&str> = item.types.keys().copied().collect();
    let reason = format!("reported: {}", types.join(", "));
    let button = |subject: &RulingSubject, ruling: Ruling, text: &str| {
        let reason = if ruling == Ruling::Ban { reason.clone() } else { "reviewed".into() };
        let (subject, until_s) = (subject.clone(), None);
        let (named, about) = (subject.to_string(), subject.shown());
        let hidden = [("subject", named.as_str()), ("reason", &reason)];
        let button = view.button((AdminPage::Reports, ruling.name()), &hidden, (text, &about));
        let change = RulingChange::Set { subject, ruling, reason: reason.clone(), until_s };
        let method = changing_method(&change);
        method.map_or(view.may_all(), |method| view.may(method)).then_some(button)
    };
    let author = item.author.map(RulingSubject::Key);
    let of_author = author.and_then(|author| button(&author, Ruling::Ban, "Ban author"));
    let (ban, allow) = match &item.subject {
        ReportedSubject::Event(_) => ("Ban event", "Allow event"),
        ReportedSubject::Key(_) => ("Ban key", "Allow key"),
    };
    let acts = html!(
        "{}{}{}",
        button(&subject, Ruling::Ban, ban),
        of_author,
        button(&subject, Ruling::Allow, allow)
    );
    let reporters = count(item.reporters.len() as u64, "reporter");
    [
        cell("reported", &about),
        cell("reports", &html!("{}<br><small>{}</small>", reporters, item.reason())),
        cell("newest", &html!("{}", moment(item.latest_s))),
        html!("<td class=\"acts\">{}</td>", acts),
    ]
    .into_iter()
    .collect()
}
