//! The audit log, with the rows of `hark log`.

use serde_json::Value;

use super::view::{AdminPage, AdminView, cell, long_id, next_link, options, table};
use crate::blocking;
use crate::nostr::html::{Html, html};
use crate::nostr::manage::fault::ManageFault;
use crate::words::{cut, moment};

/// Maximum number of rows of a page.
const ROWS_MAX: usize = 100;
/// Maximum number of characters of a state that are shown.
const STATE_CHARS_MAX: usize = 300;
/// The choices of how far back the log is shown: the value of the field in days, and its name.
const AGES: [(&str, &str); 4] =
    [("", "all"), ("1", "the last day"), ("7", "the last 7 days"), ("30", "the last 30 days")];

pub(super) async fn page(view: &AdminView<'_>) -> Result<Html, ManageFault> {
    let days = view.asked.get("days").to_owned();
    let age_s = days.parse::<u64>().ok().map(|days| days.saturating_mul(86_400));
    let since_s = age_s.map_or(0, |age_s| view.relay.shelf.clock().now_s().saturating_sub(age_s));
    let after = view.asked.filled("after").map(str::to_owned);
    let moderation = view.relay.moderation.clone();
    let read = blocking::run(move || moderation.log(since_s, after.as_deref(), ROWS_MAX));
    let page = read.await.map_err(|_| ManageFault::Stopping)??;
    let rows: Vec<Html> = page
        .notes
        .iter()
        .map(|note| {
            let row: [Html; 5] = [
                cell("time", &html!("{}", moment(note.at_ns / 1_000_000_000))),
                cell("who", &long_id(&note.by)),
                cell("act", &html!("<span class=\"tag\">{}</span>", note.act)),
                cell("subject", &long_id(&note.subject)),
                cell("state", &states(&note.before, &note.after)),
            ];
            row.into_iter().collect()
        })
        .collect();
    let next =
        page.next.map(|after| view.url(AdminPage::Log, &[("days", &days), ("after", &after)]));
    Ok(html!(
        "<form class=\"choice\" method=\"get\">\n<label>Acts of <select name=\"days\">{}</select></label>\n\
         <button>Show</button></form>\n{}{}",
        options(&AGES, &days),
        table(
            "Acts, newest first",
            &["time", "who", "act", "subject", "state"],
            &rows,
            "There are no acts."
        ),
        next_link(next)
    ))
}

/// The states before and after an act.
fn states(before: &Value, after: &Value) -> Html {
    let before = state(before).map(|text| html!("<small>before: {}</small>", text));
    let after = state(after).map(|text| html!("{}<br>", text));
    html!("{}{}", after, before)
}

/// Returns the state of a subject as text. `None` if there is no state.
fn state(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            // The maker of an entry is in the row of the act that made the entry.
            let shown = fields.iter().filter(|(name, value)| {
                let is_empty = value.is_null() || value.as_str().is_some_and(str::is_empty);
                !is_empty && *name != "by"
            });
            let shown = shown.map(|(name, value)| match (name.as_str(), value) {
                ("until", value) => format!("until {}", moment(value.as_u64().unwrap_or_default())),
                (name, Value::String(text)) => format!("{name}: {text}"),
                (name, value) => format!("{name}: {value}"),
            });
            shown.collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    };
    Some(cut(&text, STATE_CHARS_MAX)).filter(|text| !text.is_empty())
}
